"""What happens: arrivals, decisions, ends, interrupts, faults."""
