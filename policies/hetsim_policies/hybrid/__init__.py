"""Policies that plan and decide: plans that are followed, repaired or made anew while the clock runs.

Plans:
    semi_static      A plan for what is known and long, and a queue for the rest, which fills the gaps of the plan
    plan_and_repair  A plan that is followed as long as it holds, and repaired when it does not
    dada             Distributed affinity dual approximation (DADA): ready tasks go where their data are, as far as
                     that is balanced

Looking ahead:
    rollout          Rollout: before another scheduler goes on, its first decision is tried against others, by playing
                     each to the end
    mpc              Model predictive control: periodic plans of waiting tasks, followed if better

Groups and scaling:
    hierarchical     Two levels: a coarse plan hands classes of tasks to groups of devices, a scheduler in each group
                     does the rest
    predictive       Predictive: forecasts of the load decide how many devices are awake, and how many are kept free
                     for a peak
"""
