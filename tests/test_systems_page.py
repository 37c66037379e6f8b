"""The page of systems: each has a scenario or an entry of the gallery, a figure that is stated there, and a picture."""

import re
import struct

import pages
import pytest
from test_shipped_scenarios import SHIPPED, as_shipped

from hetsim import registry
from hetsim.gallery.entry import entry

DOCS = pages.TOP / "docs"
PAGE = (DOCS / "systems.md").read_text(encoding="utf-8")
ROWS = {cells[0]: cells[1:] for line in PAGE.splitlines() if line.startswith("| ") and "](" in line
        for cells in [[cell.strip() for cell in line.strip("| ").split(" | ")]]}  # fmt: skip

SYSTEMS = """offline prioritization, allocation, load balancing, greedy, genetic algorithm, simulated annealing, linear
    program, integer program, convex program, online scheduling, elastic scheduling, preemption, PPO, DQN,
    policy gradient, queueing, admission, hierarchical hybrid, static-dynamic hybrid, prediction, dual
    approximation@ k = 1, dual approximation@ k ≥ 2, list lemma, buffer-kernel-read, serial batching,
    asynchronous batching, Clipper, LASER, FLEP, Tanasic's preemption, constraint injection, BatOpt, graph
    fusion as Anakin's, pipelines over unlike networks, model similarity, DASH, NPU with GPU, wise sharing,
    networks from their layers"""
NAMES = [" ".join(name.split()).replace("@", ",") for name in SYSTEMS.split(",")]


def test_all_systems_are_listed_and_no_other():
    assert sorted(ROWS) == sorted(NAMES)


@pytest.mark.quick(11)
@pytest.mark.parametrize("system", NAMES)
def test_each_has_a_scenario_or_an_entry_with_a_figure_and_a_picture(system):
    here, place, figure, picture = ROWS[system]
    name = re.findall(r"`([\w-]+)`", place)[-1]
    if place.startswith("gallery"):
        assert entry(name).name == name
        text = (DOCS / "gallery.md").read_text(encoding="utf-8").partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    else:
        assert as_shipped(name).name == name
        text = SHIPPED[name].description
    assert figure in text
    assert re.search(r"\d", figure)
    path = DOCS / re.fullmatch(r"\[picture\]\((\S+\.png)\)", picture)[1]
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert min(struct.unpack(">II", data[16:24])) > 100  # width and height
    assert 2_000 < len(data) < 90_000
    for policy in re.findall(r"`([a-z_]+)`", here):
        kinds = ("scheduler", "placement", "admission", "batching")
        known = {one for kind in kinds for one in registry.policies(kind)}
        assert policy in known | {"cache", "patterns", "pipeline", "profile", "cnn", "rnn", "lstm", "gan", "streams"}


def test_the_pictures_of_the_folder_are_shown():
    shown = set(re.findall(r"\(systems/([\w-]+\.png)\)", PAGE))
    assert shown == {path.name for path in (DOCS / "systems").glob("*.png")}
