"""The policies that ship, by kind and name; each is loaded when it is used.

`sim.registry` reads this table and adds what other packages register.  A scheduler is a class, or a key function
that the list scheduler orders its queue by; a placement is a rule `(task, view) -> Placement | None`, or a class
whose objects are such rules.
"""

CATALOGUE: dict[str, dict[str, str]] = {
    "scheduler": {
        "balanced_makespan": "policies.static.balanced_makespan:BalancedMakespan",
        "clb2c": "policies.static.clb2c:Clb2c",
        "dual_approximation": "policies.static.dual_approximation:DualApproximation",
        "edf": "policies.dynamic.edf:Edf",
        "fcfs": "policies.orders:fcfs",
        "fcfs_skip": "policies.dynamic.fcfs_skip:FcfsSkip",
        "graham": "policies.static.graham:Graham",
        "greedy_dual": "policies.static.greedy_dual:GreedyDual",
        "heft": "policies.static.heft:Heft",
        "largest_first": "policies.orders:largest_first",
        "lcfs": "policies.orders:lcfs",
        "ljf": "policies.orders:ljf",
        "max_min": "policies.static.max_min:MaxMin",
        "mct": "policies.static.mct:Mct",
        "min_min": "policies.static.min_min:MinMin",
        "priority": "policies.dynamic.priority:Priority",
        "processor_sharing": "policies.dynamic.processor_sharing:ProcessorSharing",
        "random": "policies.dynamic.random:RandomOrder",
        "replay": "policies.static.replay:Replay",
        "round_robin": "policies.dynamic.round_robin:RoundRobin",
        "sjf": "policies.orders:sjf",
        "smallest_first": "policies.orders:smallest_first",
        "srtf": "policies.dynamic.srtf:Srtf",
        "sufferage": "policies.static.sufferage:Sufferage",
        "wspt": "policies.orders:wspt",
    },
    "placement": {
        "best_fit": "policies.placements:best_fit",
        "earliest_finish": "policies.placements:EarliestFinish",
        "fastest_device": "policies.placements:fastest_device",
        "first_fit": "policies.placements:first_fit",
        "worst_fit": "policies.placements:worst_fit",
    },
    "admission": {
        "accept_all": "policies.admission.accept_all:AcceptAll",
    },
}
