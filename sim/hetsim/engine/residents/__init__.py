"""Replicas of services: they occupy devices, load a model, serve, and are stopped."""
