"""Scheduling and admission step by step: the same tables as a run, rewards that add up to their figures, and the
environments as Gymnasium wants them."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from cost import lines_run

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError, UnknownName, UsageError
from hetsim.learning.environment.admission import Admissions, Played
from hetsim.learning.environment.episode import Episodes, typical_time
from hetsim.learning.environment.observations import Observation
from hetsim.learning.environment.rewards import REWARDS, Response
from hetsim.learning.observation.window import ASKED, DEVICE, LIMIT, PAIR, TASK, WHOLE_SYSTEM, Layout, Window
from hetsim.model.randomness import TRAINING
from hetsim.results.one_run.result import Result
from hetsim.testing import examine, small_systems
from hetsim.testing.conformance import fingerprint

needs_gymnasium = pytest.mark.skipif(find_spec("gymnasium") is None, reason="the extra `learning` is not installed")

MIX = {
    "name": "mix",
    "cluster": {"nodes": [
        {"name": "fast", "gpus": {"type": "a100", "count": 2, "power": {"idle": "50 W", "busy": "400 W"}}},
        {"name": "slow", "gpus": {"type": "v100", "count": 2, "power": {"idle": "30 W", "busy": "250 W"}}},
    ]},
    "workload": [{
        "arrivals": {"process": "poisson", "rate": "30/h"}, "until": "4 h", "slo": "30 min",
        "classes": [
            {"class": "wide", "weight": 1, "modes": [
                {"device": "a100", "gpus": 2, "time": {"distribution": "exponential", "mean": "8 min"}},
                {"device": "v100", "gpus": 2, "time": {"speedup": 2}}]},
            {"class": "small", "weight": 3, "modes": [
                {"device": "a100", "gpus": 1, "time": {"distribution": "exponential", "mean": "6 min"}},
                {"device": "v100", "gpus": 1, "time": {"speedup": 3}}]},
        ],
    }],
}  # fmt: skip
MOVING = {
    "name": "moving",
    "cluster": {"nodes": [{"cpus": 4, "gpus": {"type": "g", "count": 2, "memory": "8 GB",
                                               "power": {"idle": "9 W", "busy": "90 W"}},
                           "pcie": {"upload": "1 GB/s", "download": "1 GB/s"}}]},
    "workload": [{"arrivals": {"process": "poisson", "rate": "40/min"}, "count": 60, "bytes_in": "500 MB",
                  "gpu_time": {"distribution": "exponential", "mean": "2 s"}, "cpu_time": {"speedup": 5}}],
}  # fmt: skip


def played(episodes, choose, seed=7, replication=0):
    """Play a run to its end; the sum of rewards."""
    episodes.reset(seed, replication)
    total = 0.0
    while not episodes.over:
        total += episodes.step(choose(episodes))
    return total


def at_random(seed=0):
    random = np.random.default_rng(seed)
    return lambda episodes: int(random.choice(np.flatnonzero(episodes.mask)))


def in_order(episodes):
    """What fcfs does: the head in its fastest mode that fits; where the head does not fit, nothing."""
    task = episodes.watched.shown()[0]
    kinds = [episodes.layout.types.index(task.modes[p].type.name) for p in task.modes_by_speed()]
    return next((kind for kind in kinds if episodes.mask[kind]), len(episodes.mask) - 1)


# The engine below -------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("scenario", [MIX, MOVING, "gangs-and-small-jobs", "priority-and-aging"])
def test_in_order_of_arrival_an_episode_leaves_the_tables_of_fcfs(scenario):
    given = hs.load(scenario) if isinstance(scenario, dict) else hs.load(scenario, {"workload.0.until": "6 h"})
    episodes = Episodes(given)
    played(episodes, in_order)
    ran = hs.run(given, policy={"scheduler": "fcfs", "placement": "first_fit"}, seed=7, check=True)
    assert fingerprint(episodes.record) == fingerprint(ran.record)
    assert episodes.result.tasks.equals(ran.tasks)


def test_the_numbers_of_a_run_are_those_of_its_seed_and_replication():
    episodes = Episodes(MIX)
    played(episodes, in_order, 3, 2)
    tasks = hs.load(MIX).build(3, 2).tasks
    assert episodes.result.tasks["arrival"].tolist() == tasks.arrival.tolist()


@pytest.mark.slow
def test_equal_actions_give_equal_episodes():
    one, two = Episodes(MIX), Episodes(MIX)
    assert played(one, at_random()) == played(two, at_random())
    assert fingerprint(one.record) == fingerprint(two.record)
    assert played(one, at_random(), replication=1) != played(two, at_random())


class Random(Window):
    """Any action that is possible."""

    def __init__(self):
        super().__init__(4, 1.0)

    def choose(self, observation, mask):
        assert np.isfinite(observation).all() and (np.abs(observation) <= LIMIT).all()
        assert len(observation) == self.layout.observation and len(mask) == self.layout.actions
        return int(self.view.random.choice(np.flatnonzero(mask)))


@pytest.mark.quick(4)
@pytest.mark.parametrize("system", small_systems(), ids=lambda system: system.name)
def test_what_the_mask_allows_is_legal_everywhere(system):
    assert examine(lambda _: Random(), system) == []


# What is seen -----------------------------------------------------------------------------------------------


def test_an_observation_says_what_is_there():
    episodes = Episodes(MIX, window=3)
    layout = episodes.layout
    assert layout.types == ("a100", "v100")
    assert layout.observation == 3 * (len(TASK) + 2 * len(PAIR)) + 2 * len(DEVICE) + len(WHOLE_SYSTEM)
    assert layout.actions == 7
    episodes.reset(7)
    task = episodes.watched.shown()[0]
    seen = dict(zip(TASK, episodes.observation, strict=False))
    assert seen["present"] == 1 and seen["waited"] == 0 and seen["due"] == 1
    assert seen["shortest"] == pytest.approx(np.log(task.shortest_estimate / episodes.scale), rel=1e-6)
    assert not episodes.observation[len(TASK) : 3 * len(TASK)].any()  # nobody else has come
    pairs = episodes.observation[3 * len(TASK) :][: 2 * len(PAIR)].reshape(2, len(PAIR))
    assert pairs[:, :2].tolist() == [[1, 1], [1, 1]]
    factor = 2 if task.class_ == "wide" else 3
    assert pairs[:, PAIR.index("penalty")] == pytest.approx([0, np.log(factor)], abs=1e-6)
    devices = episodes.observation[-len(WHOLE_SYSTEM) - 2 * len(DEVICE) :][: 2 * len(DEVICE)].reshape(2, len(DEVICE))
    assert devices[:, 0].tolist() == [1, 1]
    episodes.step(1)  # the first task on the slow type
    devices = episodes.observation[-len(WHOLE_SYSTEM) - 2 * len(DEVICE) :][: 2 * len(DEVICE)].reshape(2, len(DEVICE))
    assert devices[0, 0] == 1 and devices[1, 0] == (0 if factor == 2 else 0.5)
    assert devices[1, DEVICE.index("soonest")] > 0


def test_a_row_holds_what_concerns_its_action():
    layout = Layout(2, ("a", "b"))
    observation = np.arange(layout.observation, dtype=np.float32)
    rows = layout.row(observation, np.arange(layout.actions))
    assert rows.shape == (5, layout.inputs)
    assert rows[0, : len(TASK)].tolist() == rows[1, : len(TASK)].tolist() == observation[: len(TASK)].tolist()
    pair = len(TASK)
    assert rows[1, pair] - rows[0, pair] == len(PAIR)  # the same task on the next type
    own = len(TASK) + len(PAIR) + len(DEVICE)
    assert rows[:4, own : own + 2].tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert rows[:, -1].tolist() == [0, 0, 0, 0, 1]
    assert not rows[4, : own + 2].any()
    both = layout.select(np.stack([observation, -observation]), np.array([0, 1, 1]), np.array([3, 3, 4]))
    assert (both[0] == rows[3]).all() and (both[1, :own] == -rows[3, :own]).all() and both[2, -1] == 1


def test_to_wait_on_an_idle_cluster_is_not_possible_and_something_starts_instead():
    episodes = Episodes(MIX)
    episodes.reset(7)
    assert not episodes.mask[-1] and episodes.mask[:2].all()
    episodes.step(episodes.layout.actions - 1)
    assert len(episodes.simulation.state.running) == 1


def test_a_forbidden_action_waits():
    episodes = Episodes(MIX)
    episodes.reset(7)
    episodes.step(0)
    while not episodes.mask[-1]:
        episodes.step(0)
    before = episodes.simulation.state.last_launch
    action = int(np.flatnonzero(~episodes.mask)[0])
    now = episodes.now
    episodes.step(action)
    assert episodes.simulation.state.last_launch == before and episodes.now > now


# Rewards ----------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("scenario", [MIX, MOVING])
def test_rewards_add_up_to_the_figures_of_the_tables(scenario):
    totals = {}
    for name in REWARDS:
        episodes = Episodes(scenario, reward=name)
        totals[name] = played(episodes, at_random())
    result = episodes.result
    tasks = result.tasks
    assert totals["response"] == pytest.approx(-tasks["response"].sum(), rel=1e-9)
    assert totals["slowdown"] == pytest.approx(-tasks["slowdown"].sum(), rel=1e-9)
    met = len(tasks) if scenario is MOVING else (tasks["finish"] <= tasks["deadline"]).sum()
    assert totals["goodput"] == met
    assert totals["energy"] == pytest.approx(-result.devices["energy_j"].sum(), rel=1e-9)
    weighted = Episodes(scenario, reward={"slowdown": 2, "goodput": 0.5})
    expected = 2 * totals["slowdown"] + 0.5 * totals["goodput"]
    assert played(weighted, at_random()) == pytest.approx(expected, rel=1e-9)


def test_rewards_ahead_leave_out_what_no_policy_can_change():
    episodes = Episodes(MIX, reward="slowdown", ahead=True)
    total = played(episodes, at_random())
    assert total == pytest.approx(-(episodes.result.tasks["slowdown"] - 1).sum(), rel=1e-9)
    episodes.reset(7)
    asked = episodes.watched.shown()[0]
    assert episodes.step(1) == pytest.approx(-1 if asked.class_ == "wide" else -2)  # on the slow type, paid for at once
    assert len(episodes.simulation.state.running) == 1


def test_a_baseline_earns_what_its_tables_say():
    scenario = hs.load(MIX, {"policy": "sjf"})
    earned = Played(scenario, reward="slowdown").total(7, 1)
    record = Simulation(scenario.build(7, 1)).run()
    episodes = Played(scenario, reward="slowdown")
    episodes.total(7, 1)
    assert fingerprint(record) == fingerprint(episodes.record)
    assert earned == pytest.approx(-episodes.result.tasks["slowdown"].sum(), rel=1e-9)


@pytest.mark.parametrize(
    ("reward", "kind", "said"),
    [
        ("slowdwn", UnknownName, 'unknown reward "slowdwn"; did you mean "slowdown"'),
        ({"speed": 1}, UnknownName, "the rewards are response, slowdown, goodput, energy"),
        ({"slowdown": "much"}, UsageError, "the weight of reward slowdown must be a number; got"),
        ({}, UsageError, ", a mapping of names to weights, a class or a function;"),
        (3, UsageError, ", a mapping of names to weights, a class or a function;"),
    ],
)
def test_a_wrong_reward_is_said(reward, kind, said):
    with pytest.raises(kind, match=said):
        Episodes(MIX, reward=reward)


# Ends -------------------------------------------------------------------------------------------------------


def test_a_run_that_drains_is_terminated_and_one_cut_by_its_horizon_truncated():
    episodes = Episodes(MIX)
    played(episodes, in_order)
    assert episodes.terminated and not episodes.truncated
    cut = Episodes({**MIX, "horizon": "1 h"})
    total = played(cut, in_order)
    assert cut.truncated and not cut.terminated
    assert cut.now == 3600
    tasks = cut.result.tasks
    present = np.where(tasks["finish"].isna(), 3600.0, tasks["finish"]) - tasks["arrival"]
    alone = Episodes({**MIX, "horizon": "1 h"}, reward="response")
    assert played(alone, in_order) == pytest.approx(-present.sum(), rel=1e-9)
    assert total < 0
    with pytest.raises(UsageError, match="reset"):
        cut.step(0)


@pytest.mark.slow
def test_devices_that_fail_stop_tasks_which_are_seen_again():
    faulty = {**MIX, "faults": [{"on": "gpu", "every": "40 min", "repair": "10 min"}]}
    for ahead in (False, True):
        episodes = Episodes(faulty, reward="slowdown", ahead=ahead)
        total = played(episodes, at_random())
        tasks = episodes.result.tasks
        assert episodes.terminated and (tasks["status"] == "completed").all()
        if not ahead:
            assert total == pytest.approx(-tasks["slowdown"].sum(), rel=1e-9)
    assert tasks["preemptions"].sum() > 0


# Admission --------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("policy", ["sjf", "srtf", "fcfs", "allox"])
def test_accepting_all_leaves_the_tables_of_the_run(policy):
    scenario = hs.load(MIX, {"policy": policy})
    episodes = Admissions(scenario)
    played(episodes, lambda _: 1)
    assert fingerprint(Simulation(scenario.build(7, 0)).run()) == fingerprint(episodes.record)


def test_who_is_rejected_never_starts_and_the_others_all_end():
    episodes = Admissions({**MIX, "policy": "sjf"}, reward="goodput")
    random = np.random.default_rng(3)
    answers = []

    def answer(_):
        answers.append(int(random.random() < 0.6))
        return answers[-1]

    total = played(episodes, answer)
    tasks = episodes.result.tasks
    assert (tasks["status"] == "rejected").sum() == answers.count(0) > 0
    assert (tasks["status"] == "completed").sum() == answers.count(1)
    assert tasks.loc[tasks["status"] == "rejected", "start"].isna().all()
    assert total == ((tasks["status"] == "completed") & (tasks["finish"] <= tasks["deadline"])).sum()
    with pytest.raises(UsageError, match="reset"):
        episodes.step(1)


def test_the_task_in_question_is_shown_first():
    episodes = Admissions({**MIX, "policy": "sjf"}, window=4)
    episodes.reset(7)
    for _ in range(60):
        asked = episodes.gate.asked[0]
        assert episodes.observation[1] == 0  # it has not waited yet
        assert episodes.watched.shown(asked)[0] is asked
        assert len(episodes.watched.shown(asked)) <= 4
        episodes.step(1)


# Bad input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, -1, 2.5, True, "ten", 100_000])
def test_a_wrong_window_is_said(window):
    with pytest.raises(UsageError, match="must be from 1 to"):
        Episodes(MIX, window=window)


@pytest.mark.parametrize("scale", [0, -1, math.nan, math.inf, True, "ten"])
def test_a_wrong_scale_is_said(scale):
    with pytest.raises(UsageError, match="must be a number above 0"):
        Episodes(MIX, scale=scale)


@needs_gymnasium
@pytest.mark.parametrize("replication", [-1, 1.5, "x", True, 2**32])
def test_a_wrong_replication_is_said(replication):
    import gymnasium

    env = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", scenario=MIX)
    with pytest.raises(UsageError, match="replication must be a whole number from 0"):
        env.reset(options={"replication": replication})


def test_requests_of_services_are_refused():
    for name in ("async-burst", "chunked-prefill"):
        with pytest.raises(ScenarioError, match="without a `service`"):
            Episodes(name)


@pytest.mark.parametrize("action", [-1, 1000])
def test_an_action_that_is_none_is_said(action):
    episodes = Episodes(MIX)
    with pytest.raises(UsageError, match="reset"):
        episodes.step(0)
    episodes.reset(0)
    with pytest.raises(UsageError, match="an action must be from 0 to 32"):
        episodes.step(action)


def test_the_typical_time_is_the_mean_of_the_fastest_estimates():
    tasks = hs.load(MIX).build(0, 0).tasks
    assert typical_time(hs.load(MIX).build(0, 0)) == pytest.approx(tasks.estimate.min(axis=1).mean())


# Gymnasium --------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@needs_gymnasium
@pytest.mark.parametrize("name", ["hetsim/Scheduling-v0", "hetsim/Admission-v0"])
def test_gymnasium_finds_nothing_wrong(name):
    import gymnasium
    from gymnasium.utils.env_checker import check_env

    import hetsim.learning  # noqa: F401

    env = gymnasium.make(name, scenario=MIX, window=5, reward={"slowdown": 1, "energy": 1e-6})
    check_env(env.unwrapped, skip_render_check=True)


@needs_gymnasium
def test_a_seed_gives_the_same_episodes_one_after_the_other():
    import gymnasium

    env = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", scenario=MIX).unwrapped
    first, info = env.reset(seed=5)
    assert info["action_mask"].tolist() == env.action_masks().tolist()
    loads = [arrivals(env)]
    for _ in range(2):
        env.reset()
        loads.append(arrivals(env))
    assert len(set(loads)) == 3
    env.reset(options={"replication": 0})  # to judge by, which leaves the order of the others as it is
    again, _ = env.reset(seed=5)
    assert (first == again).all() and arrivals(env) == loads[0]
    env.reset(options={"replication": 0})
    env.reset()
    assert arrivals(env) == loads[1] == tuple(hs.load(MIX).build(5, 1, TRAINING).tasks.arrival.tolist())


def arrivals(env) -> tuple[float, ...]:
    """The load of an environment's episode."""
    return tuple(env.unwrapped.episodes.simulation.input.tasks.arrival.tolist())


@needs_gymnasium
@pytest.mark.parametrize("name", ["hetsim/Scheduling-v0", "hetsim/Admission-v0"])
def test_without_a_seed_environments_side_by_side_differ(name):
    """As Gymnasium has it: no seed means entropy; and none meets a load of `hetsim.run` on the scenario's seed."""
    import gymnasium

    import hetsim.learning  # noqa: F401

    several = gymnasium.make_vec(name, num_envs=3, vectorization_mode="sync", scenario=MIX)
    loads = []
    for _ in range(2):
        several.reset()
        loads += [arrivals(env) for env in several.envs]
    several.reset(seed=5)
    loads += [arrivals(env) for env in several.envs]
    own = hs.load(MIX)
    loads += [tuple(own.build(None, number).tasks.arrival.tolist()) for number in range(4)]
    assert len(set(loads)) == len(loads) == 13


@pytest.mark.quick(1)
@needs_gymnasium
@pytest.mark.parametrize("seed", [None, 5])
def test_a_replication_is_that_of_a_run(seed):
    import gymnasium

    env = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", scenario=MIX).unwrapped
    env.reset(seed=seed, options={"replication": 1})
    assert env.episodes.replication == 1
    over = False
    while not over:
        _, reward, terminated, truncated, _ = env.step(int(np.flatnonzero(env.action_masks())[0]))
        over = terminated or truncated
        assert isinstance(reward, float)
    assert env.result.tasks["arrival"].tolist() == hs.load(MIX).build(seed, 1).tasks.arrival.tolist()


def test_a_saved_episode_knows_what_its_load_was_for(tmp_path):
    """What is loaded again has the times of its own tasks, not those of the run with the same seed."""
    episodes = Episodes(MIX)
    episodes.reset(7, 1, TRAINING)
    while not episodes.over:
        episodes.step(episodes.plain())
    saved = Result.load(episodes.result.save(tmp_path / "run"))
    assert saved.record.input.tasks.time.tolist() == episodes.record.input.tasks.time.tolist()
    assert saved.record.input.tasks.time.tolist() != hs.load(MIX).build(7, 1).tasks.time.tolist()


@needs_gymnasium
def test_a_time_limit_truncates():
    import gymnasium

    import hetsim.learning  # noqa: F401

    env = gymnasium.make("hetsim/Scheduling-v0", scenario=MIX, max_episode_steps=5)
    env.reset(seed=1)
    for step in range(5):
        _, _, terminated, truncated, _ = env.step(0)
        assert not terminated and truncated == (step == 4)


@needs_gymnasium
@pytest.mark.slow
@pytest.mark.parametrize("first, name", [
    ("import gymnasium, hetsim", "hetsim/Scheduling-v0"), ("import gymnasium", "hetsim.learning:hetsim/Scheduling-v0"),
    ("import hetsim as hs, gymnasium", "hetsim.learning:hetsim/Scheduling-v0"),
])  # fmt: skip
def test_environments_need_no_import_of_their_room(first, name):
    code = f"{first}; gymnasium.make({name!r}, scenario='learned-affinity')"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_importing_sim_does_not_import_gymnasium():
    code = (
        "import sys, hetsim, hetsim.cli.program; from hetsim.learning.environment.episode import Episodes; "
        "hetsim.train; "
        "sys.exit('torch' in sys.modules or 'sb3_contrib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    light = "import sys, hetsim, hetsim.cli.program; sys.exit('gymnasium' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", light], check=False).returncode == 0


@needs_gymnasium
@pytest.mark.slow
def test_a_step_takes_few_lines():
    """Engine and observation, the choice of an action not counted."""
    import gymnasium

    import hetsim.learning  # noqa: F401

    env = gymnasium.make("hetsim/Scheduling-v0", scenario="gpu-generations").unwrapped
    env.reset(seed=0)
    over, steps, lines = False, 0, 0
    while not over and steps < 1000:
        action, result = int(env.action_masks().argmax()), []
        lines += lines_run(lambda action=action, result=result: result.extend(env.step(action)))
        over, steps = result[2] or result[3], steps + 1
    assert lines / steps < 6000


@pytest.mark.slow
@needs_gymnasium
def test_the_example_of_the_documentation_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text(encoding="utf-8")
    [block] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "docs/learning.md", "exec"), {})
    assert float(capsys.readouterr().out) > 1


# Energy -----------------------------------------------------------------------------------------------------

DRAWING = {
    "name": "drawing", "seed": 2,
    "cluster": {"nodes": [{"count": 2, "cpus": 8, "cpu": {"power": {"idle": "2 W", "busy": "10 W"}},
                           "gpus": {"type": "v100", "count": 2, "power": {"idle": "50 W", "busy": "300 W"}}}]},
    "workload": [{
        "arrivals": {"process": "poisson", "rate": "20/h"}, "until": "6 h",
        "classes": [
            {"class": "one", "weight": 3, "gpus": 1, "cpu_time": {"speedup": 5},
             "gpu_time": {"distribution": "exponential", "mean": "5 min"}},
            {"class": "gang", "gpus": 2, "gpu_time": {"distribution": "exponential", "mean": "8 min"}}],
    }],
}  # fmt: skip
FAILING = {
    **DRAWING, "faults": [{"on": "gpu", "every": {"distribution": "exponential", "mean": "20 min"},
                           "repair": {"distribution": "exponential", "mean": "1 min"}}],
}  # fmt: skip


def in_part(name, until):
    return hs.load(name, {"horizon": until, "replications": 1})


def test_unfinished_tasks_count_in_the_response_as_the_documentation_says():
    episodes = Episodes("slack-before-the-deadline", reward="response")
    total = played(episodes, in_order)
    tasks = episodes.result.tasks
    unfinished = tasks["finish"].isna()
    assert total == pytest.approx(-tasks["response"].sum() - (episodes.now - tasks["arrival"][unfinished]).sum())
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text(encoding="utf-8")
    said = f"{unfinished.sum()} of {len(tasks)} tasks are unfinished; the sum of `response` is {total:,.0f} s, and the"
    assert f"{said} negative sum of the column is {-tasks['response'].sum():,.0f} s." in text


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("scenario", "what"),
    [
        (DRAWING, ""),
        ({**DRAWING, "horizon": "3 h"}, "energy_tasks_j"),
        ({**FAILING, "horizon": "60 h"}, "energy_wasted_j"),
        ({**FAILING, "horizon": "2 h"}, "energy_wasted_j"),
        ({**FAILING, "faults": [{**FAILING["faults"][0], "on": "node"}], "horizon": "6 h"}, "energy_wasted_j"),
        (in_part("nights-asleep", "30 h"), ""),
        (in_part("slack-before-the-deadline", "20 s"), ""),
    ],
    ids=["drained", "cut", "failing", "failing and cut", "failing nodes", "nights-asleep", "slack-before-the-deadline"],
)
@pytest.mark.parametrize("kind", [Episodes, Admissions])
def test_the_sum_of_energy_is_that_of_the_tables_whatever_happens(scenario, what, kind, monkeypatch):
    """And that of the running account, which earns as it goes, to which the books at the end add nothing."""
    accounts = []
    episodes = kind(scenario, reward="energy")

    def finish(self, closing=Simulation.finish):
        reward, end = episodes.reward, self.input.horizon
        told = reward._told
        accounts.append(told - reward.take(self.state.clock._now if math.isinf(end) else end))
        reward._told = told
        return closing(self)

    monkeypatch.setattr(Simulation, "finish", finish)
    random = np.random.default_rng(1)
    total = played(episodes, lambda one: int(random.choice(np.flatnonzero(one.mask))))
    result = episodes.result
    assert total == pytest.approx(-result.metric("energy_j"), rel=1e-12)
    assert accounts == [pytest.approx(-total, rel=1e-9)] and total < 0
    assert not what or result.metric(what) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "log"), [("nights-asleep", "sleep"), ("slack-before-the-deadline", "frequency")])
def test_energy_follows_devices_that_sleep_or_change_their_frequency(scenario, log):
    """Under the scenario's own scheduler, with everybody accepted."""
    given = in_part(scenario, {"sleep": "30 h", "frequency": "20 s"}[log])
    episodes = Admissions(given, reward="energy")
    total = played(episodes, lambda _: 1)
    assert any(what == log for _, _, what, _ in episodes.record.device_log)
    assert total == pytest.approx(-episodes.result.metric("energy_j"), rel=1e-12)
    assert total == pytest.approx(-hs.run(given, seed=7).metric("energy_j"), rel=1e-12)
    assert Played(given, reward={"energy": 2.0}).total(7) == pytest.approx(2 * total, rel=1e-12)


def test_a_wait_costs_what_devices_draw_for_doing_nothing():
    episodes = Episodes(DRAWING, reward="energy")
    episodes.reset(7)
    begun = episodes.now
    episodes.step(int(episodes.mask.argmax()))
    before, earned = episodes.now, 0.0
    assert before > begun
    placed = next(iter(episodes.simulation.state.running.values())).placement.mode
    earned = episodes.step(int(np.flatnonzero(episodes.mask)[0]))
    idle = 2 * (8 * 2 + 2 * 50)
    most = idle + 4 * 250 + 16 * 8
    passed = episodes.now - before
    assert placed.type.power.busy > placed.type.power.idle
    assert -most * passed <= earned <= -idle * passed


@pytest.mark.parametrize("kind", [Episodes, Admissions])
def test_an_episode_ends_where_policies_wait_for_timers_until_the_horizon(kind):
    """Tasks come for three hours; the scenario's policy, power_down, is asked on and sends devices to sleep."""
    for until, done in ((3000, True), (3, False)):
        given = hs.load("nights-asleep", {"workload.0.until": "3 h", "horizon": f"{until} h"})
        episodes = kind(given, reward="response")
        played(episodes, lambda one: int(one.mask.argmax()) if kind is Episodes else 1)
        tasks = episodes.result.tasks
        assert (tasks["status"] == "completed").all() == done and len(tasks) > 3
        assert episodes.now == until * 3600 and episodes.terminated == done and episodes.truncated != done
        slept = [time for time, _, what, _ in episodes.record.device_log if what == "sleep"]
        assert (kind is Admissions and done) == (bool(slept) and max(slept) > tasks["finish"].max())


# What an observation is -------------------------------------------------------------------------------------


def documented():
    """The entries in the order of docs/learning.md, with their ranges."""
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `(\w+)` \| .* \| (-?\d+ (?:or|to) \d+) \|$", text, re.MULTILINE)


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", [Episodes, Admissions])
@pytest.mark.parametrize("scenario", [MIX, MOVING, FAILING])
def test_entries_have_names_and_stay_in_the_ranges_that_are_told(kind, scenario):
    episodes = kind({**scenario, "policy": "sjf"}, window=3)
    names = episodes.layout.names
    assert len(names) == len(set(names)) == episodes.layout.observation
    ranges = dict(documented())
    bounds = [ranges[name.partition(": ")[2]] for name in names]
    low = np.array([float(text.split()[0]) for text in bounds])
    high = np.array([float(text.split()[-1]) for text in bounds])
    either = np.array([" or " in text for text in bounds])
    assert low.min() == -LIMIT and high.max() == LIMIT
    random = np.random.default_rng(5)

    def choose(one):
        seen = one.observation
        assert (low - 1e-6 <= seen).all() and (seen <= high + 1e-6).all()
        assert np.isin(seen[either], [0, 1]).all()
        return int(random.choice(np.flatnonzero(one.mask)))

    played(episodes, choose)


def test_names_stand_at_their_entries():
    episodes = Episodes(MIX, window=3)
    episodes.reset(7)
    seen = dict(zip(episodes.layout.names, episodes.observation.tolist(), strict=True))
    task = episodes.watched.shown()[0]
    slower = 2 if task.class_ == "wide" else 3
    assert seen["task 0: present"] == 1 and seen["task 1: present"] == 0
    assert seen["task 0 on a100: penalty"] == 0
    assert seen["task 0 on v100: penalty"] == pytest.approx(math.log(slower), rel=1e-6)
    assert seen["task 0 on v100: share"] == (1.0 if task.class_ == "wide" else 0.5)
    assert seen["a100: free"] == seen["v100: free"] == 1
    assert seen["whole: waiting"] == pytest.approx(math.log(1 + 1 / 3), rel=1e-6)
    admission = Layout(2, ("a",), "admission")
    assert admission.names[-1] == "task 0: value" and len(admission.names) == admission.observation


def test_the_documentation_has_every_entry():
    assert [name for name, _ in documented()] == [*TASK, *PAIR, *DEVICE, *WHOLE_SYSTEM, *ASKED]


# Calls that mean nothing ------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@needs_gymnasium
@pytest.mark.parametrize("name", ["hetsim/Scheduling-v0", "hetsim/Admission-v0"])
def test_the_mask_of_the_info_goes_into_sample(name):
    import gymnasium

    env = gymnasium.make(f"hetsim.learning:{name}", scenario=MIX)
    _, info = env.reset(seed=3)
    over = False
    while not over:
        mask = info["action_mask"]
        assert mask.dtype == np.int8 and env.unwrapped.action_masks().dtype == np.bool_
        action = env.action_space.sample(mask)
        assert mask[action]
        _, _, terminated, truncated, info = env.step(action)
        over = terminated or truncated
    assert env.unwrapped.observation_names == env.unwrapped.episodes.layout.names


@pytest.mark.quick(1)
@needs_gymnasium
@pytest.mark.parametrize("action", [1.7, 1.0, "a", None, True, np.float64(1), np.array([1])])
def test_an_action_that_is_no_whole_number_is_refused(action):
    import gymnasium

    env = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", scenario=MIX, disable_env_checker=True).unwrapped
    env.reset(seed=3)
    with pytest.raises(UsageError, match="an action must be a whole number"):
        env.step(action)
    env.step(np.array(0))


@needs_gymnasium
def test_options_that_reset_does_not_have_are_refused():
    import gymnasium

    env = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", scenario=MIX).unwrapped
    with pytest.raises(UsageError, match="one of the options replication and validation, not both"):
        env.reset(options={"replication": 1, "validation": 1})
    with pytest.raises(UsageError, match='reset has no option "replicaton"; there are replication and validation'):
        env.reset(options={"replicaton": 1})


@pytest.mark.parametrize("kind", [Episodes, Admissions, Played])
@pytest.mark.parametrize("reward", ["energy", {"slowdown": 1, "energy": 0.001}])
def test_energy_that_is_not_known_is_no_reward(tmp_path, kind, reward):
    """Without watts it would be zero whatever is done; the address is that of the nodes, which lack them."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "cluster:\n  nodes: [{cpus: 2, gpus: {type: g, count: 1}}]\n"
        "workload: {arrivals: {process: poisson, rate: 1/s}, count: 5, cpu_time: 1 s}\n"
    )
    with pytest.raises(ScenarioError, match=r"s\.yaml:2:3: cluster\.nodes: reward energy: no device .* power: \{idle"):
        kind(path, reward=reward)
    kind(path, reward={"slowdown": 1, "energy": 0})
    kind(hs.load(path, {"cluster.nodes.0.gpus.power": {"idle": "5 W"}}), reward=reward)


@needs_gymnasium
@pytest.mark.parametrize(("name", "given"), [
    ("Scheduling", {}), ("Scheduling", {"observation": "graph", "actions": ["node"]}), ("Admission", {"window": 2}),
])  # fmt: skip
def test_many_in_one_process_are_the_single_ones_row_by_row(name, given):
    import gymnasium

    small, (entry,) = MIX | {"seed": 4}, MIX["workload"]
    small["workload"] = [entry | {"until": "20 min"}]  # episodes that end and begin anew
    name = f"hetsim.learning:hetsim/{name}-v0"
    makes = [gymnasium.make_vec(name, 3, mode, scenario=small, **given) for mode in (None, "sync")]
    random = np.random.default_rng(0)
    (seen, info), (expected, told) = (env.reset(seed=5) for env in makes)
    ended = 0
    for _ in range(60):
        assert _equal(seen, expected) and all(np.array_equal(info[key], told[key]) for key in told)
        actions = np.array([random.choice(np.flatnonzero(row)) for row in info["action_mask"]])
        seen, *rest, info = makes[0].step(actions)
        expected, *others, told = makes[1].step(actions)
        assert all(map(np.array_equal, rest, others))
        ended += int(rest[1].sum())
    assert ended > 3
    with pytest.raises(UsageError, match="2 actions are given for 3 environments"):
        makes[0].step([0, 0])
    with pytest.raises(UsageError, match="2 seeds are given for 3 environments"):
        makes[0].reset(seed=[1, 2])
    with pytest.raises(UsageError, match="num_envs must be a whole number"):
        gymnasium.make_vec(name, 0, scenario=small)


def _equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(np.array_equal(one[key], other[key]) for key in one)
    return one.dtype == other.dtype and np.array_equal(one, other)


class Fewer(Response):
    """A user's own reward, with fields of its own (the class that it extends may be compiled)."""

    def __init__(self, simulation):
        super().__init__(simulation)
        self.seen = []

    def arrived(self, task):
        super().arrived(task)
        self.seen.append(task)

    def take(self, now):
        return super().take(now) - len(self.seen)


class Own(Observation):
    """A user's own observation."""

    shapes = (2,)

    def begin(self, acting):
        self.before = 0

    def observe(self, acting, vector):
        self.before += len(acting.shown())
        return [acting.view.now, self.before]


@pytest.mark.parametrize(("made", "given"), [
    (Episodes, {}), (Admissions, {}),
    (Episodes, {"observation": "graph", "actions": ["node"], "reward": {"slowdown": 1, "energy": 1e-6}}),
    (Episodes, {"observation": Own, "reward": Fewer, "ahead": True}),
])  # fmt: skip
def test_a_clone_goes_on_to_the_same_bytes_and_changes_nothing_here(made, given):
    original = made(MIX, **given)
    original.reset(7)
    choose = at_random(1)
    for _ in range(25):
        original.step(choose(original))
    clone, other = original.clone(), original.clone()
    choose = at_random(2)
    while not other.over:  # another future first
        other.step(choose(other))
    rewards = []
    for one in (original, clone):
        choose, earned = at_random(3), []
        while not one.over:
            earned.append(one.step(choose(one)))
        rewards.append(earned)
    assert rewards[0] == rewards[1]
    assert fingerprint(original.record) == fingerprint(clone.record) != fingerprint(other.record)


@needs_gymnasium
def test_an_environment_can_be_copied_with_its_wrappers():
    import copy

    import gymnasium

    env = gymnasium.make("hetsim.learning:hetsim/Scheduling-v0", scenario=MIX)
    env.reset(seed=3)
    env.step(0)
    twin = copy.deepcopy(env)
    assert env.step(1)[1:3] == twin.step(1)[1:3]
    assert twin.unwrapped.episodes.simulation is not env.unwrapped.episodes.simulation
    one, other = env.reset(), twin.reset()
    assert np.array_equal(one[0], other[0])
