"""Policies that decide while the clock runs, one algorithm a file; one-line orders are in `hetsim_policies.orders`.

Orders of a queue:
    fcfs_skip              First come, first served, but whatever fits may pass what does not
    edf                    Earliest deadline first: nearest deadline goes first, tasks without one last
    priority               Priority: the waiting task of the highest priority goes first, with aging and preemption if
                           wanted
    random                 Random order: every waiting task draws a number when it becomes ready, and the least goes
                           first
    qssf                   Quasi-shortest service first: the job with the least predicted GPU time goes first
    waited                 Orders by how long a task has waited for its size: `wfp3` and `unicep`
    round_robin            Round robin: a task runs for a quantum, then joins the tail of the queue
    processor_sharing      Processor sharing: everything starts at once, on the device where it would end first as
                           things stand

Backfilling and batch systems:
    easy_backfill          EASY backfilling: the head has a reservation; tasks that cannot delay it pass
    conservative_backfill  Conservative backfilling: all waiting tasks have reservations; none is delayed
    gang_backfill          Gang backfilling: gangs that need whole nodes have reservations on them; what is smaller
                           fills in around
    slurm_multifactor      Slurm's multifactor priority with backfilling: many weighted reasons, and reservations for
                           the first few
    as_recorded            What really happened: every task starts when its trace says that it started, on the node
                           that the trace names

Preemption by service received:
    las                    Least attained service, discretized into a few queues; the least goes first
    srtf                   Shortest remaining time first: the task with the least estimated time left runs, by
                           preemption if need be
    tiresias               Tiresias with a known distribution of sizes: queues of attained service, ranked by their
                           Gittins index

Shares among users:
    drf                    Dominant resource fairness: the user with the least dominant share goes first
    wfq                    Weighted fair queueing: users share the cluster in proportion to their weights
    quota_borrow           Quotas with borrowing: every user (virtual cluster) owns some GPUs, lends what lies idle,
                           and takes it back
    isolated               Isolated: every job has an equal share of every type of device, as if it owned that part of
                           the cluster
    themis                 Themis: finish-time fairness, by giving GPUs to the job treated worst so far

Shares over time, by programs:
    max_min_fairness       Max-min fairness over time fractions: the job that is worst off against an equal share gets
                           as much as possible
    finish_time_fairness   Finish-time fairness over time fractions: minimize the worst finish-time ratio
    max_throughput         Most throughput over time fractions, or most per cost, with deadlines kept where that is
                           possible
    min_makespan           Least makespan over time fractions: all that is there now should be done as early as
                           possible
    allox                  AlloX: jobs matched to devices and to places in their queues, so that the mean response is
                           least

Widths of elastic jobs:
    afs                    Apathetic future share: GPUs go to short jobs, unless a longer one uses them so much better
                           that both profit
    optimus                Optimus: the next GPU goes to the job with the greatest cut in remaining time
    pollux                 Pollux: a genetic search for the GPUs, and nodes, of all elastic jobs that make the fairest
                           mean of their speedups
    speedup_mean           The fairest mean of speedups over all jobs: the objective of Pollux, with sizes that grow
                           greedily
    las_intervals          Least attained service at fixed intervals: gangs in a few queues, over any nodes
    optimus_intervals      Optimus at fixed intervals: each GPU to the job with most remaining time saved
    fcfs_rounds            First come, first served in rounds: the jobs that came first have the best devices, which
                           are dealt out anew

Unlike devices, and data:
    eft                    Earliest finish time, online: each task, once ready, goes for good to the device on which
                           it would end first
    dmda                   Deque model data aware (`dmda` of StarPU): each task, once ready, goes to the worker where
                           it would end first
    dmdas                  Deque model data aware sorted (`dmdas` of StarPU): as `dmda`, with the lines sorted by
                           priority
    lws                    Locality work stealing (`lws` of StarPU): idle workers take from neighbors
    heteroprio             HeteroPrio: accelerators take the task that gains most from them, cores the one that gains
                           least
    er_ls                  ER-LS, online list scheduling by the enhanced rules: each task goes for good to the CPUs or
                           to the GPUs
    multi_generation       Several generations: which job profits from the newer device, at an energy or cost that
                           stays within bounds

GPUs shared or packed:
    gandiva                Gandiva, simplified: when GPUs run short jobs are packed in pairs by trial, and pairs that
                           do not pay are undone
    sharing                Sharing: a job joins another on its GPU only where that shortens the mean response, by a
                           table of interference
    similarity             Similarity: jobs of a similar profile are placed together, or apart
    tetris                 Multi-resource packing: the task best aligned to the free resources goes first
    defragment             Defragmentation by migration: running tasks move together so that the oldest waiting task
                           fits on one node

Energy:
    power_down             Power down: accelerators that stand idle sleep, and wake when they are needed; by forecast
                           a few are kept awake
"""
