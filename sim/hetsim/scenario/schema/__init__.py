"""Models of every part of a scenario file, also for `hetsim schema`."""
