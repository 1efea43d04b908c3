"""Data: files of questions, the questions in them, prompts in token ids, and their order."""
