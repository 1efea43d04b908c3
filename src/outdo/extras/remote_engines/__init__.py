"""Engines with a copy of the weights: each delivery is proved, and an engine that is lost is restarted."""
