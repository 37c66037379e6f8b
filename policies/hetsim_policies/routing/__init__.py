"""Policies that choose the replica of a language model for a request.

Replicas:
    routers  The replica of a language model that serves a request
"""
