"""What a run leaves on disk: the run folder and its checkpoints."""
