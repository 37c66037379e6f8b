"""A twin of a live cluster: forecasts of its waiting jobs, and their quality."""
