"""What a step did: its metrics."""
