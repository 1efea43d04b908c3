"""Trackers: Weights & Biases, TensorBoard, Trackio, MLflow, and the user's own functions, each in its own process."""
