"""What the guide lists is what there is: functions that draw, notebooks, pictures, public names."""

from __future__ import annotations

import inspect
import re
import typing

import pages

import hetsim as hs
from hetsim import plots
from hetsim.model.task import Task
from hetsim.policy import contract

DOCS = pages.TOP / "docs"
MAX_BYTES = 60_000
"""Of a picture on the page of pictures: the guide is read from a checkout."""


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_every_function_that_draws_is_on_the_page_of_pictures_and_in_a_block_of_it():
    page = text("pictures.md")
    drawn = "".join(block.text for block in pages.blocks(DOCS / "pictures.md") if block.language == "python")
    for name in plots.__all__:
        assert re.search(rf"`{name}\(", page), name
        # shelves needs a plan, which the page on plans makes; default is what result.plot() gives.
        assert f"hs.plots.{name}(" in drawn or name in ("shelves", "default", "gantt"), name


def test_pictures_that_are_shown_are_there_and_small():
    shown = re.findall(r"\]\((pictures/.*?\.png)\)", text("pictures.md"))
    assert sorted(shown) == sorted(f"pictures/{path.name}" for path in (DOCS / "pictures").glob("*.png"))
    assert len(shown) <= 6
    assert [name for name in shown if (DOCS / name).stat().st_size > MAX_BYTES] == []


def test_every_notebook_is_in_the_list_and_none_else():
    listed = re.findall(r"^\| `(\d-[a-z-]+)` \|", text("index.md"), re.MULTILINE)
    assert listed == sorted(path.stem for path in (pages.TOP / "notebooks").glob("*.py"))
    assert "](notebooks)" in (pages.TOP / "README.md").read_text(encoding="utf-8")


def test_public_names_are_in_the_reference_of_python():
    reference = text("reference/python.md")
    modules = {"errors", "plots", "theory"}
    for name in [*sorted(set(hs.__all__) - modules), *(f"plots.{name}" for name in plots.__all__)]:
        assert f"\n### hetsim.{name}\n" in reference, name


def signatures(page: str, title: str) -> dict[str, list[str]]:
    """Names and parameters in the first column of the table with that title."""
    table = text(page).partition(f"| {title} |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(\w+)\((.*?)\)` \|", table, re.MULTILINE)
    return {name: [part.strip() for part in told.split(",")] for name, told in found}


def test_every_decision_of_the_contract_is_on_the_page_about_own_policies():
    listed = signatures("how-to/own-policy.md", "decision")
    decisions = {kind.__name__: kind for kind in typing.get_args(contract.Decision)}
    assert set(listed) == set(decisions)
    for name, told in listed.items():
        parameters = [part.removesuffix("s") for part in inspect.signature(decisions[name]).parameters]
        assert told == [part.removesuffix("s") for part in parameters[: len(told)]], name


def test_every_hook_of_the_contract_is_on_the_page_about_own_policies():
    hooks = {name: hook for name, hook in vars(contract.Scheduler).items() if inspect.isfunction(hook)}
    listed = signatures("how-to/own-policy.md", "hook")
    assert listed == {name: list(inspect.signature(hook).parameters)[1:] for name, hook in hooks.items()}


def test_what_a_task_is_said_to_tell_it_tells():
    page = text("how-to/own-policy.md")
    rest = page.partition("A policy can read these attributes of a task: ")[2]
    sentence = rest.partition("Durations that a policy reads")[0]
    names = re.findall(r"`(\w+)(?:\(.*?\))?`", sentence)
    assert len(names) > 8 and [name for name in names if not hasattr(Task, name)] == []
