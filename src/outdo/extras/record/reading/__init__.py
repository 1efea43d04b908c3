"""What do the answers read? How much an answer depends on each word of its question."""
