"""Placements that score nodes and GPUs; the shortest stand in `policies.placements`."""
