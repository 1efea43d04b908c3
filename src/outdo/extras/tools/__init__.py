"""The environment that is a list of tools: functions in the user's code, and those that outdo has."""
