"""Fine-tune a model on given answers, before reinforcement learning."""
