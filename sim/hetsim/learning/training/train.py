"""Train a policy on a scenario, and compare it with others on unseen loads.

There are three kinds of load, on separate branches of the tree of seeds (`hetsim.model.randomness`): an agent learns
from replications of its `TRAINING` loads; intermediate networks are validated on `VALIDATION` loads (the best is kept);
and the final comparison is that of `hetsim compare`, with replications of the scenario's own seed.

A learned admission policy is compared with `hand_written` ones, all with the scenario's own scheduler and placement:

accept_all      no task is rejected
queue_limit     rejects by queue length: the limit with the highest reward in the validation runs
slo_feasible, predicted_wait    if tasks have deadlines
mdp_threshold   if the reward is goodput or value, possibly with a cost of `response`; it maximizes this reward
and the scenario's own admission policy
"""

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from hetsim import registry
from hetsim.errors import ScenarioError, UnknownName, UsageError
from hetsim.experiment.compare import run_policies
from hetsim.experiment.options import StudyOptions, TrainingKeywords, with_options
from hetsim.experiment.policies import PolicyLike, named_policies, named_policy
from hetsim.experiment.progress import reporting
from hetsim.experiment.run import prepare
from hetsim.learning.agents import AGENTS
from hetsim.learning.agents import files as agent_files
from hetsim.learning.agents.files import LearnedPolicy
from hetsim.learning.agents.practice import Practice
from hetsim.learning.environment.episode import WINDOW
from hetsim.learning.environment.rewards import (
    REWARDS,
    Goodput,
    Reward,
    RewardLike,
    Slowdown,
    ValueReward,
    check_reward,
    metric_of,
)
from hetsim.learning.observation.admission import refuse_others
from hetsim.learning.observation.window import ADMISSION, DECIDES, SCHEDULING
from hetsim.model.randomness import SPAN
from hetsim.model.tasks import Tasks
from hetsim.plots.sweeps import is_wide
from hetsim.policy.contract import PlanProblem
from hetsim.results.colors import PALETTE
from hetsim.results.many_runs.compare import Comparison
from hetsim.results.many_runs.compare import compare as evaluate
from hetsim.results.one_run.metrics import metric
from hetsim.results.panels import Axis, Line, Panel, Picture, Points, Texts
from hetsim.scenario.file.document import parse_value
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.policy import long_form

# Default reward by decision; for admission `value` if no task has a deadline (goodput is then no metric)
REWARD = {SCHEDULING: Slowdown.name, ADMISSION: Goodput.name}
MAX_STEPS = 100_000_000
# schedulers that a learned one is compared with, by label
BASELINES: dict[str, Any] = {
    **{name: name for name in ("fcfs", "fcfs_skip", "random", "sjf", "wfp3", "unicep", "f1", "saf")},
    "packer": {"scheduler": {"name": "tetris", "shortness": 0}},
}


@dataclass
class Training:
    """The result of `train`.  Attributes:

    policy      the network and what it was learned for (`hetsim.learning.agents.files.LearnedPolicy`)
    curve       a table: steps taken, and the reward per task in the validation runs at that step
    baselines   reward per task of the baselines in the validation runs, by label
    comparison  learned policy and baselines on the scenario's own seed, or None if there are no baselines
    runs        the runs of the comparison, by label
    earned      reward per task of these runs, by replication and label; None if the reward is a compared metric
    """

    policy: Any
    curve: pd.DataFrame
    baselines: dict[str, float]
    comparison: Comparison | None
    runs: dict[str, Any]
    earned: pd.DataFrame | None = None

    def save(self, path: str | Path) -> Path:
        """Write the policy file, which `scheduler: {name: learned, path: ...}` reads.

        Parameters: path: path of the file.
        Returns: the path.
        """
        agent_files.save(self.policy, path)
        return Path(path)

    def plot(self) -> Picture:
        """Return the picture of the learning curve."""

        return learning_curve(self.policy, self.curve, self.baselines)


@with_options(TrainingKeywords)
def train(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    agent: str = "dqn",
    steps: int = 50_000,
    *,
    decides: str = SCHEDULING,
    seed: int = 0,
    window: int = WINDOW,
    reward: RewardLike | None = None,
    settings: Mapping[str, Any] | None = None,
    baselines: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    metrics: Iterable[str] = (),
    replications: int | None = None,
    out: str | Path | None = None,
    **options: Unpack[TrainingKeywords],
) -> Training:
    """Train an agent to schedule or admit in a scenario, and compare the result.

    Parameters:
        scenario: as for `run`.
        agent: dqn, reinforce, or ppo (which needs the extra `learning`).
        steps: number of decisions to learn from.
        decides: scheduling (where each task runs), or admission (which tasks are accepted).
        seed: seed of all random numbers in training; the same seed gives the same arrays.
        window, reward: as in `hetsim.learning`; the default for admission is `value` if no task has a deadline.
        settings: settings of the agent that replace its defaults ({"rate": 0.001}).
        baselines: policies to compare with, as in `compare`; () for none.  For admission these may be admission
            policies, which then run with the scenario's scheduler.
        metrics, replications: those of the comparison; default: the metric of the reward, the scenario's number.
        out: a file to write the policy to.
        workers: processes for the comparison, None for one per core; the agent learns in this process.
        options: the options that all studies have.
    Returns: the policy, its learning curve, and the comparison.
    Raises:
        UnknownName: `decides` is not a known decision.
        UsageError: the reward is a function, which cannot score other policies.
        ScenarioError: the scenario is invalid.
    """
    study_options = StudyOptions(replications=replications, **options)
    loaded = prepare(scenario, None, study_options.overrides, study_options.program)
    if decides not in DECIDES:
        raise UnknownName("value of decides", str(decides), DECIDES, f"; choose {' or '.join(DECIDES)}")
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= MAX_STEPS:
        raise UsageError(f"steps must be a whole number from 1 to {MAX_STEPS:,}; got {steps!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SPAN:
        raise UsageError(f"seed must be a whole number from 0 to {SPAN - 1:,}; got {seed!r}")
    learner = make_agent(agent, {} if settings is None else settings)
    if out is not None:
        check_writable(out)
    given = _rivals(loaded, decides, baselines)
    metrics = list(metrics)
    for name in metrics:
        metric(name)
    for value in (given or {}).values():
        # What is wrong with one is said before anything is trained; planners find it when they plan.
        prepare(loaded, value).begin()
    parts = check_reward(_usual_reward(loaded, decides) if reward is None else reward)
    if not parts.is_sum:
        raise UsageError(
            f"the reward {' + '.join(parts)} is a function, which is called at each step; to train and compare, give a "
            "class derived from hetsim.learning.environment.rewards.Reward, which also scores other policies"
        )
    practice = Practice(loaded, window, parts, seed=seed, steps=steps, decides=decides)
    practice.sb3 = _for_sb3
    with reporting(study_options.progress) as practice.progress:
        network = learner.train(practice, steps, np.random.default_rng([seed, 0]))
    network = practice.best(network)
    policy = LearnedPolicy(
        network, practice.episodes.window, practice.layout.types, scale=practice.scale, agent=agent,
        training={
            "scenario": loaded.name, "steps": steps, "seed": seed, "reward": dict(parts),
            "settings": asdict(learner), "kept_after": practice.kept_after,
        },
        decides=decides,
    )  # fmt: skip
    if out is not None:
        agent_files.save(policy, out)
    others = given if given is not None else hand_written(loaded, parts, practice.played)
    beside = {label: practice.played(prepare(loaded, value)) for label, value in others.items()}
    if not others:
        return Training(policy, practice.table(), beside, comparison=None, runs={})
    figures = metrics or list(dict.fromkeys(metric_of(name, parts) for name in parts))
    comparison, runs, earned = _compared(
        loaded, policy, others, metrics=figures, options=study_options, practice=practice
    )
    return Training(policy, practice.table(), beside, comparison=comparison, runs=runs, earned=earned)


def _rivals(
    scenario: Scenario, decides: str, baselines: Iterable[PolicyLike] | Mapping[str, PolicyLike] | None
) -> dict[str, Any] | None:
    if decides != ADMISSION:
        return named_policies(BASELINES if baselines is None else baselines)
    run = scenario.build()
    refuse_others(PlanProblem(run.tasks, run.cluster))
    return None if baselines is None else with_admissions(scenario, baselines)


def _usual_reward(scenario: Scenario, decides: str) -> str:
    if decides == ADMISSION:
        deadline = scenario.build().tasks.deadline
        if deadline is None or not np.isfinite(deadline).any():
            return "value"
    return REWARD[decides]


def make_agent(name: str, settings: Mapping[str, Any]) -> Any:
    """Create an agent by name; raise an error if required packages are missing."""
    if name not in AGENTS:
        raise UnknownName("agent", name, AGENTS, f"; the agents are {', '.join(AGENTS)}")
    kind = registry.load_object(AGENTS[name])
    names = [field.name for field in fields(kind)]
    if not isinstance(settings, Mapping):
        raise UsageError(f"settings must be a mapping, such as {{'rate': 0.001}}; got {settings!r}")
    for key in settings:
        if key not in names:
            raise UnknownName(f"setting of agent {name}", key, names, f"; its settings are {', '.join(names)}")
    try:
        learner = TypeAdapter(kind).validate_python(dict(settings))
    except ValidationError as error:
        first = error.errors()[0]
        key, said = str(first["loc"][0]), first["msg"][0].lower() + first["msg"][1:]
        raise UsageError(f"setting {key} of agent {name}: {said}; got {settings[key]!r}") from None
    if (check := getattr(learner, "check", None)) is not None:
        check()
    return learner


def check_writable(path: str | Path) -> None:
    """Raise UsageError if a file cannot be written; called before training."""
    path = Path(path)
    try:
        if path.is_dir():
            raise UsageError(f"{path} cannot be written: it is a folder")
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except (OSError, ValueError) as error:
        is_folder = path.absolute().parent.is_dir()
        why = f"{getattr(error, 'strerror', None) or error}" if is_folder else "is not a folder"
        raise UsageError(f"{path} cannot be written: {path.parent} {why}") from None


def _for_sb3() -> tuple[Any, Any]:
    from hetsim.learning.training.sb3 import ScoringPolicy, TimedRolloutBuffer  # needs PyTorch

    return ScoringPolicy, TimedRolloutBuffer


def _compared(
    scenario: Scenario, policy: Any, others: dict[str, Any], metrics: list[str], options: StudyOptions,
    practice: Practice,
) -> tuple[Comparison, dict[str, Any], pd.DataFrame | None]:  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="hetsim-") as folder:
        path = Path(folder) / "policy.npz"
        agent_files.save(policy, path)
        mine: Any = {"name": "learned", "path": str(path.resolve())}
        complete = with_admission(scenario, mine) if policy.decides == ADMISSION else {"scheduler": mine}
        chosen = {f"learned ({policy.agent})": complete, **others}
        runs = run_policies(scenario, chosen, replace(options, overrides=(), progress=None), metrics=metrics)
        earned = None
        if len(practice.parts) > 1 or practice.parts.made:
            count = min(len(run) if isinstance(run, Sized) else 1 for run in runs.values())
            seed = scenario.model.seed
            earned = pd.DataFrame(
                {label: practice.earned(prepare(scenario, value), seed, count) for label, value in chosen.items()}
            )
    return evaluate(runs, metrics, baseline=next(iter(runs))), runs, earned


# Queue limits tried in this order, until larger ones are clearly worse
LIMITS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
PATIENCE = 3


def with_admission(scenario: Scenario, admission: Mapping[str, Any]) -> dict[str, Any]:
    return {**long_form(scenario.raw.get("policy")), "admission": dict(admission)}


def with_admissions(scenario: Scenario, policies: Iterable[PolicyLike] | Mapping[str, PolicyLike]) -> dict[str, Any]:
    """Map labels to complete policies; raise UsageError for a label given twice.

    The name of an admission policy stands for the scenario's scheduler with this admission; any other name is a policy.
    """
    if isinstance(policies, str):
        policies = [policies]
    if isinstance(policies, Mapping):
        return {str(label): _named(scenario, policy)[1] for label, policy in policies.items()}
    by_label: dict[str, Any] = {}
    for policy in policies:
        label, complete = _named(scenario, policy)
        if label in by_label:
            raise UsageError(f'policy "{label}" is given twice')
        by_label[label] = complete
    return by_label


def _named(scenario: Scenario, policy: PolicyLike) -> tuple[str, Any]:
    if isinstance(policy, str) and policy.lstrip().startswith("{"):
        try:
            policy = parse_value(policy)
        except ScenarioError:
            return named_policy(policy)  # which says what is wrong with it
    admissions = registry.policies("admission")
    if isinstance(policy, str) and policy in admissions:
        policy = {"name": policy}
    if isinstance(policy, Mapping) and policy.get("name") in admissions:
        plain = [f"{key}: {value}" for key, value in policy.items() if key != "name" and not isinstance(value, Mapping)]
        return policy["name"] + (f" ({', '.join(plain)})" if plain else ""), with_admission(scenario, policy)
    if isinstance(policy, str) and "+" not in policy and policy not in registry.policies("scheduler"):
        raise UnknownName("admission policy", policy, admissions, " (hetsim list policies)")
    return named_policy(policy)


def hand_written(
    scenario: Scenario, reward: Mapping[str, float], played: Callable[[Scenario], float]
) -> dict[str, Any]:
    """Return hand-written admission policies by label; `played` scores a scenario."""
    tasks = scenario.build().tasks
    chosen: list[Mapping[str, Any]] = [{"name": "accept_all"}, _best_limit(scenario, played)]
    if tasks.deadline is not None and np.isfinite(tasks.deadline).any():
        chosen += [{"name": "slo_feasible"}, {"name": "predicted_wait"}]
    chosen += [spec for spec in (_threshold(tasks, reward),) if spec is not None]
    own = long_form(scenario.raw.get("policy")).get("admission")
    by_label = with_admissions(scenario, chosen)
    if own is not None and own["name"] != "learned":
        label, complete = _named(scenario, own)
        by_label.setdefault(label, complete)
    return {label: complete for label, complete in by_label.items() if _possible(scenario, complete)}


def _best_limit(scenario: Scenario, played: Callable[[Scenario], float]) -> dict[str, Any]:
    best, value, worse = LIMITS[0], -math.inf, 0
    for limit in LIMITS:
        earned = played(prepare(scenario, with_admission(scenario, {"name": "queue_limit", "limit": limit})))
        worse = 0 if earned > value else worse + 1
        if earned > value:
            best, value = limit, earned
        if worse >= PATIENCE:
            break
    return {"name": "queue_limit", "limit": best}


def _threshold(tasks: Tasks, reward: Mapping[str, float]) -> dict[str, Any] | None:
    earning = [name for name in (Goodput.name, ValueReward.name) if reward.get(name, 0.0) > 0]
    holding = reward.get("response", 0.0)
    if len(earning) != 1 or set(reward) - {*earning, "response"} or holding < 0:
        return None
    classes = [name for name in tasks.classes if name]
    if len(classes) != len(tasks.classes):
        return None
    codes = np.zeros(len(tasks), np.int64) if tasks.class_code is None else np.asarray(tasks.class_code)
    weights = np.ones(len(tasks)) if tasks.weight is None or earning == [Goodput.name] else tasks.weight
    worth = {
        name: float(reward[earning[0]] * weights[codes == code].mean()) if (codes == code).any() else 0.0
        for code, name in enumerate(classes)
    }
    return {"name": "mdp_threshold", "rewards": worth, "holding": dict.fromkeys(classes, holding)}


def _possible(scenario: Scenario, policy: dict[str, Any]) -> bool:
    try:
        prepare(scenario, policy).begin()
    except ScenarioError:
        return False
    return True


WIDE = 8.0  # ratio of costs above which their axis is logarithmic


def learning_curve(policy: LearnedPolicy, curve: pd.DataFrame, beside: Mapping[str, float]) -> Picture:
    """Draw a learning curve, the policy kept, and a line for every baseline."""
    about = policy.training
    parts = about["reward"]
    name, sign = "weighted reward per task", 1.0
    if list(parts.values()) == [1.0]:
        name, sign = REWARDS.get(next(iter(parts)), Reward).per_task
    steps, values = curve["steps"].to_numpy(), sign * curve["reward_per_task"].to_numpy()
    at = np.flatnonzero(steps == about["kept_after"])[:1]
    marks: list[Any] = [
        Line(steps, values, policy.agent, marker="o"), Points(steps[at], values[at], size=10, hollow=True),
        Texts(steps[at], values[at], [f"kept: {values[at][0]:.3g}"], size=9, align="center", shift=(0, 14)),
    ]  # fmt: skip
    others = {label: sign * value for label, value in beside.items()}
    for n, (label, value) in enumerate(others.items()):
        color = PALETTE[1 + n % (len(PALETTE) - 1)]
        marks.append(Line([-np.inf, np.inf], [value, value], f"{label}: {value:.3g}", color, dash=1 + n % 3))
    log = is_wide([*values, *others.values()], WIDE)
    y = Axis(f"{name}, validation runs", 0 if sign < 0 and not log else None, log=log)
    panel = Panel(marks, Axis("steps", 0), y, f"{about['scenario']} · {policy.agent}", legend="inside")
    return Picture([[panel]], 8)
