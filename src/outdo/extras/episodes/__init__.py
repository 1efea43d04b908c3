"""Environments of several turns: a class in the user's code, or in the form of another library."""
