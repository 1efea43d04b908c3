"""Limits of the engines, in a module that needs no torch, so that costs can be estimated from them."""

SEQUENCES_AT_A_TIME = 256
"""How many sequences the built-in engine samples at a time in each process."""
