"""Build the pieces of a run from its recipe, on the hardware that is there."""
