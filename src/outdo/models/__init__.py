"""Everything with weights: policy, critic, reference, optimiser, and how their log-probabilities are computed."""
