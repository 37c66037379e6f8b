"""Exact queueing models: closed forms, or chains that are solved exactly.

    theory.mmc(13.7, 1.0, servers=16).wait_mean              # Erlang's delay system
    theory.servers_for_wait(13.7, 1.0, longest=0.2)          # how many GPUs for a mean wait of 0.2 s
    theory.tandem(5, [(0.1, 4, "CPU"), (0.02, 1, "PCIe"), (0.15, 1, "GPU")]).response_mean

Rates are per second, means in seconds.  Figures have the names and meanings of the simulator's metrics. "Exact, means
only" states that a model is exact but gives no distributions.  A function raises UsageError for a system without a
steady state.  `error` is the maximum relative error of an approximation's mean wait; 0 for exact models.

Names are loaded when they are first used; this package does not know scenarios (see `hetsim.queueing.matching`).
"""

from typing import TYPE_CHECKING, Any

# files searched for a name, in this order: first the files that need no NumPy
_FILES = (
    "prediction", "erlang", "optimal_pricing", "general", "priorities", "queues", "sizes", "batches", "networks",
    "admission", "levels", "breakdowns", "transient", "blocking", "routing", "arrays",
)  # fmt: skip

__all__ = [  # noqa: PLE0604
    "BatchBounds", "BatchPrediction", "Class", "ClosedLoops", "Losses", "Network", "PhaseType", "Prediction",
    "Saturation", "SizePrediction", "Staffing", "Station", "Stream", "Thresholds", "allen_cunneen", "best_threshold",
    "birth_death", "bulk_service", "closed_classes", "closed_loop", "each", "erlang_b", "erlang_c", "fork_join", "gim1",
    "greedy_batches", "halfin_whitt", "inoue_bounds", "jackson", "kaufman_roberts", "las", "load_for_delay",
    "load_for_loss", "map_phc", "md1", "mdc", "mg1", "mg1_breakdowns", "mg1_ps", "mg1_setup", "mm1", "mmc",
    "mmc_abandonment", "mmc_breakdowns", "mmc_periodic", "mmck", "mmpp_mc", "mphc", "mphc_setup", "multiserver_jobs",
    "naor", "nonpreemptive", "phase_type", "power_of_choices", "preemptive_resume", "psjf", "redundancy", "retrials",
    "servers_for_delay", "servers_for_loss", "servers_for_wait", "settling_time", "sjf", "slow_server", "srpt",
    "stationary", "tandem", "token_bucket", "trunk_reservation", "unlike_servers", "workload_limit",
]  # fmt: skip

if TYPE_CHECKING:
    from hetsim.theory.admission import Losses, Stream, kaufman_roberts, token_bucket, trunk_reservation, workload_limit
    from hetsim.theory.arrays import each
    from hetsim.theory.batches import BatchBounds, BatchPrediction, bulk_service, greedy_batches, inoue_bounds
    from hetsim.theory.blocking import Saturation, multiserver_jobs, retrials
    from hetsim.theory.breakdowns import mg1_breakdowns, mg1_setup, mmc_breakdowns, mphc_setup
    from hetsim.theory.erlang import (
        Staffing,
        erlang_b,
        erlang_c,
        halfin_whitt,
        load_for_delay,
        load_for_loss,
        servers_for_delay,
        servers_for_loss,
        servers_for_wait,
    )
    from hetsim.theory.general import allen_cunneen, gim1, md1, mdc, mg1, mg1_ps
    from hetsim.theory.levels import PhaseType, map_phc, mmpp_mc, mphc, phase_type, unlike_servers
    from hetsim.theory.networks import ClosedLoops, Network, Station, closed_classes, fork_join, jackson, tandem
    from hetsim.theory.optimal_pricing import Thresholds, naor
    from hetsim.theory.prediction import Prediction
    from hetsim.theory.priorities import Class, nonpreemptive, preemptive_resume
    from hetsim.theory.queues import birth_death, closed_loop, mm1, mmc, mmc_abandonment, mmck, stationary
    from hetsim.theory.routing import best_threshold, power_of_choices, redundancy, slow_server
    from hetsim.theory.sizes import SizePrediction, las, psjf, sjf, srpt
    from hetsim.theory.transient import mmc_periodic, settling_time


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'hetsim.theory' has no attribute {name!r}")
    from importlib import import_module

    modules = (import_module(f"{__name__}.{file}") for file in _FILES)
    globals()[name] = next(getattr(module, name) for module in modules if hasattr(module, name))
    return globals()[name]


def __dir__() -> list[str]:
    return list(__all__)
