"""Which replica of a service serves a request."""
