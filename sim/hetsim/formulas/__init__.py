"""Formulas that runs and plans use: links, collectives, training, pipelines."""
