"""Room: step times from measured kernels, and their intervals."""
