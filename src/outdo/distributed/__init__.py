"""Several processes for one run: replicas with DDP or FSDP2, and machines under Ray."""
