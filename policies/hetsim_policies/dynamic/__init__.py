"""Policies that decide while the clock runs, one family of algorithms per file.

One-line orders are in `hetsim_policies.orders`.

Orders of a queue:
    preemptive         Orders of a queue in which a head that does not fit may stop running tasks
    waited             Orders by how long a task has waited for its size: `wfp3` and `unicep`
    qssf               Quasi-shortest service first: the minimum predicted GPU time first
    adaptive_lifo      Adaptive LIFO: oldest first, but newest first while the queue is long
    turns              Devices in turn: quanta, leases, or all tasks simultaneously

Backfilling and batch systems:
    backfilling        Backfilling: reservations for the head, for all waiting tasks, or for gangs
    slurm_multifactor  Slurm's multifactor priority with backfilling: weighted factors, reservations
    as_recorded        As recorded: each task starts when and where its trace says that it started
    external           A scheduler in another process and any language, by the protocol of Batsim

Shares:
    users              Shares among users, by weights or by quotas
    kueue              Kueue: quotas by flavor in a tree of cohorts, with borrowing, preemption and fair sharing
    time_fractions     Shares of time, realized in rounds: fixed, or from linear programs

Widths of elastic jobs:
    elastic            Elastic jobs: sizes that grow and shrink, by the gain of the next step
    intervals          Gangs and elastic jobs whose GPUs are allocated at fixed intervals

Unlike devices, and data:
    earliest           Each task once to one device queue: where it ends first, or by rules
    lws                Locality work stealing (`lws` of StarPU): idle workers take neighbors' tasks
    heteroprio         HeteroPrio: accelerators take the task of most gain, cores that of least gain
    unlike             Jobs on the device types that suit them: by matching, or within a budget

GPUs shared or packed:
    sharing            Two jobs on one GPU: by a table of slowdowns, or by trial
    packing            Schedulers for shared nodes: by demand, by similar jobs, or with migration

Energy:
    power_down         Power down: idle accelerators sleep and wake on demand, or by forecast
"""
