"""What a checkpoint holds, how it is written, and how a run goes on from it."""
