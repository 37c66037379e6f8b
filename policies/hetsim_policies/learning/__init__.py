"""Policies that run a network which `hetsim train` has trained.

From a file:
    learned  Policies that `hetsim train` learned, run in NumPy alone
"""
