"""Policies of how many replicas a service has.

Replicas:
    scalers  The number of replicas of a service, by its counters or by forecast
"""
