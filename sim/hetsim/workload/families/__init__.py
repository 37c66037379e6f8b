"""Families of arrivals and of distributions, which the core loads by name."""
