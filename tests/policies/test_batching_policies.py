"""Batching policies: what defines each, on systems small enough to reckon by hand; checking changes nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from tiers import some, spread

import hetsim as hs
from hetsim import registry
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import UNLIMITED_BATCH, StageTime
from hetsim.model.device_type import WHOLE, DeviceType, Power
from hetsim.model.mode import Mode, Shape
from hetsim.model.randomness import RandomTree
from hetsim.model.record import RunInput
from hetsim.model.service import Service
from hetsim.model.tasks import Tasks
from hetsim.policy import ListScheduler
from hetsim.results.one_run.result import Result
from hetsim.scenario.schema.policy import parameter_model
from hetsim_policies.batching.bulk_queue import (
    BatOpt,
    BulkQueue,
    DecisionProcess,
    Smdp,
    arrivals_during,
    best_threshold,
    mean_responses,
)
from hetsim_policies.batching.clipper import ClipperAimd, ClipperQuantile, quantile_line
from hetsim_policies.batching.common.sizing import largest
from hetsim_policies.batching.deadlines import Clockwork, Nexus
from hetsim_policies.batching.fixed_rules import FixedSize, QueuePolicy, SerialGreedy, SizeOrTimeout, TritonDynamic

PER_ITEM, FIXED = 0.001264, 0.013


def system(
    policies, arrivals, *, slo=math.inf, per_item=PER_ITEM, fixed=FIXED, upload=(0.00015, 0.000114),
    download=(0.00005, 0.0), streams=2, gpus=1, batch_limit=10**6, noise=0.0, priority=None, power=None,
):  # fmt: skip
    """A run of services on equal GPUs, one for each policy; several share the arrivals' order by their own lists."""
    policies, several = (policies, True) if isinstance(policies, list) else ([policies], False)
    columns = arrivals if several else [arrivals]
    slos = slo if isinstance(slo, list) else [slo] * len(policies)
    kind = DeviceType("g", "gpu", streams=streams, power=power or Power())
    shapes = [
        Shape([Mode("g", kind, gpus=1, share=WHOLE, fixed=fixed, upload=StageTime(*upload),
                    download=StageTime(*download), batch_limit=batch_limit)])
        for _ in policies
    ]  # fmt: skip
    times = np.concatenate([np.asarray(column, dtype=float) for column in columns])
    service_of = np.repeat(np.arange(len(policies)), [len(column) for column in columns])
    order = np.argsort(times, kind="stable")
    times, service_of = times[order], service_of[order]
    seconds = np.full((len(times), 1), per_item)
    limit = np.array(slos)[service_of]
    tasks = Tasks(
        arrival=times, shape=service_of.astype(np.int32), shapes=shapes, time=seconds, estimate=seconds,
        deadline=np.where(np.isinf(limit), np.nan, times + limit),
        priority=None if priority is None else np.asarray(priority, dtype=float),
    )  # fmt: skip
    services = [
        Service(f"s{number}", shape, np.flatnonzero(service_of == number), (per_item,), slo=slos[number], noise=noise)
        for number, shape in enumerate(shapes)
    ]
    cluster = Cluster([NodeSpec(cpus=4, accelerators=((kind, gpus),))])
    return RunInput("t", cluster, tasks, ListScheduler(), random=RandomTree(1), services=services, batching=policies)


def run(policies, arrivals, *, check=True, **more):
    return Result(Simulation(system(policies, arrivals, **more), check=check).run())


def poisson(rate, count, seed=1):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def sizes(result):
    return result.launches["members"].tolist()


PLAIN = {"per_item": 1.0, "fixed": 2.0, "upload": (0.0, 0.0), "download": (0.0, 0.0), "streams": 1}
"""A batch of n takes 2 + n seconds and does nothing but compute."""


def total(size):
    """Seconds of a batch with the default stages."""
    return 0.00015 + 0.000114 * size + FIXED + PER_ITEM * size + 0.00005


# Every policy, checked and not -----------------------------------------------------------------------------------

EVERY = {
    "batopt": (BatOpt, {"max_batch": 16, "window": 0.2}),
    "clipper_aimd": (ClipperAimd, {}),
    "clipper_quantile": (ClipperQuantile, {}),
    "clockwork": (Clockwork, {}),
    "clockwork just in time": (Clockwork, {"ahead": 0.0, "max_batch": 32}),
    "fixed_size": (FixedSize, {"size": 7}),
    "nexus": (Nexus, {}),
    "nexus lazy": (Nexus, {"drop": "lazy"}),
    "size_or_timeout": (SizeOrTimeout, {"max_batch_size": 16, "batch_timeout": 0.01}),
    "size_or_timeout padded": (SizeOrTimeout, {"max_batch_size": 32, "allowed_batch_sizes": [4, 8, 32]}),
    "size_or_timeout bounded": (SizeOrTimeout, {"max_batch_size": 8, "max_enqueued_batches": 3}),
    "smdp": (Smdp, {"max_batch": 16, "window": 0.2, "power_weight": 0.0005}),
    "triton_dynamic": (TritonDynamic, {"preferred_batch_size": [4, 8], "max_queue_delay": 0.005}),
    "triton_dynamic levels": (
        TritonDynamic,
        {
            "priority_levels": 3, "max_batch_size": 16, "max_queue_delay": 0.005, "max_queue_size": 20,
            "priority_queue_policy": {2: QueuePolicy(0, 0.03, "delay"), 3: QueuePolicy(10, 0.05, "reject")},
        },
    ),
}  # fmt: skip


def test_every_registered_policy_is_here():
    ours = {name.split()[0] for name in EVERY}
    assert {"batopt", "smdp", "nexus", "clockwork"} <= ours <= set(registry.policies("batching"))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
    ("rate", "noise", "gpus"), spread([(450, 0.05, 1), (60, 0.0, 1), (900, 0.0, 1), (900, 0.0, 2)], 1)
)
def test_checking_changes_nothing_and_every_request_has_one_fate(name, rate, noise, gpus):
    make, parameters = EVERY[name]
    count = 400
    priority = np.random.default_rng(3).integers(0, 3, count)
    options = {"slo": 0.12, "noise": noise, "gpus": gpus, "priority": priority}
    one, other = (run(make(**parameters), poisson(rate, count), check=check, **options) for check in (True, False))
    pd.testing.assert_frame_equal(one.tasks, other.tasks, check_exact=True)
    pd.testing.assert_frame_equal(one.launches, other.launches, check_exact=True)
    status = one.tasks["status"].value_counts().to_dict()
    assert sum(status.get(fate, 0) for fate in ("completed", "rejected", "expired")) == count
    assert sum(sizes(one)) == status.get("completed", 0) > 0


@pytest.mark.parametrize("name", EVERY)
def test_two_services_of_each_policy_share_a_gpu(name):
    make, parameters = EVERY[name]
    columns = [poisson(150, 200), poisson(150, 200, seed=2)]
    results = [
        run([make(**parameters), make(**parameters)], columns, check=check, slo=[0.12, 0.2], priority=np.zeros(400))
        for check in (True, False)
    ]
    pd.testing.assert_frame_equal(results[0].tasks, results[1].tasks, check_exact=True)
    assert set(results[0].tasks["status"]) <= {"completed", "rejected", "expired"}


@pytest.mark.parametrize("name", EVERY)
def test_scenario_parameters_need_units_and_are_checked(name):
    """Every parameter's type is one that a scenario can give; seconds are refused without a unit."""
    make, parameters = EVERY[name]
    model = parameter_model(name, registry.parameters(make))
    for key, info in model.model_fields.items():
        if key in ("batch_timeout", "ahead", "window", "max_queue_delay", "timeout", "power_weight", "slo"):
            if make is ClipperQuantile and key == "window":
                continue  # batches
            assert getattr(model.model_validate({key: "2 ms"}), key) == pytest.approx(0.002)
            with pytest.raises(ValueError, match="has no unit"):
                model.model_validate({key: 2})
        assert info.default == registry.parameters(make)[key].default


def test_the_largest_that_holds():
    for most, answer in itertools.product(range(6), range(8)):
        asked = []
        found = largest(most, lambda n, asked=asked, answer=answer: asked.append(n) or n <= answer)
        assert found == min(most, answer)
        assert all(1 <= n <= most for n in asked)


# fixed_size -------------------------------------------------------------------------------------------------------


def test_fixed_size_waits_for_exactly_so_many_until_the_stream_is_over():
    result = run(FixedSize(3), [0.0, 1.0, 4.0, 4.5, 5.0, 20.0, 30.0, 31.0], **PLAIN)
    assert sizes(result) == [3, 3, 2]
    assert result.launches["start"].tolist() == [4.0, 20.0, 31.0]
    assert sizes(run(FixedSize(5), np.zeros(7), batch_limit=3, **PLAIN)) == [3, 3, 1]


# size_or_timeout --------------------------------------------------------------------------------------------------


def test_a_full_batch_goes_at_once_and_another_at_its_timeout():
    result = run(SizeOrTimeout(2, 0.5), [0.0, 0.1, 10.0, 20.0, 20.5, 20.6], **PLAIN)
    assert result.launches["start"].tolist() == [0.1, 10.5, 20.5, 24.5]
    assert sizes(result) == [2, 1, 2, 1]  # the last waited for the device, and longer than its timeout


def test_it_never_waits_longer_than_its_timeout_while_the_device_is_free():
    result = run(SizeOrTimeout(4, 0.02), poisson(100, 2000), streams=1)
    launches, tasks = result.launches, result.tasks
    oldest = tasks.groupby("batch")["arrival"].min().loc[launches["launch"]].to_numpy()
    free = np.concatenate(([0.0], launches["end"].to_numpy()[:-1]))
    assert (launches["decided"].to_numpy() <= np.maximum(oldest + 0.02, free)).all()
    full = launches["members"].to_numpy() == 4
    early = launches["decided"].to_numpy() < oldest + 0.02
    assert (full | ~early).all()
    assert full.any()
    assert early.any()


def test_padding_computes_for_the_next_allowed_size():
    result = run(SizeOrTimeout(8, 0.0, [2, 8]), [0.0, 10.0, 10.0, 20.0, 20.0, 20.0], **PLAIN)
    assert sizes(result) == [1, 2, 3]
    busy = (result.launches["compute_end"] - result.launches["compute_start"]).tolist()
    assert busy == [4.0, 4.0, 10.0]
    assert sizes(run(SizeOrTimeout(8, 0.0, [2, 8]), np.zeros(9), batch_limit=5, **PLAIN)) == [2, 2, 2, 2, 1]


def test_more_than_the_enqueued_batches_hold_are_rejected():
    # One computes from 0 to 3 s; of seven that come meanwhile two batches of two may wait.
    arrivals = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 3.5]
    result = run(SizeOrTimeout(2, 0.0, max_enqueued_batches=2), arrivals, **PLAIN)
    assert result.tasks["status"].tolist() == ["completed"] * 5 + ["rejected"] * 3 + ["completed"]
    assert set(result.tasks["reason"][5:8]) == {"the queue is full"}
    assert sizes(result) == [1, 2, 2, 1]


@pytest.mark.parametrize(("allowed", "says"), [([4, 2, 8], "sizes must be increasing; got"), ([2, 4],
    "the last size must be max_batch_size")])
def test_allowed_sizes_that_make_no_sense_are_refused(allowed, says):
    with pytest.raises(ScenarioError, match=says):
        SizeOrTimeout(8, allowed_batch_sizes=allowed)
    with pytest.raises(ScenarioError, match="batches of at most 3"):
        run(SizeOrTimeout(8, allowed_batch_sizes=[4, 8]), [0.0], batch_limit=3, **PLAIN)
    with pytest.raises(ScenarioError, match="has no maximum batch size.* give max_batch_size"):
        run(SizeOrTimeout(max_enqueued_batches=2), [0.0], batch_limit=UNLIMITED_BATCH, **PLAIN)


# triton_dynamic ---------------------------------------------------------------------------------------------------


def test_a_preferred_size_goes_at_once_and_others_after_the_delay():
    arrivals = [0.0, 0.1, 0.2, 0.3, 50.0, 50.1, 50.2]
    result = run(TritonDynamic(8, [4], 1.0), arrivals, **PLAIN)
    assert sizes(result) == [4, 3]
    assert result.launches["start"].tolist() == [0.3, 51.0]


def test_the_largest_preferred_size_is_taken_unless_the_delay_is_over():
    # Two compute from 1.5 to 5.5 s; then five wait, the oldest until 6.6 s.
    arrivals = [0.0, 1.5, 1.6, 1.7, 1.8, 3.9, 3.95]
    result = run(TritonDynamic(8, [2, 4], 5.0), arrivals, **PLAIN)
    assert sizes(result) == [2, 4, 1]
    result = run(TritonDynamic(8, [4], 1.0), arrivals, **PLAIN)
    assert sizes(result) == [1, 6]  # overdue at 4 s: everything goes
    assert result.launches["start"].tolist() == [1.0, 4.0]


def test_urgent_levels_go_first():
    # While the first computes two of each level come; batches of two.
    arrivals, priority = [0.0, 0.1, 0.2, 0.3, 0.4], [0, 0, 1, 0, 1]
    result = run(TritonDynamic(2, priority_levels=2), arrivals, priority=priority, **PLAIN)
    assert result.tasks["start"].tolist() == [0.0, 7.0, 3.0, 7.0, 3.0]


def test_a_level_rejects_what_it_has_no_room_for_and_what_waited_too_long():
    arrivals, priority = [0.0, 0.1, 0.2, 0.3, 0.4, 2.9], [1, 0, 0, 0, 1, 0]
    levels = {2: QueuePolicy(max_queue_size=2, timeout=1.0)}
    policy = TritonDynamic(8, priority_levels=2, priority_queue_policy=levels)
    result = run(policy, arrivals, priority=priority, **PLAIN)
    # 0.3 and 2.9 find two of their level waiting; those two are timed out when the device is free again.
    assert result.tasks["status"].tolist() == ["completed", "expired", "expired", "rejected", "completed", "rejected"]
    assert result.tasks["reason"].tolist()[1:4] == ["timed out", "timed out", "the queue is full"]


def test_a_delayed_request_waits_behind_those_in_time():
    arrivals = [0.0, 0.1, 2.5, 2.6]
    result = run(TritonDynamic(1, timeout=1.0, timeout_action="delay"), arrivals, **PLAIN)
    # At 3 s the second is late and is put behind; at 6 s the fourth is late too, and behind it.
    assert result.tasks["start"].tolist() == [0.0, 6.0, 3.0, 9.0]


def test_wrong_levels_and_sizes_are_refused():
    with pytest.raises(ScenarioError, match="levels must be from 1 to 2"):
        TritonDynamic(priority_levels=2, priority_queue_policy={3: QueuePolicy()})
    with pytest.raises(ScenarioError, match="must be at most max_batch_size"):
        TritonDynamic(32, [4, 64])
    model = parameter_model("triton_dynamic", registry.parameters(TritonDynamic))
    given = {"priority_queue_policy": {"1": {"timeout": "5 ms", "timeout_action": "delay"}}}
    assert model.model_validate(given).priority_queue_policy == {1: QueuePolicy(0, 0.005, "delay")}


# clipper ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_aimd_rises_by_one_and_falls_by_a_tenth():
    # 250 ms are kept by up to 171 requests: total(171) = 0.24884, total(172) = 0.25022.
    assert total(171) <= 0.25 < total(172)
    result = run(ClipperAimd(), np.zeros(25_000), slo=0.25)
    found = sizes(result)[:-1]
    assert found[:172] == list(range(1, 173))
    assert found[172 : 172 + 19] == list(range(154, 173))  # floor(0.9 · 172) = 154
    assert found[191] == 154


def test_aimd_does_not_rise_by_batches_that_were_not_full():
    result = run(policy := ClipperAimd(start=4), np.arange(10.0) * 10, slo=5.0, **PLAIN)
    assert sizes(result) == [1] * 10
    assert list(policy.limits.values()) == []


@pytest.mark.slow
def test_quantile_regression_finds_the_largest_batch_within_the_slo():
    result = run(ClipperQuantile(), np.zeros(25_000), slo=0.25)
    found = sizes(result)[:-1]
    assert found[:7] == [1, 2, 4, 8, 16, 32, 64]  # doubled while half the SLO is kept
    assert set(found[-100:]) == {171}


@pytest.mark.slow
def test_quantile_regression_keeps_the_slo_with_noise():
    noisy = run(ClipperQuantile(), np.zeros(50_000), slo=0.25, noise=0.05)
    launches = noisy.launches[150:-1]
    assert (launches["end"] - launches["decided"] > 0.25).mean() < 0.05
    assert 140 < launches["members"].mean() < 165


@pytest.mark.parametrize("seed", range(5))
def test_the_quantile_line_has_the_least_tilted_error(seed):
    random = np.random.default_rng(seed)
    x = random.integers(1, 30, 40).astype(float)
    y = 0.3 + 0.1 * x + random.exponential(0.2, 40)

    def error(slope, intercept):
        rest = y - slope * x - intercept
        return np.maximum(0.9 * rest, -0.1 * rest).sum()

    # A best line passes through two of the points.
    best = math.inf
    for i, j in itertools.combinations(range(40), 2):
        if x[i] != x[j]:
            slope = (y[j] - y[i]) / (x[j] - x[i])
            if slope >= 0:
                best = min(best, error(slope, y[i] - slope * x[i]))
    assert error(*quantile_line(x, y, 0.9)) == pytest.approx(best, rel=1e-6)
    assert quantile_line(np.full(4, 5.0), np.array([1.0, 2.0, 3.0, 4.0]), 0.75) == (0.0, 3.0)


# nexus ------------------------------------------------------------------------------------------------------------


def test_nexus_takes_batches_of_which_two_fit_into_the_slo():
    # 2·(2 + n) <= 14: n = 5.
    result = run(Nexus(), np.zeros(6), slo=14.0, **PLAIN)
    assert sizes(result) == [5, 1]
    assert run(Nexus(), np.zeros(6), slo=13.9, **PLAIN).launches["members"].tolist() == [4, 2]


def test_nexus_drops_early_those_that_cannot_wait_for_a_whole_window():
    # Windows of two take 4 s: the device is busy till 8 s.  The fifth, until 11.5 s, cannot wait for a window, alone it
    # makes it; the sixth, until 12.5 s, can.
    arrivals = [0.0, 0.0, 0.1, 0.1, 3.5, 4.5, 5.0]
    early, lazy = (run(Nexus(drop=drop), arrivals, slo=8.0, **PLAIN) for drop in ("early", "lazy"))
    assert early.tasks["status"].tolist() == [*["completed"] * 4, "rejected", "completed", "completed"]
    assert early.tasks["met_deadline"].sum() == 6
    assert sizes(early) == [2, 2, 2]
    assert lazy.tasks["status"].tolist() == [*["completed"] * 5, "expired", "expired"]
    assert sizes(lazy) == [2, 2, 1]  # and at 11 s it is too late for the others: why early drop pays


@pytest.mark.quick(3)
@pytest.mark.parametrize(("policy", "slo"), [(Nexus, 0.06), (Nexus, 0.15), (Clockwork, 0.06), (Clockwork, 0.15)])
@pytest.mark.parametrize("rate", spread([100, 600, 1500], 2))
def test_no_launched_request_misses_and_none_is_dropped_that_had_to_be_served(policy, slo, rate):
    result = run(policy(), poisson(rate, some(3000, 800)), slo=slo)
    tasks = result.tasks
    served = tasks[tasks["status"] == "completed"]
    assert (served["finish"] <= served["deadline"]).all()
    dropped = tasks[tasks["status"] != "completed"]
    if policy is Clockwork:
        # It is out of reach alone behind all that is in flight, or once the batch that is launched instead has ended.
        decided, end = result.launches["decided"].to_numpy(), result.launches["end"].to_numpy()
        free = np.concatenate(([0.0], result.launches["compute_end"].to_numpy()))
        for time, deadline in zip(dropped["finish"], dropped["deadline"], strict=True):
            launch = np.searchsorted(decided, time, side="left")
            instead = end[launch] if launch < len(decided) and decided[launch] == time else 0.0
            alone = max(time + 0.000264, free[launch]) + FIXED + PER_ITEM + 0.00005
            assert max(instead, alone) > deadline - 2e-9
        if rate == 1500:
            assert result.launches["members"].mean() > 10  # it does not fall into small batches
    else:
        target = largest(10**6, lambda size: 2 * total(size) <= slo)
        assert (dropped["finish"] + total(target) > dropped["deadline"] - 2e-9).all() or len(dropped) == 0
    if rate == 100 and slo == 0.15:
        assert len(dropped) == 0
    if rate == 1500:
        assert len(dropped) > 100


# clockwork --------------------------------------------------------------------------------------------------------


def test_clockwork_takes_the_largest_batch_that_its_oldest_can_wait_for():
    # Five take 7 s; the sixth would have to end by then too.
    result = run(Clockwork(), np.zeros(6), slo=7.1, **PLAIN)
    assert sizes(result) == [5]
    assert result.tasks["status"].tolist() == [*["completed"] * 5, "expired"]  # behind the five it is hopeless
    result = run(Clockwork(), np.zeros(6), slo=12.0, **PLAIN)
    assert sizes(result) == [6]
    late = run(Clockwork(), [0.0, 0.0, 0.0], slo=2.5, **PLAIN)
    assert set(late.tasks["status"]) == {"expired"}
    assert late.tasks["reason"].tolist() == ["too late"] * 3


def test_clockwork_closes_a_batch_just_in_time_and_no_request_misses():
    plain = {**PLAIN, "streams": 2, "upload": (1.0, 0.0)}
    # The first uploads till 1 and computes till 4.  The next batch is closed at 3, so that both are in it.
    result = run(Clockwork(ahead=0.0), [0.0, 1.5, 2.5], slo=100.0, **plain)
    assert sizes(result) == [1, 2]
    assert result.launches["decided"].tolist() == [0.0, 3.0]
    assert result.launches["compute_start"].tolist() == [1.0, 4.0]
    ahead = run(Clockwork(ahead=1.0), [0.0, 1.5, 2.5], slo=100.0, **plain)
    assert ahead.launches["decided"].tolist() == [0.0, 2.0, 6.0 - 1.0]


def test_clockwork_lets_the_service_with_the_latest_start_soonest_go_first():
    # Both wait when the device frees at 3 s; the second service came later but has to start by 4 s, the first by 17.
    columns = [[0.0, 0.5], [1.0]]
    result = run([Clockwork(), Clockwork()], columns, slo=[19.5, 6.0], **PLAIN)
    by_arrival = result.tasks.set_index("arrival")
    assert by_arrival.loc[1.0, "start"] == 3.0
    assert by_arrival.loc[0.5, "start"] == 6.0
    greedy = run([SerialGreedy(), SerialGreedy()], columns, slo=[19.5, 6.0], **PLAIN)
    assert not greedy.tasks.set_index("arrival").loc[1.0, "met_deadline"]


@pytest.mark.slow
def test_clockwork_keeps_every_promise_across_services_and_devices():
    rng = np.random.default_rng(5)
    for gpus in (1, 2, 3):
        columns = [np.sort(rng.uniform(0, 3, count)) for count in (900, 1500, 300)]
        result = run([Clockwork() for _ in columns], columns, slo=[0.05, 0.12, 0.4], gpus=gpus)
        served = result.tasks[result.tasks["status"] == "completed"]
        assert (served["finish"] <= served["deadline"]).all()
        assert len(served) > 300 * gpus


@pytest.mark.slow
def test_clockwork_keeps_deadlines_that_do_not_come_in_order():
    given = system(Clockwork(), poisson(150, 1000))
    given.tasks.deadline = given.tasks.arrival + np.random.default_rng(2).uniform(0.02, 0.3, 1000)
    tasks = Result(Simulation(given, check=True).run()).tasks
    served = tasks[tasks["status"] == "completed"]
    assert (served["finish"] <= served["deadline"]).all()
    assert len(served) > 300
    assert served["batch"].value_counts().max() > 3


# The analytic ones ------------------------------------------------------------------------------------------------


def test_arrivals_during_a_time_are_poisson():
    table = arrivals_during(3.0, np.array([0.5, 2.0]), 5)
    assert table.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert table[0, 2] == pytest.approx(math.exp(-1.5) * 1.5**2 / 2)
    assert table[1, 5] == pytest.approx(1 - sum(math.exp(-6) * 6**k / math.factorial(k) for k in range(5)))


def test_the_model_of_batopt_is_pollaczek_and_khinchine_for_batches_of_one():
    for load in (0.3, 0.6, 0.8):
        model = BulkQueue(load, np.array([1.0]), 200)
        assert mean_responses(model, [1])[0] == pytest.approx(1 + load / (2 * (1 - load)), rel=1e-9)


@pytest.mark.slow
def test_the_model_of_batopt_agrees_with_the_simulation():
    class Threshold(BatOpt):
        def solution(self, queue, placement, rate):
            return 12

        def next_batch(self, queue, placement, view):
            answer = super().next_batch(queue, placement, view)
            if hasattr(answer, "until"):
                answer.until = math.inf
            return answer

    times = np.array([total(size) for size in range(1, 33)])
    expected = mean_responses(BulkQueue(400.0, times, 128), [12])[0]
    result = run(Threshold(max_batch=32, rate=400.0), poisson(400, 60_000))
    assert result.tasks["response"].mean() == pytest.approx(expected, rel=0.02)
    greedy = run(SerialGreedy(max_batch=32), poisson(400, 60_000))
    assert greedy.tasks["response"].mean() == pytest.approx(
        mean_responses(BulkQueue(400.0, times, 128), [1])[0], rel=0.02
    )


@pytest.mark.slow
def test_batopt_waits_where_that_pays_and_nowhere_else():
    # Batches of up to four that all take 1 s, at 3/s: full ones have to be awaited more the dearer a launch is.
    flat = BulkQueue(3.0, np.ones(4), 200)
    responses = mean_responses(flat, [1, 2, 3, 4])
    assert best_threshold(flat) == 1 + int(np.argmin(responses)) > 1
    assert best_threshold(BulkQueue(0.01, np.ones(4), 64)) == 1
    assert best_threshold(BulkQueue(100.0, np.ones(4), 64)) == 1  # no batch keeps up: nothing to wait for


def test_batopt_gives_up_waiting_when_the_rate_has_fallen():
    policy = BatOpt(max_batch=4, rate=3.0)
    arrivals = [*np.arange(0, 30, 1 / 3), 100.0, 200.0]
    result = run(policy, arrivals, per_item=0.0, fixed=1.0, upload=(0.0, 0.0), download=(0.0, 0.0))
    (threshold,) = policy.solved.values()
    assert threshold > 1
    assert result.tasks["wait"].iloc[-2] == pytest.approx(2 * threshold / 3)


def tiny(rate, weight):
    """A decision process with states up to 4 and batches of up to two."""
    return DecisionProcess(BulkQueue(rate, np.array([1.0, 1.3]), 4), weight * np.array([2.0, 2.5]))


@pytest.mark.quick(4)
@pytest.mark.parametrize("rate", [0.2, 0.7, 1.2, 2.5])
@pytest.mark.parametrize("weight", [0.0, 0.5, 5.0])
def test_the_table_of_smdp_is_the_best_of_all(rate, weight):
    process = tiny(rate, weight)
    arrivals = [arrivals_during(rate, np.array([time]), 60)[0] for time in (1.0, 1.3)]
    costs = {}
    for table in itertools.product([0], [0, 1], [0, 1, 2], [0, 1, 2], [1, 2]):
        # The average by the stationary distribution of the chain of decisions, reckoned apart.
        chain, cost, time = np.zeros((5, 5)), np.zeros(5), np.zeros(5)
        for state, size in enumerate(table):
            if size == 0:
                chain[state, state + 1], time[state] = 1.0, 1 / rate
                cost[state] = state / rate / rate
                continue
            time[state] = (1.0, 1.3)[size - 1]
            during = state * time[state] + rate * time[state] ** 2 / 2
            cost[state] = during / rate + weight * (2.0, 2.5)[size - 1]
            for count, chance in enumerate(arrivals[size - 1]):
                chain[state, min(4, state - size + count)] += chance
                cost[state] += max(0, state - size + count - 4) * chance * 4 * 1.3 / rate
        system = np.vstack([np.eye(5) - chain.T, np.ones(5)])
        share = np.linalg.lstsq(system, np.array([0, 0, 0, 0, 0, 1.0]), rcond=None)[0]
        costs[table] = share @ cost / (share @ time)
    table, average = process.solve()
    assert average == pytest.approx(min(costs.values()), rel=1e-9)
    assert costs[tuple(table)] == pytest.approx(average, rel=1e-9)


@pytest.mark.slow
def test_smdp_waits_longer_the_more_a_watt_is_worth():
    power = Power(idle=50.0, busy=250.0)
    found = []
    for weight in (0.0, 0.001):
        result = run(Smdp(power_weight=weight, max_batch=32, rate=200.0), poisson(200, 4000), power=power)
        found.append((np.mean(sizes(result)), result.tasks["response"].mean(), result.launches["energy_j"].sum()))
    assert found[0][0] < found[1][0]
    assert found[0][1] < found[1][1]
    assert found[0][2] > 1.1 * found[1][2]


@pytest.mark.slow
def test_smdp_serves_full_batches_when_it_cannot_keep_up():
    # 700/s against 558/s that batches of 32 can serve.
    result = run(Smdp(power_weight=0.01, max_batch=32), poisson(700, 5000), power=Power(idle=50.0, busy=250.0))
    assert np.mean(sizes(result)[20:]) > 31


@pytest.mark.slow
def test_smdp_without_power_is_no_slower_than_taking_what_waits():
    arrivals = poisson(400, 20_000)
    ours = run(Smdp(max_batch=32, window=5.0), arrivals).tasks["response"].mean()
    assert ours < 1.02 * run(SerialGreedy(max_batch=32), arrivals).tasks["response"].mean()


def test_clockwork_serves_with_a_variant_on_cores():
    """The data of a batch on cores cross no link."""
    service = {"batching": "clockwork", "variants": [
        {"name": "a", "device": "g", "compute": {"per_item": "20 ms"}},
        {"name": "b", "device": "cpu", "compute": {"per_item": "60 ms"}}]}  # fmt: skip
    entry = {"arrivals": {"process": "poisson", "rate": "40/s"}, "slo": "500 ms", "bytes_in": "10 MB"}
    node = {"cpus": 2, "gpus": {"type": "g", "count": 1}, "pcie": {"upload": "1 GB/s"}}
    result = hs.run({"name": "both", "horizon": "5 s", "cluster": {"nodes": [node]},
                     "workload": {**entry, "service": service}}, check=True)  # fmt: skip
    done = result.tasks[result.tasks["status"] == "completed"]
    assert (done["device"].value_counts() > 20).sum() == 3  # one GPU, two cores
