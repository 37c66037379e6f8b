"""Policies that decide which arrivals may wait at all, one algorithm a file."""
