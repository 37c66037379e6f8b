"""Policies that decide which tasks are admitted, a family of algorithms per file.

Without estimates:
    limits     No limit, or limits that use no estimates

By measured load:
    feedback   Admission by measured load: response times, time in the queue, tasks per server

By estimates:
    predicted  Admission by the wait that estimates predict for a new task
    stations   Admission with a queueing model of the devices of a type
"""
