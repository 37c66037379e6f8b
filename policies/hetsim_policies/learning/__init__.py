"""Policies that run what was learned (`hetsim train`).

From a file:
    learned            A policy that was learned: `hetsim train` made it, and here it runs, in NumPy alone
    learned_admission  An admission that was learned: `hetsim train --decides admission` made it, and here it runs, in
                       NumPy alone
"""
