"""Which known queueing model a scenario is, and what that model predicts."""
