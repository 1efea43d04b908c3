"""Convert a configuration of another library into a recipe: TRL, verl and OpenRLHF."""
