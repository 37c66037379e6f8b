"""One run: its tables, its metrics, and why they are as they are."""
