"""Training on a scenario, and parts for other libraries."""
