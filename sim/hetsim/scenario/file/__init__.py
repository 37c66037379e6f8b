"""Scenario files as text and plain data: reading, overriding, and sentences about what is wrong."""
