"""Policies that run what was learned (`hetsim train`).

From a file:
    learned            A learned scheduler: `hetsim train` makes it; here it runs, in NumPy alone
    learned_admission  A learned admission, made by `hetsim train --decides admission`; NumPy alone
"""
