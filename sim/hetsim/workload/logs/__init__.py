"""What a recorded log tells of its site: load, waits, limits, history."""
