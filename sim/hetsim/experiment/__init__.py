"""Experiments: functions that run, replicate, compare and sweep scenarios."""
