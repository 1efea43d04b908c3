"""What a recipe or a command has to name. Each folder may be deleted: the rest of outdo works without it."""
