"""Room: times of steps from measured kernels, their intervals, and what they cover."""
