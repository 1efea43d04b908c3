"""`make gpu`: does outdo compute on a GPU what it computes on a processor, and how fast? The table of `docs/gpu.md`."""
