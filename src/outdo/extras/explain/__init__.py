"""What an objective does to one token: its gradient, its bounds, and where it stops."""
