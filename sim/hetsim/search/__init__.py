"""Searches for the minimum cluster size, and for the best policy parameters."""
