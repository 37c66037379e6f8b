"""The site behind a recorded log: load, waits, limits, history."""
