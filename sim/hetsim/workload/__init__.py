"""Where load comes from: arrival processes, sizes, cost models, traces."""
