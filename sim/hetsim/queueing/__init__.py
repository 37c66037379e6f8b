"""Matches scenarios to known queueing models, and returns their predictions."""
