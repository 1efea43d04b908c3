"""The built-in engine: it samples with the weights that the trainer holds."""
