"""Environments turn prompts into finished, scored rollouts."""
