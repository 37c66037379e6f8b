"""dada: where data lie, as far as that is balanced; and what moves."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from test_shipped_scenarios import SHIPPED, runs, states
from tiers import spread

import hetsim as hs
from benchmarks.hybrid_instances import FAMILIES, instances, optimum
from hetsim.engine.flight.links import Links
from hetsim.engine.launching.boundaries import Boundaries
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.tasks import Item
from hetsim.testing import System
from hetsim.testing.systems import GB, gpu_mode, node, workload
from hetsim_policies.hybrid.dada import PRECISION, Activation, Dada, by_acceleration, by_affinity, dealt, laid_out

FOLDER = Path(__file__).parents[2] / "scenarios" / "hetsim_scenarios" / "hybrid"
GPU = DeviceType("g")


def activation(seconds, held=None, free=None, on_cores=None):
    seconds = np.array(seconds, dtype=float)
    lines = seconds.shape[1]
    return Activation(
        seconds,
        np.ones(seconds.shape),
        np.zeros(seconds.shape) if held is None else np.array(held, dtype=float),
        [[0.0] for _ in range(lines)] if free is None else free,
        np.zeros(lines, dtype=bool) if on_cores is None else np.array(on_cores),
    )


# The algorithm ----------------------------------------------------------------------------------------------------


def test_data_decide_where_balance_allows_it():
    """Four tasks of 1 s on two GPUs, all with data on the second: each GPU gets two, by affinity or for balance."""
    given = activation([[1, 1]] * 4, held=[[0, 8], [0, 4], [0, 2], [0, 6]])
    assert dealt(given, 1.0) == [1, 0, 0, 1]


def test_without_affinity_data_break_ties_only():
    assert dealt(activation([[1, 1]], held=[[0, 5]]), 0.0) == [1]
    assert dealt(activation([[1, 2]], held=[[0, 5]]), 0.0) == [0]


@pytest.mark.parametrize(("alpha", "there"), [(0.0, 0), (0.5, 2), (1.0, 4)])
def test_alpha_is_the_share_that_goes_by_affinity(alpha, there):
    """For a guess of 4 s, tasks of 1 s fill so much of the second GPU, the most bytes first; the first is faster."""
    given = activation([[0.1, 1]] * 4, held=[[0, n] for n in (1, 2, 3, 4)])
    layout = laid_out(given, 4.0, alpha, by_acceleration(given), by_affinity(given))
    drawn = [task for task in (3, 2, 1, 0) if layout.line[task] == 1]
    assert drawn == [3, 2, 1, 0][:there]


def test_what_is_in_line_already_counts():
    """The GPU that holds the data is busy for 10 s: the task goes to the other."""
    assert dealt(activation([[1, 1]], held=[[0, 5]], free=[[0.0], [10.0]]), 1.0) == [0]


def test_a_guess_that_is_too_small_is_refused():
    given = activation([[3, 9]], on_cores=[False, True])
    assert laid_out(given, 2.9, 1.0, [0], []) is None
    assert laid_out(given, 3.0, 1.0, [0], []) is not None


@pytest.mark.quick(1)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("family", spread(FAMILIES, 1))
def test_an_activation_ends_within_its_ratio_of_the_optimum(family, alpha):
    """2 + α times, whatever draws the tasks: data lie anywhere."""
    rng = np.random.default_rng(5)
    for p, q, m, k in instances(family, each=2, most=8):
        seconds = np.column_stack([*[p] * bool(m), *[q] * k])
        on_cores = [True] * bool(m) + [False] * k
        free = [[0.0] * m] * bool(m) + [[0.0]] * k
        held = rng.integers(0, 4, seconds.shape)
        line = dealt(activation(seconds, held, free, on_cores), alpha)
        end = span(seconds, [len(times) for times in free], line)
        assert end <= (2 + alpha) * (1 + PRECISION) * optimum(p, q, m, k) * (1 + 1e-9)


def span(seconds, lanes, line):
    """The last end where each line's tasks go, as given, to the lane that is free first: at most that of any order."""
    ends = [[0.0] * count for count in lanes]
    order = sorted(range(len(line)), key=lambda task: -seconds[task, line[task]])
    for task in order:
        lane = int(np.argmin(ends[line[task]]))
        ends[line[task]][lane] += seconds[task, line[task]]
    return max(max(times) for times in ends)


# In a run -----------------------------------------------------------------------------------------------------------


def moved(function):
    """What a function returns, and the bytes sent over links meanwhile, hop by hop."""
    total, original = [0.0], Links.send

    def send(self, way, size, *more, **named):
        total[0] += size
        return original(self, way, size, *more, **named)

    def release(self, launch, table):
        total[0] += sum(part.size for part in (*table.up, *table.down) if part.alone)
        released(self, launch, table)

    released = Boundaries.release
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Boundaries, "release", release)  # what is alone on its way is not sent over shared links
        patch.setattr(Links, "send", send)
        return function(), total[0]


@pytest.mark.parametrize(("alpha", "sent"), [(1.0, 2 * GB), (0.0, 4 * GB)])
def test_tasks_go_where_their_data_are(alpha, sent):
    """Two items are fetched to a GPU each; the second pair of tasks, told the other way round, reads them again.

    By affinity nothing moves any more.  With alpha 0 and transfers not counted the first task takes the first GPU.
    """
    kind = DeviceType("g", link=Link(upload=4 * GB, download=4 * GB))
    cluster = Cluster([node(accelerators=((kind, 2),))])
    tasks = workload(
        [(0, 0, 1.0), (0, 0, 1.1), (5, 0, 1.0), (5, 0, 1.0)], [Shape([gpu_mode(kind)])],
        items=[Item("x", GB), Item("y", GB)], reads=[(0,), (1,), (1,), (0,)],
    )  # fmt: skip
    policy = Dada(alpha=alpha, transfers=False, prefetch=False)
    if alpha == 0.0:
        policy._held = lambda task, view: {}
    record, total = moved(lambda: Simulation(System("t", cluster, tasks).run_input(policy), check=True).run())
    assert total == sent
    assert (record.finish > 0).all()


def test_transfers_are_counted_where_they_are_to_be():
    """3 s of upload to a GPU that computes for 1 s, or 2 s on the core."""
    from hetsim.testing.systems import cpu_mode

    kind = DeviceType("g", link=Link(upload=GB, download=GB))
    cluster = Cluster([node(cpus=1, accelerators=((kind, 1),))])
    tasks = workload([(0, 0, 2.0, 1.0)], [Shape([cpu_mode(), gpu_mode(kind)])], bytes_in=np.array([3 * GB]))
    ends = []
    for counted in (True, False):
        policy = Dada(transfers=counted)
        ends.append(Simulation(System("t", cluster, tasks).run_input(policy), check=True).run().finish[0])
    assert ends == [2, 4]


@pytest.mark.parametrize("alpha", [-0.1, 1.5, "much"])
def test_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(ScenarioError, match="alpha"):
        hs.run("data-affinity", policy={"name": "dada", "alpha": alpha})


# Shipped ------------------------------------------------------------------------------------------------------------


def test_the_graph_that_ships_is_what_its_script_writes(tmp_path):
    runpy.run_path(str(FOLDER / "make_cholesky_12.py"))["write"](tmp_path)
    assert (tmp_path / "cholesky-12.csv").read_bytes() == (FOLDER / "cholesky-12.csv").read_bytes()


@pytest.mark.slow
def test_data_affinity():
    name = "data-affinity"
    half = {"name": "dada", "alpha": 0.5}
    found = {}
    for policy in ("dada", "dmdas", "dmda", "heft", "lws", half):
        result, total = moved(lambda policy=policy: hs.run(name, policy=policy))
        runs_made = 2 if policy == "heft" else 1  # a plan whose transfers meet on a link is rehearsed first
        assert total == pytest.approx(runs_made * result.metric("bytes_moved"))
        found[str(policy)] = 1e3 * result.metric("makespan"), total / runs_made / 1e9
    dada, dmdas, dmda, heft, lws, by_half = found.values()
    states(name, "takes 342 ms and moves 4.93 GB", *dada)
    states(name, "dmdas takes 354 ms and moves 5.70 GB", *dmdas)
    states(name, "dmda 384 ms and 5.86 GB", *dmda)
    states(name, "heft 481 ms and 6.32 GB", *heft)
    states(name, "dada moves 4.81 GB and takes 366 ms", *by_half[::-1])
    states(name, "lws moves 4.70 GB and takes 894 ms", *lws[::-1])
    assert SHIPPED[name].theme == "hybrid"
    assert runs(name).metric("makespan") == pytest.approx(dada[0] / 1e3)
