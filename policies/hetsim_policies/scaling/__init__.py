"""Policies that decide how many replicas a service has.

Replicas:
    scalers  Scaling: the number of replicas of a service, by its counters or by forecast
"""
