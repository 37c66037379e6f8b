"""Policies that decide while the clock runs, one algorithm a file.

One-line orders are in `hetsim_policies.orders`.

Orders of a queue:
    fcfs_skip              First come, first served, but whatever fits may pass what does not
    edf                    Earliest deadline first: nearest deadline goes first, tasks without one last
    priority               Priority: the highest priority goes first, with optional aging and preemption
    random                 Random order: each task draws a number when ready; the lowest goes first
    qssf                   Quasi-shortest service first: the minimum predicted GPU time goes first
    waited                 Orders by how long a task has waited for its size: `wfp3` and `unicep`
    round_robin            Round robin: a task runs for a quantum, then joins the tail of the queue
    processor_sharing      Processor sharing: start all at once, each where it would end first

Backfilling and batch systems:
    easy_backfill          EASY backfilling: the head has a reservation; tasks that cannot delay it pass
    conservative_backfill  Conservative backfilling: all waiting tasks have reservations; none is delayed
    gang_backfill          Gang backfilling: gangs of whole nodes have reservations, others fill in
    slurm_multifactor      Slurm's multifactor priority with backfilling: weighted factors, reservations
    as_recorded            As recorded: each task starts when and where its trace says that it started

Preemption by service received:
    las                    Least attained service, discretized into a few queues; the least goes first
    srtf                   Shortest remaining time first, by estimate, with preemption
    tiresias               Tiresias with known sizes: queues of attained service, ranked by Gittins index

Shares among users:
    drf                    Dominant resource fairness: the user with the least dominant share goes first
    wfq                    Weighted fair queueing: users share the cluster in proportion to their weights
    quota_borrow           Quotas with borrowing: users own GPUs, lend idle ones, and take them back
    isolated               Isolated: every job has an equal share of every type of device
    themis                 Themis: finish-time fairness, by giving GPUs to the job treated worst so far

Shares over time, by programs:
    max_min_fairness       Max-min fairness over time fractions, relative to an equal share
    finish_time_fairness   Finish-time fairness over time fractions: minimize the worst finish-time ratio
    max_throughput         Maximum throughput over time fractions, or per cost, with deadlines kept
    min_makespan           Minimum makespan over time fractions, for all jobs that are there now
    allox                  AlloX: match jobs to devices and queue positions for the minimum mean response

Widths of elastic jobs:
    afs                    Apathetic future share: GPUs for short jobs, or where both jobs profit more
    optimus                Optimus: the next GPU goes to the job with the greatest cut in remaining time
    pollux                 Pollux: a genetic search for the GPUs and nodes of jobs, by mean speedup
    speedup_mean           The fairest mean of speedups: the objective of Pollux, with greedy sizes
    las_intervals          Least attained service at fixed intervals: gangs in a few queues, on any nodes
    optimus_intervals      Optimus at fixed intervals: each GPU to the job with most remaining time saved
    fcfs_rounds            First come, first served in rounds: the first jobs have the best devices

Unlike devices, and data:
    eft                    Earliest finish time, online: each task to the device where it would end first
    dmda                   Deque model data aware (`dmda` of StarPU): each task to the earliest worker
    dmdas                  Deque model data aware sorted (`dmdas` of StarPU): `dmda`, lines by priority
    lws                    Locality work stealing (`lws` of StarPU): idle workers take from neighbors
    heteroprio             HeteroPrio: accelerators take the task of most gain, cores that of least gain
    er_ls                  ER-LS, online list scheduling by enhanced rules: CPUs or GPUs, once and for all
    multi_generation       Several generations: newer devices to jobs that gain most, within a budget

GPUs shared or packed:
    gandiva                Gandiva, simplified: pack jobs in pairs by trial, and undo pairs that lose
    sharing                Sharing: join another job on its GPU where that shortens the mean response
    similarity             Similarity: jobs of a similar profile are placed together, or apart
    tetris                 Multi-resource packing: the task best aligned to the free resources goes first
    defragment             Defragmentation by migration: move running tasks so that the oldest task fits

Energy:
    power_down             Power down: idle accelerators sleep and wake on demand, or by forecast
"""
