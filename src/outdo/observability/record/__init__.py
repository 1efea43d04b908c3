"""What a training step did to every token: measured, put into words, and written down."""
