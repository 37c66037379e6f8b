"""What the shell completes, asked as a shell asks."""

from functools import cache

import pytest
from click.shell_completion import ShellComplete

from hetsim.cli import main
from hetsim.scenario.schema import whole

MADE_ONCE = cache(whole.json_schema)


@pytest.fixture(autouse=True)
def one_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell makes the schema of scenarios anew for each word, which takes most of the time here."""
    monkeypatch.setattr(whole, "json_schema", MADE_ONCE)


def completions(line: str) -> list[str]:
    """What is offered for the last word of a line (an empty one after a space)."""
    *args, begun = line.split(" ")
    return [item.value for item in ShellComplete(main, {}, "hetsim", "_HETSIM_COMPLETE").get_completions(args, begun)]


@pytest.mark.parametrize(("line", "some"), [
    ("comp", {"compare"}),
    ("plan tr", {"training", "training-steps"}),
    ("plan training --pic", {"--picture"}),
    ("new x --kind s", {"serving"}),
    ("run learned-a", {"learned-admission", "learned-affinity"}),
    ("validate first-steps first-", {"first-steps"}),
    ("compare first-steps --metric response_m", {"response_mean", "response_max"}),
    ("size first-steps --target slo_", {"slo_attainment"}),
    ("run first-steps --policy easy_", {"easy_backfill"}),
    ("run first-steps --policy sjf+predicted_", {"sjf+predicted_wait"}),
    ("train learned-affinity --baseline wfp", {"wfp3"}),
    ("run first-steps --set clus", {"cluster"}),
    ("run first-steps --set cluster.nodes.gp", {"cluster.nodes.gpus"}),
    ("run first-steps --set workload.", {"workload.prepare", "workload.gang"}),
    ("run first-steps --set workload.train.gpu_", {"workload.train.gpu_time"}),
    ("sweep first-steps --over workload.gang.arrivals.ra", {"workload.gang.arrivals.rate"}),
])  # fmt: skip
def test_it_offers(line: str, some: set[str]) -> None:
    offered = completions(line)
    assert some <= set(offered)
    assert all(one.startswith(line.split(" ")[-1]) for one in offered)


@pytest.mark.parametrize("line", [
    "run first-steps --set seed=", "run first-steps --set nothing.here.", "run no-such-file.yaml --set workload.prep",
    "run first-steps --policy sjf+easy_",
])  # fmt: skip
def test_it_offers_nothing(line: str) -> None:
    assert completions(line) == []


def test_a_path_is_left_to_the_shell() -> None:
    items = ShellComplete(main, {}, "hetsim", "_HETSIM_COMPLETE").get_completions(["run"], "./scen")
    assert [(item.type, item.value) for item in items] == [("file", "./scen")]


def test_a_file_that_is_no_yaml_is_no_error(tmp_path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text("workload: [", encoding="utf-8")
    assert "seed" in completions(f"run {path} --set se")
