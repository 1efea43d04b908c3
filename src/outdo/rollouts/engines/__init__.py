"""Engines sample completions of requests."""
