"""Environments turn questions into finished, scored episodes."""
