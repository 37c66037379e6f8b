"""Shards: parts of a study made by several processes into one folder, or into folders that are merged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pages import blocks
from stored import stored_runs

import hetsim as hs
from hetsim.cli import hetsim
from hetsim.errors import UsageError
from hetsim.experiment.shard import Shard, ShardOver
from hetsim.experiment.store import Store, merge_stores
from hetsim.experiment.sweep import sweep

GPUS = "cluster.nodes.0.gpus.count"
SMALL: dict[str, Any] = {
    "name": "small",
    "cluster": {"nodes": [{"cpus": 2, "gpus": {"type": "k20", "count": 2}}]},
    "workload": [
        {"name": "a", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 120,
         "gpu_time": {"distribution": "exponential", "mean": "1 s"}}
    ],
    "policy": "fcfs",
}  # fmt: skip
AUTO = {"warmup": "auto", "replications": {"precision": "40%", "metric": "response_mean", "max": 12}}


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(SMALL))
    return str(path)


def call(*words: str) -> Result:
    return CliRunner().invoke(hetsim, words, prog_name="hetsim")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3", ""])
def test_what_is_no_shard_is_told(text: str):
    with pytest.raises(UsageError, match="INDEX/COUNT"):
        Shard.parse(text)


def test_every_item_is_in_one_shard():
    parts = [list(Shard(index, 3).items_of(range(10))) for index in (1, 2, 3)]
    assert sorted(sum(parts, [])) == list(range(10))


@pytest.mark.parametrize(
    "more", [{}, pytest.param(AUTO, marks=pytest.mark.slow)], ids=["count", "precision and warm-up"]
)
def test_shards_and_a_final_call_give_the_bytes_of_one_call(tmp_path: Path, more: dict[str, Any]):
    """In any order, one of them twice, and none of them all: the last call makes what is missing."""
    given: dict[str, Any] = {"scenario": {**SMALL, **more}, "over": {GPUS: [2, 3]}, "policies": ["fcfs", "sjf"]}
    given["replications"] = None if more else 2
    sweep(**given, out=tmp_path / "whole")
    made = []
    for text in ("3/3", "1/3", "1/3"):
        with pytest.raises(ShardOver) as over:
            sweep(**given, out=tmp_path / "parts", shard=text)
        made.append((over.value.report.made, over.value.report.there))
    assert made[2] == (0, made[1][0])
    assert not (tmp_path / "parts" / "table.parquet").exists()
    sweep(**given, out=tmp_path / "parts")
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--replications", "4"),
        ("compare", "--policy", "fcfs", "--policy", "sjf", "--replications", "3"),
        ("tune", "--over", "discipline=block,skip", "--first", "2", "--final", "3", "--workers", "1"),
    ],
    ids=lambda words: words[0],
)
@pytest.mark.slow
def test_other_front_doors_take_shards(small: str, tmp_path: Path, words: tuple[str, ...]):
    verb, *rest = words
    alone = call(verb, small, *rest, "--json")
    cache = ("--cache", str(tmp_path / "cache"))
    for text in ("1/2", "2/2"):
        part = call(verb, small, *rest, *cache, "--shard", text, "--json")
        assert part.exit_code == 0, part.output
        assert json.loads(part.stdout)["made"] > 0
    assert call(verb, small, *rest, *cache, "--json").stdout == alone.stdout


@pytest.mark.parametrize("changed", ["trace", "policy"])
def test_a_shard_of_other_inputs_is_refused_with_both_digests(changed: str, tmp_path: Path):
    """As a worker does: what differs, and its digests there and here; what the others have made stays."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submit,gpu_time\n0,2\n1,3\n")
    entry = {"name": "a", "trace": {"format": "tasks", "path": str(jobs)}}
    given = {"scenario": {**SMALL, "workload": [entry]}, "over": {GPUS: [1, 2]}, "policies": ["signed", "fcfs"]}

    def register(sign: int) -> None:
        hs.register("signed", lambda task: sign * task.shortest_estimate)

    register(1)
    with pytest.raises(ShardOver):
        sweep(**given, out=tmp_path / "parts", shard="1/2")
    before = files(tmp_path / "parts")
    if changed == "trace":
        jobs.write_text("submit,gpu_time\n0,2\n1,4\n")
    else:
        register(-1)
    what = "source of scheduler signed" if changed == "policy" else r"file \S*jobs.csv"
    digests = rf"code of a policy \({what}: sha256 (\w{{12}}) there, (\w{{12}}) here\)\); give another directory"
    for part in ("2/2", None):
        with pytest.raises(UsageError, match=digests) as refused:
            sweep(**given, out=tmp_path / "parts", shard=part)
        there, here = re.search(digests, str(refused.value)).groups()  # type: ignore[union-attr]
        assert there != here and there in before["sweep.json"].decode() and here not in before["sweep.json"].decode()
    assert files(tmp_path / "parts") == before


def test_what_shards_need_is_told(small: str, tmp_path: Path):
    for words in (("run", small), ("compare", small), ("sweep", small, "--over", f"{GPUS}=2,3")):
        found = call(*words, "--shard", "1/2")
        assert found.exit_code == 2
        assert "folder" in found.stderr
    assert call("run", small, "--cache", str(tmp_path / "c"), "--shard", "3/2").exit_code == 2


@pytest.mark.slow
def test_folders_are_merged(small: str, tmp_path: Path):
    over = ("sweep", small, "--over", f"{GPUS}=2,3,4", "--replications", "2", "--workers", "1")
    call(*over, "--out", str(tmp_path / "whole"))
    for number in ("1", "2"):
        call(*over, "--out", str(tmp_path / number), "--shard", f"{number}/2")
    (torn,) = (tmp_path / "2" / "runs").iterdir()
    text = torn.read_bytes()
    torn.write_bytes(text.replace(b"1", b"2", 1))  # in the first of its lines
    found = call("merge", str(tmp_path / "1"), str(tmp_path / "2"), "--into", str(tmp_path / "1"))
    assert found.exit_code == 0
    assert found.stdout == "2 finished runs copied, 3 there already, 1 damaged file\n"
    assert torn.name in found.stderr
    call(*over, "--out", str(tmp_path / "1"))
    assert files(tmp_path / "1") == files(tmp_path / "whole")


def test_two_outcomes_of_one_run_are_not_merged(tmp_path: Path):
    from hetsim.experiment.work import RunOutcome

    run = "ab" + "0" * 62
    for name, value in (("one", 1.0), ("two", 2.0)):
        store = Store(tmp_path / name)
        store.put(run, RunOutcome({"wait_mean": value}))
        store.close(complete=True)
    with pytest.raises(UsageError, match="have different outcomes of the same run"):
        merge_stores([tmp_path / "one"], tmp_path / "two")
    with pytest.raises(UsageError, match="no finished runs in"):
        merge_stores([tmp_path], tmp_path / "two")


def recipe(language: str, part: str) -> str:
    """The block of the page on many machines that has this text."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / "scale-out.md"
    return next(block.text for block in blocks(page) if block.language == language and part in block.text)


@pytest.mark.slow
def test_the_recipes_for_slurm_and_kubernetes(tmp_path: Path):
    """Their scripts, with the environment that either sets, in a shell in place of the cluster: the second of two."""
    array = recipe("sh", "#SBATCH")
    spec = yaml.safe_load(recipe("yaml", "completionMode"))["spec"]
    assert "--array=1-8" in array
    assert (spec["completions"], spec["completionMode"]) == (8, "Indexed")
    command = spec["template"]["spec"]["containers"][0]["command"]
    assert command[-1].endswith("/8")
    command[-1] = command[-1].replace("/shared/", f"{tmp_path}/").replace("))/8", "))/2")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    slurm = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_CPUS_PER_TASK": "1"}
    for words, given, there in ((["bash", "-c", array], slurm, 0), (command, {"JOB_COMPLETION_INDEX": "1"}, 4)):
        done = subprocess.run(
            words, env={**os.environ, "PATH": path, "HOME": str(tmp_path), **given}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stdout.startswith(f"shard 2/2: {4 - there} runs made, {there} found")


@pytest.mark.slow
def test_shards_that_are_killed_do_no_harm(small: str, tmp_path: Path):
    """Two at a time in one folder, killed once some runs are there or at once; then others go on to the end."""
    over = ["sweep", small, "--over", f"{GPUS}=2,3,4,5", "--replications", "3", "--workers", "1"]
    call(*over, "--out", str(tmp_path / "whole"))
    start = [sys.executable, "-c", "from hetsim.cli import main; main()", *over, "--out", str(tmp_path / "parts")]
    for enough in (0, 1, 4):
        both = [
            subprocess.Popen([*start, "--shard", text], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
            for text in ("1/2", "2/2")
        ]
        while both[0].poll() is None and len(stored_runs(tmp_path / "parts")) < enough:
            time.sleep(0.005)
        for process in both:
            process.kill()
            process.communicate()
    assert call(*over, "--out", str(tmp_path / "parts"), "--shard", "1/2").exit_code == 0
    assert call(*over, "--out", str(tmp_path / "parts")).exit_code == 0
    assert files(tmp_path / "parts") == files(tmp_path / "whole")
