"""Descents, bounds of equal tasks, searches on the simulated makespan, prefetches in plans."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from test_plan_transfers import machine, random_graph, with_engine
from test_static_lists import problem, random_times
from tiers import some

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.model.cluster import Cluster
from hetsim.model.device_type import DeviceType, Link
from hetsim.model.mode import Shape
from hetsim.model.plan import Copy, Plan, Step
from hetsim.model.plan_table import write_plan
from hetsim.model.tasks import Item
from hetsim.policy import PlanProblem
from hetsim.testing.systems import gpu_mode, node, workload
from hetsim_policies.static.common.descent import DescentLanes, descend, improved
from hetsim_policies.static.common.instance import runnable
from hetsim_policies.static.common.outcome import plan_of
from hetsim_policies.static.common.search import seeds_of
from hetsim_policies.static.common.unrelated import good_prices
from hetsim_policies.static.dual_approximation import DualApproximation
from hetsim_policies.static.random_search import LocalSearch, SimulatedAnnealing
from hetsim_policies.static.recorded import read_plan
from hetsim_policies.static.vertices import Lst, lst, min_deadline, rounded
from hetsim_policies.static.vertices import spread as spread_out

HCSP = Path(__file__).parents[3] / "shared" / "data" / "published" / "hcsp"


# Descent ----------------------------------------------------------------------------------------------------------


def load_of(times, counts, lane):
    return float(DescentLanes.on_lanes(times, counts, lane).load.max())


def test_a_descent_ends_where_no_change_helps_and_never_above_its_start():
    rng = np.random.default_rng(4)
    for number in range(some(40)):
        counts = rng.integers(1, 4, 1 + number % 4).tolist()
        times = rng.uniform(1, 9, (12, len(counts)))
        lane = rng.integers(sum(counts), size=12)
        found = improved(times, counts, lane)
        assert load_of(times, counts, found) <= load_of(times, counts, lane)
        again = DescentLanes.on_lanes(times, counts, found)
        before = float(again.load.max())
        descend(again, 0.0, prices=good_prices(times, counts))
        assert again.load.max() == pytest.approx(before)


def test_a_chain_moves_what_no_move_or_swap_can():
    """5 and 2 | 4 | 1 and 4 on equal lanes: 7, 4, 5.  No move or swap gives less than 7, a chain 5 | 4, 2 or 6."""
    times = np.array([[5.0], [2.0], [4.0], [1.0], [4.0]])
    found = improved(times, [3], np.array([0, 0, 1, 2, 2]), rounds=0)
    assert load_of(times, [3], found) == 6.0


def test_tasks_stay_where_they_can_run():
    rng = np.random.default_rng(8)
    for _ in range(some(40)):
        times = random_times(rng, 15, 3)
        times[~np.isfinite(times).any(axis=1)] = 2.0
        counts = [2, 1, 2]
        schedule, bound = lst(times, counts)
        first = np.array([0, 2, 3])
        found = improved(times, counts, first[schedule.kind] + schedule.lane, bound)
        assert bound * (1 - 1e-9) <= load_of(times, counts, found) <= schedule.makespan * (1 + 1e-9)


def semi_consistent(rng, tasks, machines):
    """As of Braun et al.: every second machine is faster than the next one of these for all tasks."""
    times = rng.uniform(1, 3000, (tasks, 1)) * rng.uniform(1, 1000, (tasks, machines))
    times[:, ::2] = np.sort(times[:, ::2], axis=1)
    return times


@pytest.mark.slow
def test_a_plan_is_no_longer_than_a_descent_from_any_rounding():
    """Of the same vertex; the shortest schedule before the descent is not the shortest after it."""
    misled = 0
    for seed in range(2):
        times = semi_consistent(np.random.default_rng(seed), 160, 12)
        ones = [1] * 12
        bound, share = min_deadline(times, ones)
        roundings = [rounded(share), spread_out(share, times, ones), share.argmax(axis=1)]
        ends = [load_of(times, ones, improved(times, ones, kind, bound, rounds=0)) for kind in roundings]
        plan = Lst().plan(problem(times.tolist(), ones))
        assert plan.makespan <= min(ends) * (1 + 1e-9)
        misled += int(np.argmin([load_of(times, ones, kind) for kind in roundings])) != int(np.argmin(ends))
    assert misled


def best_known():
    found: dict[str, float] = {}
    for row in csv.DictReader((HCSP / "best_known.csv").read_text().splitlines()):
        if row["makespan"]:
            found[row["instance"]] = min(found.get(row["instance"], np.inf), float(row["makespan"]))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not HCSP.exists(), reason="the published instances are not here")
def test_published_unrelated_machines_are_near_the_best_known():
    """Braun's instances of 512 tasks on 16 machines: at most 1.02, on average at most 1.008 times the best known."""
    known = best_known()
    ratios = []
    for path in sorted(HCSP.glob("512x16_*.gz"))[::3]:
        with gzip.open(path, "rt") as stream:
            times = np.array(stream.read().split(), dtype=float)[3:].reshape(512, 16)
        given = problem(np.column_stack([np.full(512, np.inf), times]).tolist(), [0] + [1] * 16)
        makespan = Lst().plan(given).makespan
        ratios.append(makespan / known[path.name.removeprefix("512x16_").removesuffix(".gz")])
    assert max(ratios) <= 1.02 and np.mean(ratios) <= 1.008 and min(ratios) >= 1 - 1e-6


# Bounds of equal tasks --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_equal_tasks_are_counted():
    """3,000 tasks of 7 s or 1 s on 256 cores and 64 GPUs: 31 s do 31 × 64 + 4 × 256 = 3,008 of them, 30 s too few."""
    plan = DualApproximation().plan(problem([[7.0, 1.0]] * 3000, [256, 64]))
    assert plan.makespan == 31 and plan.bound == 31


# Searches ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_annealing_ends_no_worse_than_any_seed_when_simulated():
    rng = np.random.default_rng(11)
    for number in range(2):
        graph = random_graph(rng, 10)
        given = with_engine(machine(rng, 10, switch=1.0 if number else None, predecessors=graph))
        plan = SimulatedAnnealing(evaluations=200).plan(given)
        instance = runnable(given, "test")
        seeds = [given.simulate(plan_of(instance, seed.schedule)) for seed in seeds_of(instance)]
        assert given.simulate(plan) <= min(seeds) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cholesky-8", "cnn-operators"])
def test_the_best_planner_is_no_worse_than_online_rules_on_graphs(name):
    found = {}
    for policy in ("dmda", "dmdas", {"name": "local_search", "evaluations": 40}):
        result = hs.run(name, policy=policy)
        found[policy if isinstance(policy, str) else policy["name"]] = result.metric("makespan")
    assert found["local_search"] <= min(found["dmda"], found["dmdas"]) * (1 + 1e-9)


@pytest.mark.slow
def test_local_search_promises_what_the_engine_finds_and_is_the_same_every_time():
    rng = np.random.default_rng(12)
    given = with_engine(machine(rng, 8, switch=1.0, predecessors=random_graph(rng, 8)))
    plans = [LocalSearch(evaluations=40).plan(given) for _ in range(2)]
    assert plans[0] == plans[1] and plans[0].notes["evaluations"] <= 40
    assert given.simulate(plans[0]) == pytest.approx(plans[0].makespan, rel=1e-12)
    assert plans[0].makespan <= plans[0].notes["seed_makespan"]


# Prefetches -------------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("rule", ["dmda", "dmdas"])
def test_a_plan_of_a_rule_that_prefetches_is_that_rule(rule):
    own, planned = (hs.run("cholesky-8", policy=policy) for policy in (rule, {"name": "as_planned", "base": rule}))
    assert (own.record.finish == planned.record.finish).all()
    assert (own.record.start == planned.record.start).all()


def two_readers():
    """Two tasks on one GPU, of 3 s each, that each read an item of 2 s of link."""
    gpu = DeviceType("g", link=Link(1.0, 1.0), memory=10)
    items = [Item("a", 2), Item("b", 2), Item("huge", 11)]
    tasks = workload([(0, 0, 3), (0, 0, 3)], [Shape([gpu_mode(gpu)])], items=items, reads=[(0,), (1,)])
    return with_engine(PlanProblem(tasks, Cluster([node(cpus=1, accelerators=((gpu, 1),))])))


def test_a_prefetch_moves_while_the_task_before_computes():
    """2 + 3 + 2 + 3 s without; the second upload behind the first kernel: 2 + 3 + 3."""
    given = two_readers()
    steps = [Step(0, 0, ("n0/g0",)), Step(1, 0, ("n0/g0",))]
    assert given.simulate(Plan(steps)) == 10
    assert given.simulate(Plan(steps, copies=[Copy(1, "n0/g0", 0)])) == 8
    assert given.simulate(Plan(steps, copies=[Copy(1, "n0/g0")])) == 10  # before the first task's own upload
    dropped = [Copy(1, "n0/g0", 0), Copy(1, "n0/g0", 0, "finish", drop=True)]
    assert given.simulate(Plan(steps, copies=dropped)) == 10


def test_a_saved_plan_has_its_prefetches(tmp_path):
    given = two_readers()
    steps = [Step(0, 0, ("n0/g0",)), Step(1, 0, ("n0/g0",))]
    copies = [Copy(0, "n0/g0"), Copy(1, "n0/g0", 0), Copy(1, "n0/g0", 1, "finish", drop=True)]
    for name in ("plan.csv", "plan.parquet"):
        write_plan(Plan(steps, copies=copies), given.tasks, tmp_path / name)
        again = read_plan(tmp_path / name, given.tasks, given.cluster)
        assert again.steps == steps and again.copies == copies


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,fetch,n0/g0,2,c,start", 'there is no item "c"'),
        ("0,fetch,n0/g7,2,a,start", "fetches a to n0/g7, which the cluster lacks"),
        ("0,fetch,n0/cpu0,2,a,start", "the plan fetches a to n0/cpu0, which is not an accelerator"),
        ("0,fetch,n0/g0,2,huge,start", "the item has 1.1e-08 GB"),
        ("9,fetch,n0/g0,2,a,start", "which does not exist"),
        ("0,fetch,n0/g0,2,a,end", "ready, start or finish"),
        ("0,bring,n0/g0,2,a,start", ": mode must be fetch or drop; got"),
    ],
)
def test_a_prefetch_that_cannot_be_is_refused_when_the_plan_is_loaded(row, said, tmp_path):
    given = two_readers()
    lines = ["task,mode,device,order,item,after", "0,0,n0/g0,0,,", "1,0,n0/g0,1,,", row]
    (tmp_path / "plan.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=said):
        read_plan(tmp_path / "plan.csv", given.tasks, given.cluster)


def test_a_plan_is_saved_and_followed_from_the_command_line(tmp_path):
    """The plan of dmda, saved and replayed, is dmda; a rule that does not plan is refused where it stands."""
    from click.testing import CliRunner

    from hetsim.cli import hetsim

    def call(*arguments):
        return CliRunner().invoke(hetsim, list(arguments), prog_name="hetsim")

    file = tmp_path / "plan.csv"
    done = call("plan", "cholesky-8", "--policy", "{name: as_planned, base: dmda}", "--table", str(file))
    assert done.exit_code == 0 and "120 steps" in done.stdout
    followed = hs.run("cholesky-8", policy={"name": "replay", "plan": str(file)})
    assert followed.metric("makespan") == hs.run("cholesky-8", policy="dmda").metric("makespan")
    table = json.loads(call("plan", "list-lemma", "--policy", "heft", "--json").stdout)
    assert {"task", "device", "start", "finish"} <= set(table["steps"][0])
    refused = call("plan", "cholesky-8", "--policy", "dmda")
    assert refused.exit_code == 3 and "makes no plan; the policy as_planned" in refused.stderr
