"""Faster ways to compute what `outdo.models.forward` computes plainly. Without this folder runs are slower."""
