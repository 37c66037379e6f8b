"""Sources of tasks, and queues of requests."""
