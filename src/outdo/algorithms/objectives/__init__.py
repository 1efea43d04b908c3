"""Objectives. `presets` has the named methods, each one expression of the pieces in the other files."""
