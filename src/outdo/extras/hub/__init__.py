"""Data sets from the Hugging Face Hub, and uploads to it."""
