"""The forward pass of a model in one of two ways: each group's prompt shared and nothing padded, or all rows padded."""
