"""Experiments: a scenario run once, replicated, or under several policies that meet the same load."""
