"""Policies that run what was learned (`hetsim train`).

From a file:
    learned  Policies that `hetsim train` learned, run in NumPy alone
"""
