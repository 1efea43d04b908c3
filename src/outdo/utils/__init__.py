"""Small helpers that know nothing about training."""
