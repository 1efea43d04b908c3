"""Files that outdo never opens: a pickle can run any code when it is loaded."""

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"})
