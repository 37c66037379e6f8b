"""Policies of replicas: routing of requests, and eviction of models.

Replicas:
    evictions  The model that makes room for another on a node
    routers  The replica of a language model that serves a request
"""
