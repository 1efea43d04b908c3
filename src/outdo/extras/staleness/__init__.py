"""Asynchronous sampling: batches are sampled before the weights that train them exist, whole or in parts."""
