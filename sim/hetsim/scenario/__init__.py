"""Scenario files: from YAML to a validated `Scenario`, and from there to the input of a run."""
