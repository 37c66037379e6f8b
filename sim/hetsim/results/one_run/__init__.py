"""Results of one run: its tables, metrics and explanations."""
