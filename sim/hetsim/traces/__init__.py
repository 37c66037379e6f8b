"""Contents of a log, why its jobs waited, and a scenario made from the log."""
