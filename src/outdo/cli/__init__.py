"""What the commands do that are more than a call: one file each, its arguments already read."""
