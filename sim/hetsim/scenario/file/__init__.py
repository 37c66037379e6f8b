"""Scenario files as text and plain data: reading, overrides, and problems."""
