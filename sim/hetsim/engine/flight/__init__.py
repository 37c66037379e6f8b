"""Launches in flight: timetables, transfers, rates, and locations of their data."""
