"""Readers of traces and task tables, one format a file."""
