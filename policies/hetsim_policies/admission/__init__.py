"""Policies that decide which tasks may wait, one family of algorithms a file.

Without estimates:
    limits     Everything may wait, or as much as limits allow that know no estimates

By measured load:
    feedback   Admission by measured load: response times, time in the queue, tasks a server

By estimates:
    predicted  Admission by the wait that estimates predict for a newcomer
    stations   Admission by a model of the queue before the devices of a type
"""
