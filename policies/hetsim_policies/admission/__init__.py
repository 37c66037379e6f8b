"""Policies that decide which tasks may wait, one algorithm a file.

Everything, and simple limits:
    accept_all             Everything may wait
    queue_limit            A limit on how many wait: globally, for each class, for each type of device
    token_bucket           A token bucket: `rate` admissions a second in the long run, at most `burst` at once
    utilization_threshold  A threshold on utilization: no admission while a device type is at or above it
    trunk_reservation      Trunk reservation: a class is admitted only while more servers are free than are kept for
                           others

By the wait to come:
    predicted_wait         Predicted wait: a task may wait if the work ahead on its best mode fits a limit, or its
                           deadline
    slo_feasible           SLO feasibility: only what can still meet its deadline, in any of its modes, given the work
                           or the batches ahead
    redirect               Redirect: a task that would be late on its best device is sent to the CPU or a slower GPU,
                           if it is in time there
    erlang_wait            Erlang wait: by Erlang's formula, at most a share p waits longer than a target
    adaptive               Adaptive: a limit on the predicted wait that moves until the wanted share of admitted tasks
                           is in time
    codel                  CoDel, controlled delay: refuse now and then, ever more often, while the head of the queue
                           stays older than a target

By gain and cost:
    naor                   Naor's thresholds: individual, social or revenue-maximizing limits on queues
    mdp_threshold          An optimal admission of several classes: rewards for answers, costs of holding, by a Markov
                           decision process
"""
