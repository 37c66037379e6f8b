"""The README does what it says: its scenario, commands and Python blocks run."""

from __future__ import annotations

import re

import pages
import pytest
import tiers
from yaml import safe_load as parse

import hetsim as hs
from hetsim.testing.conformance import all_systems

README = pages.TOP / "README.md"
TEXTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def test_every_block_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not tiers.whole:  # no picture is drawn, and a policy is tried on a few systems
        few = all_systems()[::5]
        monkeypatch.setattr("hetsim.testing.conformance.all_systems", lambda: few)
        monkeypatch.setattr("hetsim.results.panels.attempt", lambda name, draw: None)
    pages.Reader().follow(README)
    assert {block.language for block in pages.blocks(README)} >= {"yaml", "console", "python"}


def test_the_service_runs():
    """The part of a scenario that shows a service, with a cluster and a horizon around it."""
    (_, service) = (block.text for block in pages.blocks(README) if block.language == "yaml")
    around = "horizon: 5 s\ncluster: {nodes: {cpus: 4, gpus: {type: g, streams: 2}}}\n"
    result = hs.run(parse(around + service), check=True)
    assert result.metric("completed_count") > 2000
    assert "async_linear" in result.policy


@pytest.mark.parametrize("name", [*TEXTS, "scenarios/hetsim_scenarios/README.md"])
def test_links_lead_somewhere(name):
    page = pages.TOP / name
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target
