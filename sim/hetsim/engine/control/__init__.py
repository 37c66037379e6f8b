"""Events of a run: arrivals, decisions, completions, interruptions, faults."""
