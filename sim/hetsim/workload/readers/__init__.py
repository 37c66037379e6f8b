"""Readers of traces and task tables, one file per format."""
