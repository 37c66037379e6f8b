"""Many runs: replications, comparisons and sweeps, with their statistics."""
