"""Objectives with target probabilities: the essay's `target`, and `tpo`."""
