"""Models of all parts of a scenario file; `hetsim schema` prints their schema."""
