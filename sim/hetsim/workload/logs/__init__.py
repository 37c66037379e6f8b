"""Inference from a recorded log: load, waits, limits, history."""
