"""Scenario files as text and plain data: reading, overriding, and problems."""
