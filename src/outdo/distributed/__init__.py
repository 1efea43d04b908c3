"""Several processes that share the weights of a model: none of it runs with `workers = 1`."""
