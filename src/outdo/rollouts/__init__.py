"""Rollouts: engines sample completions, environments turn them into scored rollouts."""
