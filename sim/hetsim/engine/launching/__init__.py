"""Launches from start to end: start, boundaries between stages, completion, stop."""
