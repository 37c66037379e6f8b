"""What the shell completes, asked as a shell asks."""

import pytest
from click.shell_completion import ShellComplete

from hetsim.cli import main


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
])  # fmt: skip
def test_it_offers(line: str, some: set[str]) -> None:
    offered = completions(line)
    assert some <= set(offered)
    assert all(one.startswith(line.split(" ")[-1]) for one in offered)


def test_it_offers_nothing_that_cannot_follow() -> None:
    assert completions("run first-steps --policy sjf+easy_") == []


def test_a_path_is_left_to_the_shell() -> None:
    items = ShellComplete(main, {}, "hetsim", "_HETSIM_COMPLETE").get_completions(["run"], "./scen")
    assert [(item.type, item.value) for item in items] == [("file", "./scen")]
