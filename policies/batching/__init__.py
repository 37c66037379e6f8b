"""Batching policies: how many of a service's waiting requests are launched together, and when."""
