"""A trained model for use elsewhere: found, written, and described."""
