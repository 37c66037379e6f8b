"""Models of every part of a scenario file: what is validated, and what `hetsim schema` prints."""
