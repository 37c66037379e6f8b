"""Admission policies decision by decision, worked out on paper, against a view that is made by hand.

Service times are never 1 and servers seldom one, so that what is forgotten in a formula shows.
"""

from __future__ import annotations

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from machines import Job, cpu_mode, gpu_mode, tasks_of

from hetsim import theory
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster, NodeSpec
from hetsim.model.demand import StageTime
from hetsim.model.device_type import DeviceType
from hetsim.model.task import Task
from hetsim.policy import Accept, Defer, PlanProblem, Reject
from hetsim_policies.admission.common.estimates import (
    ClassFlow,
    DeviceStation,
    RecentArrivals,
    Stations,
    capacity,
    known_classes,
    known_devices,
    servers,
)
from hetsim_policies.admission.limits import AcceptAll, Codel, ControlLaw, QueueLimit, TokenBucket, UtilizationThreshold
from hetsim_policies.admission.predicted import Adaptive, Ahead, PredictedWait, Redirect, SloFeasible, somewhere
from hetsim_policies.admission.stations import (
    ErlangWait,
    MdpThreshold,
    Naor,
    ThresholdTable,
    TrunkReservation,
    _states,
    threshold,
)

close = pytest.approx
GPU = DeviceType("g")
SLOW = DeviceType("slow")
CPU = DeviceType("cpu", kind="cpu")


def machine(gpus=3, cpus=4, nodes=1, slow=0):
    accelerators = ((GPU, gpus),) + (((SLOW, slow),) if slow else ())
    return Cluster([NodeSpec(cpus=cpus, accelerators=accelerators, count=nodes, cpu_type=CPU)])


class Seen(SimpleNamespace):
    """A view that shows what a test puts into it."""

    def __init__(self, cluster=None, **more):
        given = {"now": 0.0, "in_all": 0, "changes": SimpleNamespace(launches=0, releases=0), "queued": {},
                 "work": {}, "fitting": True, "queue": None, "taken": {}}  # fmt: skip
        super().__init__(cluster=cluster or machine(), random=None, **given | more)

    def queue_of(self, task):
        return self.queue

    def num_waiting(self, name=None, class_=None, own=False):
        assert name is None or class_ is None
        if name is class_ is None:
            return self.in_all
        return self.queued.get(("class", class_) if name is None else name, 0)

    def backlog(self, name, own=False):
        return self.work.get(name, 0.0)

    def fits(self, mode):
        return self.fitting if isinstance(self.fitting, bool) else mode.type.name in self.fitting

    def free(self, name):
        return self.cluster.count(name) - self.taken.get(name, 0)

    def duration(self, task, placement):
        return self.durations[placement.mode.type.name]

    def free_at(self, device, engine):
        assert engine == "compute"
        self.asked = getattr(self, "asked", 0) + 1
        return self.free_times[device.local]

    def first(self, mode):
        return self.place


def jobs(*given, classes=None, users=None, **columns):
    """Tasks from jobs, in the order of their arrival, with classes and users where they matter."""
    table = tasks_of(list(given))
    for names, code, listed in ((classes, "class_code", "classes"), (users, "user_code", "users")):
        if names:
            known = list(dict.fromkeys(names))
            setattr(table, code, np.array([known.index(name) for name in names]))
            setattr(table, listed, known)
    found = []
    for i in range(len(table)):
        shape = table.shapes[table.shape[i]]
        times = tuple(table.time[i, : len(shape.modes)])
        estimates = tuple(table.estimate[i, : len(shape.modes)])
        found.append(Task(i, float(table.arrival[i]), shape, times, estimates, table))
    return found


def gpu_tasks(count, time=2.0, **more):
    mode = gpu_mode(GPU)
    return jobs(*[Job([mode], [time]) for _ in range(count)], **more)


def admitted(answer):
    assert isinstance(answer, Accept | Reject)
    if isinstance(answer, Reject):
        assert answer.reason
    return isinstance(answer, Accept)


# Estimates ------------------------------------------------------------------------------------------------------------


def test_a_rate_is_believed_from_thirty_arrivals_on():
    rate = RecentArrivals(10**9)
    for number in range(29):
        rate.note(0.25 * number)
        assert rate.value is None
    rate.note(0.25 * 29)
    assert rate.value == close(4.0)


def test_arrivals_at_one_instant_have_no_rate():
    rate = RecentArrivals(50)
    for _ in range(40):
        rate.note(3.0)
    assert rate.value is None
    rate.note(5.0)
    assert rate.value == close(sum((1 - 1 / 50) ** i for i in range(40)) / 2.0)


def test_old_gaps_count_for_less_by_the_same_factor():
    """39 gaps of 1 s, then one of 3 s, each counting 0.98 of the one behind it."""
    rate, now = RecentArrivals(50), 7.0
    rate.note(now)
    for gap in [1.0] * 39 + [3.0]:
        now += gap
        rate.note(now)
    weights = [0.98**i for i in range(40)]
    assert rate.value == close(sum(weights) / (sum(weights) + 2.0))


def test_the_mean_service_is_busy_time_over_completions_from_thirty_on():
    flow = ClassFlow(50)
    flow.busy, flow.done, flow.completed = 60.0, 24.0, 29
    assert flow.service_time is None
    flow.completed = 30
    assert flow.service_time == 2.5
    flow.busy = 0.0
    assert flow.service_time is None


def test_a_station_shares_its_devices_among_all_that_are_there():
    """Capacity 2; two of width 1 keep both busy for 3 s; with a third of width 2 each has half for 4 s."""
    station = DeviceStation(2.0, 10**9)
    one, two = station.flow("a"), station.flow("b")
    assert station.flow("a") is one
    station.settle(5.0)
    station.joins(one, 1.0)
    station.joins(two, 1.0)
    station.settle(8.0)
    assert (one.busy, two.busy) == (3.0, 3.0)
    station.joins(two, 2.0)
    assert (station.present, station.occupied, two.present) == (3, 4.0, 2)
    station.settle(12.0)
    assert (one.busy, two.busy) == (5.0, 7.0)
    station.settle(12.0)
    assert (one.busy, two.busy) == (5.0, 7.0)
    station.leaves(two, 2.0, True)
    assert (station.present, station.occupied, two.present, two.done, two.completed) == (2, 2.0, 1, 1.0, 1)
    station.leaves(two, 1.0, False)
    assert (two.present, two.done, two.completed) == (0, 1.0, 1)
    station.leaves(one, 0.9, True)
    assert (station.present, station.occupied) == (0, 0.0)


def test_every_arrival_fades_what_all_classes_have_seen():
    station = DeviceStation(1.0, 50)
    for name in ("a", "b"):
        station.flow(name).busy, station.flow(name).done = 10.0, 4.0
    found = station.arrives("a", 1.0)
    assert found is station.flow("a")
    assert [(f.busy, f.done) for f in station.flows.values()] == [(close(9.8), close(3.92))] * 2
    assert (station.flow("a").arrivals.seen, station.flow("b").arrivals.seen) == (1, 0)
    assert found.rate is None
    for _ in range(30):
        station.arrives("a", station.last + 0.5)
    assert station.flow("a").rate == close(2.0)


def test_a_task_counts_at_the_type_of_its_best_mode_and_leaves_once():
    view = Seen(machine(gpus=3, cpus=5))
    stations = Stations(view, 50)
    both = [gpu_mode(GPU), cpu_mode(CPU, 2)]
    quick, slow = jobs(Job(both, [2.0, 7.0]), Job(both, [9.0, 7.0]))
    station, mode = stations.best(quick)
    assert (mode, station.capacity) == (both[0], 3)
    cores, other = stations.best(slow)
    assert (other, cores.capacity) == (both[1], 5)
    assert stations.best(quick)[0] is station
    flow = stations.arrives(quick, station)
    stations.joins(quick, station, flow, 1.0)
    view.now = 4.0
    stations.leaves(slow, True)  # was never admitted
    assert (station.present, flow.completed) == (1, 0)
    stations.leaves(quick, True)
    stations.leaves(quick, True)
    assert (station.present, flow.present, flow.completed, flow.busy) == (0, 0, 1, 4.0)


def test_classes_have_flows_of_their_own_only_where_that_is_asked_for():
    tasks = gpu_tasks(2, classes=["a", "b"])
    for classed, names in ((False, [""]), (True, ["a", "b"])):
        stations = Stations(Seen(), 50, classed)
        for task in tasks:
            stations.arrives(task, stations.best(task)[0])
        assert list(stations.best(tasks[0])[0].flows) == names


def test_servers_are_the_launches_that_fit_the_empty_cluster():
    cluster = machine(gpus=3, cpus=5, nodes=2)
    assert capacity(cluster, gpu_mode(GPU)) == 6
    assert capacity(cluster, cpu_mode(CPU)) == 10
    assert servers(cluster, gpu_mode(GPU)) == 6
    assert servers(cluster, gpu_mode(GPU, 0.25)) == 24
    assert servers(cluster, gpu_mode(GPU, 4)) == 1
    assert servers(cluster, gpu_mode(GPU, 7)) == 1
    assert servers(cluster, cpu_mode(CPU, 3)) == 3
    assert servers(cluster, cpu_mode(CPU, 0)) == 1
    assert servers(machine(gpus=1), gpu_mode(GPU, 1 / 3)) == 3  # millionths rounded down


# Erlang's wait --------------------------------------------------------------------------------------------------------


def estimated(stations, task, rate, service_time, present=0):
    """Fill in what a station has learned."""
    station = stations.best(task)[0]
    flow = station.flow("")
    flow.arrivals = SimpleNamespace(note=lambda now: None, value=rate)
    flow.busy, flow.done, flow.completed = service_time * 1e6, 1e6, 100
    station.present = present
    return station


@pytest.mark.quick(1)
@pytest.mark.parametrize(("count", "width", "p"), [(1, 1, 0.1), (3, 1, 0.05), (6, 2, 0.3), (2, 0.5, 0.02)])
def test_a_task_waits_too_long_with_a_probability_of_at_most_p(count, width, p):
    """By drawing the gaps of the departures that it has to wait for; one that finds a free server always gets in."""
    task, time, max_wait = jobs(Job([gpu_mode(GPU, width)], [2.0]))[0], 0.25, 0.4
    policy = ErlangWait(max_wait=max_wait, p=p)
    policy.begin(Seen(machine(gpus=count)))
    places = round(count / width)
    gaps = np.random.default_rng(1).exponential(time / places, (100_000, 40))
    late = (np.cumsum(gaps, axis=1) > max_wait).mean(axis=0)
    assert np.abs(late - p).min() > 0.003  # far enough from p for this number of draws
    for present in range(places + 12):
        station = estimated(policy.stations, task, None, time, present)
        station.occupied = present * width
        wanted = present < places or late[present - places] <= p
        assert admitted(policy.admit(task, policy.stations.view)) == wanted, present


def test_every_task_is_admitted_until_a_service_time_is_known():
    policy = ErlangWait(max_wait=0.4, p=0.1)
    view = Seen(machine(gpus=1))
    policy.begin(view)
    (task,) = gpu_tasks(1)
    station = estimated(policy.stations, task, 1e9, 0.0)
    assert [admitted(policy.admit(task, view)) for _ in range(9)] == [True] * 9
    assert station.present == 9
    estimated(policy.stations, task, None, 1.0, station.present)
    assert not admitted(policy.admit(task, view))
    policy.gone(task)
    assert station.present == 8 and station.flow("").completed == 100


# Naor -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("time", [0.3, 1.0, 2.7])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("load", [0.4, 1.0, 2.5])
def test_thresholds_by_trying_all(time, count, load):
    """Gains of every threshold from the exact chain, for all and for the one that takes the fee."""
    worth, rate = 6.4 * time, load * count / time
    most = threshold("individual", count, rate, time, worth)
    assert most == math.floor(count * 6.4)
    weights, social, revenue = [1.0], [0.0], [0.0]
    for n in range(1, most + 1):
        weights.append(weights[-1] * rate * time / min(n, count))
        chance = np.array(weights) / sum(weights)
        joining = rate * (1 - chance[-1])
        social.append(joining * worth - float(chance @ np.arange(n + 1)))
        revenue.append(joining * (worth - max(1.0, n / count) * time))
    assert threshold("social", count, rate, time, worth) == int(np.argmax(social))
    assert threshold("revenue", count, rate, time, worth) == int(np.argmax(revenue))


def test_no_task_joins_where_a_service_is_not_worth_its_own_time():
    assert threshold("individual", 3, 1.0, 2.0, 1.999) == 0
    assert threshold("social", 3, 1.0, 2.0, 1.999) == 0
    assert threshold("individual", 3, 1.0, 2.0, 2.0) == 3
    assert threshold("individual", 1, 1.0, 0.1, 0.3) == 3  # 0.3 / 0.1 is a little less than 3


def test_a_gain_however_small_is_worth_a_place():
    """λ = 0.1, mean 1, R/C = 1.5: one place gains 0.1 · 10 / 11 · 1.5 - 1 / 11, which is 0.045 a second."""
    assert threshold("social", 1, 0.1, 1.0, 1.5) == 1
    assert threshold("revenue", 1, 0.1, 1.0, 1.5) == 1


def test_naor_refuses_at_its_threshold():
    """R/C = 6 s, mean 2 s, one GPU: oneself joins as third and no later."""
    policy = Naor(reward=12.0, cost=2.0, objective="individual", arrival_rate=0.4, service_time=2.0)
    view = Seen(machine(gpus=1))
    policy.begin(view)
    tasks = gpu_tasks(6)
    assert [admitted(policy.admit(task, view)) for task in tasks[:4]] == [True, True, True, False]
    policy.gone(tasks[3])
    assert not admitted(policy.admit(tasks[4], view))
    policy.finished(tasks[0])
    assert admitted(policy.admit(tasks[5], view))
    policy.gone(tasks[1])
    assert policy.stations.best(tasks[0])[0].present == 2
    assert policy.stations.best(tasks[0])[0].flow("").completed == 1


def test_naor_admits_until_its_estimates_are_there_and_then_goes_by_them():
    tasks = gpu_tasks(3)
    for rate, time, inside in ((None, 2.0, True), (0.4, 0.0, True), (0.4, 2.0, False), (0.4, 0.5, True)):
        policy = Naor(reward=6.0, cost=1.0, objective="individual")
        view = Seen(machine(gpus=1))
        policy.begin(view)
        estimated(policy.stations, tasks[0], rate, time, present=3)
        assert admitted(policy.admit(tasks[0], view)) == inside
    known = Naor(reward=6.0, cost=1.0, objective="individual", arrival_rate=0.4, service_time=0.5)
    known.begin(view)
    estimated(known.stations, tasks[0], 9.0, 100.0, present=3)
    assert admitted(known.admit(tasks[0], view))


@pytest.mark.parametrize("moved", ["rate", "time"])
def test_naors_threshold_is_reckoned_again_when_something_moved_by_a_fiftieth(moved, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "hetsim_policies.admission.stations.threshold",
        lambda objective, count, rate, time, worth: asked.append((objective, count, rate, time, worth)) or 7,
    )
    policy = Naor(reward=12.0, cost=2.0, objective="revenue")
    policy.begin(Seen(machine(gpus=2)))
    (task,) = gpu_tasks(1)
    station, mode = policy.stations.best(task)
    for factor in (1.0, 1.0199, 0.981, 1.0201, 0.9799):
        rate, time = (0.5 * factor, 3.0) if moved == "rate" else (0.5, 3.0 * factor)
        assert policy._threshold(station, mode, rate, time) == 7
    assert len(asked) == 3
    assert asked[0] == ("revenue", 2, 0.5, 3.0, 6.0)


# Decision processes ---------------------------------------------------------------------------------------------------


def test_states_are_all_numbers_that_have_room():
    assert _states(3, 1).tolist() == [[0], [1], [2], [3]]
    wanted = sorted(state for state in product(range(4), repeat=3) if sum(state) <= 3)
    assert _states(3, 3).tolist() == [list(state) for state in wanted]


def test_neighbors_of_a_state():
    table = ThresholdTable(2, 3, 2)
    for state, number in table.index.items():
        for class_ in (0, 1):
            for step, found in ((1, table.up), (-1, table.down)):
                other = list(state)
                other[class_] += step
                assert found[number, class_] == table.index.get(tuple(other), -1)
        assert table.total[number] == sum(state)


def test_a_table_admits_what_is_inside_the_model_only():
    table = ThresholdTable(1, 2, 2)
    assert table.admits((0, 1), 0)
    assert not table.admits((1, 1), 0)
    assert not table.admits((2, 1), 1)  # beyond it


def test_estimates_have_moved_when_one_has():
    table = ThresholdTable(1, 2, 1)
    assert table.moved([1.0], [2.0], 0.1)
    table.solve([1.0], [2.0], [5.0], [1.0])
    assert not table.moved([1.0], [2.0], 0.1)
    assert not table.moved([1.0999], [1.801], 0.1)
    assert table.moved([1.1001], [2.0], 0.1)
    assert table.moved([0.8999], [2.0], 0.1)
    assert table.moved([1.0], [2.2001], 0.1)
    assert table.moved([1.0], [1.7999], 0.1)


@pytest.mark.parametrize("unit", [0.04, 3.7])
def test_a_decision_process_in_other_units(unit):
    """Rates fall, times grow, costs a second fall; the table stays and the gain a second falls."""
    plain, scaled = ThresholdTable(2, 7, 2), ThresholdTable(2, 7, 2)
    plain.solve([1.5, 2.0], [1.0, 0.4], [3.0, 1.0], [0.2, 0.1])
    scaled.solve([1.5 / unit, 2.0 / unit], [unit, 0.4 * unit], [3.0, 1.0], [0.2 / unit, 0.1 / unit])
    assert (plain.accept == scaled.accept).all()
    assert scaled.gain == close(plain.gain / unit)
    assert 0 < plain.accept.sum() < (plain.up >= 0).sum()


@pytest.mark.parametrize("reserved", [0, 1, 2])
def test_the_gain_of_a_table_is_that_of_its_chain(reserved):
    """Trunk reservation of different means, as a table: rewards × throughput − holding × mean number."""
    first, second = (1.2, 0.5), (0.9, 1.7)
    exact = theory.trunk_reservation(3, [(*first, 0), (*second, reserved)])
    table = ThresholdTable(3, 3, 2)
    accept = np.column_stack([table.total < 3, table.total < 3 - reserved])
    times, holding = np.array([first[1], second[1]]), np.array([0.3, 0.11])
    leave = table.states / times * np.minimum(1.0, 3 / np.maximum(1, table.total))[:, None]
    arguments = np.array([first[0], second[0]]), leave, np.array([4.0, 2.5]), table.states @ holding
    values, gain = table._evaluate(accept, *arguments)
    inside = np.array(exact.throughput) * times
    assert gain == close(float(np.array(exact.throughput) @ [4.0, 2.5] - inside @ holding))
    assert values[0] == 0.0
    # Poisson's equation: cost and reward of a state, with what follows, are its value and the gain.
    for state, number in table.index.items():
        flow = -float(np.array(state) @ holding)
        for class_, rate in enumerate((first[0], second[0])):
            if accept[number, class_]:
                flow += rate * ((4.0, 2.5)[class_] + values[table.up[number, class_]] - values[number])
            if state[class_]:
                flow += leave[number, class_] * (values[table.down[number, class_]] - values[number])
        assert flow == close(gain)


def test_the_best_table_is_the_best_of_all():
    """One server and room for one more, two classes: every table tried by its own stationary chain."""
    rates, times, rewards, holding = [0.8, 1.1], [0.7, 1.9], [3.0, 4.0], [0.4, 0.9]
    table = ThresholdTable(1, 2, 2)
    table.solve(rates, times, rewards, holding)
    free = np.argwhere(table.up >= 0)
    leave = table.states / np.array(times) / np.maximum(1, table.total)[:, None]
    best = -math.inf
    for choice in product([False, True], repeat=len(free)):
        accept = np.zeros(table.up.shape, bool)
        accept[tuple(free.T)] = choice
        size = len(table.states)
        flows = np.zeros((size, size))
        for number in range(size):
            for class_ in (0, 1):
                if accept[number, class_]:
                    flows[number, table.up[number, class_]] += rates[class_]
                if table.down[number, class_] >= 0:
                    flows[number, table.down[number, class_]] += leave[number, class_]
        system = np.vstack([(flows - np.diag(flows.sum(axis=1))).T, np.ones(size)])
        chance = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
        earned = accept @ (np.array(rates) * rewards) - table.states @ np.array(holding)
        best = max(best, float(chance @ earned))
    assert table.gain == close(best)


def problem(tasks=None, cluster=None):
    return PlanProblem(tasks, cluster or machine())


def columns(classes, modes=None):
    table = tasks_of([Job(modes or [gpu_mode(GPU)], [1.0] * len(modes or [0])) for _ in classes])
    table.class_code, table.classes = np.arange(len(classes)), list(classes)
    return table


def test_the_room_of_a_decision_process():
    policy = MdpThreshold({"a": 1.0})
    assert (policy._room(3), policy._room(20), policy._room(21)) == (20, 20, 21)
    assert MdpThreshold({"a": 1.0}, room=0)._room(30) == 0


def test_a_decision_process_has_a_largest_size(monkeypatch):
    """Two classes, 3 servers and room for 1: (4 + 2 over 4) = 15 states."""
    policy = MdpThreshold({"a": 1.0, "b": 2.0}, room=1)
    monkeypatch.setattr("hetsim_policies.admission.stations.MAX_STATES", 15)
    policy.check(problem(columns("ab")))
    monkeypatch.setattr("hetsim_policies.admission.stations.MAX_STATES", 14)
    with pytest.raises(ScenarioError, match="2 classes on 3 servers with room for 1 more have 15 states; at most 14 "):
        policy.check(problem(columns("ab")))


def learned(policy, view, task, flows):
    station = policy.stations.best(task)[0]
    for name, (rate, time, present) in flows.items():
        flow = station.flow(name)
        flow.arrivals = SimpleNamespace(note=lambda now: None, value=rate)
        flow.busy, flow.done, flow.completed, flow.present = time * 1e6, 1e6, 100, present
    return station


def test_a_decision_process_goes_by_the_table_of_its_estimates():
    """Two GPUs, no room: with one GPU left 1 is refused and 30 admitted; classes that are not known get in."""
    view = Seen(machine(gpus=2))
    tasks = gpu_tasks(3, classes=["low", "high", "odd"])
    policy = MdpThreshold({"low": 1.0, "high": 30.0}, room=0, tolerance=0.2)
    policy.begin(view)
    assert admitted(policy.admit(tasks[0], view))  # nothing is known yet
    policy.gone(tasks[0])
    station = learned(policy, view, tasks[0], {"low": (5.0, 0.4, 1), "high": (5.0, 0.4, 0)})
    wanted = ThresholdTable(2, 2, 2)
    wanted.solve([5.0, 5.0], [0.4, 0.4], [1.0, 30.0], [0.0, 0.0])
    assert [wanted.admits((1, 0), c) for c in (0, 1)] == [False, True]
    assert not admitted(policy.admit(tasks[0], view))
    assert admitted(policy.admit(tasks[1], view))
    assert (station.flow("low").present, station.flow("high").present) == (1, 1)
    assert admitted(policy.admit(tasks[2], view))
    policy.finished(tasks[1])
    assert (station.flow("high").present, station.flow("high").completed) == (0, 101)
    table = policy._tables[station]
    assert (table.servers, table.places, table.gain) == (2, 2, close(wanted.gain))


def test_a_decision_process_is_not_solved_again_for_the_same_estimates(monkeypatch):
    """Nor for estimates within the tolerance of 0.2; a class that never came counts as absent."""
    solved = []
    real = ThresholdTable.solve
    monkeypatch.setattr(ThresholdTable, "solve", lambda self, *given: solved.append(given) or real(self, *given))
    view = Seen(machine(gpus=2))
    tasks = gpu_tasks(4, classes=["a", "b", "a", "a"])
    policy = MdpThreshold({"a": 10.0, "b": 7.0}, room=3)
    policy.begin(view)
    for task, rate in ((tasks[0], 0.8), (tasks[2], 0.8), (tasks[3], 0.9)):
        learned(policy, view, task, {"a": (rate, 1.3, 0)})
        assert admitted(policy.admit(task, view))
    assert len(solved) == 1
    learned(policy, view, tasks[0], {"a": (1.1, 1.3, 0)})
    assert admitted(policy.admit(tasks[1], view))
    assert [given[0] for given in solved] == [[0.8, 0.0], [1.1, 0.0]]


def test_classes_of_a_decision_process_are_all_named():
    MdpThreshold({"a": 1.0, "b": 2.0}, {"b": 0.5}, room=1).check(problem(columns("ab")))
    for rewards, holding, said in (
        ({"a": 1.0}, {}, 'class "b" has no reward'),
        ({"a": 1.0, "b": 2.0, "c": 1.0}, {}, 'no class "c"'),
        ({"a": 1.0, "b": 2.0}, {"c": 1.0}, 'class "c" has a holding cost but no reward; give it one'),
    ):
        with pytest.raises(ScenarioError, match=said):
            MdpThreshold(rewards, holding, room=1).check(problem(columns("ab")))


def test_a_decision_process_counts_holding_costs_and_leaves_out_classes_that_hardly_come():
    view = Seen(machine(gpus=1))
    tasks = gpu_tasks(2, classes=["a", "b"])
    policy = MdpThreshold({"a": 10.0, "b": 7.0}, {"a": 1.5}, room=6)
    policy.begin(view)
    learned(policy, view, tasks[0], {"a": (0.8, 1.3, 0), "b": (None, 2.0, 0)})
    table = policy._table(policy.stations.best(tasks[0])[0], 1)
    wanted = ThresholdTable(1, 7, 2)
    wanted.solve([0.8, 0.0], [1.3, 1.0], [10.0, 7.0], [1.5, 0.0])
    assert table.gain == close(wanted.gain)
    assert table.gain == close(theory.naor(0.8, 1.3, 10.0, 1.5).welfare)
    assert (table.accept == wanted.accept).all()


# Token buckets --------------------------------------------------------------------------------------------------------


def test_a_bucket_by_hand():
    """Two tokens, one more every 2 s: at 0 two get in, at 1 there is half a token, at 2 a whole one, at 99 two."""
    bucket, view = TokenBucket(rate=0.5, burst=2), Seen()
    tasks = gpu_tasks(10)
    wanted = [(0.0, True), (0.0, True), (0.0, False), (1.0, False), (2.0, True), (2.0, False), (4.0, True),
              (99.0, True), (99.0, True), (99.0, False)]  # fmt: skip
    for task, (now, inside) in zip(tasks, wanted, strict=True):
        view.now = now
        assert admitted(bucket.admit(task, view)) == inside, now


def test_rounding_does_not_cost_a_token():
    bucket, view = TokenBucket(rate=0.1, burst=1), Seen()
    tasks = gpu_tasks(3)
    assert admitted(bucket.admit(tasks[0], view))
    view.now = 10 - 1e-9
    assert admitted(bucket.admit(tasks[1], view))
    view.now = 19.99
    assert not admitted(bucket.admit(tasks[2], view))


def test_a_bucket_that_defers_promises_tokens_in_order():
    """Rate 0.5, burst 1: at 0 one goes, the next at 2, the third at 4; asked again each of them may go."""
    bucket, view = TokenBucket(rate=0.5, excess="defer"), Seen()
    tasks = gpu_tasks(4)
    assert admitted(bucket.admit(tasks[0], view))
    found = [bucket.admit(task, view) for task in tasks[1:3]]
    assert [type(one) for one in found] == [Defer, Defer]
    assert [one.until for one in found] == [2.0, 4.0]
    view.now = 2.0
    assert admitted(bucket.admit(tasks[1], view))
    view.now = 3.0
    assert bucket.admit(tasks[3], view).until == close(6.0)
    view.now = 4.0
    assert admitted(bucket.admit(tasks[2], view))
    view.now = 6.0
    assert admitted(bucket.admit(tasks[3], view))


@pytest.mark.parametrize(("per", "wanted"), [("all", [True, False, False]), ("class", [True, True, False]),
                                             ("user", [True, False, True])])  # fmt: skip
def test_buckets_of_classes_and_users(per, wanted):
    bucket, view = TokenBucket(rate=0.5, per=per), Seen()
    tasks = gpu_tasks(3, classes=["a", "b", "a"], users=["x", "x", "y"])
    assert [admitted(bucket.admit(task, view)) for task in tasks] == wanted


# Reservations, thresholds, limits -------------------------------------------------------------------------------------


def test_servers_are_kept_free_for_others():
    """Three GPUs, two kept from class b: b gets in while all three are free, a while one is."""
    policy, view = TrunkReservation({"b": 2}), Seen(machine(gpus=3))
    policy.begin(view)
    tasks = gpu_tasks(7, classes=["b", "b", "a", "a", "a", "b", "b"])
    assert [admitted(policy.admit(task, view)) for task in tasks[:5]] == [True, False, True, True, False]
    assert policy.admit(tasks[1], view).reason == "2 servers are reserved for other classes"
    assert policy.admit(tasks[4], view).reason == "no server free"
    policy.finished(tasks[0])
    policy.gone(tasks[2])
    assert not admitted(policy.admit(tasks[5], view))  # 2 of 3 are free
    policy.finished(tasks[3])
    assert admitted(policy.admit(tasks[6], view))


def test_places_are_counted_by_width_and_batch():
    """A quarter of a GPU in batches of 5: 2 GPUs are 40 places.  Without width there is always one."""
    mode = gpu_mode(GPU, 0.25, batch_limit=5)
    tasks = jobs(*[Job([mode], [1.0]) for _ in range(41)])
    policy, view = TrunkReservation({}), Seen(machine(gpus=2))
    policy.begin(view)
    assert [admitted(policy.admit(task, view)) for task in tasks] == [True] * 40 + [False]
    nothing = jobs(*[Job([cpu_mode(CPU, 0)], [1.0]) for _ in range(9)])
    policy.begin(view)
    assert all(admitted(policy.admit(task, view)) for task in nothing)


def test_places_may_be_given():
    policy, view = TrunkReservation({"b": 1}, servers=2), Seen(machine(gpus=9))
    policy.begin(view)
    tasks = gpu_tasks(4, classes=["a", "b", "a", "a"])
    assert [admitted(policy.admit(task, view)) for task in tasks] == [True, False, True, False]


@pytest.mark.parametrize(("limit", "refused"), [(10**6, True), (10**6 - 1, False)])
def test_places_without_a_largest_batch_have_to_be_given(limit, refused):
    table = columns("a", [gpu_mode(GPU, batch_limit=limit)])
    TrunkReservation({"a": 1}, servers=4).check(problem(table))
    if refused:
        with pytest.raises(ScenarioError, match="servers is needed for a service without max_batch; give the service"):
            TrunkReservation({"a": 1}).check(problem(table))
    else:
        TrunkReservation({"a": 1}).check(problem(table))


def test_a_share_taken_refuses_at_the_threshold():
    (task,) = gpu_tasks(1)
    policy = UtilizationThreshold(threshold=0.6)
    for taken, inside in ((0, True), (2, True), (3, False), (5, False)):
        assert admitted(policy.admit(task, Seen(machine(gpus=5), taken={"g": taken}))) == inside
    both = [gpu_mode(GPU), cpu_mode(CPU)]
    one, other = jobs(Job(both, [5.0, 2.0]), Job(both, [2.0, 5.0]))  # the best mode counts
    view = Seen(machine(gpus=5, cpus=4), taken={"g": 5})
    assert admitted(policy.admit(one, view))
    assert not admitted(policy.admit(other, view))
    third = UtilizationThreshold(threshold=1 / 3)
    assert not admitted(third.admit(task, Seen(machine(gpus=3), taken={"g": 1})))


def test_a_share_is_averaged_over_a_window():
    """What is seen stands for the time since: after 2 s of a window of 4 the new share weighs 1 - exp(-1/2)."""
    policy = UtilizationThreshold(threshold=0.5, window=4.0)
    view = Seen(machine(gpus=4), taken={"g": 4}, now=2.0)
    (task,) = gpu_tasks(1)
    assert admitted(policy.admit(task, view))
    average = 1 - math.exp(-0.5)
    assert policy._average["g"] == (close(average), 2.0)
    short = UtilizationThreshold(threshold=0.5, window=0.5)  # 1 - e^{-1} of what is taken now
    assert admitted(short.admit(task, Seen(machine(gpus=4), taken={"g": 3}, now=0.5)))
    assert not admitted(short.admit(task, Seen(machine(gpus=4), taken={"g": 4}, now=1.0)))
    view.now, view.taken = 5.0, {"g": 3}
    assert not admitted(policy.admit(task, view))
    average = math.exp(-0.75) * average + (1 - math.exp(-0.75)) * 0.75
    assert policy._average["g"] == (close(average), 5.0)


def test_limits_on_heads_that_wait():
    (task,) = gpu_tasks(1, classes=["a"])
    for waiting, fitting, inside in ((1, False, True), (2, True, False), (3, False, False)):
        view = Seen(in_all=waiting, fitting=fitting, queued={("class", "a"): 9, "g": 9})
        assert admitted(QueueLimit(limit=2).admit(task, view)) == inside
        assert admitted(QueueLimit(limit=2, per_class={"b": 0}).admit(task, view)) == inside
    for waiting, fitting, inside in ((0, True, True), (0, False, False), (1, True, False)):
        view = Seen(in_all=waiting, fitting=fitting)
        assert admitted(QueueLimit(limit=0).admit(task, view)) == inside
        assert admitted(QueueLimit(limit=0, per_class={"b": 0}).admit(task, view)) == inside
        view = Seen(in_all=9, fitting=fitting, queued={("class", "a"): waiting})
        assert admitted(QueueLimit(per_class={"a": 0}).admit(task, view)) == inside
        for name in ("g", "gpu"):
            view = Seen(in_all=9, fitting=fitting, queued={name: waiting})
            assert admitted(QueueLimit(per_device={name: 0}).admit(task, view)) == inside


A = ("class", "a")


def test_each_limit_counts_for_itself():
    both = [gpu_mode(GPU), cpu_mode(CPU)]
    task, other = jobs(Job(both, [2.0, 3.0]), Job(both, [4.0, 3.0]), classes=["a", "b"])
    policy = QueueLimit(limit=9, per_class={"a": 2}, per_device={"gpu": 3, "cpu": 1})
    view = Seen(fitting=False, in_all=8, queued={A: 1, "gpu": 2, "cpu": 0})
    assert admitted(policy.admit(task, view)) and admitted(policy.admit(other, view))
    view.queued = {A: 2, "gpu": 2, "cpu": 0}
    assert policy.admit(task, view).reason == "2 tasks of a wait already"
    view.queued = {A: 1, "gpu": 3, "cpu": 1}
    assert policy.admit(task, view).reason == "3 tasks wait for gpu already"
    assert policy.admit(other, view).reason == "1 tasks wait for cpu already"
    view.in_all, view.queued = 9, {}
    assert policy.admit(task, view).reason == "9 tasks wait already"
    view = Seen(fitting=False, in_all=4, queued={A: 2, "g": 1})
    assert not admitted(QueueLimit(limit=9, per_class={"a": 2}).admit(task, view))
    assert not admitted(QueueLimit(limit=9, per_device={"g": 1}).admit(task, view))


def test_a_task_starts_at_once_in_any_of_its_modes():
    (task,) = jobs(Job([gpu_mode(GPU), cpu_mode(CPU)], [2.0, 3.0]))
    assert admitted(QueueLimit(limit=0).admit(task, Seen(fitting={"cpu"})))


def test_names_are_looked_up():
    table = columns(["", "a"])
    known_classes(problem(table), ["a"], "per_class")
    with pytest.raises(ScenarioError, match='no class "b".*the classes here are a$'):
        known_classes(problem(table), ["a", "b"], "per_class")
    with pytest.raises(ScenarioError, match="there are no classes here"):
        known_classes(problem(columns([""])), ["b"], "per_class")
    with pytest.raises(ScenarioError, match='no class "trainin"; did you mean "training"'):
        known_classes(problem(columns(["training"])), ["training", "trainin", "x"], "per_class")
    known_devices(problem(table), ["g", "gpu", "cpu"], "per_device")
    with pytest.raises(ScenarioError, match='no device type "slow".*the device types here are'):
        known_devices(problem(table), ["slow"], "per_device")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (QueueLimit(per_class={"b": 1}), 'no class "b"'),
        (QueueLimit(per_device={"b": 1}), 'no device type "b"'),
        (QueueLimit(), "queue_limit needs at least one of limit, per_class and per_device"),
        (TrunkReservation({"b": 1}), 'no class "b"'),
    ],
)
def test_names_that_are_not_there_are_refused(policy, said):
    with pytest.raises(ScenarioError, match=said):
        policy.check(problem(columns("a")))


@pytest.mark.parametrize("limits", [{"limit": 0}, {"per_class": {"a": 0}}, {"per_device": {"g": 0}}])
def test_one_limit_is_enough(limits):
    QueueLimit(**limits).check(problem(columns("a")))


# CoDel ----------------------------------------------------------------------------------------------------------------


def test_codel_by_the_clock():
    """Above from 3 on: the first refusal after an interval of 8, at 11; then 8 / √1 later, 8 / √2 after that."""
    law = ControlLaw(2.0, 8.0)
    assert not law.refuses(0.0, 1.99)
    assert not law.refuses(3.0, 2.0)
    assert not law.refuses(10.9, 5.0)
    assert law.refuses(11.0, 5.0)
    assert not law.refuses(18.9, 5.0)
    assert law.refuses(19.0, 5.0)
    assert not law.refuses(19.0 + 8 / math.sqrt(2) - 0.01, 5.0)
    assert law.refuses(19.0 + 8 / math.sqrt(2), 5.0)
    assert law.next == close(19.0 + 8 / math.sqrt(2) + 8 / math.sqrt(3))


def test_codel_begins_anew_when_the_age_was_below():
    law = ControlLaw(2.0, 8.0)
    for now, age, refused in ((0.0, 3.0, False), (7.0, 1.0, False), (7.5, 3.0, False), (15.0, 3.0, False),
                              (15.5, 3.0, True)):  # fmt: skip
        assert law.refuses(now, age) == refused


def spell(law, begin, refusals):
    """Keep the age high until so many were refused; returns when the last was."""
    now, times = begin, []
    while len(times) < refusals:
        if law.refuses(now, 9.0):
            times.append(now)
        now += 0.125
    law.refuses(now, 0.0)
    return times


def test_codel_remembers_a_recent_spell_only():
    """After a spell of 4 the next begins with 3 if it is soon, with 1 after 16 intervals; after one of 2 with 1."""
    for refusals, pause, count in ((4, 10.0, 3), (4, 140.0, 1), (1, 10.0, 1), (2, 10.0, 1), (3, 10.0, 2)):
        law = ControlLaw(2.0, 8.0)
        last = spell(law, 0.0, refusals)[-1]
        assert law.count == refusals
        first = spell(law, last + pause, 1)[0]
        assert law.count == law.last_count == count
        assert law.next == close(first + 8 / math.sqrt(count))


def test_codel_forgets_after_exactly_sixteen_intervals():
    for now, count in ((8 * 16 + 100.0, 1), (8 * 16 + 99.9, 3)):
        law = ControlLaw(2.0, 8.0)
        law.count, law.last_count, law.next, law.above_since = 4, 1, 100.0, 0.0
        assert law.refuses(now, 5.0)
        assert law.count == count


def test_codel_asks_for_the_age_of_the_head():
    """Of a service the oldest request, else the task that has waited longest; an empty queue has age 0."""
    (task,) = gpu_tasks(1)

    class Queue(list):
        __hash__ = object.__hash__

        def arrival(self, position):
            return self[position]

    policy = Codel(target=2.0, interval=8.0)
    view = Seen(now=20.0)
    view.waiting = lambda count, own: [SimpleNamespace(ready=5.0)]
    assert admitted(policy.admit(task, view))
    view.now = 28.0
    assert not admitted(policy.admit(task, view))
    view.queue = Queue([])  # a service of its own: another law
    assert admitted(policy.admit(task, view))
    quick = Codel(target=0.5, interval=1e-9)
    assert [admitted(quick.admit(task, view)) for _ in range(3)] == [True] * 3
    view.queue += [1.0, 27.5]  # the oldest counts
    assert admitted(policy.admit(task, view))
    view.now = 36.0
    assert not admitted(policy.admit(task, view))
    view.queue = None
    view.waiting = lambda count, own: []
    assert admitted(policy.admit(task, view))
    assert [key is None for key in policy._laws] == [True, False]


# Work ahead -----------------------------------------------------------------------------------------------------------


def two_modes(times=(2.0, 6.0), deadline=math.nan, arrival=0.0, **more):
    return jobs(Job([gpu_mode(GPU), cpu_mode(CPU)], list(times), deadline=deadline, arrival=arrival, **more))[0]


def test_the_wait_is_work_over_servers():
    """12 s of work for 3 GPUs: 4 s; nothing where no task waits and it fits; else what runs counts."""
    task = two_modes()
    ahead = Ahead(Seen(queued={"g": 1}, work={"g": 12.0, "cpu": 10.0}))
    assert ahead.wait(task) == 4.0
    assert ahead.wait(task, 0) == 4.0
    assert ahead.wait(task, 1) == 0.0
    assert ahead.response(task) == 6.0
    assert ahead.response(task, 1) == 6.0
    blocked = Ahead(Seen(fitting=False, work={"g": 12.0, "cpu": 10.0}))
    assert blocked.wait(task, 1) == 2.5
    assert blocked.response(task, 1) == 8.5
    free = Ahead(Seen(work={"g": 12.0}))
    assert free.wait(task) == 0.0


def test_what_is_left_until_the_deadline():
    assert Ahead(Seen(now=3.0)).time_left(two_modes(deadline=10.0)) == 7.0
    assert Ahead(Seen(now=3.0)).time_left(two_modes()) == math.inf


def test_ones_own_time_has_transfers_in_it():
    """A mode with a fixed part; transfers are asked of the view, on the first devices that the mode could take."""
    plain = gpu_mode(GPU, fixed=0.5)
    (task,) = jobs(Job([plain], [2.0]))
    assert Ahead(Seen()).response(task) == 2.5
    view = Seen(durations={"g": 9.0})
    stage = [{"upload": StageTime(fixed=1.0)}, {"upload": StageTime(per_item=1.0)},
             {"download": StageTime(fixed=1.0)}, {"download": StageTime(per_item=1.0)}]  # fmt: skip
    for more in stage:
        (task,) = jobs(Job([gpu_mode(GPU, **more)], [2.0]))
        assert Ahead(view).response(task) == 9.0
    for more in ({"bytes_in": 5}, {"bytes_out": 5}, {"reads": (0,)}, {"writes": (0,)}):
        (task,) = jobs(Job([plain], [2.0], **more))
        assert Ahead(view).response(task) == 9.0
    nowhere = jobs(Job([gpu_mode(GPU, 8)], [2.0], bytes_in=5))[0]
    assert Ahead(view).response(nowhere) == 2.0


def test_the_first_devices_that_a_mode_could_take():
    cluster = machine(gpus=2, cpus=4, nodes=2, slow=1)
    assert [d.name for d in somewhere(cluster, gpu_mode(GPU)).devices] == ["n0/g0"]
    assert [d.name for d in somewhere(cluster, gpu_mode(GPU, 2)).devices] == ["n0/g0", "n0/g1"]
    assert [d.name for d in somewhere(cluster, gpu_mode(SLOW)).devices] == ["n0/g2"]
    assert [d.name for d in somewhere(cluster, cpu_mode(CPU)).devices] == ["n0/cpu"]
    assert somewhere(cluster, gpu_mode(GPU, 3)) is None
    spread = somewhere(cluster, gpu_mode(GPU, 3, span_any=True))
    assert [d.name for d in spread.devices] == ["n0/g0", "n0/g1", "n1/g0"]
    assert len(somewhere(cluster, gpu_mode(GPU, 4, span_any=True)).devices) == 4
    assert somewhere(cluster, gpu_mode(GPU, 5, span_any=True)) is None


def test_predicted_waits_have_a_limit_or_a_deadline():
    view = Seen(queued={"g": 1}, work={"g": 12.0})
    for policy, task, inside in (
        (PredictedWait(max_wait=4.0), two_modes(), True),
        (PredictedWait(max_wait=3.99), two_modes(), False),
        (PredictedWait(max_wait=0.0), two_modes(deadline=1e9), False),
        (PredictedWait(), two_modes(), True),
        (PredictedWait(), two_modes(deadline=6.0), True),
        (PredictedWait(), two_modes(deadline=5.99), False),
        (PredictedWait(), two_modes(deadline=6.0 / (1 + 5e-10)), True),
    ):
        policy.begin(view)
        assert admitted(policy.admit(task, view)) == inside
    policy = PredictedWait(max_wait=3.0)
    policy.begin(view)
    assert policy.admit(two_modes(), view).reason == "would wait too long"


def test_feasible_is_what_ends_in_time_in_any_mode():
    """On the GPUs 4 + 2 = 6 s, on the cores 0 + 6."""
    view = Seen(queued={"g": 1}, work={"g": 12.0})
    for safety, task, inside in (
        (1.0, two_modes((2.0, 9.0), deadline=6.0), True),
        (1.0, two_modes((3.0, 6.0), deadline=6.0), True),
        (1.0, two_modes((3.0, 7.0), deadline=6.0), False),
        (1.25, two_modes((2.0, 9.0), deadline=7.5), True),
        (1.25, two_modes((2.0, 9.0), deadline=7.4), False),
        (0.5, two_modes((2.0, 9.0), deadline=3.0), True),
        (1.25, two_modes((2.0, 9.0)), True),
    ):
        policy = SloFeasible(safety)
        policy.begin(view)
        assert admitted(policy.admit(task, view)) == inside


def test_redirect_ties_a_task_to_the_fastest_mode_in_time():
    view = Seen(queued={"g": 1}, work={"g": 12.0})
    policy = Redirect()
    policy.begin(view)
    assert policy.admit(two_modes((2.0, 5.0), deadline=6.0), view).modes == (0,)
    assert policy.admit(two_modes((3.0, 6.0), deadline=6.0), view).modes == (1,)
    assert not admitted(policy.admit(two_modes((3.0, 7.0), deadline=6.0), view))
    assert policy.admit(two_modes((2.0, 5.0)), view).modes is None
    (single,) = jobs(Job([gpu_mode(GPU)], [2.0], deadline=6.0))
    assert policy.admit(single, view).modes is None
    (late,) = jobs(Job([gpu_mode(GPU)], [2.0], deadline=5.9))
    assert not admitted(policy.admit(late, view))
    assert AcceptAll().admit(late, view).modes is None


def test_adaptive_moves_its_limit_after_each_answer():
    """Gain 0.1, percentile 0.9, target 5 s: in time × exp(0.01), late × exp(-0.09), within 0.005 and 20 s."""
    policy, view = Adaptive(target=5.0, percentile=0.9, gain=0.1), Seen(queued={"g": 1}, work={"g": 60.0})
    policy.begin(view)
    tasks = gpu_tasks(6)
    assert admitted(policy.admit(tasks[0], view))  # no limit yet: a wait of 20 s
    view.now = 5.0
    policy.finished(tasks[0])
    assert policy.limit == 20.0  # in time, at the very second; never above 4 × 5
    assert admitted(policy.admit(tasks[1], view))
    view.now = 5.01
    policy.finished(tasks[1])
    assert policy.limit == close(20.0 * math.exp(-0.09))
    policy.finished(tasks[1])  # told again: nothing
    assert policy.limit == close(20.0 * math.exp(-0.09))
    assert not admitted(policy.admit(tasks[2], view))
    policy.gone(tasks[2])
    assert policy.limit == close(20.0 * math.exp(-0.09))
    view.work = {"g": 3.0}
    for task in tasks[3:5]:
        assert admitted(policy.admit(task, view))
    view.now = 1.0
    policy.finished(tasks[3])
    assert policy.limit == close(20.0 * math.exp(-0.08))
    policy.gone(tasks[4])  # a task that gave up was late, however early
    assert policy.limit == close(20.0 * math.exp(-0.17))
    policy.limit = 0.005
    assert not admitted(policy.admit(tasks[5], view))
    view.work = {}
    view.queued = {}
    assert admitted(policy.admit(tasks[5], view))
    policy.gone(tasks[5])
    assert policy.limit == close(0.005)


def test_adaptive_goes_by_deadlines_where_it_has_no_target():
    policy, view = Adaptive(percentile=0.5, gain=0.2), Seen()
    policy.begin(view)
    with_one = two_modes(deadline=10.0, arrival=7.0)
    without = two_modes()
    view.now = 8.0
    assert admitted(policy.admit(with_one, view))
    view.now = 11.0
    policy.finished(with_one)
    assert policy.limit == close(4 * 3 * math.exp(-0.1))
    before = policy.limit
    assert admitted(policy.admit(without, view))
    policy.finished(without)
    assert policy.limit == before


# Batches ahead --------------------------------------------------------------------------------------------------------


class Requests(list):
    """A queue of requests whose batches of n take 0.5 + 0.25 n s to compute, and 0.125 s to move each way."""

    def __init__(self, waiting, slo=math.inf, there=0.0, back=0.0):
        super().__init__(range(waiting))
        self.service = SimpleNamespace(request_delay=there, response_delay=back, slo=slo)

    __hash__ = object.__hash__

    def stages(self, size, placement):
        assert placement.devices[0].type is placement.mode.type
        compute = 0.5 + 0.25 * size
        return SimpleNamespace(compute=compute, total=compute + 0.25)


def request(limit=4, arrival=0.0):
    return jobs(Job([gpu_mode(GPU, batch_limit=limit)], [0.25], arrival=arrival))[0]


def test_batches_ahead_of_a_request_on_one_device():
    """The device is free in 2 s.  In batches of 4 that compute for 1.5 s: with 3 ahead 2 s, with 4 or 7 ahead 3.5."""
    task = request()
    for waiting, wait, size in ((0, 2.0, 1), (3, 2.0, 4), (4, 3.5, 1), (7, 3.5, 4), (8, 5.0, 1)):
        view = Seen(machine(gpus=1), now=10.0, queue=Requests(waiting), free_times=[12.0])
        ahead = Ahead(view)
        assert ahead.wait(task) == wait
        assert ahead.response(task) == close(wait + 0.5 + 0.25 * size + 0.25)
    view = Seen(machine(gpus=1), now=10.0, queue=Requests(3, there=0.1, back=0.3), free_times=[9.0])
    assert Ahead(view).wait(task) == 0.0  # it is free already
    assert Ahead(view).response(task) == close(0.1 + 1.75 + 0.3)


def test_batches_ahead_are_shared_by_devices():
    """Two GPUs: the first that is free counts, and 8 ahead are two batches of 1.5 s for two."""
    view = Seen(machine(gpus=2), now=10.0, queue=Requests(8), free_times=[13.0, 12.0])
    assert Ahead(view).wait(request()) == 2.0 + 1.5
    assert Ahead(view).response(request()) == close(3.5 + 0.75 + 0.25)


def test_requests_that_come_meanwhile_join_the_batch():
    """Four a second in the 2 s until the device is free: 8 more, so a full batch; at a quarter of that, two more."""
    for rate, size in ((4.0, 4), (1.0, 3), (0.4, 1)):
        view = Seen(machine(gpus=1), now=0.0, queue=Requests(0), free_times=[2.0])
        ahead = Ahead(view)
        ahead.service(request()).rate = SimpleNamespace(note=lambda now: None, value=rate)
        task = request()
        ahead._services = {task.shape: ahead.service(task)}
        ahead._services[task.shape].rate = SimpleNamespace(note=lambda now: None, value=rate)
        assert ahead.response(task) == close(2.0 + 0.5 + 0.25 * size + 0.25)


def test_the_rate_of_requests_is_learned_from_their_arrivals():
    """One a second, the device free in 2 s: from the thirtieth on two more are expected in the batch."""
    view = Seen(machine(gpus=1), now=0.0, queue=Requests(0), free_times=[1e9])
    ahead, task = Ahead(view), request()
    for number in range(31):
        view.now, view.free_times, view.changes.launches = float(number), [number + 2.0], number
        size = 1 if number < 29 else 3
        assert ahead.response(task) == close(2.0 + 0.5 + 0.25 * size + 0.25)


def test_the_device_is_asked_again_only_when_something_ran():
    view = Seen(machine(gpus=1), now=10.0, queue=Requests(0), free_times=[12.0])
    ahead, task = Ahead(view), request()
    assert ahead.wait(task) == 2.0
    view.now = 11.0
    assert ahead.wait(task) == 1.0
    assert view.asked == 1
    view.changes.launches, view.free_times = 1, [14.0]
    assert ahead.wait(task) == 3.0
    view.changes.releases, view.free_times = 1, [15.0]
    assert ahead.wait(task) == 4.0
    assert view.asked == 3


def test_many_devices_are_not_asked_one_by_one():
    """Five: none free, so a sixth of the time of the batch that the queue makes up to now, at least of one."""
    task = request()
    for waiting, size in ((0, 1), (3, 3), (4, 4)):
        view = Seen(machine(gpus=5), queue=Requests(waiting), place=None)
        wanted = (0.5 + 0.25 * size + 0.25) / 6 + (1.5 / 5 if waiting == 4 else 0.0)
        assert Ahead(view).wait(task) == close(wanted)
    view = Seen(machine(gpus=5), queue=Requests(2), place="somewhere")
    assert Ahead(view).wait(task) == 0.0
    four = Seen(machine(gpus=4), now=1.0, queue=Requests(0), free_times=[4.0, 3.0, 2.5, 9.0])
    assert Ahead(four).wait(task) == 1.5


def test_a_service_without_a_largest_batch_is_one_batch():
    view = Seen(machine(gpus=1), queue=Requests(500), free_times=[0.5])
    assert Ahead(view).wait(request(limit=10**6)) == 0.5
    assert Ahead(view).response(request(limit=10**6)) == close(0.5 + 0.5 + 0.25 * 501 + 0.25)


def test_requests_have_the_deadline_of_their_service():
    view = Seen(machine(gpus=1), now=3.0, queue=Requests(0, slo=8.0), free_times=[3.0])
    task = request(arrival=2.0)
    ahead = Ahead(view)
    assert ahead.time_left(task) == math.inf  # before its service is known there is none
    assert ahead.service(task) is ahead.service(task)
    assert ahead.time_left(task) == 7.0
    for safety, inside in ((1.0, True), (6.9, True), (7.1, False)):
        policy = SloFeasible(safety)
        policy.begin(view)
        policy.ahead.service(task)
        assert admitted(policy.admit(task, view)) == inside  # 1 s
