"""What a log shows: its contents, why its jobs waited, and a scenario made of it."""
