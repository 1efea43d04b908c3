"""`outdo quickstart`: SmolLM2 learns to write sentences; small models learn sums, tools, games or programs."""
