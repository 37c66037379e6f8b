"""Logs with columns of their own: their mapping, and a proposal of a mapping."""
