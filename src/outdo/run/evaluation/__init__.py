"""Held-out questions: when they are answered, and what the run keeps of it."""
