"""Experiments: scenarios run once, replicated, compared and swept."""
