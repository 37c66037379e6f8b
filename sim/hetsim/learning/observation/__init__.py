"""Observations: the window of waiting tasks, the system, and observations by name."""
