"""Sources of load: arrival processes, sizes, cost models, traces."""
