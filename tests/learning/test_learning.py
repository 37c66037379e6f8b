"""Learned policies: the arithmetic of the agents, their files, `hetsim train`, and what the shipped ones are worth."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import zipfile
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import some, spread

import hetsim as hs
from hetsim.cli import hetsim
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError, UnknownName, UsageError
from hetsim.learning.agents.files import VERSION, LearnedPolicy, load, save
from hetsim.learning.agents.learners import Dqn, Memory, Reinforce, balanced
from hetsim.learning.agents.learners import Path as Trajectory
from hetsim.learning.agents.network import Adam, ScoreNetwork, shares
from hetsim.learning.agents.practice import Practice
from hetsim.learning.environment import rewards
from hetsim.learning.environment.episode import Episodes
from hetsim.learning.observation.window import FEATURES_VERSION, Layout
from hetsim.learning.training.train import make_agent
from hetsim.model.randomness import APART, JUDGED, TRAINING, VALIDATION, RandomTree, root
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import student_interval
from hetsim.testing import examine, other_hash_seed, small_systems
from hetsim_policies.learning.learned import Learned

SHIPPED = Path(__file__).parents[2] / "scenarios" / "hetsim_scenarios" / "learning"
AGENTS = ("dqn", "reinforce", "ppo")
needs_ppo = pytest.mark.skipif(find_spec("sb3_contrib") is None, reason="the extra `learning` is not installed")

SMALL = {
    "name": "small", "seed": 1,
    "cluster": {"nodes": [{"gpus": {"type": "a100", "count": 1}}, {"gpus": {"type": "v100", "count": 2}}]},
    "workload": [{
        "arrivals": {"process": "poisson", "rate": "20/h"}, "until": "3 h",
        "modes": [{"device": "a100", "gpus": 1, "time": {"distribution": "exponential", "mean": "4 min"}},
                  {"device": "v100", "gpus": 1, "time": {"speedup": 3}}],
    }],
}  # fmt: skip


def call(*arguments):
    return CliRunner().invoke(hetsim, [str(argument) for argument in arguments], prog_name="hetsim")


def fresh(layout, seed=0, scale=1.0):
    """A policy that was never trained."""
    network = ScoreNetwork.fresh(layout.inputs, (8,), np.random.default_rng(seed))
    return LearnedPolicy(network, layout.window, layout.types, scale, "none", {"reward": {"slowdown": 1.0}})


# Arithmetic -------------------------------------------------------------------------------------------------


def test_gradients_are_those_of_differences():
    random = np.random.default_rng(1)
    network = ScoreNetwork.fresh(5, (7, 4), random)
    network.arrays = [array.astype(np.float64) for array in network.arrays]
    rows, slopes = random.standard_normal((6, 5)), random.standard_normal(6).astype(np.float32)
    assert network.forward(rows) == pytest.approx(network.scores(rows))
    found = network.backward(slopes)
    for array, gradient in zip(network.arrays, found, strict=True):
        for place in np.ndindex(array.shape):
            before = array[place]
            array[place] = before + 1e-6
            above = network.scores(rows) @ slopes
            array[place] = before - 1e-6
            below = network.scores(rows) @ slopes
            array[place] = before
            assert gradient[place] == pytest.approx((above - below) / 2e-6, rel=1e-5, abs=1e-8)


def test_adam_finds_a_minimum_and_cuts_gradients():
    arrays = [np.array([3.0, -2.0], np.float32)]
    adam = Adam(arrays, 0.1)
    for _ in range(500):
        adam.step([2 * arrays[0]])
    assert np.abs(arrays[0]).max() < 1e-2
    one, other = [np.zeros(1, np.float32)], [np.zeros(1, np.float32)]
    Adam(one, 0.1).step([np.array([1.0])])
    Adam(other, 0.1).step([np.array([1e9])])
    assert one[0] == pytest.approx(other[0])


def test_shares_add_up_within_each_decision():
    scores = np.array([1.0, 2.0, 3.0, 800.0, -800.0])
    found = shares(scores, np.array([0, 3]))
    expected = np.exp(scores[:3]) / np.exp(scores[:3]).sum()
    assert found == pytest.approx([*expected, 1.0, 0.0])


def test_waiting_weighs_against_all_placements_as_against_the_best():
    scores = np.array([1.0, 2.0, 1.5, 0.3, 0.7, 0.1, 0.2])  # three placements and waiting; two; one
    starts, may_wait = np.array([0, 4, 6]), np.array([True, False, False])
    found, back = balanced(scores, starts, may_wait)
    assert shares(found, starts)[3] == pytest.approx(1 / (1 + math.exp(2.0 - 0.3)))
    assert found[[0, 1, 2, 4, 5, 6]].tolist() == scores[[0, 1, 2, 4, 5, 6]].tolist()
    weights = np.array([0.3, -1.0, 2.0, 1.7, 0.2, -0.4, 1.0])
    given = back(weights)
    for place in range(len(scores)):
        moved = scores.copy()
        moved[place] += 1e-6
        above = balanced(moved, starts, may_wait)[0] @ weights
        assert given[place] == pytest.approx((above - found @ weights) / 1e-6, abs=1e-4)


def test_returns_are_discounted_by_time():
    path = Trajectory(times=[0.0, 10.0, 10.0], rewards=[1.0, 2.0, 4.0], end=20.0)
    factor = math.exp(-1)
    assert path.returns(10.0) == pytest.approx([1 + factor * 6, 6, 4])


def test_a_memory_draws_only_transitions_whose_successor_it_knows():
    memory = Memory(4, 1, 3)
    random = np.random.default_rng(0)
    for number in range(11):
        place = memory.begin(np.array([number]), np.array([True, False, True]), number)
        memory.end(place, float(number), 0.5)
        if number >= 2:
            drawn = memory.draw(200, random)
            assert set(memory.actions[drawn]) == set(range(max(0, number - 4), number))
            assert (memory.observations[memory.after(drawn)][:, 0] == memory.actions[drawn] + 1).all()
    assert memory.masks[:, -1].all()


class Bandit:
    """One decision an episode: the action whose row is marked earns 1, each other one nothing."""

    layout = Layout(2, ("a", "b"))
    scale = 1.0
    now = 0.0

    @property
    def episodes(self):
        return self

    def __init__(self):
        self.random = np.random.default_rng(5)
        self.mask = np.array([True, True, True, True, False])
        self.over = True

    def reset(self, episode):
        self.good = int(self.random.integers(4))
        self.observation = np.zeros(self.layout.observation, np.float32)
        self.observation[self.layout.rows[self.good][10]] = 1.0  # a mark in the features of the pair
        self.over = False

    def step(self, action):
        self.over = True
        return float(action == self.good)

    def passed(self, steps, network):
        pass

    seed = 0
    resumed = None

    def save(self, steps, state):
        pass

    def sb3(self):
        from hetsim.learning.training.sb3 import ScoringPolicy, TimedRolloutBuffer

        return ScoringPolicy, TimedRolloutBuffer

    def environment(self):
        import gymnasium
        from gymnasium import spaces

        bandit = self

        class Environment(gymnasium.Env):
            observation_space = spaces.Box(-10, 10, (bandit.layout.observation,), np.float32)
            action_space = spaces.Discrete(bandit.layout.actions)
            episode = 0

            def reset(self, *, seed=None, options=None):
                bandit.reset(self.episode)
                self.episode += 1
                return bandit.observation, {}

            def step(self, action):
                return bandit.observation, bandit.step(int(action)), bandit.over, False, {}

            def action_masks(self):
                return bandit.mask

        return Environment()


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(Dqn(rate=5e-3), marks=pytest.mark.slow), Reinforce(rate=2e-2, runs=16),
        pytest.param("ppo", marks=[needs_ppo, pytest.mark.slow, pytest.mark.filterwarnings("default")]),
    ],
    ids=AGENTS,
)  # fmt: skip
@pytest.mark.slow
def test_an_agent_learns_which_action_is_marked(agent):
    if agent == "ppo":
        from hetsim.learning.agents.learners import Ppo

        agent = Ppo(rate=1e-2, rollout=256, batch=64)
    bandit = Bandit()
    if isinstance(agent, Reinforce):  # whose episodes of one number are the same load
        before, count = bandit.reset, [0]

        def reset(episode):
            bandit.random = np.random.default_rng([5, episode])
            count[0] += 1
            before(episode)

        bandit.reset = reset
    network = agent.train(bandit, 4000, np.random.default_rng(2))
    right = 0
    for episode in range(100):
        bandit.reset(10_000 + episode)
        right += int(network.scores(bandit.layout.row(bandit.observation, np.arange(4))).argmax()) == bandit.good
    assert right == 100


# Training ---------------------------------------------------------------------------------------------------


@pytest.fixture
def judged_seldom(monkeypatch):
    """Judging takes most of a short training's time; 4 of the 20 times do here."""
    monkeypatch.setattr("hetsim.learning.agents.practice.JUDGED", 4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "steps"),
    [("dqn", 1600), ("reinforce", 900),
     pytest.param("ppo", 1100, marks=[needs_ppo, pytest.mark.slow, pytest.mark.filterwarnings("default")])],
)  # fmt: skip
def test_the_same_seed_gives_the_same_bytes(agent, steps, tmp_path, judged_seldom):
    files = [tmp_path / name for name in ("one.npz", "two.npz", "other.npz")]
    for seed, file in zip((3, 3, 4), files, strict=True):
        training = hs.train(SMALL, agent, steps, seed=seed, window=6, baselines=(), out=file)
        assert training.comparison is None
    one, two, other = (file.read_bytes() for file in files)
    assert one == two != other
    about = load(files[0]).training
    assert about["steps"] == steps and about["seed"] == 3 and about["scenario"] == "small"
    assert about["reward"] == {"slowdown": 1.0}


def test_training_validation_and_comparison_meet_different_loads():
    training = Practice(hs.load(SMALL), 4, "slowdown", 0, 100)
    training.reset(0)
    loads = [training.episodes.simulation.input.tasks.arrival.tolist()]
    loads += [hs.load(SMALL).build(seed, 0).tasks.arrival.tolist() for seed in (None, 0, 1_000_000, 2_000_000)]
    loads += [hs.load(SMALL).build(0, 0, VALIDATION).tasks.arrival.tolist()]
    assert loads[0] == hs.load(SMALL).build(0, 0, TRAINING).tasks.arrival.tolist()
    assert all(one != other for n, one in enumerate(loads) for other in loads[:n])


EDGES = [0, 1, 999_999, 1_000_000, 1_999_999, 2_000_000, 2_999_999, 3_000_000, APART, 2**64, 2**128 - 1]


@pytest.mark.slow
@settings(deadline=None)
@given(*2 * [st.tuples(st.one_of(st.sampled_from(EDGES), st.integers(0, 2**128 - 1)),
                       st.sampled_from([JUDGED, TRAINING, VALIDATION]))])  # fmt: skip
def test_no_two_seeds_or_uses_of_loads_have_the_same_root(one, other):
    assert (root(*one) == root(*other)) == (one == other)


def test_roots_at_the_edges_of_the_seeds_of_training_differ():
    pairs = [(seed, loads) for seed in EDGES for loads in (JUDGED, TRAINING, VALIDATION)]
    assert len({root(*pair) for pair in pairs}) == len(pairs)


def test_no_replication_reaches_the_branches_beside_the_main_one():
    """The first key of a stream is its replication, or what no replication is: then nothing can meet."""
    assert RandomTree(7, APART - 1).sequence("a").spawn_key[0] == APART - 1
    assert RandomTree(10**7, 3, TRAINING).sequence("a").spawn_key[::2][:2] == (APART, 3)
    for replication in (-1, APART):
        with pytest.raises(ValueError, match="replication must be from 0 to"):
            RandomTree(7, replication)


class OwnReward(rewards.REWARDS["slowdown"]):
    """The reward of slowdown, as a class of the user's that nothing registers."""


def test_a_class_of_the_users_is_a_reward_to_train_with(judged_seldom):
    own = hs.train(SMALL, "dqn", 60, window=4, baselines=["fcfs"], replications=1, reward=OwnReward)
    named = hs.train(SMALL, "dqn", 60, window=4, baselines=["fcfs"], replications=1, reward="slowdown")
    assert own.curve.equals(named.curve) and own.baselines == named.baselines


@pytest.mark.quick(0)
@pytest.mark.parametrize("seed", spread([0, 1_000_000, 2_000_000], 1))
def test_no_stream_of_training_is_one_that_is_judged_by(monkeypatch, judged_seldom, seed):
    """Whatever the scenario's own seed is, those of training among them."""
    streams: dict[str, set] = {JUDGED: set(), TRAINING: set(), VALIDATION: set()}
    make = RandomTree.sequence

    def sequence(self, *path):
        found = make(self, *path)
        streams[self.loads].add((found.entropy, found.spawn_key))
        return found

    monkeypatch.setattr(RandomTree, "sequence", sequence)
    hs.train({**SMALL, "seed": seed}, "reinforce", some(400, 100), window=6, baselines=["sjf"], replications=3)
    assert all(len(found) > 5 for found in streams.values())
    assert not streams[JUDGED] & streams[TRAINING] | streams[JUDGED] & streams[VALIDATION]
    assert not streams[TRAINING] & streams[VALIDATION]


@pytest.mark.slow
def test_the_best_network_on_the_way_is_kept(judged_seldom):
    training = hs.train(SMALL, "dqn", 1600, window=6, baselines={"fcfs": "fcfs", "shortest": "sjf"}, replications=2)
    curve = training.curve
    assert curve["steps"].tolist() == [400, 800, 1200, 1600]
    best = curve.loc[curve["reward_per_task"].idxmax()]
    assert best["steps"] == training.policy.training["kept_after"]
    # The judge's figure is what a run of the kept policy gives.
    slowdowns = validation_slowdowns("sjf")
    assert training.baselines["shortest"] == pytest.approx(-slowdowns.mean(), rel=1e-9)
    assert list(training.comparison.table.index) == ["learned (dqn)", "fcfs", "shortest"]
    assert training.plot().figure().axes


def validation_slowdowns(policy) -> np.ndarray:
    """Those of all tasks of the runs that a network is judged by."""
    given = hs.load(SMALL, {"policy": policy})
    runs = [Result(Simulation(given.build(0, number, VALIDATION), check=True).run()) for number in range(4)]
    return np.concatenate([run.tasks["slowdown"] for run in runs])


@pytest.mark.slow
def test_a_run_of_the_file_is_what_the_judge_saw(tmp_path, judged_seldom):
    training = hs.train(SMALL, "reinforce", 600, window=6, baselines=(), out=tmp_path / "p.npz")
    mine = {"scheduler": {"name": "learned", "path": str(tmp_path / "p.npz")}}
    slowdowns = validation_slowdowns(mine)
    assert training.curve["reward_per_task"].max() == pytest.approx(-slowdowns.mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"agent": "dqm"}, UnknownName, 'unknown agent "dqm"; did you mean "dqn"'),
        ({"reward": "slow"}, UnknownName, "the rewards are response, slowdown, goodput, energy"),
        ({"steps": 0}, UsageError, "steps must be a whole number from 1"),
        ({"steps": 2.5}, UsageError, "steps must be a whole number from 1"),
        ({"seed": -1}, UsageError, "seed must be a whole number from 0"),
        ({"window": 0}, UsageError, "must be from 1 to"),
        ({"settings": {"rat": 1}}, UnknownName, 'did you mean "rate"'),
        ({"settings": {"rate": "abc"}}, UsageError, "setting rate of agent dqn: .* got 'abc'"),
        ({"settings": {"rate": -1}}, UsageError, "rate of agent dqn: input should be greater than 0"),
        ({"settings": {"rate": math.nan}}, UsageError, "rate of agent dqn: input should be a finite number"),
        ({"settings": {"hidden": [0]}}, UsageError, "hidden of agent dqn: .* got \\[0\\]"),
        ({"settings": {"hidden": 5}}, UsageError, "hidden of agent dqn"),
        ({"settings": {"batch": 0}}, UsageError, "batch of agent dqn"),
        ({"settings": {"runs": 1}, "agent": "reinforce"}, UsageError, "runs of agent reinforce"),
        ({"settings": ["rate"]}, UsageError, "settings must be a mapping"),
        ({"out": "no/such/folder.npz"}, UsageError, "folder.npz cannot be written: no/such is not a folder"),
        ({"out": "."}, UsageError, "is a folder"),
        ({"baselines": ["fcsf"]}, UnknownName, 'did you mean "fcfs"'),
    ],
)
def test_wrong_options_are_said_before_anything_is_trained(options, kind, said):
    with pytest.raises(kind, match=said):
        hs.train(SMALL, **{"steps": 100, **options})


@pytest.mark.parametrize("agent", ["dqn", "reinforce", "ppo"])
def test_the_settings_of_an_agent_that_are_not_given_are_its_own(agent):
    if agent == "ppo" and find_spec("sb3_contrib") is None:
        pytest.skip("the extra `learning` is not installed")
    own = make_agent(agent, {})
    assert make_agent(agent, asdict(own)) == own  # all within their own limits
    assert make_agent(agent, {"hidden": [8, 4]}).hidden == (8, 4)


def test_without_the_extra_it_is_said_what_to_install(monkeypatch, tmp_path):
    import builtins

    before = builtins.__import__

    def importing(name, *rest, **more):
        if name.partition(".")[0] in ("sb3_contrib", "stable_baselines3", "torch"):
            raise ImportError(f"No module named {name!r}")
        return before(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", importing)
    monkeypatch.chdir(tmp_path)
    result = call("train", "learned-affinity", "--agent", "ppo")
    assert result.exit_code == 2
    assert "pip install 'hetsim[learning]'" in result.stderr
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="stable-baselines3 and sb3-contrib"):
        hs.train(SMALL, "ppo", 10)


# The command ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_writes_policy_and_curve_and_prints_a_comparison(tmp_path, monkeypatch, judged_seldom):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(json.dumps(SMALL))
    result = call("train", "small.yaml", "--agent", "reinforce", "--steps", 300, "--replications", 3,
                  "--baseline", "fcfs", "--baseline", "sjf+first_fit", "--metric", "response_mean")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("reinforce: 300 steps, the network after ")
    assert "learned (reinforce)" in result.stdout and "sjf + first_fit" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "small-reinforce.npz", "small-reinforce.png", "small.yaml",
    ]  # fmt: skip
    assert "%" not in result.stderr.replace("95 %", "")  # no bar off a terminal
    again = call("train", "small.yaml", "--agent", "reinforce", "--steps", 300)
    assert again.exit_code == 2 and "small-reinforce.npz already exists; --force replaces it" in again.stderr
    Path("use.yaml").write_text(json.dumps(
        SMALL | {"policy": {"scheduler": {"name": "learned", "path": "small-reinforce.npz"}}}))  # fmt: skip
    assert call("run", "use.yaml", "--check").exit_code == 0
    forced = call("train", "small.yaml", "--agent", "reinforce", "--steps", 100, "--force", "--json", "--replications",
                  2, "-q", "--set", "cluster.nodes.0.gpus.power={idle: 50 W, busy: 300 W}",
                  "--reward", "{slowdown: 1, energy: 0.001}", "--setting", "hidden=[8]", "--setting",
                  "rate=0.01")  # fmt: skip
    assert forced.exit_code == 0, forced.output
    told = json.loads(forced.stdout)
    assert told["training"]["reward"] == {"slowdown": 1.0, "energy": 0.001}
    assert told["training"]["settings"]["hidden"] == [8] and told["training"]["settings"]["rate"] == 0.01
    assert len(told["curve"]["steps"]) == 4
    baselines = {"fcfs", "fcfs_skip", "random", "sjf", "wfp3", "unicep", "f1", "saf", "packer"}
    assert set(told["validation"]) == baselines


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nowhere",), 3, "nowhere"),
        (("small.yaml", "--agent", "dqm"), 3, 'did you mean "dqn"'),
        (("small.yaml", "--reward", "fast"), 3, 'unknown reward "fast"'),
        (("small.yaml", "--reward", "{slowdown: x}"), 2, "the weight of reward slowdown must be a number; got"),
        (("small.yaml", "--file", "no/such/folder.npz"), 2, "does not exist"),
        (("small.yaml", "--file", "policy.png"), 2, "must be a file name ending "
                                                    "in"),  # its learning curve is policy.png
        (("small.yaml", "--setting", "rate"), 2, "--setting must be key=value, such as rate=0.0005; got"),
        (("small.yaml", "--setting", "rate=[1"), 2, "--setting rate=[1 is not valid YAML"),
        (("small.yaml", "--setting", "rate=fast"), 2, "setting rate of agent dqn"),
        (("small.yaml", "--metric", "slowdwn_mean"), 3, "slowdown_mean"),
        (("async-burst",), 3, "without a `service`"),
    ],
)
def test_wrong_usage_is_a_sentence(tmp_path, monkeypatch, arguments, code, said):
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(json.dumps(SMALL))
    result = call("train", *arguments, "--steps", 50)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


# Files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    """A policy for SMALL."""
    path = tmp_path / "p.npz"
    save(fresh(Layout(6, ("a100", "v100"))), path)
    return path


def using(path):
    return {**SMALL, "policy": {"scheduler": {"name": "learned", "path": str(path)}}}


def refused(path, said):
    with pytest.raises(ScenarioError, match=said):
        hs.run(using(path))
    result = CliRunner().invoke(hetsim, ["run", "learned-affinity", "--set", f"policy.scheduler.path={path}"])
    assert result.exit_code == 3 and "nothing was run" in result.stderr


def rewritten(path, **changes):
    """The file with other metadata."""
    with np.load(path, allow_pickle=False) as archive:
        parts = dict(archive)
    about = json.loads(bytes(parts["about"])) | changes
    parts["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    np.savez(path, **parts)


def test_a_policy_is_read_as_it_was_written(file):
    policy = load(file)
    assert (policy.window, policy.types, policy.scale, policy.agent) == (6, ("a100", "v100"), 1.0, "none")
    again = fresh(Layout(6, ("a100", "v100"))).network
    assert all((one == other).all() for one, other in zip(policy.network.arrays, again.arrays, strict=True))
    assert len(hs.run(using(file), check=True).tasks)
    with zipfile.ZipFile(file) as archive:
        assert all(entry.filename.endswith(".npy") for entry in archive.infolist())


def test_a_path_is_relative_to_the_scenario(file, monkeypatch, tmp_path):
    (tmp_path / "s.yaml").write_text(json.dumps(using("p.npz")))
    monkeypatch.chdir("/")
    assert len(hs.run(tmp_path / "s.yaml").tasks)


def test_another_size_names_both(tmp_path):
    layout = Layout(6, ("a100", "h100", "v100"))
    save(fresh(layout), tmp_path / "p.npz")
    here = Layout(6, ("a100", "v100"))
    refused(
        tmp_path / "p.npz",
        rf"types a100, h100, v100 \({layout.observation} numbers observed, {layout.actions} actions\), "
        rf"but the cluster has a100, v100 \({here.observation} numbers, {here.actions} actions\)",
    )


def test_a_file_that_says_another_size_than_its_window_has(file):
    layout = Layout(6, ("a100", "v100"))
    rewritten(file, actions=99)
    refused(file, rf"{layout.observation} observed numbers and 99 actions, .* need {layout.observation} numbers and 13")


@pytest.mark.parametrize(("key", "what"), [("version", "its file format"), ("features", "what it observes")])
def test_a_newer_version_is_said(file, key, what):
    rewritten(file, **{key: 99})
    ours = {"version": VERSION, "features": FEATURES_VERSION}[key]
    refused(file, f"was made by a newer hetsim: the version of {what} is 99, but this hetsim knows {ours}; update")
    rewritten(file, **{key: 0})
    refused(file, f"was made by an older hetsim: the version of {what} is 0, but this hetsim has {ours}; train "
                  f"it again")
    assert FEATURES_VERSION == 1


@pytest.mark.parametrize("part", [0.02, 0.3, 0.7, 0.99])
def test_a_truncated_file_is_said(file, part):
    data = file.read_bytes()
    file.write_bytes(data[: int(part * len(data))])
    refused(file, "is damaged or cut off")


def test_a_flipped_byte_is_said(file):
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.write_bytes(bytes(data))
    refused(file, "is damaged")


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "is empty"), (b"name: x\n", "not an .npz archive"), (b"\x93NUMPY rest", "not an .npz archive")],
)
def test_what_is_no_archive_is_said(file, data, said):
    file.write_bytes(data)
    refused(file, said)


def test_another_archive_is_said(file):
    np.savez(file, weights=np.zeros(3))
    refused(file, "is an .npz archive, but not a learned policy")
    np.savez(file, about=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(file, "is damaged or cut off: Object arrays cannot be loaded")


@pytest.mark.parametrize(
    "arrays",
    [
        [np.zeros((3, 1)), np.zeros(1)],
        [np.zeros((36, 4)), np.zeros(5), np.zeros((4, 1)), np.zeros(1)],
        [np.zeros((36, 4)), np.zeros(4)],
        [],
        [np.full((36, 1), np.nan), np.zeros(1)],
        [np.zeros(4), np.zeros(4)],
    ],
)
def test_arrays_that_are_no_network_are_said(tmp_path, arrays):
    policy = fresh(Layout(6, ("a100", "v100")))
    policy.network.arrays = [array.astype(np.float32) for array in arrays]
    save(policy, tmp_path / "p.npz")
    refused(tmp_path / "p.npz", "is damaged")


@pytest.mark.parametrize("kind", ["float64", "complex64", "U8", "datetime64[s]"])
def test_arrays_of_another_kind_are_said(file, kind):
    with np.load(file, allow_pickle=False) as archive:
        parts = dict(archive)
    np.savez(file, **{**parts, "array0": parts["array0"].astype(kind)})
    refused(file, "is damaged: the shapes of its arrays do not form a network")


@pytest.mark.parametrize("window", [0, -1, 10**8])
def test_a_window_that_no_policy_has_is_said(file, window):
    """Also where the sizes of observation and action agree with it: nothing so large is ever made."""
    layout = Layout(window, ("a100", "v100"))
    rewritten(file, window=window, observation=layout.observation, actions=layout.actions)
    refused(file, f"its window must be from 1 to 1,000 tasks; got {window:,}")


@pytest.mark.slow
def test_metadata_that_no_reader_can_hold_are_said(file):
    rewritten(file, window=math.inf)
    refused(file, "is damaged")
    np.savez(file, about=np.frombuffer(b"[" * 100_000, np.uint8))
    refused(file, "is an .npz archive, but not a learned policy")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("about.npy", header.getvalue() + b"1234")
    refused(file, "is damaged or cut off")
    with zipfile.ZipFile(file, "w") as archive:  # NumPy's reader of headers takes Python's tokenizer for this one
        archive.writestr("about.npy", header.getvalue().replace(b"}", b"("))
    refused(file, "is damaged or cut off")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.npy", bytes(65_000_000))
    refused(file, "is not a learned policy: it has 65,000,000 bytes")


def test_damage_anywhere_is_a_sentence(file):
    """Headers of zip and of NumPy complain in many ways; none of them gets through."""
    data, random = file.read_bytes(), np.random.default_rng(1)
    for _ in range(some(600, 150)):
        damaged = bytearray(data)
        for place in random.integers(0, len(data), random.integers(1, 4)):
            damaged[place] = random.integers(0, 256)
        for place in random.integers(0, 200, random.integers(0, 3)):
            damaged[place] = random.integers(0, 256)
        file.write_bytes(bytes(damaged))
        with contextlib.suppress(ScenarioError):
            load(file)


def test_a_missing_file_is_said(tmp_path):
    refused(tmp_path / "none.npz", "no file")
    with pytest.raises(ScenarioError, match="path"):
        hs.run({**SMALL, "policy": {"scheduler": "learned"}})


def test_a_file_is_written_whole_or_not_at_all(tmp_path, file):
    before = file.read_bytes()
    policy = fresh(Layout(6, ("a100", "v100")))
    policy.training["odd"] = object()
    with pytest.raises(TypeError):
        save(policy, file)
    policy = fresh(Layout(6, ("a100", "v100")))
    policy.network.arrays[0] = np.array([object()])
    with pytest.raises(ValueError, match="pickle"):
        save(policy, file)
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


# Conformance ------------------------------------------------------------------------------------------------


class OnSystem:
    """Makes the learned policy for a system: never trained, so it does anything that the mask allows."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, system):
        path = self.folder / f"{system.name}.npz"
        if not path.exists():
            save(fresh(Layout.for_cluster(system.cluster, 3)), path)
        return Learned(path)


@pytest.mark.quick(3)
@pytest.mark.parametrize("system", spread(small_systems(), 6), ids=lambda system: system.name)
def test_it_keeps_the_contract_whatever_was_learned(system, tmp_path):
    assert examine(OnSystem(tmp_path), system) == []


@pytest.mark.quick(0)
def test_it_does_not_depend_on_the_hash_seed(tmp_path):
    import functools

    system = small_systems()[0]
    OnSystem(tmp_path)(system)
    factory = functools.partial(Learned, tmp_path / f"{system.name}.npz")
    assert other_hash_seed([factory], [system]) == []


# What ships -------------------------------------------------------------------------------------------------


HELD_OUT = 424_242
"""A seed that nothing was trained, judged or chosen on."""


@pytest.fixture(scope="module")
def held_out():
    """Mean slowdown by replication of every policy that docs/learning.md compares."""
    chosen = {agent: {"scheduler": {"name": "learned", "path": f"affinity-{agent}.npz"}} for agent in AGENTS}
    chosen |= {"fcfs": "fcfs", "random": "random", "sjf": "sjf"}
    found = {}
    for label, policy in chosen.items():
        runs = hs.replicate("learned-affinity", policy=policy, seed=HELD_OUT, replications=20)
        found[label] = runs.column("slowdown_mean").to_numpy()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("baseline", ["fcfs", "random"])
def test_what_ships_is_at_least_a_fifth_below_the_baselines_on_held_out_seeds(held_out, agent, baseline):
    """Paired by replication, at 99 %: learned - 0.8 × baseline is below 0."""
    assert student_interval(held_out[agent] - 0.8 * held_out[baseline], 0.99).high < 0


@pytest.mark.parametrize("agent", AGENTS)
def test_a_shipped_file_is_small_and_says_how_it_was_made(agent):
    path = SHIPPED / f"affinity-{agent}.npz"
    policy = load(path)
    assert path.stat().st_size < 40_000
    assert policy.agent == agent and policy.training["scenario"] == "learned-affinity"
    layout = Episodes("learned-affinity", policy.window).layout
    policy.check(hs.load("learned-affinity").build().cluster, path)
    assert layout == policy.layout
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    steps, seed = policy.training["steps"], policy.training["seed"]
    assert f"--agent {agent} --steps {steps} --seed {seed}" in text


@pytest.mark.slow
def test_the_table_of_the_documentation_is_what_comes_out(held_out):
    text = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    for label, values in held_out.items():
        row = f"`learned`, {label}" if label in AGENTS else f"`{label}`"
        found = re.search(rf"^\| {re.escape(row)} \| ([\d.]+) ± ([\d.]+) \|", text, re.MULTILINE)
        assert found, label
        interval = student_interval(values, 0.95)
        for written, value in zip(found.groups(), (interval.mean, interval.high - interval.mean), strict=True):
            decimals = len(written.partition(".")[2])
            assert abs(float(written) - value) <= 0.55 * 10**-decimals, (label, written, value)


# Sentences about files --------------------------------------------------------------------------------------


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": "x"}, 'the version of its file format must be a whole number; got "x"'),
        ({"version": True}, "the version of its file format must be a whole number; got true"),
        ({"features": None}, "the version of what it observes must be a whole number; got null"),
        ({"agent": ["x"]}, r'its agent must be a name; got'),
        ({"training": 5}, "numbers and names in its description have wrong types"),
        ({"window": "many"}, "numbers and names in its description have wrong types"),
    ],
)
def test_metadata_of_another_kind_are_a_sentence(file, changes, said):
    rewritten(file, **changes)
    refused(file, f"is damaged: .*{said}")


def test_metadata_that_lack_something_are_a_sentence(file):
    with np.load(file, allow_pickle=False) as archive:
        parts = dict(archive)
    about = json.loads(bytes(parts["about"]))
    del about["scale"]
    np.savez(file, **parts | {"about": np.frombuffer(json.dumps(about).encode(), np.uint8)})
    refused(file, "is damaged: it does not say its scale")


def test_an_array_too_many_is_named(file):
    with np.load(file, allow_pickle=False) as archive:
        parts = dict(archive)
    np.savez(file, **parts, extra=np.zeros(3, np.float32))
    refused(file, 'is damaged: .* got "extra"')


def test_a_baseline_that_cannot_plan_the_scenario_is_said_before_anything_is_trained(tmp_path, monkeypatch):
    """lst plans single cores and GPUs, and the scenario has gangs: it finds out when it plans."""
    monkeypatch.setattr("hetsim.learning.agents.learners.Dqn.train", lambda *_: pytest.fail("it was trained"))
    with pytest.raises(ScenarioError, match="lst plans tasks of one core or one whole GPU"):
        hs.train("learned-affinity", steps=100, baselines=["fcfs", "lst"], out=tmp_path / "p.npz")
    with pytest.raises(UnknownName, match='did you mean "slowdown_mean"'):
        hs.train(SMALL, steps=100, metrics=["slowdown_meen"])
    assert not list(tmp_path.iterdir())
