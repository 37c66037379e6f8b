"""The state of a run, its record, its decision rounds, and policy errors."""
