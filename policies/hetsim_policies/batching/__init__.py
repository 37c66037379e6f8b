"""Policies that form batches of a service's requests, a family a file.

Simple rules:
    fixed_rules   Batches by fixed rules: all that waits, a size, a time, or all of these

By a model of queue or deadline:
    bulk_queue    Batch sizes from a model of the queue: Poisson arrivals, served in bulk
    clipper       The two rules of Clipper: a limit of the batch size follows measured times
    deadlines     Batches by their deadlines: no larger than what ends in time
    async_linear  Asynchronous linear: upload the next batch just in time, behind the current

Language models:
    continuous    Continuous batching: requests join and leave between steps of a language model
"""
