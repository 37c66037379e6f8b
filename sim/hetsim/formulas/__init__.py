"""Closed-form formulas that runs and plans use: shared links, collectives, training."""
