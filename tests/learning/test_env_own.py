"""Own rewards, observations and actions of environments, trained models as schedulers."""

from __future__ import annotations

import math
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pages
import pandas as pd
import pytest
import tiers
from test_env import MIX, MOVING, at_random, played
from test_learning import SMALL, call, judged_seldom  # noqa: F401

import hetsim as hs
from hetsim import registry
from hetsim.errors import ScenarioError, UnknownName, UsageError
from hetsim.learning.environment.episode import Episodes, scheduler_of
from hetsim.learning.environment.observations import Observation
from hetsim.learning.environment.rewards import Response
from hetsim.learning.observation.window import TASK
from hetsim.model.randomness import TRAINING
from hetsim.policy.contract import Set, Start, Stop

needs_gymnasium = pytest.mark.skipif(find_spec("gymnasium") is None, reason="the extra `learning` is not installed")
needs_ppo = pytest.mark.skipif(find_spec("sb3_contrib") is None, reason="the extra `learning` is not installed")

SHORT = {**MIX, "workload": [{**MIX["workload"][0], "until": "1 h"}]}
WIDE = {
    "name": "wide",
    "cluster": {"nodes": [{"count": 2, "cpus": 8, "memory": "64 GB", "gpus": {"type": "g", "count": 8}}]},
    "workload": [{"arrivals": {"process": "poisson", "rate": "60/h"}, "count": 12, "gpu_time": "3 min", "classes": [
        {"class": "lean", "gpus": 1, "memory": "1 GB"}, {"class": "fat", "gpus": 1, "memory": "3 GB"}]}],
}  # fmt: skip


@pytest.fixture
def own():
    """What a test registers is gone afterwards."""
    kept = {kind: dict(items) for kind, items in registry._registered.items()}
    yield
    registry._registered.clear()
    registry._registered.update(kept)


# Rewards ----------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["response", "slowdown", "goodput", "value", "makespan"])
@pytest.mark.parametrize("actions", [(), pytest.param(("mode", "node", "preempt", "power"), marks=pytest.mark.slow)])
def test_what_is_earned_is_plain_whatever_the_reward_looks_like(name, actions):
    """Ahead and normalized, with preemption and sleep: the sum of `earned` is the figure of the tables."""
    episodes = Episodes(MIX, 5, name, ahead=True, normalize="return", actions=actions)
    choose, random = at_random(3), np.random.default_rng(4)
    episodes.reset(7)
    earned = 0.0
    for _ in range(20_000):
        if actions and random.random() < 0.8:  # or a random agent preempts for ever
            action = int(episodes.mask.argmax()) if episodes.mask[: episodes.layout.actions].any() else choose(episodes)
        else:
            action = choose(episodes)
        episodes.step(action)
        earned += episodes.earned
        if episodes.over:
            break
    tasks = episodes.result.tasks
    done = tasks[tasks["status"] == "completed"]
    assert len(done) == len(tasks)
    met = (done["finish"] <= done["deadline"]).sum() if "deadline" in done else len(done)
    wanted = {
        "response": -done["response"].sum(), "slowdown": -done["slowdown"].sum(), "goodput": met, "value": met,
        "makespan": -(done["finish"].max() - done["arrival"].min()),
    }[name]  # fmt: skip
    assert earned == pytest.approx(wanted, rel=1e-9)


@pytest.mark.slow
def test_preempting_earns_nothing_ahead():
    """The rewards ahead of a run with many stops differ from the plain ones by the time at best, once a task."""
    def totals(ahead):
        episodes = Episodes(MIX, 5, "response", ahead=ahead, actions=["preempt"])
        random = np.random.default_rng(1)
        episodes.reset(7)
        total = stops = 0
        while not episodes.over:
            first = np.flatnonzero(episodes.mask)
            preempts = first[(first >= episodes.layout.actions - 1) & (first < episodes.actions - 1)]
            stop = len(preempts) and random.random() < 0.1
            stops += bool(stop)
            total += episodes.step(int(random.choice(preempts)) if stop else int(first[0]))
        return total, stops, episodes.record.input.tasks

    plain, stops, tasks = totals(False)
    ahead, again, _ = totals(True)
    best = tasks.time.min(axis=1).sum()
    assert stops == again > 20
    assert ahead == pytest.approx(plain + best, rel=1e-6)


@pytest.mark.slow
def test_normalized_rewards_are_the_others_times_one_factor():
    for by in ("return", "time"):
        plain, normalized = Episodes(SMALL, 4, ahead=True), Episodes(SMALL, 4, ahead=True, normalize=by)
        assert played(normalized, at_random(2)) == pytest.approx(played(plain, at_random(2)) * normalized.factor)
        assert 0 < normalized.factor < math.inf and plain.factor == 1.0


def test_the_usual_return_is_about_one():
    """Discounted by 0.99 a step: its root mean square in the runs from which the factor is taken, by another way."""
    episodes = Episodes(SMALL, 4, ahead=True, normalize="return")
    found = []
    for number in range(2):
        episodes.reset(0, number, TRAINING)
        rewards = []
        while not episodes.over:
            rewards.append(episodes.step(int(episodes.mask.argmax())))
        steps = np.arange(len(rewards))
        found += [0.99 ** steps[: len(rewards) - at] @ np.array(rewards[at:]) for at in steps]
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(1.0)


def test_the_shortest_task_can_stand_first():
    """The same tasks in another order, and an action means the task that is shown in its place."""
    first, second = (Episodes(SMALL, 4, order=order) for order in ("arrival", "shortest"))
    moved = 0
    for episodes in (first, second):
        episodes.reset(3, 0, TRAINING)
    while not first.over:
        rows, others = (one.watched.shown() for one in (first, second))
        ordered = sorted(rows, key=lambda task: task.shortest_remaining)
        assert [task.index for task in others] == [task.index for task in ordered]
        moved += ordered != rows
        size = len(TASK)
        shown = [one.observation[: 4 * size].reshape(4, size)[: len(rows)] for one in (first, second)]
        assert (shown[1][:, 2] == np.sort(shown[0][:, 2])).all()
        kinds = len(first.layout.types)
        action = int(first.mask.argmax())
        place, kind = divmod(action, kinds)
        there = [task.index for task in others].index(rows[place].index) * kinds + kind
        assert first.mask.sum() == second.mask.sum() and second.mask[there]
        first.step(action), second.step(there)
    assert moved and second.over and first.now == second.now
    assert first.result.tasks.equals(second.result.tasks)


def test_dt_adds_up_to_the_length_of_the_run():
    episodes = Episodes(SMALL, 4)
    episodes.reset(7)
    total = episodes.now
    while not episodes.over:
        episodes.step(episodes.plain())
        total += episodes.dt
    assert total == pytest.approx(episodes.record.end)


def test_a_function_is_a_reward(own):
    def waiting(view, seen):
        return -seen.dt * view.num_waiting() - 0.0 * len(seen.finished)

    assert played(Episodes(SMALL, 4, waiting), at_random()) < 0
    hs.register("waiting", waiting, kind="reward")
    assert played(Episodes(SMALL, 4, "waiting"), at_random()) == played(Episodes(SMALL, 4, waiting), at_random())
    both = Episodes(SMALL, 4, {"waiting": 2.0, "response": 0.0})
    assert played(both, at_random()) == pytest.approx(2 * played(Episodes(SMALL, 4, waiting), at_random()))
    with pytest.raises(UsageError, match="give a class derived from"):
        hs.train(SMALL, steps=10, reward=waiting)


@pytest.mark.slow
def test_a_class_is_a_reward_that_training_compares(own):
    class Halved(Response):
        def of(self, task):
            return 0.5

    hs.register("halved", Halved, kind="reward")
    found = hs.train(SMALL, "reinforce", 200, window=4, reward="halved", baselines=["sjf"], replications=2)
    assert found.policy.training["reward"] == {"halved": 1.0}
    assert "response_mean" in found.comparison.table.columns.get_level_values(0)
    assert list(found.earned.columns)[1] == "sjf"


@pytest.mark.parametrize("value", [math.nan, math.inf, "much", None, np.array([1.0, 2.0])])
def test_a_reward_that_is_no_finite_number_is_said(value):
    episodes = Episodes(SMALL, 4, lambda view, seen: value)
    episodes.reset(1)
    with pytest.raises(ScenarioError, match="must return a finite number; got .* at t = ") as caught:
        episodes.step(0)
    assert caught.value.exit_code == 3


def test_a_reward_that_raises_is_said_with_what_it_raised():
    episodes = Episodes(SMALL, 4, lambda view, seen: 1 / 0)
    episodes.reset(1)
    with pytest.raises(ScenarioError, match="reward <lambda> raised ZeroDivisionError at t = .*division") as caught:
        episodes.step(0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_registered_reward_is_meant_even_where_ours_has_its_name(own):
    hs.register("slowdown", lambda view, seen: 5.0, kind="reward")
    episodes = Episodes(SMALL, 4, {"slowdown": 2})
    episodes.reset(1)
    assert episodes.step(0) == 10.0


# Observations -----------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@needs_gymnasium
@pytest.mark.parametrize("observation", ["dict", "graph"])
@pytest.mark.parametrize("scenario", [MIX, MOVING, "cholesky-8"], ids=["mix", "moving", "cholesky"])
def test_gymnasium_finds_nothing_wrong_with_dicts_and_graphs(observation, scenario):
    from gymnasium.utils.env_checker import check_env

    from hetsim.learning.environment.gym import SchedulingEnv

    env = SchedulingEnv(scenario, window=5, observation=observation, actions=["node", "mode", "preempt", "power"])
    check_env(env, skip_render_check=True)
    assert len(env.action_names) == env.action_space.n


def test_memory_and_widths_are_seen():
    episodes = Episodes(WIDE, 4, observation="dict")
    seen = set()
    episodes.reset(1)
    while not episodes.over:
        for row in episodes.observation["modes"][:, 0]:
            if row[0]:
                seen.add((float(row[3]), round(float(row[5]), 3)))
        assert episodes.observation["nodes"][:, 0].max() <= 8
        episodes.step(episodes.plain())
    assert seen == {(1.0, 1.0), (1.0, 3.0)}
    widths = {**WIDE, "workload": [{"arrivals": {"process": "poisson", "rate": "60/h"}, "count": 6, "modes": [
        {"device": "g", "gpus": count, "time": f"{24 // count} min"} for count in (1, 2, 4, 8)]}]}  # fmt: skip
    episodes = Episodes(widths, 3, observation="dict", actions=["width"])
    episodes.reset(1)
    assert episodes.observation["modes"][0, :, 3].tolist() == [1, 2, 4, 8]
    assert sum("task 0 on" in name for name in episodes.action_names) == 4
    assert episodes.action_names[:4] == tuple(f"task 0 on {width} g" for width in (1, 2, 4, 8))


def test_a_graph_shows_predecessors_and_critical_paths():
    episodes = Episodes("cholesky-8", 8, observation="graph")
    episodes.reset(1)
    tasks = episodes.record.input.tasks if episodes.record else episodes.simulation.input.tasks
    graph, links = episodes.observation["graph"], episodes.observation["links"]
    assert graph[:, 0].sum() == len(tasks) and (links[:, 0] >= 0).sum() == sum(map(len, tasks.predecessors))
    best = tasks.estimate.min(axis=1)
    longest = best.copy()
    for row in reversed(range(len(tasks))):  # the file is in an order in which they can run
        for one in tasks.predecessors[row]:
            longest[one] = max(longest[one], best[one] + longest[row])
    assert graph[:, 5] * episodes.scale == pytest.approx(longest, rel=1e-5)
    for _ in range(40):
        episodes.step(episodes.plain())
    observation = episodes.observation
    rows = observation["shown"][observation["shown"] >= 0].astype(int)
    assert len(rows) and (observation["graph"][rows, 2] == 1).all()
    assert (observation["data"][:, 1:] > 0).any() and (observation["needs"] == 1).any()


def test_a_function_is_an_observation(own):
    def counts(acting):
        return [acting.view.now, len(acting.shown())]

    episodes = Episodes(SMALL, 4, observation=counts)
    assert episodes.reset(1).shape == (2,) and episodes.observation.dtype == np.float32
    hs.register("counts", counts, kind="observation")
    assert (Episodes(SMALL, 4, observation="counts").reset(1) == episodes.observation).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda acting: [math.nan, 1.0], "returned nan at \\[0\\], t = .*entries must be finite numbers"),
        (lambda acting: np.zeros(2 + (acting.view.num_waiting() > 1)), "shape \\(3,\\) .* must be \\(2,\\)"),
        (lambda acting: ["a", "b"], "which is not an array of numbers"),
        (lambda acting: [[1], [1, 2]], "returned .*, which is not an array of numbers"),
        (lambda acting: {"a": [[1], [1, 2]]}, "returned .* in a at t = .*, which is not an array of numbers"),
        (lambda acting: {1: [0]}, "returned an entry 1; names must be texts"),
        (lambda acting: [1e300], "returned inf at \\[0\\]"),
        (lambda acting: 1 / 0, "observation <lambda> raised ZeroDivisionError at t = .*: division by zero"),
    ],
)
def test_an_observation_that_is_none_is_said(wrong, said):
    def play():
        episodes = Episodes(SMALL, 4, observation=wrong)
        played(episodes, at_random())

    with pytest.raises(ScenarioError, match=said):
        play()


@pytest.mark.parametrize("given", [None, 5, [2], (2, -1), {}, {1: (2,)}, {"a": 2}, "none at all"])
def test_an_observation_without_shapes_is_said(given):
    class Mine(Observation):
        def observe(self, acting, vector):
            return [1.0]

    if given != "none at all":
        Mine.shapes = given
    with pytest.raises(UsageError, match="`shapes` of observation Mine must be a tuple of whole numbers, or a"):
        Episodes(SMALL, 4, observation=Mine)


def test_an_observation_with_other_entries_is_said():
    class Two(Observation):
        name, shapes = "two", {"a": (2,), "b": (1,)}

        def observe(self, acting, vector):
            return {"a": [0, 0]}

    with pytest.raises(ScenarioError, match="observation two returned a at t = .* its entries must be a, b"):
        Episodes(SMALL, 4, observation=Two).reset(1)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"observation": "dictt"}, UnknownName, 'unknown observation "dictt"; did you mean "dict"'),
        ({"observation": 5}, UsageError, "observation must be a name, a class derived from"),
        ({"actions": "node"}, UsageError, "actions must be a list of names"),
        ({"actions": ["nod"]}, UnknownName, 'did you mean "node"'),
        ({"actions": ["mode", "width"]}, UsageError, "leave out width"),
        ({"actions": ["mode", "node"], "window": 1000, "scenario": "fragmented-gpus"}, None, ""),
        ({"ahead": 2}, UsageError, "ahead must be true or false"),
        ({"normalize": True}, UsageError, "normalize must be return or time, or None"),
        ({"order": "sjf"}, UsageError, "order must be arrival or shortest; got 'sjf'"),
        ({"reward": 5}, UsageError, ", a mapping of names to weights, a class or a function;"),
    ],
)
def test_wrong_options_of_an_environment_are_said(options, kind, said):
    given = {"scenario": SMALL, **options}
    if kind is None:
        Episodes(**given)
    else:
        with pytest.raises(kind, match=said):
            Episodes(**given)


# Actions ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_kind_of_action_does_what_its_name_says():
    episodes = Episodes(MIX if tiers.whole else SHORT, 4, actions=["mode", "node", "preempt", "power"])
    decided = []
    episodes.reset(3)
    random, names = np.random.default_rng(0), episodes.action_names
    seen = set()
    for _ in range(3000):
        if episodes.over:
            break
        action = int(random.choice(np.flatnonzero(episodes.mask)))
        name, simulation = names[action], episodes.simulation
        apply = simulation.apply
        simulation.apply = lambda one, apply=apply: (decided.append(one), apply(one))
        episodes.step(action)
        del simulation.apply
        kind = name.split()[0]
        seen.add(kind)
        if kind == "task":
            assert isinstance(decided[-1], Start)
            placement = decided[-1].placement
            assert {device.node for device in placement.devices} == {["fast", "slow"].index(name.split()[-1])}
            assert decided[-1].tasks.modes[int(name.split()[4])] is placement.mode
        elif kind == "preempt":
            assert isinstance(decided[-1], Stop)
        elif kind in ("off", "on"):
            assert isinstance(decided[-1], Set) and decided[-1].frequency == kind
            assert decided[-1].device.node == ["fast", "slow"].index(name.split()[1])
    assert seen == {"task", "preempt", "off", "on", "wait"}


# Trained models as schedulers -------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "options",
    [{}, {"observation": "dict"}, {"observation": "graph", "actions": ("mode", "node", "preempt")}],
    ids=["vector", "dict", "graph"],
)
def test_a_model_in_a_run_does_what_it_did_in_the_environment(own, options):
    def choose(observation, mask):
        return int(mask.argmax())

    scenario = MIX if tiers.whole else SHORT
    episodes = Episodes(scenario, 5, **options)
    hs.register("mine", scheduler_of(episodes, choose, "mine"))
    result = hs.run(scenario, policy="mine", seed=7)
    played(episodes, lambda now: choose(now.observation, now.mask))
    assert result.tasks["finish"].tolist() == episodes.result.tasks["finish"].tolist()


def test_a_model_for_another_cluster_or_with_no_action_is_said(own):
    trained = scheduler_of(Episodes(MIX, 5), lambda observation, mask: 10_000, "unfit")
    with pytest.raises(ScenarioError, match="types a100, v100 and 11 actions; here there are cpu, g"):
        hs.run(WIDE, policy=trained)
    with pytest.raises(UsageError, match="the trained model must return an action from 0 to"):
        hs.run(MIX, policy=trained)
    with pytest.raises(UsageError, match="a trained model must be a function of observation and mask; got"):
        scheduler_of(Episodes(MIX, 5), "model.zip")


@needs_ppo
@pytest.mark.filterwarnings("default")
def test_the_network_in_torch_is_that_in_numpy(tmp_path):
    import torch

    from hetsim.learning.agents.files import load
    from hetsim.learning.environment.gym import SchedulingEnv
    from hetsim.learning.training.networks import ActionScores, greedy
    from hetsim.learning.training.sb3 import ScoringPolicy

    env = SchedulingEnv(SMALL, window=4)
    scores = ActionScores(env.layout, seed=3)
    policy = load(scores.save(tmp_path / "mine.npz", env))
    actor = ScoringPolicy(env.observation_space, env.action_space, lambda _: 1e-3, layout=env.layout, seed=3)
    observation, _ = env.reset(seed=1)
    for _ in range(30):
        mask = env.action_masks()
        assert greedy(scores, observation, mask) == policy.best(observation, mask)
        chosen, _ = actor.predict(observation, deterministic=True, action_masks=mask)
        assert int(chosen) == policy.best(observation, mask)
        observation, *_ = env.step(greedy(scores, observation, mask))
    drawn, plain = scores(torch.as_tensor(observation[None])), scores.plain(torch.as_tensor(observation[None]))
    assert (drawn[0, :-1] == plain[0, :-1]).all() and drawn[0, -1] >= plain[0, -1]
    other = SchedulingEnv(SMALL, window=4, observation="dict")
    with pytest.raises(UsageError, match="register a scheduler instead"):
        scores.save(tmp_path / "other.npz", other)


@needs_ppo
@pytest.mark.filterwarnings("default")
def test_the_timed_buffer_discounts_by_elapsed_time():
    import torch

    from hetsim.learning.environment.gym import SchedulingEnv
    from hetsim.learning.training.sb3 import TimedRolloutBuffer

    env = SchedulingEnv(SMALL, window=4)
    env.reset(seed=1)
    buffer = TimedRolloutBuffer(4, env.observation_space, env.action_space, "cpu", 1.0, 0.5, clock=env, horizon=2.0)
    rewards, times = [1.0, -2.0, 3.0, 0.5], [10.0, 0.0, 500.0, 60.0]
    for reward, dt in zip(rewards, times, strict=True):
        env.episodes.dt = dt
        observation = env.observation_space.sample()
        buffer.add(observation, np.zeros(1), np.array([reward]), np.zeros(1), torch.zeros(1), torch.zeros(1))
    buffer.compute_returns_and_advantage(torch.tensor([4.0]), np.array([False]))
    wanted, later = [], 4.0
    for reward, dt in reversed(list(zip(rewards, times, strict=True))):
        later = reward + math.exp(-dt / (2.0 * env.episodes.scale)) * later
        wanted.insert(0, later)
    assert buffer.returns[:, 0] == pytest.approx(wanted, rel=1e-5)


OWN_AGENT = pages.TOP / "docs" / "how-to" / "own-agent.md"


@needs_ppo
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_documented_script_learns_what_train_learns(tmp_path, monkeypatch):
    """After two rollouts, and an update between them, both have the same weights, bit by bit."""
    import torch

    text = (OWN_AGENT.parent / "stock_ppo.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) < 50
    head, _, rest = text.partition("class KeepTheBest")
    assert "model.learn(steps" in rest
    monkeypatch.setattr("sys.argv", ["stock_ppo.py", "1024"])
    monkeypatch.setattr("hetsim.learning.agents.practice.JUDGED", 1)
    threads, names, kept = torch.get_num_threads(), {}, []

    def keep(known, _):
        if known["self"].num_timesteps == 1024:
            kept.extend(names["scores"].arrays())
        return True

    try:
        exec(compile(head, "stock_ppo.py", "exec"), names)
        names["model"].learn(1024, callback=keep)
    finally:
        torch.set_num_threads(threads)
    trained = hs.train("learned-affinity", "ppo", 1024, baselines=(), out=tmp_path / "train.npz")
    assert trained.policy.network.arrays and len(kept) == len(trained.policy.network.arrays)
    for mine, theirs in zip(kept, trained.policy.network.arrays, strict=True):
        assert np.array_equal(mine, theirs)


@needs_ppo
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_the_blocks_that_need_torch_do_what_the_page_says(own, monkeypatch):
    """All blocks of the page up to own rewards, with 32 steps in place of the steps that they learn from."""
    import sb3_contrib

    class Short(sb3_contrib.MaskablePPO):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **{**more, "n_steps": 32, "batch_size": 32})

        def learn(self, steps):
            assert steps >= 20_000
            return super().learn(32)

    monkeypatch.setattr(sb3_contrib, "MaskablePPO", Short)
    names, run = {"__name__": "page"}, 0
    end = OWN_AGENT.read_text().partition("## Own rewards")[0].count("\n")
    for block in pages.blocks(OWN_AGENT):
        if block.language == "python" and block.line < end:
            run += block.shown_only
            exec(compile(block.text, f"line {block.line}", "exec"), names)
    assert run == 3
    short = {"workload.0.until": "30 min"}
    for name in ("stock", "sb3", "torch"):
        result = hs.run("learned-affinity", policy=name, overrides=short)
        assert (result.tasks["status"] == "completed").all()


@pytest.mark.parametrize("name", ["makespan", "mine", "slowdown"])
def test_the_curve_of_every_reward_can_be_drawn(name):
    """Ours say what they are per task; one's own, and those without a figure per task, are a reward per task."""
    from hetsim.learning.training.train import learning_curve

    curve = pd.DataFrame({"steps": [100, 200], "reward_per_task": [-3.0, -2.0]})
    policy = SimpleNamespace(agent="ppo", training={"reward": {name: 1.0}, "kept_after": 200, "scenario": "s"})
    (ax,) = learning_curve(policy, curve, {"fcfs": -4.0}).figure().axes
    label = "mean slowdown" if name == "slowdown" else "reward per task"
    assert ax.get_ylabel() == f"{label}, validation runs"
    assert ax.lines[0].get_ydata().tolist() == ([3.0, 2.0] if name == "slowdown" else [-3.0, -2.0])
