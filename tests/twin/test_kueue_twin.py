"""Kueue's objects as a scenario and as a forecast."""

from __future__ import annotations

import json

import kueue_objects
import pytest
from click.testing import CliRunner
from yaml import safe_load

import hetsim as hs
from hetsim.cli import hetsim


def call(*arguments):
    return CliRunner().invoke(hetsim, [str(one) for one in arguments])


def test_objects_become_cluster_and_policy(tmp_path):
    k, n = kueue_objects.write(tmp_path)
    result = call("trace", "convert", k, tmp_path / "site.yaml", "--option", f"nodes={n}")
    assert result.exit_code == 0, result.output
    made = safe_load((tmp_path / "site.yaml").read_text())
    assert [node["rack"] for node in made["cluster"]["nodes"]] == ["r0", "r1"]
    scheduler = made["policy"]["scheduler"]
    assert scheduler["flavors"] == {"a100": {"partitions": ["a100"], "topology": "preferred"}}
    assert scheduler["queues"]["a"] == {
        "cohort": "all", "quotas": {"a100": {"gpus": {"nominal": 4.0}}}, "strategy": "best_effort_fifo",
        "reclaim_within_cohort": "any", "within_cluster_queue": "lower_priority"}  # fmt: skip
    job = {"class": "a", "gpus": 1, "gpu_time": "1 h", "count": 2, "arrivals": {"process": "poisson", "rate": "1/h"}}
    assert hs.run(hs.load({"name": "x", **made, "workload": job})).tasks["status"].tolist() == ["completed"] * 2


@pytest.mark.slow
def test_a_forecast_says_when_why_and_who_borrows(tmp_path):
    k, n = kueue_objects.write(tmp_path)
    change = "clusterqueues.b.nominalQuota.gpu=1"
    result = call("twin", "--kueue", k, "--nodes", n, "--hours", 2, "--samples", 4, "--json", "--what-if", change)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["causes"] == {"b/w1": "preemption", "a/w2": "quota", "a/w3": "the scheduler"} | {
        name: cause for name, cause in told["causes"].items() if name[2] == "r"
    }
    queues = {row["queue"]: row for row in told["queues"]}
    assert (queues["a"]["used"], queues["a"]["borrows"], queues["a"]["starves"]) == (6, 2, False)
    assert (queues["b"]["used"], queues["b"]["borrows"], queues["b"]["starves"]) == (1, 0, True)
    first = {job["id"]: job["start_p50"] for job in told["jobs"]}
    assert first["b/w1"] < 1  # b owns what it asks for, and takes it back at once
    later = {job["id"]: job["start_p50"] for job in told["what_if"]["jobs"]}
    assert later["b/w1"] > 60  # it has 1 GPU and one job on it: nothing to reclaim


@pytest.mark.parametrize(("arguments", "words"), [
    (("--what-if", "clusterqueues.z.nominalQuota.gpu=1"), "clusterqueues has no z"),
    (("--what-if", "policy=fcfs"), "must be as clusterqueues.NAME.nominalQuota.gpu=64"),
    (("--what-if", "clusterqueues.a.nominalQuota.cpu=1"), "name one of the flavors of a before cpu"),
    (("--job", "a/none"), "--job must be the id of a waiting job of"),
    (("--policy", "fcfs"), "--kueue needs --nodes, and allows only --nodes"),
])  # fmt: skip
def test_wrong_options_are_refused(tmp_path, arguments, words):
    k, n = kueue_objects.write(tmp_path)
    result = call("twin", "--kueue", k, "--nodes", n, "--hours", 1, "--samples", 2, *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_wrong_objects_are_told_with_their_line(tmp_path):
    items = kueue_objects.objects()
    items[0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "many"
    k, n = kueue_objects.write(tmp_path, items)
    result = call("trace", "convert", k, "--option", f"nodes={n}")
    assert result.exit_code == 3
    assert "k.json:4" in result.output
    assert "many is not a quantity" in result.output.replace('"', "")
    for place, wrong in (("nodeLabels", "a field does not have the type that Kueue "
                                        "defines"), (None, "cannot be read as an object")):
        items = kueue_objects.objects()
        items[2]["spec"] = {place: ["x"]} if place else ["x"]
        k, n = kueue_objects.write(tmp_path, items)
        output = call("trace", "convert", k, "--option", f"nodes={n}").output
        assert ("k.json:62" in output, wrong in " ".join(output.split())) == (True, True), output
    k, n = kueue_objects.write(tmp_path, [{"kind": "Pod", "metadata": {"name": "x"}}])
    assert (
        "has no ClusterQueue"
        in call("trace", "convert", k, "--format", "kueue_objects", "--option", f"nodes={n}").output
    )
