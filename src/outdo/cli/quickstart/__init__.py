"""The first job: a small model, made here, learns to add with a written working and then improves itself."""
