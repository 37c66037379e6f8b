"""Policies that plan and decide: plans that are followed, repaired or renewed.

Plans:
    semi_static      A plan for long, predictable tasks, and a queue of other tasks, which fill gaps
    plan_and_repair  A plan that is followed while it is valid, and repaired when it is not
    dada             Distributed affinity dual approximation: tasks near their data, if balanced

Looking ahead:
    ahead            A scheduler that tries decisions in forks of the run, around a base

Groups and scaling:
    hierarchical     Two levels: a coarse plan of classes over groups, a scheduler in each group
    predictive       Predictive: forecasts of the load decide how many devices are awake or reserved
"""
