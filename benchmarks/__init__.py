"""Measurements, never tests: `python -m benchmarks.engine`."""
