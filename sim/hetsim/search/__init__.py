"""Searches for the size of a cluster and for parameters of a policy."""
