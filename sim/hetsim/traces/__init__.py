"""The contents of a log, why its jobs waited, and a scenario made of it."""
