"""Measure what a training step did to every token, and write it to disk."""
