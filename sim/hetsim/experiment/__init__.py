"""Experiments: scenarios run once, replicated, compared, swept, tuned and sized."""
