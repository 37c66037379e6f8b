"""Policies that choose the replica of a language model for a request.

Replicas:
    least_outstanding  Least outstanding: the replica with the fewest requests that have not ended
    power_of_two       Power of two choices: of two replicas drawn at random the one with fewer requests
    prefix_affinity    Prefix affinity: the replica that already holds most of the prompt, unless it is much busier
                       than the others
    round_robin        Round robin: the replicas take turns
"""
