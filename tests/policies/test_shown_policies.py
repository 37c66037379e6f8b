"""Every policy that ships is shown by a shipped scenario, in its policy or its sweep, or has a reason to be there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hetsim.scenario.file import document as documents
from hetsim.scenario.file.shipped import shipped
from hetsim.scenario.schema.policy import long_form
from hetsim_policies import CATALOGUE

TOP = Path(__file__).parent.parent.parent
INSIDE = dict.fromkeys(("scheduler", "base", "inner", "planner", "rest", "dynamic"), "scheduler") | {
    key: key for key in ("placement", "batching", "routing", "eviction", "admission", "predictor", "scale")
}
"""Kinds of policies by the keys that name one."""
REASONS = {
    ("scheduler", "external"): ("it runs a program that no scenario names", "docs/how-to/external.md"),
    ("scheduler", "moldable_dual"): ("the guide plans moldable tasks with it", "docs/planning.md"),
    ("scheduler", "rollout"): ("minutes for a scenario; a benchmark has ten of its own", "benchmarks/ahead.py"),
    ("scheduler", "pollux"): (
        "a minute a run; the published scenario has its command",
        "scenarios/hetsim_scenarios/published/pollux.yaml",
    ),
    ("scheduler", "adaptive_lifo"): ("the guide's table of remedies under overload has it", "docs/admission.md"),
    ("placement", "slow_reserve"): ("the guide holds it against its exact model", "docs/theory.md"),
    ("batching", "clockwork"): ("the guide says which batch it takes", "docs/serving.md"),
    ("predictor", "holt_winters"): ("the default of predictive, which is shown", "docs/hybrid.md"),
}
"""Policies that no scenario shows: why they stay, and where they are shown instead."""


def named(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """The policies, as (kind, name), that a key names, and those inside its parameters."""
    if isinstance(value, str) and key in INSIDE:
        yield INSIDE[key], value
    elif isinstance(value, dict):
        if key in INSIDE and isinstance(value.get("name"), str):
            yield INSIDE[key], value["name"]
        for inner, content in value.items():
            yield from named(inner, content)


def shown() -> set[tuple[str, str]]:
    """What the shipped scenarios name."""
    pairs: set[tuple[str, str]] = set()
    for one in shipped():
        data = documents.read(one.path).data
        swept = data.get("sweep") or {}
        for policy in (data.get("policy"), *(swept.get("policy") or ())):
            pairs.update(pair for key, value in long_form(policy).items() for pair in named(key, value))
        for path, values in swept.items():  # policy.routing: [...], workload.chat.service.scale: [...]
            if isinstance(values, list):
                pairs.update(pair for value in values for pair in named(path.rpartition(".")[2], value))
    return pairs


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", CATALOGUE)
def test_every_policy_is_shown_or_has_a_reason(kind: str) -> None:
    names = {(kind, name) for name in CATALOGUE[kind]}
    assert names - shown() == {pair for pair in REASONS if pair[0] == kind}


@pytest.mark.parametrize("pair", REASONS, ids="-".join)
def test_what_has_a_reason_is_shown_where_the_reason_says(pair: tuple[str, str]) -> None:
    assert pair[1] in (TOP / REASONS[pair][1]).read_text(encoding="utf-8")
