"""`outdo quickstart`: SmolLM2 learns to write sentences; a small model learns sums."""
