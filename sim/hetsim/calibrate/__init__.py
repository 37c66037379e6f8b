"""Calibration: measure a device, fit its batch times, and check them under load."""
