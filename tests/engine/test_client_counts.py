"""Closed loops whose number of clients changes: how many are there at any time, and when they come and leave."""

import numpy as np
import pytest
from test_fork import look

import hetsim as hs
from hetsim.queueing.matching import match
from hetsim.scenario.scenario import load

CHANGES = [["0 s", 3], ["20 s", 12], ["50 s", 5], ["70 s", 9], ["90 s", 2]]


def loop(gpus, task, think, clients, between="step", **more):
    arrivals = {"process": "closed", "clients": clients, "between": between, "think": think}
    entry = {"name": "clients", "arrivals": arrivals, "gpu_time": task, "count": 20_000, **more}
    nodes = {"gpus": {"type": "a100", "count": gpus}}
    return {"name": "s", "horizon": "120 s", "policy": "fcfs", "cluster": {"nodes": nodes}, "workload": [entry]}


def wanted(times, between):
    """Clients at each time by the scenario; with lines whole numbers when a line reaches them."""
    at, number = zip(*[(float(time.split()[0]), count) for time, count in CHANGES], strict=True)
    if between == "step":
        return np.array(number)[np.searchsorted(at, times, side="right") - 1]
    line = np.interp(times, at, number)
    rising = np.interp(times + 1e-6, at, number) >= line
    return np.where(rising, np.floor(line + 1e-9), np.ceil(line - 1e-9))


def in_system(tasks, times):
    finish = tasks["finish"].fillna(np.inf).to_numpy()
    return np.array([((tasks["arrival"] <= time) & (finish > time)).sum() for time in times])


@pytest.mark.quick(1)
@pytest.mark.parametrize("between", ["step", "linear"])
@pytest.mark.parametrize("gpus", [20, 4])
def test_as_many_clients_as_the_scenario_says(between, gpus):
    """Without thinking all clients are in the system, but for those too many, which leave as their tasks end."""
    tasks = hs.run(loop(gpus, "400 ms", "0 s", CHANGES, between), check=True).tasks
    times = np.arange(0.05, 119, 0.37)
    there, right = in_system(tasks, times), wanted(times, between)
    # A client that is too many has its task ended after at most one turn of all that are there.
    turn = 0.4 * max(1, np.ceil(12 / gpus))
    before = np.array([wanted(np.linspace(max(time - turn, 0), time, 40), between).max() for time in times])
    assert (there >= right).all()
    assert (there <= before).all()
    assert (there[np.equal(before, right)] == right[np.equal(before, right)]).all()


def test_clients_that_come_think_first_and_those_that_think_send_once_more():
    """By hand: tasks of 1 s, 10 s of thinking, one client; two more come at 5 s, and two are too many from 40 s on."""
    tasks = hs.run(loop(9, "1 s", "10 s", [["0 s", 1], ["5 s", 3], ["40 s", 1]])).tasks
    # All three think at 40 s; the task of 43 s and one of those of 48 s are the last of their clients.
    sent = [10, 15, 15, 21, 26, 26, 32, 37, 37, 43, 48, 48, 59, 70, 81, 92, 103, 114]
    assert sorted(tasks["arrival"]) == pytest.approx(sent)


def test_a_number_and_a_list_of_one_number_are_the_same():
    one, other = (hs.run(loop(4, "400 ms", "1 s", clients)).tasks for clients in (6, [["0 s", 6], ["60 s", 6]]))
    assert one["arrival"].tolist() == other["arrival"].tolist()


def test_forks_end_as_the_run_they_are_of():
    law = {"distribution": "exponential", "mean": "1 s"}
    look(lambda: load(loop(4, "400 ms", law, CHANGES, "linear")).build())


def test_theory_knows_one_number_of_clients_only():
    law = {"distribution": "exponential", "mean": "1 s"}
    for clients in (6, CHANGES):
        found = match(load(loop(2, law, law, clients)))
        changing = [one for one in found.assumptions if one.text == "the number of clients does not change"]
        assert [one.holds for one in changing] == [clients == 6]
        assert (found.verdict == "none") == (clients != 6)
    both = loop(2, law, law, CHANGES)
    both["workload"].insert(0, {"name": "open", "arrivals": {"process": "poisson", "rate": "1/s"}, "gpu_time": law})
    assert match(load(both)).verdict == "none"
