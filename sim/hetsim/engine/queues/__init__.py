"""Where tasks come from, and queues of requests."""
