"""The clock, and random numbers drawn in blocks."""
