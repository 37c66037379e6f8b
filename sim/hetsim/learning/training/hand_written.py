"""Admission policies written by hand, to compare with a learned one.

All of them go with the scenario's own scheduler, placement and batching:

accept_all      no task is rejected
queue_limit     rejected by the length of the queue: the limit that earns most on the validation runs
slo_feasible, predicted_wait    where tasks have deadlines
mdp_threshold   where the reward is what it maximizes: goodput or value, less the costs of holding (response)
and the scenario's own admission policy
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hetsim import registry
from hetsim.errors import ScenarioError, UnknownName, UsageError
from hetsim.experiment.policies import PolicyLike, named_policy
from hetsim.experiment.run import prepare
from hetsim.learning.environment.rewards import Goodput, ValueReward
from hetsim.model.tasks import Tasks
from hetsim.scenario.file.document import parse_value
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.policy import long_form

LIMITS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Lengths of the queue that are tried, until it is clear that the best lies behind."""
PATIENCE = 3


def with_admission(scenario: Scenario, admission: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario's policy with another admission."""
    return {**long_form(scenario.raw.get("policy")), "admission": dict(admission)}


def with_admissions(scenario: Scenario, policies: Iterable[PolicyLike] | Mapping[str, PolicyLike]) -> dict[str, Any]:
    """Map labels to values for `policy:`; UsageError for a label given twice.

    An admission policy goes with the scenario's scheduler; another name stands for the whole policy.
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
    """Label and value of one of them."""
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
    """Map labels to values for `policy:`; `played` scores a policy in validation."""
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
    """The length of the queue beyond which it pays to reject."""
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
    """`mdp_threshold` with the rewards and costs of the reward, if it has such."""
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
    """Return True if the scenario can run under this policy."""
    try:
        prepare(scenario, policy).begin()
    except ScenarioError:
        return False
    return True
