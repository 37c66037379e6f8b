"""The one way of a launch: start, boundaries, end, stop."""
