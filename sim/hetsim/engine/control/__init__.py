"""Events of a run: arrivals, decisions, ends, interrupts, faults."""
