"""Logs with a user's own columns: which column means what, and a proposal for it."""
