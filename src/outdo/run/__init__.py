"""A run made from a recipe: check it, assemble it, train, evaluate."""
