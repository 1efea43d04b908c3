"""Several processes for one run: workers that share the weights, replicas with DDP or FSDP2, and machines under Ray."""
