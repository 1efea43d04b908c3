"""Objectives with target probabilities: `target`, from an essay on GRPO, and `tpo`."""
