"""A faster way to sample than `outdo.rollouts.engines.static_batching`. Without this folder runs are slower."""
