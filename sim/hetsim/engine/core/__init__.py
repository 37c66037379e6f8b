"""The state of a run, its record, its rounds, and the errors of its policies."""
