"""Results of many runs: replications, comparisons and sweeps, with statistics."""
