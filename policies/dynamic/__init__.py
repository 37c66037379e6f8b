"""Policies that decide while the clock runs, one algorithm a file; one-line orders are in `policies.orders`."""
