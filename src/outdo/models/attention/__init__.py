"""One model, two ways to run it: the group's prompt shared and nothing padded, or padded as the model's authors did."""
