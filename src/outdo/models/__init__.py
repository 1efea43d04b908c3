"""Models and their training: policy, critic, reference, optimiser, log-probabilities, attention, loading."""
