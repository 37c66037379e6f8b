"""Language models: requests, replicas and their steps."""
