"""Advantages, objectives and stopping rules: pure functions on tensors. Nothing here imports more than torch."""
