"""Environments that are agents: they call the policy over HTTP, as they call any model."""
