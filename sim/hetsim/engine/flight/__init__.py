"""Launches in flight: stage times, transfers, rates, and locations of their data."""
