"""Scenario files: from YAML to a validated `Scenario` and the input of a run."""
