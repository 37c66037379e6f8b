"""Training on a scenario, and the parts for other libraries."""
