"""Policies that form batches of a service's requests, one family per file.

Simple rules:
    fixed_rules   Batches by fixed rules: all waiting requests, a size, a timeout, or all of these

By a model of queue or deadline:
    bulk_queue    Batch sizes from a model of the queue: Poisson arrivals, served in bulk
    clipper       The two rules of Clipper: a limit of the batch size follows measured times
    deadlines     Batches by deadlines: no larger than what ends in time
    async_linear  Asynchronous linear: upload the next batch just before the current compute ends

Language models:
    continuous    Continuous batching: requests join and leave between steps of a language model
"""
