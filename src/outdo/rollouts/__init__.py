"""How answers are made: engines sample completions, environments make scored rollouts of them."""
