"""The reward `judge`: another model, behind an OpenAI-compatible endpoint, says how good answers are."""
