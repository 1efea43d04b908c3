"""A run made from a recipe: check it, build it, train, evaluate."""
