"""Advantages, objectives and stopping rules: pure functions on tensors. They import torch and jaxtyping only."""
