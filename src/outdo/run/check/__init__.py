"""What is wrong with a recipe, and what it will need, before a model loads."""
