"""Random systems × every policy that ships, with the engine's invariants on: nothing lost, nothing oversubscribed,
nothing that depends on anything but the scenario and its seed."""

from __future__ import annotations

import functools
import inspect

import pytest
import tiers
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tiers import examples, some

from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.record import COMPLETED
from hetsim.policy import ListScheduler, PlannedScheduler
from hetsim.testing import audit, examine, random_system, systems
from hetsim.testing.conformance import fingerprint
from hetsim_policies.admission.limits import AcceptAll

PLANNERS = [
    name for name in registry.policies("scheduler")
    if inspect.isclass(item := registry.policy("scheduler", name)) and issubclass(item, PlannedScheduler)
]  # fmt: skip
"""Static policies refuse what they cannot plan; they have tests of their own."""
GIVEN = ["external", "learned"]
"""Schedulers that cannot be made without a file or a program of their own, each with tests of its own."""
SCHEDULERS = [name for name in registry.policies("scheduler") if name not in PLANNERS + GIVEN]
PLACEMENTS = [None, *registry.policies("placement")]
ROUNDS = {"round_length": [1.5, 360.0], "rule": ["ratio", "deficit"], "mid_round": [True, False]}
PARAMETERS = {
    "afs": {"interval": [0.5, 50.0]},
    "conservative_backfill": {"depth": [0, 2, None]},
    "easy_backfill": {"depth": [0, 2, None]},
    "gang_backfill": {"depth": [0, 2, None]},
    "las": {"discipline": ["block", "skip"], "thresholds": [None, [0.5, 3.0]]},
    "las_intervals": {"interval": [0.5, 20.0], "thresholds": [None, [0.5, 3.0]]},
    "optimus": {"interval": [0.5, 50.0]},
    "optimus_intervals": {"interval": [0.5, 20.0]},
    "pollux": {"interval": [0.5, 20.0], "fairness": [-1.0, -8.0], "population": [4], "generations": [2]},
    "speedup_mean": {"interval": [0.5, 50.0], "fairness": [-1.0, -8.0]},
    "quota_borrow": {"default": [0.0, 1.0], "borrow": [True], "reclaim": [False, True]},
    "slurm_multifactor": {"bf_max_job_test": [0, 4], "bf_interval": [0.0, 3.0], "small_first": [False, True]},
    "themis": {"lease": [0.5, 20.0]},
    "tiresias": {"discipline": ["block", "skip"], "thresholds": [None, [0.5, 3.0]]},
    "allox": {"alpha": [0.5, 1.0], "window": [2, 32]},
    "finish_time_fairness": {"round_length": [4.0, 360.0]},
    "gandiva": {"trial": [0.5, 60.0]},
    "fcfs_rounds": {**ROUNDS, "blind": [True, False]},
    "isolated": {**ROUNDS, "spare": [True, False]},
    "max_min_fairness": ROUNDS,
    "max_throughput": ROUNDS,
    "min_makespan": ROUNDS,
    "multi_generation": {"budget": [1.0, 2.0]},
    "predictive": {
        "interval": [0.5, 20.0], "stabilization": [0.0, 5.0], "predictor": ["last_value", "ar"],
        "signal": ["arrivals", "utilization"],
    },
    "power_down": {"patience": [None, 0.0, 1.0], "safety": [0.0, 1.0]},
    "sharing": {"margin": [0.0, 0.2]},
    "as_recorded": {"nodes": [False, True]},
    "srtf": {"discipline": ["block", "skip"], "margin": [0.0, 0.5]},
    "priority": {"discipline": ["block", "skip"], "preemptive": [False, True], "aging": [0.0, 0.1]},
    "edf": {"discipline": ["block", "skip"], "preemptive": [False, True], "drop_expired": [False, True]},
    "round_robin": {"quantum": [0.3, 2.0]},
    "processor_sharing": {},
    "heteroprio": {"spoliation": [False, True]},
    "eft": {},
    "er_ls": {},
    "dmda": {"prefetch": [False, True]},
    "dmdas": {"prefetch": [False, True]},
    "lws": {},
}
THRIFTY = {} if tiers.whole else {
    "rollout": {"samples": 2, "forks": 6, "candidates": 2}, "simulated_annealing": {"evaluations": 1000},
    "genetic": {"evaluations": 1000}, "constraint_injection": {"candidates": 4},
}  # fmt: skip
"""In the quick tier these try less for each decision than they would by themselves."""
ORDERS = {"discipline": ["block", "skip"]}

quiet = examples(12, derandomize=True, suppress_health_check=[HealthCheck.too_slow], database=None)


def make(name, parameters, placement):
    item = registry.policy("scheduler", name)
    parameters = {**parameters, **THRIFTY.get(name, {})}
    if "predictor" in parameters:
        parameters["predictor"] = registry.policy("predictor", parameters["predictor"])
    if placement is not None and (not inspect.isclass(item) or "placement" in registry.parameters(item)):
        rule = registry.policy("placement", placement)
        parameters = {**parameters, "placement": rule() if inspect.isclass(rule) else rule}
    return item(**parameters) if inspect.isclass(item) else ListScheduler(item, **parameters)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_policy_keeps_every_invariant(name):
    item = registry.policy("scheduler", name)
    taken = registry.parameters(item) if inspect.isclass(item) else ORDERS
    choices = {key: values for key, values in PARAMETERS.get(name, ORDERS).items() if key in taken}

    @quiet
    @given(systems(), st.fixed_dictionaries({key: st.sampled_from(v) for key, v in choices.items()}),
           st.sampled_from(PLACEMENTS))  # fmt: skip
    def holds(system, parameters, placement):
        factory = functools.partial(make, name, parameters, placement)
        may_reject = bool(parameters.get("drop_expired"))
        assert examine(lambda _: factory(), system, may_reject=may_reject) == []

    holds()


@pytest.mark.parametrize("name", [name for name in PLANNERS if name != "replay"])
def test_every_planner_refuses_or_keeps_every_invariant(name):
    """On random systems with transfers, memory, graphs and wrong estimates but without gangs and fractions."""
    features = ("transfers", "memory", "items", "estimates", "people", "ties", "stops")
    planned = 0
    for seed in range(some(12)):
        system = random_system(seed, tasks=some(12, 8), features=features[: seed % 4] + ("graph",) * (seed % 3 == 0))
        try:
            record = Simulation(system.run_input(make(name, {}, None)), check=True).run()
        except ScenarioError:
            continue  # said in a sentence, before anything ran
        planned += 1
        assert (record.status == COMPLETED).all()
        assert audit(record) == []
    assert planned


@quiet
@given(systems())
def test_checking_changes_nothing(system):
    one = Simulation(system.run_input(ListScheduler()), check=True).run()
    two = Simulation(system.run_input(ListScheduler())).run()
    assert fingerprint(one) == fingerprint(two)


@quiet
@given(systems())
def test_accepting_all_is_the_same_as_having_no_admission(system):
    with_it = Simulation(system.run_input(ListScheduler(), AcceptAll()), check=True).run()
    without = Simulation(system.run_input(ListScheduler()), check=True).run()
    assert fingerprint(with_it) == fingerprint(without)
    assert (with_it.status == COMPLETED).all()


@quiet
@given(systems())
def test_no_task_computes_less_than_its_true_time(system):
    """No sharing, frequency or gang makes a task faster than alone at nominal speed."""
    record = Simulation(system.run_input(ListScheduler(discipline="skip")), check=True).run()
    for row in range(len(system.tasks)):
        true = system.tasks.time[row, record.mode[row]]
        assert record.finish[row] - record.start[row] >= true * (1 - 1e-9)
