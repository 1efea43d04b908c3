"""The tasks of reasoning-gym: their questions, and the rewards of their answers."""
