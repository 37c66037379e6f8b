"""The shipped policies, by kind and name; a module is imported when it is used.

`hetsim.registry` reads this table and adds what other packages register.  A scheduler is a class, or a key function
by which the list scheduler orders its queue; a placement is a rule `(task, view) -> Placement | None`, or a class
whose instances are such rules.
"""

import re

MODULES: dict[str, str] = {
    "scheduler": """
        dynamic.adaptive_lifo: AdaptiveLifo
        dynamic.as_recorded: AsRecorded
        dynamic.backfilling: ConservativeBackfill EasyBackfill GangBackfill
        dynamic.earliest: Dmda Dmdas Eft ErLs
        dynamic.elastic: Afs Optimus SpeedupMean
        dynamic.external: External
        dynamic.heteroprio: heteroprio=HeteroPrio
        dynamic.kueue: Kueue
        dynamic.intervals: LasIntervals OptimusIntervals Pollux
        dynamic.lws: Lws
        dynamic.packing: Defragment Similarity Tetris
        dynamic.power_down: PowerDown
        dynamic.preemptive: Edf Las Priority Srtf Tiresias
        dynamic.qssf: Qssf
        dynamic.sharing: Gandiva sharing=SharingByTable
        dynamic.slurm_multifactor: SlurmMultifactor
        dynamic.time_fractions: FcfsRounds FinishTimeFairness Isolated MaxMinFairness MaxThroughput MinMakespan
        dynamic.turns: ProcessorSharing RoundRobin Themis
        dynamic.unlike: allox=AlloX MultiGeneration
        dynamic.users: Drf QuotaBorrow Wfq
        dynamic.waited: Unicep Wfp3
        hybrid.ahead: Rollout
        hybrid.dada: Dada
        hybrid.hierarchical: Hierarchical
        hybrid.plan_and_repair: PlanAndRepair
        hybrid.predictive: Predictive
        hybrid.semi_static: SemiStatic
        learning.learned: Learned
        orders: f1 fcfs FcfsSkip largest_first lcfs ljf random=RandomOrder saf sjf smallest_first wspt
        static.constraint_injection: ConstraintInjection
        static.convex_energy: ConvexEnergy
        static.dual_approximation: DualApproximation
        static.greedy_best_fit: GreedyBestFit
        static.insertion: Cpop Heft Peft Prioritized
        static.lists: Graham LoadBalance MaxMin Mct MinMin Sufferage
        static.programs: ColumnPricing Hlp IntegerProgram LinearProgram
        static.random_search: Genetic LocalSearch SimulatedAnnealing
        static.recorded: AsPlanned Replay
        static.two_sides: BalancedMakespan Clb2c GreedyDual
        static.vertices: Lst MoldableDual
    """,
    "placement": """
        placement_rules.fgd: Fgd
        placement_rules.gangs: consolidate least_contention pack_racks Skew spread_racks Topology
        placement_rules.resources: DotProduct GpuClustering GpuPacking Pack Spread
        placements: BestFit EarliestFinish fastest_device first_fit random=RandomFit SlowReserve worst_fit
    """,
    "batching": """
        batching.async_linear: AsyncLinear
        batching.bulk_queue: batopt=BatOpt Smdp
        batching.clipper: ClipperAimd ClipperQuantile
        batching.continuous: Continuous
        batching.deadlines: Clockwork Nexus
        batching.fixed_rules: FixedSize SerialGreedy SizeOrTimeout TritonDynamic
    """,
    "routing": """
        routing.routers: Foresight LeastOutstanding PowerOfTwo PrefixAffinity round_robin=RoundRobinRouting Scored
    """,
    "eviction": """
        routing.evictions: Lru
    """,
    "admission": """
        admission.feedback: ClassShedding Dagor Gradient
        admission.limits: AcceptAll Codel HeadCodel QueueLimit TokenBucket UtilizationThreshold
        admission.predicted: Adaptive PredictedWait Redirect SloFeasible
        admission.stations: ErlangWait MdpThreshold Naor TrunkReservation
        learning.learned: learned=LearnedAdmission
    """,
    "scale": """
        scaling.scalers: KeepAlive Predicted QueueKv TargetRequests
    """,
    "predictor": """
        prediction.predictors: ar=Autoregressive Ewma HoltWinters LastValue Oracle
    """,
}
"""Modules and policies by kind.

A policy is named after its class or function, in lower case with underscores between words (EasyBackfill is
easy_backfill), unless another name is given before it (allox=AlloX)."""


def _named(modules: str) -> dict[str, str]:
    named: dict[str, str] = {}
    for line in modules.split("\n"):
        module, _, items = line.strip().partition(": ")
        for item in items.split():
            name, _, made = item.rpartition("=")
            named[name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", made).lower()] = f"hetsim_policies.{module}:{made}"
    return dict(sorted(named.items()))


CATALOGUE: dict[str, dict[str, str]] = {kind: _named(modules) for kind, modules in MODULES.items()}
