"""Families of arrival processes and distributions, which the core loads by name."""
