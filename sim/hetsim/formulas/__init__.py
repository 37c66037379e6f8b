"""Closed-form formulas of runs and plans: shared links, collectives, training."""
