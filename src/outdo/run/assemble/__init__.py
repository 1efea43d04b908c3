"""Assemble the objects of a run from its recipe, for the hardware that is there."""
