"""A twin of a live cluster: forecasts of its waiting jobs from a snapshot and its history, and how they held."""
