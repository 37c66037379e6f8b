"""Policies of replicas: routing of requests, and eviction of models.

Replicas:
    evictions  Eviction: the choice of the model that makes room for another on a node
    routers  Routing: the choice of the replica that serves a request to a language model
"""
