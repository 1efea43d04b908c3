"""The recipe: its settings, the names of pieces, how it is read, and why it is refused."""
