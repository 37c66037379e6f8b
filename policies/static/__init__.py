"""Policies that plan before the clock starts, one algorithm a file."""
