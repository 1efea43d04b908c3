"""Agents that exist already call the policy through an OpenAI-compatible endpoint, which keeps the exact tokens."""
