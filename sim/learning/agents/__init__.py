"""Agents in NumPy, the files they are kept in, and their practice."""
