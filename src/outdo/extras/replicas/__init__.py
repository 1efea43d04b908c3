"""Several processes that train the same policy, each on its part of a batch."""
