"""The command line: exit codes, what goes to stdout and what to stderr, and errors that are sentences."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pages
import pytest
import tiers
from click.testing import CliRunner, Result
from descent import needs_proc, workers_of
from interrupts import heeds_interrupts
from tiers import spread

import hetsim as hs
from hetsim import registry
from hetsim.__main__ import main
from hetsim.cli import console, hetsim
from hetsim.errors import PolicyError, UsageError
from hetsim.experiment.progress import TerminalBar
from hetsim.policy import ListScheduler, Scheduler, Start, Stop
from hetsim.report import terminal
from hetsim.workload.logs.recognize import recognize

GOOD = """\
name: small
description: Thirty short tasks on two GPUs.
cluster:
  nodes: [{cpus: 4, gpus: {type: k20, count: 2}}]
workload:
  - name: a
    arrivals: {process: poisson, rate: 2/s}
    count: 30
    gpu_time: {distribution: exponential, mean: 700 ms}
policy: fcfs
"""
TABLE = """\
name: table
cluster: {nodes: [{cpus: 4}]}
workload:
  - trace: {format: tasks, path: tasks.csv}
"""
ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with one good scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick tier draws no pictures of runs that are written for something else."""
    if not tiers.whole:
        monkeypatch.setattr("hetsim.results.panels.write_picture", lambda draw, path: path.write_bytes(b""))


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch):
    """Register policies for one test."""
    monkeypatch.setattr(registry, "_registered", {})
    return registry.register


def call(*arguments: str) -> Result:
    return CliRunner().invoke(hetsim, list(arguments), prog_name="hetsim")


def start(*arguments: str, code: str = "", **options) -> subprocess.Popen:
    """hetsim in a process of its own."""
    program = f"{code}\nfrom hetsim.cli import main\nif __name__ == '__main__':\n    main(prog_name='hetsim')"
    environment = {**os.environ, "PYTHONPATH": pages.SOURCES, **options.pop("env", {})}
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, preexec_fn=heeds_interrupts, **options,
    )  # fmt: skip


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# Help ---------------------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom hetsim.cli import hetsim\n"
        "hetsim.main(['--help'], standalone_mode=False)\n"
        "heavy = {'numpy', 'pandas', 'scipy', 'matplotlib', 'pydantic', 'simpy', 'yaml', 'pyarrow', 'tqdm'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": pages.SOURCES}
    )
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    assert "compare" in done.stdout


def test_import_sim_is_light():
    code = "import sys, hetsim; print(sorted({'numpy', 'pandas', 'pydantic', 'simpy', 'click'} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": pages.SOURCES}
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("verb", ["run", "compare", "explain", "plan", "validate", "list", "schema", "trace"])
def test_every_verb_has_help(verb: str):
    result = call(verb, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: hetsim {verb}")


def test_version():
    assert call("--version").stdout == f"hetsim, version {hs.__version__} ({hs.__build__})\n"


def test_the_version_is_printed_without_click_and_other_words_are_left_to_it(monkeypatch, capsys):
    heavy = "{'click', 'hetsim.cli', 'pathlib', 'json', 'inspect'}"
    code = f"import sys\nbefore = set(sys.modules)\nfrom hetsim.__main__ import main\nmain()\n" \
           f"print(sorted({heavy} & (set(sys.modules) - before)), file=sys.stderr)"  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": pages.SOURCES}
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, call("--version").stdout, "[]\n")
    monkeypatch.setattr(sys, "argv", ["hetsim", "--version", "run"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, capsys.readouterr().out) == (0, done.stdout)


def test_a_reader_of_the_version_that_has_gone_ends_it_as_click_says():
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "hetsim", "--version"]
    environment = {**os.environ, "PYTHONPATH": pages.SOURCES}
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


# Runs ---------------------------------------------------------------------------------------------------------


def test_run_prints_figures_and_writes_nothing(here: Path):
    result = call("run", "good.yaml")
    assert result.exit_code == 0, result.stderr
    first, _, description, *rest = result.stdout.splitlines()
    assert first.startswith("small: 4 cores, 2 × k20, 30 tasks over ")
    assert first.endswith("fcfs, seed 0")
    assert description == "Thirty short tasks on two GPUs."
    text = "\n".join(rest)
    for word in ("response", "wait", "slowdown", "makespan", "GPU busy", "30, all completed"):
        assert word in text
    assert "energy" not in text  # no watts are given
    assert result.stderr == ""
    assert files(here) == {"good.yaml"}


def test_json_has_exactly_the_documented_form(here: Path):
    result = call("run", "good.yaml", "--json", "--seed", "4")
    found = json.loads(result.stdout)
    assert list(found) == ["scenario", "seed", "summary"]
    assert (found["scenario"], found["seed"]) == ("small", 4)
    assert found["summary"]["completed_count"] == 30
    assert found["summary"]["goodput"] is None
    assert result.stderr == ""


def test_json_of_replications_has_intervals(here: Path):
    found = json.loads(call("run", "good.yaml", "--json", "--replications", "3").stdout)
    response = found["summary"]["response_mean"]
    assert list(response) == ["mean", "sd", "ci_low", "ci_high", "n"]
    assert response["n"] == 3
    assert response["ci_low"] < response["mean"] < response["ci_high"]


@pytest.mark.slow
def test_same_seed_same_bytes_in_two_processes(here: Path):
    arguments = ("run", "good.yaml", "--replications", "3", "--json", "--out")
    processes = [
        start(*arguments, name, *more, env={"PYTHONHASHSEED": seed})
        for name, more, seed in (("one", (), "1"), ("two", ("--workers", "2"), "2"))
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert files(here / "one") == files(here / "two")
    for name in sorted(files(here / "one")):
        one, two = here / "one" / name, here / "two" / name
        if one.is_file():
            assert one.read_bytes() == two.read_bytes(), name


def test_seed_set_and_policy_change_the_run(here: Path):
    plain = call("run", "good.yaml", "--json").stdout
    for more in (("--seed", "1"), ("--set", "workload.a.count=29"), ("--policy", "lcfs")):
        assert call("run", "good.yaml", "--json", *more).stdout != plain


@pytest.mark.slow
def test_out_writes_a_run_directory_with_a_picture(here: Path):
    result = call("run", "good.yaml", "--out", "deep/run")
    assert result.exit_code == 0, result.stderr
    assert "deep/run" in result.stderr
    names = {path.name for path in (here / "deep/run").iterdir()}
    assert {"tasks.parquet", "summary.json", "scenario.yaml", "picture.png", "run.json"} <= names
    loaded = hs.Result.load("deep/run")
    assert len(loaded.tasks) == 30
    assert call("run", "good.yaml", "--out", "deep/run").exit_code == 0  # a run directory may be replaced


def test_out_refuses_what_is_not_ours_before_running(here: Path):
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("precious")
    result = call("run", "good.yaml", "--out", "mine")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "not a run directory" in result.stderr
    assert files(here / "mine") == {"thesis.txt"}


def test_unfinished_tasks_are_warned_about(here: Path):
    result = call("run", "good.yaml", "--set", "horizon=3 s")
    assert result.exit_code == 0
    assert "warning:" in result.stderr
    assert "unfinished" in result.stderr
    assert "≥" in result.stdout
    assert call("run", "good.yaml", "--set", "horizon=3 s", "-q").stderr == ""


def test_identical_replications_are_named(here: Path):
    (here / "tasks.csv").write_text("id,cpu_time\na,1\nb,2\n")
    (here / "table.yaml").write_text(TABLE)
    result = call("run", "table.yaml", "--replications", "3")
    assert "all replications are equal: the scenario is not random, so there are no" in result.stderr


def test_verbose_says_how_much_work_it_was(here: Path):
    assert "decisions" in call("run", "good.yaml", "-v").stderr


# Comparing, explaining, listing -------------------------------------------------------------------------------


@pytest.mark.slow
def test_compare_prints_a_table_and_sentences(here: Path):
    result = call(
        "compare", "good.yaml", "--policy", "fcfs", "--policy", "lcfs", "--metric", "wait_p99",
        "--replications", "12", "--out", "c",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "12 replications, common random numbers" in result.stdout
    assert "wait p99" in result.stdout
    assert "95 %" in result.stdout
    assert {"comparison.csv", "pairs.csv", "picture.png", "fcfs/summary.json"} <= files(here / "c")
    refused = call("explain", "c", "3")
    assert refused.exit_code == 2
    assert "c/fcfs" in refused.stderr
    assert call("explain", "c/fcfs", "3").exit_code == 0


def test_compare_json(here: Path):
    found = json.loads(call("compare", "good.yaml", "--policy", "fcfs", "--policy", "sjf+best_fit", "--json").stdout)
    assert list(found["policies"]) == ["fcfs", "sjf + best_fit"]
    assert found["policies"]["fcfs"]["completed_count"] == 30
    assert found["differences"][0]["policy"] == "fcfs"


def test_compare_without_policies_takes_the_usual_ones(here: Path):
    result = call("compare", "good.yaml")
    assert result.exit_code == 0, result.stderr
    assert "fcfs_skip" in result.stdout
    assert "One run of each policy gives no confidence intervals" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "fcfs"), "at least two policies"),
        (("--policy", "fcfs", "--policy", "fcfs"), "given twice"),
        (("--policy", "fcfs", "--policy", "sjf", "--baseline", "lcfs"), "--baseline must be one of the "
                                                                        "compared policies; got"),
    ],
)
def test_compare_used_wrongly(here: Path, arguments: tuple[str, ...], said: str):
    result = call("compare", "good.yaml", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_explain_splits_a_wait(here: Path, undrawn: None):
    assert call("run", "good.yaml", "--out", "r").exit_code == 0
    waits = hs.Result.load("r").tasks["wait"]
    longest = str(waits.idxmax())
    found = json.loads(call("explain", "r", longest, "--json").stdout)
    assert found["wait"] == pytest.approx(waits.max())
    assert sum(found["causes"].values()) == pytest.approx(waits.max())
    assert "no free capacity" in call("explain", "r", longest).stdout
    by_class = json.loads(call("explain", "r", "--by", "class", "--json").stdout)
    assert by_class["a"]["wait"] == pytest.approx(waits.sum())
    assert "share of waiting" in call("explain", "r", "--by", "class").stdout
    for wrong in (("r",), ("r", "99"), ("r", "1", "--by", "class"), ("nowhere", "1")):
        result = call("explain", *wrong)
        assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(("name", "text", "form"), [
    ("a.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time\n", "openb"),
    ("a.csv", "timestamp,duration,num_gpus,gpu_time,cluster\n", "philly"),
    ("a.csv", "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time\n", "helios"),
    ("a.csv", "job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time\n", "acme"),
    ("a.csv", "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time\n", "alibaba_spot"),
    ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "azure_llm"),
    ("a.txt", "JobID|User|Partition|Submit|Start|End|State\n", "slurm"),
    ("a.trace", "ResNet-18 (batch size 16)\tcmd\tdir\t-n\t0\t7000\t1\t1\t-1\t0.0\n", "gavel"),
    ("a.json", '[{"status": "Pass", "vc": "ee9", "attempts": []}]', "philly"),
    ("a.json", '{"apiVersion": "v1", "items": [{"kind": "Pod"}]}', "kubernetes"),
    ("a.log", "; Version: 2.2\n1 0 0 5 1 -1 -1 1 5 -1 1 1 1 -1 1 -1 -1 -1\n", "swf"),
    ("a.csv", "arrival,gpu_time\n0,1\n", None),
    ("a.csv", "", None),
])  # fmt: skip
@pytest.mark.parametrize("zipped", [False, True])
def test_formats_are_told_by_their_first_lines(tmp_path: Path, name: str, text: str, form: str | None, zipped: bool):
    file = tmp_path / (name + ".gz" if zipped else name)
    file.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert recognize(file) == form


def test_a_trace_is_inspected_without_naming_its_format(here: Path):
    (here / "jobs.txt").write_text("; Computer: c\n1 0 7 5 2 -1 -1 2 9 -1 1 1 1 -1 1 -1 -1 -1\n")
    found = call("trace", "inspect", "jobs.txt", "--json")
    assert json.loads(found.stdout)["durations"]["cpu_time"]["mean"] == 5
    assert "jobs.txt seems to have the format swf (--format sets another)" in found.stderr
    assert call("trace", "inspect", "jobs.txt", "--format", "tasks").exit_code == 3
    for wrong, said in (
        (("inspect", "jobs.txt", "--picture", "p.foo"), "Invalid value for '--picture': a picture must be a file name"),
        (("inspect", "jobs.txt", "--picture", "no/p.png"), 'the folder "no" does not exist'),
        (("convert", "jobs.txt", "no/t.csv"), 't.csv cannot be written: the folder "no" does not exist'),
    ):
        result = call("trace", *wrong)
        assert (result.exit_code, result.stdout) == (2, "") and said in result.stderr


@pytest.mark.slow
def test_explain_says_how_a_task_ended(here: Path, undrawn: None):
    """Killed at its limit on two GPUs, sent back by a failure, and never let in."""
    (here / "jobs.csv").write_text(
        "id,arrival,gpus,gpu_time,time_limit,partition\nk,0,2,100,50,p\nf,1,2,100,,p\nr,2,2,9,900,p\nq,3,1,9,,q\n"
    )
    (here / "faults.csv").write_text("time,device,event\n60,n0,down\n70,n0,up\n")
    (here / "killed.yaml").write_text(
        "name: killed\n"
        "cluster: {nodes: [{cpus: 4, gpus: {type: g, count: 2}, partitions: p},"
        " {cpus: 4, gpus: {type: g, count: 2}, partitions: q}]}\n"
        "site: {at_limit: kill, partitions: {p: {max_time: 400 s}}}\n"
        "workload: [{trace: {format: tasks, path: jobs.csv}}]\n"
        "faults: [{file: faults.csv}]\n"
    )
    assert call("run", "killed.yaml", "--out", "r", "-q").exit_code == 0
    told = {task: json.loads(call("explain", "r", task, "--json").stdout) for task in "kfrq"}
    keys = ("status", "reason", "at", "launches", "stops", "wasted")
    assert [told["k"][key] for key in keys] == ["failed", "time limit", 50, 1, 1, 100]
    assert [told["f"][key] for key in keys] == ["completed", "", 170, 2, 1, 20]
    assert [told["r"][key] for key in keys] == [
        "rejected", "asks for 15 min, more than the 6.67 min of partition p", 2, 0, 0, 0,
    ]  # fmt: skip
    assert told["q"]["wait"] == 0
    text = call("explain", "r", "k").stdout
    assert "it failed at 50 s: time limit; its only launch was cut short, 100 s of computing" in text
    text = call("explain", "r", "f").stdout
    assert "it completed at 170 s; 1 of 2 launches were cut short, 20 s of computing" in text
    assert "it was rejected at 2 s: asks for 15 min" in call("explain", "r", "r").stdout


@pytest.mark.slow
def test_explain_takes_the_first_of_replications(here: Path, undrawn: None):
    assert call("run", "good.yaml", "--replications", "2", "--out", "r").exit_code == 0
    assert call("explain", "r", "3").exit_code == 0
    assert len(hs.Replications.load("r")) == 2


@pytest.mark.quick(2)
@pytest.mark.parametrize("what", ["policies", "scenarios", "traces", "arrivals"])
def test_lists_name_and_describe(what: str):
    text, rows = call("list", what), json.loads(call("list", what, "--json").stdout)
    assert text.exit_code == 0
    assert rows
    for row in rows:
        assert row["name"] in text.stdout
        assert row["summary"]
        assert "cannot be loaded" not in row["summary"]


def test_list_policies_of_one_kind():
    rows = json.loads(call("list", "policies", "--kind", "placement", "--json").stdout)
    assert {row["kind"] for row in rows} == {"placement"}
    assert call("list", "scenarios", "--kind", "placement").exit_code == 2


def test_schema_is_json():
    found = json.loads(call("schema").stdout)
    assert "cluster" in found["properties"]


def test_validate(here: Path):
    result = call("validate", "good.yaml")
    assert result.exit_code == 0
    assert result.stdout == "good.yaml: valid; 4 cores, 2 × k20, 30 tasks, fcfs\n"
    (here / "bad.yaml").write_text(GOOD.replace("count: 30", "cuont: 30"))
    (here / "worse.yaml").write_text(GOOD.replace("700 ms", "700"))
    both = call("validate", "good.yaml", "bad.yaml", "worse.yaml")
    assert both.exit_code == 3
    assert "bad.yaml:8:5:" in both.stderr
    assert "worse.yaml:9:43:" in both.stderr
    assert both.stderr.endswith("2 problems, nothing was run.\n")


def test_trace_inspect_validate_convert(here: Path):
    (here / "t.csv").write_text("id,arrival,class,gpu_time,cpu_time\na,0,x,1,4\nb,1,y,2,\nc,5,x,3,\n")
    found = json.loads(call("trace", "inspect", "t.csv", "--json").stdout)
    assert (found["tasks"], found["last_arrival"], found["classes"]) == (3, 5.0, {"x": 2, "y": 1})
    assert found["durations"]["cpu_time"]["tasks"] == 1
    assert "0.6/s" in call("trace", "inspect", "t.csv").stdout
    assert call("trace", "validate", "t.csv").stdout == "t.csv: valid; 3 tasks\n"
    assert call("trace", "convert", "t.csv", "t.parquet").exit_code == 0
    assert json.loads(call("trace", "inspect", "t.parquet", "--json").stdout)["durations"] == found["durations"]
    again = call("trace", "convert", "t.csv", "t.parquet")
    assert again.exit_code == 2
    assert "--force" in again.stderr
    (here / "bad.csv").write_text("id,gpu_time\na,x\nb,-1\n")
    bad = call("trace", "validate", "bad.csv")
    assert bad.exit_code == 3
    assert "bad.csv:2:" in bad.stderr
    assert "bad.csv:3:" in bad.stderr
    assert call("trace", "inspect", "no.csv").exit_code == 3
    assert call("trace", "inspect", "t.csv", "--format", "taks").exit_code == 3


# Wrong usage --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("rn", "x"), 'did you mean "hetsim run"'),
        (("trace", "inspct", "x"), 'did you mean "hetsim trace inspect"'),
        (("run", "good.yaml", "--polcy", "fcfs"), "--policy"),
        (("run",), "FILE|NAME"),
        (("run", "good.yaml", "--replications", "0"), "--replications"),
        (("run", "good.yaml", "--set", "seed"), "key.path=value"),
        (("list", "polices"), "policies"),
    ],
)
def test_wrong_usage_ends_with_2(here: Path, arguments: tuple[str, ...], said: str):
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert files(here) == {"good.yaml"}


# Bad input ----------------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)

BAD_SCENARIOS = {
    "unknown key": (GOOD.replace("count: 30", "cuont: 30"), 'bad.yaml:8:5: workload.0.cuont: unknown key "cuont"; did'),
    "wrong type": (GOOD.replace("cpus: 4", "cpus: four"), "bad.yaml:4:12: cluster.nodes.0.cpus:"),
    "missing unit": (GOOD.replace("2/s", "2"), "bad.yaml:7:34: workload.0.arrivals.rate:"),
    "wrong unit": (GOOD.replace("700 ms", "700 GB"), "bad.yaml:9:43: workload.0.gpu_time.mean:"),
    "negative duration": (GOOD.replace("700 ms", "-700 ms"), "bad.yaml:9:43: workload.0.gpu_time.mean:"),
    "nan duration": (GOOD.replace("700 ms", "nan s"), "bad.yaml:9:43: workload.0.gpu_time.mean:"),
    "duplicate key": (GOOD + "policy: sjf\n", "bad.yaml:11:1: policy:"),
    "missing file": (TABLE, "bad.yaml:4:28: workload.0.trace.path:"),
    "no place to run": (GOOD.replace("gpus: {type: k20, count: 2}", "memory: 4 GB"), "bad.yaml:6:5: workload.0:"),
    "gang too large": (GOOD.replace("count: 30", "count: 30\n    gpus: 4"), "bad.yaml:6:5: workload.0:"),
    "zero devices": (GOOD.replace("[{cpus: 4, gpus: {type: k20, count: 2}}]", "[{cpus: 0}]"), "bad.yaml:4:3:"),
    "no nodes": (GOOD.replace("[{cpus: 4, gpus: {type: k20, count: 2}}]", "[]"), "bad.yaml:4:3: cluster.nodes:"),
    "no workload": ("name: x\ncluster: {nodes: [{cpus: 4}]}\nworkload: []\n", "bad.yaml:3:1: workload:"),
    "empty workload": (GOOD.replace("count: 30", "until: 0 s"), "bad.yaml:5:1: workload:"),
    "a list": ("- a\n- b\n", "bad.yaml:1:1:"),
    "one value": ("hello\n", "bad.yaml:1:1:"),
    "nothing": ("", "bad.yaml:1:1:"),
    "not yaml": ("a: [1, 2\nb: 3\n", "bad.yaml:2:2:"),
    "bomb": (BOMB, "bad.yaml:6:"),
    "tag": ('a: !!python/object/apply:os.system ["ls"]\n', "bad.yaml:1:4:"),
    "unknown policy": (GOOD.replace("policy: fcfs", "policy: fcsf"), 'bad.yaml:10:1: policy.scheduler.name: unknown'),
}  # fmt: skip

BAD_TABLES = {
    "missing column": ("id,duration\na,1\n", ["tasks.csv:1:", "cpu_time"]),
    "bad cells": ("id,cpu_time\na,1\nb,two\nc,-1\n", ["tasks.csv:3: row 2, column cpu_time", "tasks.csv:4: row 3"]),
    "nan duration": ("id,cpu_time\na,1\nb,nan\n", ["tasks.csv:3: row 2, column cpu_time"]),
    "duplicate id": ("id,cpu_time\na,1\na,2\n", ["tasks.csv:3: row 2, column id"]),
    "the graph has a cycle: these tasks wait for each "
    "other:": ("id,cpu_time,predecessors\na,1,b\nb,1,a\n", ["tasks.csv:2:", "a → b → a"]),
    "unknown predecessor": ("id,cpu_time,predecessors\na,1,\nb,1,z\n", ["tasks.csv:3:", '"z"']),
    "no device": ("id,cpu_time,gpu_time\na,1,\nb,,3\n", ["bad.yaml:4:5:", "tasks.csv, line 3"]),
    "no rows": ("id,cpu_time\n", ["tasks.csv:"]),
}


def assert_refused(result: Result, folder: Path, before: set[str]) -> None:
    assert result.exit_code == 3, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "defect" not in result.stderr
    assert result.stderr.splitlines()[-1].endswith(", nothing was run.")
    assert files(folder) == before


@pytest.mark.parametrize("case", list(BAD_SCENARIOS))
def test_bad_scenarios_end_with_3_and_an_address(here: Path, case: str):
    text, address = BAD_SCENARIOS[case]
    (here / "bad.yaml").write_text(text)
    before = files(here)
    result = call("run", "bad.yaml", "--out", "o")
    assert_refused(result, here, before)
    assert result.stderr.startswith(address), result.stderr


@pytest.mark.parametrize("case", list(BAD_TABLES))
def test_bad_tables_end_with_3_and_an_address(here: Path, case: str):
    text, said = BAD_TABLES[case]
    (here / "tasks.csv").write_text(text)
    (here / "bad.yaml").write_text(TABLE)
    before = files(here)
    result = call("run", "bad.yaml", "--out", "o")
    assert_refused(result, here, before)
    for part in said:
        assert part in result.stderr


def test_all_problems_are_listed_at_once(here: Path):
    (here / "bad.yaml").write_text(GOOD.replace("2/s", "2").replace("fcfs", "fcsf").replace("cpus", "cpu"))
    result = call("run", "bad.yaml")
    assert result.exit_code == 3
    assert result.stderr.endswith("3 problems, nothing was run.\n")


def test_a_hundred_megabytes_are_refused_unread(here: Path):
    with (here / "bad.yaml").open("wb") as stream:
        stream.truncate(100_000_000)
    assert_refused(call("run", "bad.yaml"), here, files(here))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "nowhere.yaml"), "nowhere.yaml: the file does not exist"),
        (("run", "first-stesp"), "unknown scenario"),
        (("run", "good.yaml", "--policy", "sjff"), 'did you mean "sjf"?'),
        (("run", "good.yaml", "--policy", "fcfs+best_fti"), 'did you mean "best_fit"?'),
        (("run", "good.yaml", "--set", "cluster.nodes.3.cpus=2"), "--set cluster.nodes.3.cpus:"),
        (("run", "good.yaml", "--set", "workload.a.count=many"), "--set workload.a.count:"),
        (("run", "good.yaml", "--policy", "{name: fcfs, depht: 3}"), "--policy:"),
        (("compare", "good.yaml", "--policy", "fcfs", "--policy", "sjff"), 'did you mean "sjf"?'),
        (("compare", "good.yaml", "--metric", "wait_men"), 'did you mean "wait_mean"?'),
    ],
)
def test_wrong_names_and_values_end_with_3(here: Path, arguments: tuple[str, ...], said: str):
    result = call(*arguments)
    assert_refused(result, here, {"good.yaml"})
    assert said in result.stderr


# Runs that fail -----------------------------------------------------------------------------------------------


class Raises(ListScheduler):
    rounds = 0

    def schedule(self, view):
        self.rounds += 1
        if self.rounds > 20:
            raise KeyError("lost")
        yield from super().schedule(view)


class Illegal(Scheduler):
    def schedule(self, view):
        for task in list(view.waiting()):
            placement = view.fit(task)
            if placement:
                yield Start(task, placement)
                if task.index == 11:
                    yield Start(task, placement)


class Lazy(Scheduler):
    pass


class Circles(Scheduler):
    def schedule(self, view):
        while view.waiting():
            for task in list(view.waiting()):
                placement = view.fit(task)
                if placement:
                    yield Start(task, placement)
                    yield Stop(task)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Raises, "raised KeyError in schedule"),
        (Illegal, "started task 11 on k20 on n0/g"),
        (Lazy, "starts nothing"),
        (Circles, "it loops"),
    ],
)
def test_a_policy_that_fails_is_named_and_its_tables_are_kept(
    here: Path, undrawn: None, register, monkeypatch: pytest.MonkeyPatch, policy: type, said: str
):
    for module in ("core.rounds", "control.decisions"):
        monkeypatch.setattr(f"hetsim.engine.{module}.LOOP_LIMIT", 1_000)
    register("mine", policy)
    result = call("run", "good.yaml", "--policy", "mine", "--out", "o")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith('error: policy "mine" ')
    assert result.stderr.count("error:") == 1
    assert said in result.stderr
    assert "are in o/partial." in result.stderr
    assert "Traceback" not in result.stderr
    kept = hs.Result.load("o/partial")
    assert 0 < len(kept.tasks) <= 30
    assert kept.error
    assert kept.tasks["arrival"].max() <= kept.end
    # The same directory serves the run that works.
    assert call("run", "good.yaml", "--out", "o").exit_code == 0
    assert not (here / "o" / "partial").exists()


def test_a_failed_run_without_out_is_kept_under_runs(here: Path, register):
    register("mine", Lazy)
    result = call("run", "good.yaml", "--policy", "mine")
    place = result.stderr.rpartition("are in ")[2].strip(" .\n")
    assert place.startswith("runs/small-")
    assert (here / place / "tasks.parquet").is_file()


def test_a_deadlock_names_who_waits(here: Path, register):
    register("mine", Lazy)
    error = call("run", "good.yaml", "--policy", "mine").stderr
    assert "30 tasks wait" in error
    assert "task 0: waiting since" in error
    assert "would fit now" in error


def test_a_failing_policy_in_a_comparison(here: Path, register):
    register("mine", Raises)
    result = call("compare", "good.yaml", "--policy", "fcfs", "--policy", "mine", "--out", "o")
    assert (result.exit_code, result.stdout) == (1, "")
    assert files(here / "o") >= {"partial/tasks.parquet"}
    assert not (here / "o" / "run.json").exists()


@pytest.mark.slow
def test_partial_tables_that_cannot_be_saved_do_not_hide_the_error(here: Path, register):
    register("mine", Lazy)
    (here / "runs").write_text("a file in the way")
    result = call("run", "good.yaml", "--policy", "mine")
    assert result.exit_code == 1
    assert "starts nothing" in result.stderr
    assert "could not be saved" in result.stderr
    assert "Traceback" not in result.stderr


def test_verbose_shows_where_a_policy_raised(here: Path, register):
    register("mine", Raises)
    assert 'raise KeyError("lost")' in call("run", "good.yaml", "--policy", "mine", "-v").stderr


def test_a_defect_is_one_line_and_a_traceback_only_on_demand(here: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_, **__):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("hetsim.experiment.run.one_run", broken)
    result = call("run", "good.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("error: ZeroDivisionError")
    assert "defect of hetsim" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in call("run", "good.yaml", "-v").stderr


# Pipes, signals, terminals ------------------------------------------------------------------------------------


def so_many_workers(process: subprocess.Popen, wanted: int) -> list[int]:
    """Process numbers of its workers, once there are so many."""
    while process.poll() is None:
        found = workers_of(process.pid)
        if len(found) >= wanted:
            return found
        time.sleep(0.05)
    raise AssertionError("it ended before it had workers")


@needs_proc
@pytest.mark.slow
def test_an_interrupt_ends_with_130(here: Path):
    (here / "long.yaml").write_text(GOOD.replace("count: 30", "count: 50000"))
    process = start("run", "long.yaml", "--replications", "5000", "--workers", "2", start_new_session=True)
    so_many_workers(process, 2)
    time.sleep(1)
    os.killpg(process.pid, signal.SIGINT)
    try:
        out, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out, error) == (130, "", "interrupted\n")


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_whoever_ends_it_ends_its_workers_too(here: Path, number: int, code: int):
    """They hold its pipes: `communicate` returns when the last of them is gone."""
    (here / "long.yaml").write_text(GOOD.replace("count: 30", "count: 50000"))
    process = start("run", "long.yaml", "--replications", "5000", "--workers", "3", start_new_session=True)
    workers = so_many_workers(process, 2)
    process.send_signal(number)
    try:
        out, error = process.communicate(timeout=60)
    finally:
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    assert (process.returncode, out) == (code, "")
    if number == signal.SIGTERM:  # of a kill only Python's own tracker of semaphores says anything
        assert error == "terminated\n"


@pytest.mark.slow
@pytest.mark.parametrize("words", spread(["list scenarios", "list policies"], 1))
def test_a_broken_pipe_is_silent(here: Path, words: str):
    process = start(*words.split())
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


def test_no_bar_and_no_colour_off_a_terminal(here: Path, register):
    register("mine", Lazy)
    error = call("run", "good.yaml", "--policy", "mine").stderr
    assert "\x1b" not in error
    assert "\r" not in error


def test_no_color_is_respected(here: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    result = CliRunner().invoke(hetsim, ["run", "nowhere"], color=True)
    assert "\x1b" not in result.stderr
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" in CliRunner().invoke(hetsim, ["run", "nowhere"], color=True).stderr


def test_the_bar_waits_two_seconds(capsys: pytest.CaptureFixture[str]):
    bar = TerminalBar()
    bar(0.5)
    assert bar.bar is None
    bar.begin -= 3
    bar(0.6)
    bar.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "60 %" in captured.err


def test_an_error_of_a_later_replication_names_it(here: Path):
    with pytest.raises(PolicyError) as caught, console.keeping_partial(Path("o"), Path("p")):
        error = PolicyError("policy failed")
        error.time = 1.0
        error.result = hs.run("good.yaml")
        error.result.replication = 3
        raise error
    assert "In replication 3." in str(caught.value)


# Units --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (terminal.seconds(0), "0 s"), (terminal.seconds(1.23e-5), "12.3 µs"), (terminal.seconds(0.0045), "4.5 ms"),
        (terminal.seconds(90), "90 s"), (terminal.seconds(192), "3.2 min"), (terminal.seconds(9000), "2.5 h"),
        (terminal.seconds(float("nan")), "–"), (terminal.seconds(float("inf")), "∞"),
        (terminal.data_size(1.2e9), "1.2 GB"), (terminal.energy(2.196e8), "61 kWh"), (terminal.energy(850), "850 J"),
        (terminal.rate(40 / 3600), "40/h"), (terminal.rate(12.5), "12.5/s"), (terminal.share(0.63), "63 %"),
        (terminal.count(1240), "1,240"), (terminal.count(12.5), "12.5"), (terminal.plain(1234567890), "1.23e+09"),
        (terminal.pair(12.34, 0.41), "12.34 ± 0.41"), (terminal.pair(1234.5, 98.7), "1,234 ± 99"),
        (terminal.pair(5.0, 0.0), "5"), (terminal.pair(1.0, 1e-16), "1"),
        (terminal.several([1840, 912, 48], terminal.SECONDS), ["30.7 min", "15.2 min", "0.8 min"]),
    ],
)  # fmt: skip
def test_numbers_have_the_units_people_use(text: str | list[str], expected: str | list[str]):
    assert text == expected


def test_tables_are_aligned():
    assert terminal.table([["", "a"], ["x", "12"], ["yy", "3"]], right=[1], gap=1) == ["    a", "x  12", "yy  3"]


# Hostile input ------------------------------------------------------------------------------------------------


def test_what_a_terminal_would_obey_is_written_out(here: Path):
    (here / "s.yaml").write_text('"\\e[31mred\\u202e\\nline": 1\n')
    result = call("validate", "s.yaml")
    assert 's.yaml:1:1: \\x1b[31mred\\u202e\\nline: unknown key' in result.stderr


def test_thousands_of_problems_are_counted(here: Path):
    (here / "s.yaml").write_text("a: 1\n" * 2000)
    lines = call("validate", "s.yaml").stderr.splitlines()
    assert (len(lines), lines[-2:]) == (502, ["... and 1,499 more.", "1,999 problems, nothing was run."])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--out", "good.yaml/x"), "good.yaml is not a folder"),
        (("--out", "x" * 5000), "cannot be written"),
        (("--out", "link"), "link exists and is not a run directory"),
        (("--replications", "100001"), "100001 is not in the range"),
        (("--seed", "x"), "'x' is not a valid whole number"),
        (("--set", "a..b=1"), '--set must be key.path=value; got'),
        (("--policy", "{"), 'the policy "{" is not valid YAML'),
        (("--policy", "sjf+best_fit+first_fit"), "names two placement policies; name one"),
    ],
)
def test_usage_that_is_refused_before_running(here: Path, arguments: tuple[str, ...], said: str):
    (here / "link").symlink_to("nowhere")
    before = files(here)
    result = call("run", "good.yaml", *arguments)
    assert (result.exit_code, files(here)) == (2, before)
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ("", "p.csv: is empty"),
        ("task,mode\n0,cpu\n", "p.csv:1: a plan needs the columns task, mode, device, order; missing: device, order"),
        ("{head}0,cpu\n", "p.csv:2: the row has 2 cells, but the header has 4 columns"),
        ("{head}0,cpu,n0/cpu0,nan\n", 'p.csv:2: order "nan" of task 0 is not a number'),
        ("{head}\n0,cpu,n0/cpu0,0\n0,cpu,n0/cpu0,1\n", "p.csv:4: task 0 is planned twice; it is also at line 3"),
        ('{head}"0,cpu', "p.csv:2: cannot be read as CSV: unexpected end of data"),
    ],
)
def test_bad_plans_end_with_3_and_an_address(here: Path, plan: str, said: str):
    (here / "p.csv").write_text(plan.replace("{head}", "task,mode,device,order\n"))
    text = "cluster: {nodes: {cpus: 1}}\nworkload: {arrivals: {process: all_at_once, count: 1}, cpu_time: 1 s}\n"
    (here / "s.yaml").write_text(text + "policy: {name: replay, plan: p.csv}\n")
    for verb in ("validate", "run"):
        result = call(verb, "s.yaml")
        assert result.exit_code == 3
        assert said in result.stderr


def test_a_policy_that_cannot_be_made(here: Path, register):
    class Broken(Scheduler):
        def __init__(self) -> None:
            raise KeyError("no such model")

    class NoScheduler:
        pass

    register("broken", Broken)
    register("no_scheduler", NoScheduler)
    result = call("run", "good.yaml", "--policy", "broken")
    assert result.exit_code == 1
    assert 'policy "broken" cannot be created: KeyError' in result.stderr
    result = call("run", "good.yaml", "--policy", "no_scheduler")
    assert result.exit_code == 3
    assert "no_scheduler is not a scheduler: the class must derive from hetsim.policy.Scheduler" in result.stderr


def test_load_takes_scenarios_and_results(here: Path, undrawn: None):
    call("run", "good.yaml", "--out", "first-steps")
    assert hs.load("first-steps").summary.equals(hs.Result.load("first-steps").summary)
    with pytest.raises(UsageError, match="first-steps is a directory of results, to which overrides cannot be applied"):
        hs.load("first-steps", {"seed": 5})
    assert hs.load("good.yaml", {"seed": 5}).model.seed == 5
    assert hs.load("mm16").name == hs.Scenario.load("mm16").name == "mm16"
    entry = {"arrivals": {"process": "all_at_once", "count": 1}, "cpu_time": "1 s"}
    assert len(hs.load({"cluster": {"nodes": {"cpus": 1}}, "workload": entry}).build().tasks) == 1
