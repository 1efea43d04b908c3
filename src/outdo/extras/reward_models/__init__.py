"""Reward models: trained on preferences, kept as they are in a run, or trained along with the policy."""
