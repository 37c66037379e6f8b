"""`hetsim theory` names the keys that stand between a scenario and a prediction; each answer was tried."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import main
from hetsim.queueing.keys_to_drop import keys_to_drop
from hetsim.queueing.matching import match

E = "workload.0."


def scenario(**changes: Any) -> Any:
    return hs.load({
        "name": "drop", "horizon": "4 h", "warmup": "10 min", "cluster": {"nodes": [{"gpus": {"type": "g"}}]},
        "workload": [{"arrivals": {"process": "poisson", "rate": "0.7/s"},
                      "gpu_time": {"distribution": "exponential", "mean": "1 s"}}],
    }, changes)  # fmt: skip


@pytest.mark.parametrize(("changes", "keys", "model"), [
    ({E + "stopping": {"interval": "0.4 s", "checkpoint": "0.2 s"}}, [E + "stopping.checkpoint"], "M/M/1"),
    ({E + "stopping": {"interval": "0.4 s", "checkpoint": "0.2 s"}, "cluster.nodes.0.gpus.sharing": {
        "kind": "mps", "interference": 0.5}, "cluster.nodes.0.gpus.streams": 4},
     [E + "stopping.checkpoint", "cluster.nodes.gpus.streams"], "M/M/1"),
    ({"policy": "easy_backfill"}, ["policy.scheduler"], "M/M/1"),
    ({"cluster.nodes.0.gpus.sharing": {"kind": "mps", "interference": 0.5}, "cluster.nodes.0.gpus.streams": 4},
     ["cluster.nodes.gpus.streams"], "M/M/1"),
    ({E + "gpu_time": "1 s", E + "clients": {"timeout": "1 s"}}, [E + "clients"], "M/D/1"),
    ({"policy": {"scheduler": "sjf", "admission": {"name": "queue_limit", "limit": 3}}}, ["policy.scheduler"],
     "M/M/1/4"),
])  # fmt: skip
def test_the_fewest_keys_are_named_without_which_there_is_a_prediction(
    changes: dict[str, Any], keys: list[str], model: str
) -> None:
    found = scenario(**changes)
    drop = keys_to_drop(found, match(found))
    assert drop is not None and drop[1].rows
    assert (list(drop[0]), drop[1].model) == (keys, model)


@pytest.mark.parametrize("changes", [
    {E + "arrivals": {"process": "all_at_once", "count": 9}},  # no scenario is without arrivals
    {E + "arrivals.rate": "2/s"},  # no steady state
])  # fmt: skip
def test_keys_that_a_scenario_needs_are_not_named(changes: dict[str, Any]) -> None:
    found = scenario(**changes)
    assert keys_to_drop(found, match(found)) is None


def test_the_command_says_it(tmp_path: Any) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(scenario(**{E + "stopping": {"interval": "0.4 s", "checkpoint": "0.2 s"}}).to_yaml())
    words = ["theory", str(path), "--predict-only"]
    text = CliRunner().invoke(main, words).output
    assert "Drop workload.0.stopping.checkpoint, and the scenario is M/M/1." in " ".join(text.split())
    told = json.loads(CliRunner().invoke(main, [*words, "--json"]).output)
    assert told["drop"] == {"keys": [E + "stopping.checkpoint"], "model": "M/M/1", "verdict": "matches"}
