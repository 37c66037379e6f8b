"""Checks of the class and device names that admission policies mention."""

from __future__ import annotations

from collections.abc import Iterable

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.policy import PlanProblem


def known_classes(problem: PlanProblem, names: Iterable[str], key: str) -> None:
    """ScenarioError for a class that no task has."""
    classes = [name for name in problem.tasks.classes if name]
    _known(names, classes, "class", many="classes", key=f"policy.admission.{key}")


def known_devices(problem: PlanProblem, names: Iterable[str], key: str) -> None:
    """ScenarioError for a device type, or kind, that the cluster lacks."""
    cluster = problem.cluster
    types = [device_type for device_type in cluster.types.values() if cluster.count(device_type.name)]
    type_names = list(dict.fromkeys(name for one in types for name in (one.name, one.kind)))
    _known(names, type_names, "device type", many="device types", key=f"policy.admission.{key}")


def _known(names: Iterable[str], known: list[str], one: str, many: str, key: str) -> None:
    wrong = [name for name in names if name not in known]
    if wrong:
        listed = f"the {many} here are {', '.join(known)}" if known else f"there are no {many} here"
        near = suggestion(wrong[0], known)
        raise ScenarioError(Problem(f'no {one} "{wrong[0]}"{near or ""}; {listed}', key=f"{key}.{wrong[0]}"))
