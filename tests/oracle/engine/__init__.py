"""The engine: SimPy keeps the time, everything hot is a callback on an event of its own heap."""
