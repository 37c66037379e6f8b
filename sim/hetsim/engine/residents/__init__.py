"""Replicas of services of any kind: they take devices, load, serve and stay."""
