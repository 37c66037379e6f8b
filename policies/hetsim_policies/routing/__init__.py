"""Policies that choose the replica of a language model for a request.

Replicas:
    least_outstanding  Least outstanding: the replica with the fewest requests that have not ended
    power_of_two       Power of two choices: the less loaded of two replicas drawn at random
    prefix_affinity    Prefix affinity: the replica with most of the prompt, unless it is overloaded
    round_robin        Round robin: the replicas take turns
"""
