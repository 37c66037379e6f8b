"""Policies that decide which tasks may wait, one algorithm a file.

Everything, and simple limits:
    accept_all             Everything may wait
    queue_limit            A limit on how many wait: globally, for each class, for each type of device
    token_bucket           A token bucket: `rate` admissions a second on average, at most `burst` at once
    utilization_threshold  A threshold on utilization: no admission while a device type is at or above it
    trunk_reservation      Trunk reservation: a class needs more free servers than are kept for others

By the wait to come:
    predicted_wait         Predicted wait: the work ahead on the best mode must fit a limit or deadline
    slo_feasible           SLO feasibility: admit only tasks that can still meet their deadline in a mode
    redirect               Redirect: a task late on its best device goes to a slower one that is in time
    erlang_wait            Erlang wait: a newcomer waits longer than a target with probability p at most
    adaptive               Adaptive: a limit on the predicted wait that follows the share met in time
    codel                  CoDel, controlled delay: refuse more and more often while the queue stays old

By gain and cost:
    naor                   Naor's thresholds: individual, social or revenue-maximizing limits on queues
    mdp_threshold          Optimal admission of several classes, by a Markov decision process
"""
