"""Logs with columns of their own: how they are mapped, and a proposal of the mapping."""
