"""Every registered reader of traces, on damaged input: a sentence with file and line, or a counted skip."""

import decimal
import gzip
import inspect
import json
import math
import textwrap
from itertools import takewhile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from test_cluster_traces import ACME, FLAT, HELIOS, PHILLY, PODS, PODS_JSON, SACCT, SPOT, SWF, TASKS, TEN, THROUGHPUTS
from test_cluster_traces import WORKFLOW as GRAPH
from test_request_traces import AZURE, BURST, MOON

from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.model import files
from hetsim.workload.families.columns import read_column
from hetsim.workload.logs.summary import sizes
from hetsim.workload.traces import BUILTIN

DLRM = """\
instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,\
memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time
i_0,HN,app_a,12,12,1,1,25,25,120.0,120.0,640.0,800.0,8,,,
i_1,CN,app_a,48,48,0,0,1,1,240.0,240.0,255.0,300.0,-1,,,700.0
i_2,CN,app_b,64,64,0,0,51,51,320.0,320.0,255.0,300.0,-1,100.0,130.0,900.0
i_3,HN,app_b,8,8,2,2,25,25,40.0,40.0,85.0,100.0,2,200.0,200.0,
i_4,HN,app_b,8,8,1,1,25,25,40.0,40.0,85.0,100.0,2,300.0,,
i_5,CN,app_b,64,64,0,0,1,1,320.0,320.0,255.0,300.0,-1,,40.0,20.0
"""
CSV = "id,arrival,cpu_time,gpu_time,gpus\na,0,10,1,1\nb,5,20,2,2\n"
REQUESTS = "arrival,prompt_tokens,output_tokens\n0,5,2\n0.5,7,1\n3,0,0\n"
DAG = "1 4 0.5\n2 8 1 1\n3 -1 2 1,2\n"
MATRIX = "3 2\n1.5 2\n3 4\n5 -1\n"
WORKFLOW = json.dumps(GRAPH, indent=1)

MAPPED = "at,took,gpus\n2026-01-01 00:00:00,10,1\n2026-01-01 00:00:05,20,2\n"
LINES = '{"at": "2026-01-01 00:00:00", "took": 10, "gpus": 1}\n{"at": "2026-01-01 00:00:05", "took": 20, "gpus": 2}\n'

PBS = """\
01/01/2026 00:00:01;Q;1.pbs;queue=gpu
01/01/2026 00:00:01;Q;2.pbs;queue=gpu
01/01/2026 00:00:02;S;1.pbs;user=ann queue=gpu ctime=1767222001 start=1767222002
01/01/2026 00:10:02;E;1.pbs;user=ann queue=gpu ctime=1767222001 start=1767222002 exec_host=n1/0*8+n2/0*4 \
exec_vnode=(n1:ncpus=8:ngpus=2:mem=1048576kb)+(n2:ncpus=4:ngpus=1) Resource_List.walltime=01:00:00 end=1767222602
01/01/2026 00:10:03;D;2.pbs;requestor=ann@n0
01/01/2026 00:10:04;S;3[].pbs;user=ben ctime=1767222003
01/01/2026 00:20:00;E;3[7].pbs;user=ben queue=gpu ctime=1767222003 start=1767222604 exec_host=n1/0+n1/1 \
Resource_List.nodes=1:ppn=2:gpus=1 end=1767223200 Exit_status=271
01/01/2026 00:20:01;S;4.pbs;user=ben ctime=1767222004 start=1767223201
"""
_RUSAGE = " ".join(["-1"] * 19)


def _lsb(job: str, index: int, submit: int, start: int, end: int, hosts: str, gpus: str) -> str:
    count = len(hosts.split())
    return (
        f'"JOB_FINISH" "10.1" {end} {job} 1000 33554434 {count} {submit} 0 0 {start} "ann" "gpu" "rusage[{gpus}]" "" ""'
        f' "login" "home" "" "" "" "job" 0 {count} {hosts} 64 100.0 "a ""name""" "run" {_RUSAGE} "" "proj" 0 {count} ""'
        f' "" {index} 0 0 "" "" "" "" 0\n'
    )


LSB = _lsb("7", 0, 1767222000, 1767222100, 1767222700, '"n1" "n1" "n2"', "ngpus_physical=2.00") + _lsb(
    "8", 3, 1767222050, 1767222700, 1767222800, '"n1"', "mem=100"
)
BACCT = """\
Job <7[2]>, Job Name <x>, User <ann>, Project <default>, Status <DONE>, Queue <g
                     pu>, Command <run>
Thu Jan  1 00:00:00: Submitted from host <login>, CWD <$HOME>, 2 Task(s), Reques
                     ted Resources <rusage[ngpus_physical=2.00]>;
Thu Jan  1 00:01:40: Dispatched 2 Task(s) on Host(s) <n1> <n2>, Allocated 2 Slot
                     (s) on Host(s) <n1> <n2>;
Thu Jan  1 00:11:40: Completed <done>.

Job <8>, User <ben>, Project <default>, Status <EXIT>, Queue <gpu>, Command <run>
Thu Jan  1 00:02:00 2026: Submitted from host <login>;
Thu Jan  1 00:03:00 2026: Completed <exit>; TERM_OWNER: job killed by owner.
"""


def _sge(job: int, task: int, submit: int, start: int, end: int, part: str = "NONE") -> str:
    rusage, asked = ":".join(["0"] * 17), "-l gpu=2,h_rt=3600 -pe smp 4"
    head = f"gpu.q:n1:group:ann:name:{job}:sge:0:{submit}:{start}:{end}:0:0:{end - start}"
    return f"{head}:{rusage}:proj:dept:smp:4:{task}:0:0:0:{asked}:0:{part}:0\n"


SGE = (
    "# Version: 8.1\n" + _sge(1, 0, 1767222000, 1767222010, 1767222110) + _sge(2, 5, 1767222001, 0, 0)
    + _sge(3, 1, 1767222002, 1767222110, 1767222210) + _sge(3, 1, 1767222002, 1767222110, 1767222210, "1.n1")
)  # fmt: skip
RAY = """[
{"task_id": "t1", "name": "f", "state": "FINISHED", "required_resources": {"CPU": 1, "GPU": 0.5}, "node_id": "a",
 "creation_time_ms": 1767222000000, "start_time_ms": 1767222001000, "end_time_ms": 1767222011000},
{"task_id": "t2", "name": "f", "state": "FAILED", "required_resources": {"CPU": 2}, "node_id": "b",
 "creation_time_ms": 1767222000500, "start_time_ms": 1767222002000, "end_time_ms": 1767222003000},
{"task_id": "t3", "name": "f", "state": "PENDING", "required_resources": {"CPU": 2}, "creation_time_ms": 1767222000500}
]"""

POLLUX = "name,time,application,num_replicas,batch_size\na,0,net,1,8\nb,20,net,1,8\n"
PROFILE = {
    "placements.csv": "placement,local_bsz,step_time,sync_time\n1,4,0.5,0\n1,8,1,0\n",
    "validation-8.csv": "progress,iteration,grad_sqr,grad_var\n10,10,1,1\n",
}
MAPPING = {"columns": {"arrival": "at", "duration": "took", "gpus": "gpus"}}
BINARY = {"parquet"}
"""Formats of which a text editor cannot damage a file; see test_mapped_logs."""

WRITTEN = {
    "acme": ACME, "alibaba_dlrm": DLRM, "alibaba_spot": SPOT, "azure_llm": AZURE, "burstgpt": BURST, "csv": MAPPED,
    "gavel": TEN, "hcsp": MATRIX, "helios": HELIOS, "hetero_dag": DAG, "jsonl": LINES, "kubernetes": PODS_JSON,
    "lsf": LSB, "pbs": PBS, "ray": RAY, "sge": SGE,
    "mooncake": MOON, "openb": PODS,
    "pai": TASKS, "philly": PHILLY, "pollux": POLLUX, "requests": REQUESTS, "slurm": SACCT, "swf": SWF, "tasks": CSV,
    "wfformat": WORKFLOW,
}  # fmt: skip
"""One whole file of a format."""


def sample_of(reader):
    """What is indented below the line `Sample:` in the text of a reader's module; empty if nothing is."""
    text = inspect.getdoc(inspect.getmodule(reader)) or ""
    below = text.partition("Sample:\n")[2].lstrip("\n").splitlines(keepends=True)
    text = textwrap.dedent("".join(takewhile(lambda line: line.startswith(" "), below)))
    return text and text.rstrip("\n") + "\n"


SAMPLES = {form: sample_of(registry.entry("traces", form)) for form in BUILTIN if form not in {*WRITTEN, *BINARY}}
"""Of the readers without an example here.  Tests that damage a file in a way of its format want one here."""
EXAMPLES = WRITTEN | SAMPLES
TEXTS = sorted(EXAMPLES)

NEGATIVE = {
    "acme": ("11:00:10+00:00,2023-05-17 11:00:40", "11:00:10+00:00,2023-05-17 10:00:40", "ended before they began"),
    "alibaba_dlrm": ("100.0,130.0", "-100.0,130.0", ':4: column creation_time: "-100.0" is negative'),
    "alibaba_spot": ("50,20", "-50,20", ':3: column submit_time: "-50" is negative'),
    "azure_llm": ("00:00:01", "00:00:-1", ":4: column TIMESTAMP: "),
    "burstgpt": ("45,", "-45,", ':3: column Timestamp: "-45" is negative'),
    "csv": (",20,", ",-20,", ':3: row 2, column took: "-20" is negative'),
    "jsonl": ('"took": 20', '"took": -20', ':2: row 2, column took: "-20" is negative'),
    "gavel": ("\t0\nB", "\t-7\nB", ':1: column arrival: "-7" is negative'),
    "hcsp": ("3 4", "3 -4", ':3:3: column gpu_time.m1: "-4" is negative'),
    "helios": ("18:41:11,2020-06-09 18:42:11", "18:41:11,2020-06-09 18:40:11", "ended before they began"),
    "hetero_dag": ("2 8 1", "2 -8 1", ':2:3: column cpu_time: "-8" is negative'),
    "kubernetes": ('"finishedAt": "2026-01-01T00:00:41Z', '"finishedAt": "2025-01-01T00:00:41Z', "ended before"),
    "lsf": ("1767222100 ", "-5 ", ':1: row 1, column start: "-5" is negative'),
    "pbs": ("start=1767222604", "start=-5", ':7: row 2, column start: "-5" is negative'),
    "ray": ("1767222001000", "-5", ':2: row 1, column start: "-5" is negative'),
    "sge": (":1767222010:", ":-5:", ':2: row 1, column start: "-5" is negative'),
    "mooncake": ('"timestamp": 27', '"timestamp": -27', ':2: timestamp: "-27" is negative'),
    "openb": ("0,120,5", "-3,120,5", ':2: column creation_time: "-3" is negative'),
    "pai": ("100.0,200.0", "-100.0,200.0", ':1: column start_time: "-100.0" is negative'),
    "philly": ("2017-10-07 01:01:30", "2016-10-07 01:01:30", "an attempt that ended before it began"),
    "pollux": ("b,20", "b,-20", ':3: column time: "-20" is negative'),
    "requests": ("0.5,7", "-0.5,7", ':3: column arrival: "-0.5" is negative'),
    "slurm": ("2026-01-01T00:01:10|COMPLETED|00:05:00", "2026-01-01T00:00:01|COMPLETED|00:05:00", "ended before they"),
    "swf": ("  1   0   5", "  1  -9   5", ":4: column submit: -9 is negative"),
    "tasks": ("5,20,2", "-5,20,2", ':3: row 2, column arrival: "-5" is negative'),
    "wfformat": ("10.5", "-10.5", '"s": runtimeInSeconds: "-10.5" is not a number'),
}
"""What to replace by what, and the complaint, or where the logs are known for it the count in the notes."""

SEPARATORS = {
    "csv": (",", "~", ' has no column "at"; it has at~took~gpus'),
    "jsonl": (":", "=", ":1: the line is not JSON"),
    "gavel": ("\t", ",", ":1: the row has 1 columns separated by tabs; there must be 10 or 7; they are separated by"),
    "hcsp": (" ", ",", ':1: "3,2" is not a number; times are separated by white space'),
    "hetero_dag": (" ", ";", ":1"),
    "kubernetes": (":", "=", ":2: is not JSON (Expecting ':' delimiter)"),
    "lsf": (" ", ",", ":1: cannot be read as a JOB_FINISH record"),
    "pbs": (";", ",", ":1: "),
    "ray": (":", "=", "is not JSON"),
    "sge": (":", ";", "the row has 1 cells separated by colons; there must be 42 or more"),
    "mooncake": (":", "=", ":1:13: is not a JSON object"),
    "pai": (",", ";", ":1: the row has 1 cell; there must be 10"),
    "philly": (":", "=", "is not JSON"),
    "slurm": ("|", ";", ":1: its columns are separated by semicolons; use bars"),
    "swf": (" ", ",", ":4: the line has 1 field; there must be 18"),
    "tasks": (",", ";", "its columns are separated by semicolons, use commas"),
    "wfformat": (":", "=", "is not JSON"),
}
"""Elsewhere columns are separated by commas, and by semicolons in the damaged file."""

MISSING = {
    "acme": ("submit_time,", ",2023-05-17 11:00:00+00:00", ':1: no column "submit_time"'),
    "alibaba_dlrm": ("gpu_request", "", ':1: no column "gpu_request"'),
    "alibaba_spot": ("duration", "", ':1: no column "duration"'),
    "azure_llm": ("ContextTokens", "", ':1: no column "ContextTokens"'),
    "burstgpt": ("Request tokens", "", ':1: no column "Request tokens"'),
    "csv": ("took", "", 'has no column "took"; did you mean "x_took"?'),
    "jsonl": ('"took"', "", ': no line has the key'),
    "gavel": ("A\tpython x\tdir\t", "A\t", ":1: the row has 8 columns separated by tabs; there must be 10 or 7"),
    "hcsp": ("3 4", "3", ": "),
    "helios": ("gpu_num", "", ':1: no column "gpu_num"'),
    "hetero_dag": ("2 8 1 1", "2", ":2: "),
    "kubernetes": ('"creationTimestamp"', "", "the time is missing"),
    "lsf": (' 3 "n1"', ' 9 "n1"', ":1: cannot be read as a JOB_FINISH record"),
    "pbs": (";E;1.pbs;", ";1.pbs;", ":4: "),
    "ray": ('"start_time_ms"', "", "no job of its 3 jobs remains: 3 never started"),
    "sge": (":proj:dept:smp", ":proj", ":2: the row has 41 cells"),
    "mooncake": ("input_length", "", ':1: the key "input_length" is missing'),
    "openb": ("num_gpu", "", ':1: no column "num_gpu"'),
    "pai": ("j1,", "j1;", ":1: the row has 9 cells; there must be 10"),
    "philly": ('"submitted_time"', "", "the time is missing"),
    "pollux": ("num_replicas", "", ':1: no column "num_replicas"'),
    "requests": ("arrival", "", ':1: no column "arrival"'),
    "slurm": ("Submit", "", ':1: no column "Submit"'),
    "swf": ("  1   0   5", "  1   0", ":4: the line has 17 fields; there must be 18"),
    "tasks": ("cpu_time,gpu_time", "x_1,x_2", "a task table needs cpu_time, gpu_time, gpu_time.TYPE or flops"),
    "wfformat": ('"runtimeInSeconds"', "", "runtimeInSeconds"),
}
"""The name that is written otherwise (with x in front), or what is replaced by what; and the complaint."""


@pytest.fixture
def read(tmp_path):
    def of(form, content=None):
        path = tmp_path / ("t.csv" if form == "tasks" else "t.txt")
        content = EXAMPLES[form] if content is None else content
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        options = {}
        if form == "gavel":
            options["throughputs"] = tmp_path / "throughputs.json"
            options["throughputs"].write_text(THROUGHPUTS)
        if form == "pollux":
            options["profiles"] = tmp_path / "profiles"
            (tmp_path / "profiles" / "net").mkdir(parents=True, exist_ok=True)
            for name, text in PROFILE.items():
                (tmp_path / "profiles" / "net" / name).write_text(text)
        if form in ("csv", "jsonl"):
            options |= MAPPING
        return registry.entry("traces", form)(path, **options)

    return of


@pytest.fixture
def complaint(read, tmp_path):
    """The first sentence about a file, without its folder."""

    def of(form, content):
        with pytest.raises(ScenarioError) as caught:
            read(form, content)
        assert all(problem.file for problem in caught.value.problems)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")[0]

    return of


def test_there_is_an_example_of_every_format():
    missing = [form for form, text in SAMPLES.items() if not text]
    assert not missing, "write a small file below `Sample:` in the text of the reader's module"
    assert set(WRITTEN) == set(NEGATIVE) == set(MISSING)


def test_the_sample_of_a_reader_is_what_stands_in_its_module(monkeypatch):
    monkeypatch.setattr(inspect, "getmodule", lambda _: inspect)
    monkeypatch.setattr(inspect, "__doc__", "A log.\n\nSample:\n\n    a;b\n    1;2\n\nMore.\n")
    assert sample_of(None) == "a;b\n1;2\n"
    monkeypatch.setattr(inspect, "__doc__", "A log.\n\nSample:\n    a;b\n      1;2")
    assert sample_of(None) == "a;b\n  1;2\n"
    monkeypatch.setattr(inspect, "__doc__", "A log.\n\n    a;b\n")
    assert sample_of(None) == ""


@pytest.mark.parametrize("form", TEXTS)
def test_the_examples_are_sound(read, form):
    table = read(form)
    assert len(table) >= 2 and np.isfinite(table.arrival).all()


@pytest.mark.parametrize("form", TEXTS)
def test_a_truncated_or_broken_archive(complaint, read, form):
    noise = np.random.default_rng(0).integers(32, 127, 50_000, dtype=np.uint8).tobytes()
    whole = gzip.compress(EXAMPLES[form].encode() + noise)
    assert "is damaged: the compressed data end too early" in complaint(form, whole[: len(whole) // 2])
    assert "is damaged: " in complaint(form, whole[:20] + b"\x00\xff" * 20 + whole[60:])
    packed = read(form, gzip.compress(EXAMPLES[form].encode()))
    assert packed.arrival.tolist() == read(form).arrival.tolist()


@pytest.mark.parametrize("form", TEXTS)
def test_a_small_file_does_not_fill_the_memory(complaint, read, form, monkeypatch):
    """One limit for all, whether the file says how much is in it or, having been tampered with, does not."""
    packed = gzip.compress(EXAMPLES[form].encode())
    monkeypatch.setattr(files, "MAX_RATIO", 0)
    monkeypatch.setattr(files, "ALWAYS", len(EXAMPLES[form].encode()))
    assert len(read(form, packed)) >= 2
    monkeypatch.setattr(files, "ALWAYS", len(EXAMPLES[form].encode()) - 1)
    for file in (packed, packed[:-4] + bytes(4)):
        found = complaint(form, file)
        assert found.startswith("t.") and "decompresses to more than 0 MB, too much" in found
    assert len(read(form)) >= 2


def test_the_limit_is_a_multiple_of_the_size():
    """A megabyte of gzip that holds 40 times its size is read, one that holds 60 times its size is not."""
    assert files.limit_of(1_000_000) == 50_000_000 and files.limit_of(1000) == 32_000_000


@pytest.mark.parametrize("form", TEXTS)
def test_text_that_is_not_utf8(complaint, form):
    text = EXAMPLES[form].encode()
    middle = len(text) // 2
    line = text[:middle].count(b"\n") + 1
    found = complaint(form, text[:middle] + b"\xff" + text[middle:])
    assert "is not UTF-8 text (byte 0xff); save it as UTF-8" in found and f":{line}" in found


@pytest.mark.parametrize("form", sorted(WRITTEN))
def test_negative_times(read, complaint, form):
    old, new, message = NEGATIVE[form]
    text = EXAMPLES[form]
    assert old in text
    text = text.replace(old, new) if form == "kubernetes" else text.replace(old, new, 1)
    if message.startswith(":") or form == "wfformat":
        assert message in complaint(form, text)
    else:
        assert any(message in note and "(first: line" in note for note in read(form, text).notes)


@pytest.mark.parametrize("form", sorted(WRITTEN))
def test_another_separator(complaint, form):
    old, new, message = SEPARATORS.get(form, (",", ";", ":1: its columns are separated by semicolons"))
    text = EXAMPLES[form].replace(",", ".") if form == "slurm" else EXAMPLES[form]
    assert message in complaint(form, text.replace(old, new))


@pytest.mark.parametrize("form", sorted(WRITTEN))
def test_a_missing_column(complaint, form):
    old, new, message = MISSING[form]
    text = EXAMPLES[form]
    assert old in text
    if form == "acme":
        text = "\n".join(",".join(c for n, c in enumerate(row.split(",")) if n != 8) for row in text.splitlines())
    else:
        text = text.replace(old, new or ('"x_' + old[1:] if old.startswith('"') else "x_" + old))
    assert message in complaint(form, text)


def test_records_of_schedulers(read):
    """What a job held, when and where, is told by PBS, LSF, Grid Engine and Ray in ways of their own."""
    for form, text in (("pbs", PBS), ("lsf", LSB), ("sge", SGE), ("ray", RAY), ("lsf", BACCT)):
        table = read(form, text)
        took = np.min(list(table.times.values()), axis=0).tolist()
        found = list(zip(table.id.tolist(), table.arrival.tolist(), table.extra["recorded_start"].tolist(), took,
                         table.numbers["gpus"].tolist(), table.numbers["cpus"].tolist(),
                         table.extra["recorded_node"].tolist(), strict=True))  # fmt: skip
        assert found == RECORDED[form if text is not BACCT else "bacct"]
    assert "1 of 4 jobs left out: never started" in "\n".join(read("pbs").notes)
    assert "1 of 4 jobs left out: no end" in "\n".join(read("pbs").notes)
    assert "parts of parallel jobs" in "\n".join(read("sge").notes)


RECORDED = {
    "pbs": [("1", 0, 1, 600, 3, 12, "n1|n2"), ("3[7]", 2, 603, 596, 1, 2, "n1")],
    "lsf": [("7", 0, 100, 600, 4, 3, "n1|n2"), ("8[3]", 50, 700, 100, 0, 1, "n1")],
    "bacct": [("7[2]", 0, 100, 600, 4, 2, "n1|n2")],
    "sge": [("1", 0, 10, 100, 2, 4, "n1"), ("3.1", 2, 110, 100, 2, 4, "n1")],
    "ray": [("t1", 0, 1, 10, 0.5, 1, "a"), ("t2", 0.5, 2, 1, 0, 2, "b")],
}


def test_a_job_without_a_submission_is_named(complaint):
    assert ":2: the job has no time of submission" in complaint("sge", SGE.replace(":1767222000:", "::", 1))


def test_sizes_of_a_log_without_gpus_are_those_of_cores(read):
    rows = sizes(read("swf"))
    assert [(row["cores"], row["tasks"]) for row in rows] == [("2–3", 1), ("4–7", 2), ("8–15", 1)]
    assert rows[1]["work_share"] == pytest.approx((50 + 90) * 4 / (100 * 8 + (50 + 90) * 4))
    assert {"gpus"} <= set(sizes(read("openb"))[0])


def test_the_flat_form_of_philly(complaint, read):
    assert ':2: column duration: "-60.0" is negative' in complaint("philly", FLAT.replace("60.0,2", "-60.0,2", 1))
    assert ':1: no column "num_gpus"' in complaint("philly", FLAT.replace("num_gpus", "x_num_gpus"))
    assert ":1: its columns are separated by semicolons" in complaint("philly", FLAT.replace(",", ";"))
    assert len(read("philly", FLAT)) == 2


def test_instances_that_outlast_the_trace(read):
    """Alibaba's recommendation services: blank times lie outside the trace, which ends with its latest time."""
    table = read("alibaba_dlrm")
    assert table.id.tolist() == ["i_0", "i_1", "i_2", "i_3"]
    assert table.arrival.tolist() == [0, 0, 100, 200]
    assert table.extra["recorded_start"].tolist() == [0, 0, 130, 200]
    assert table.times["gpu_time"].tolist() == [900, np.inf, np.inf, 700]
    assert table.times["cpu_time"].tolist() == [np.inf, 700, 770, np.inf]
    assert table.numbers["gpus"].tolist() == [1, 0, 0, 2] and table.numbers["cpus"].tolist() == [12, 48, 64, 8]
    assert table.numbers["memory"][0] == 120 * 2**30
    assert table.class_.tolist() == ["HN", "CN", "CN", "HN"]
    assert table.user.tolist() == ["app_a", "app_a", "app_b", "app_b"]
    assert table.extra["rdma"].tolist() == [25, 1, 51, 25]
    most = table.extra["max_per_node"]
    assert most[[0, 3]].tolist() == [8, 2] and np.isnan(most[[1, 2]]).all()
    told = "\n".join(table.notes)
    assert "1 of 6 jobs left out: never started (first: line 6)" in told
    assert "1 of 6 jobs left out: ended before they began (first: line 7)" in told
    assert "2 of 6 jobs existed before the trace began; they arrive at time 0" in told
    assert "2 of 6 jobs existed when the trace ended; they run until then" in told


def test_a_column_for_a_distribution_has_the_same_limit(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"size\n" + b"7\n" * 1000))
    assert read_column(path, "size").tolist() == [7.0] * 1000
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with pytest.raises(ScenarioError, match=r"t.csv.gz: is damaged: the compressed data end too early"):
        read_column(path, "size")
    path.write_bytes(whole)
    monkeypatch.setattr(files, "ALWAYS", 1000)
    monkeypatch.setattr(files, "MAX_RATIO", 1)
    with pytest.raises(ScenarioError, match=r"t.csv.gz: decompresses to more than 0 MB, too much for a "
                                            r"compressed file of"):
        read_column(path, "size")


ODD_CELLS = {
    "inf": pa.array([math.inf, 1.0]),
    "lists of inf": pa.array([[math.inf], [1.0]]),
    "beyond floats": pa.array([2**63, 1], pa.uint64()),
    "bytes": pa.array([b"\xff", b"1"]),
    "no text": pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(bytes([0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0])),
                                                     pa.py_buffer(b"\xff\xfea")]),
    "lists of lists": pa.array([[[1]], [[2]]]),
    "mappings": pa.array([{"a": 1}, {"a": 2}]),
    "a date beyond 9999": pa.array([2**30, 1], pa.date32()),
    "a duration beyond Python's": pa.array([2**62, 1], pa.duration("s")),
    "a time beyond a day": pa.array([2**62, 1], pa.time64("us")),
    "a decimal": pa.array([decimal.Decimal("9" * 38), decimal.Decimal(1)], pa.decimal128(38)),
    "escapes": pa.array(["\x1b[31m", "\x07"]),
}  # fmt: skip
COLUMNS = ("id", "arrival", "cpu_time", "class", "predecessors", "reads", "gpus", "note")
JOB = {"id": "id", "arrival": "arrival", "start": "arrival", "end": "end", "user": "note"}


@pytest.mark.quick(32)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("cells", ODD_CELLS)
def test_odd_cells_in_parquet_are_read_or_told_with_the_file(tmp_path, column, cells):
    """Whatever Parquet can hold in a column of a task table, of a mapped log and of a distribution."""
    plain = {"id": pa.array([1, 2]), "arrival": pa.array([0.0, 1.0]), "cpu_time": pa.array([1.0, 1.0]),
             "end": pa.array([2.0, 3.0]), "note": pa.array(["a", "b"])}  # fmt: skip
    path = tmp_path / "odd.parquet"
    parquet.write_table(pa.table({**plain, column: ODD_CELLS[cells]}), path)
    for attempt in (
        lambda: registry.entry("traces", "tasks")(path),
        lambda: registry.entry("traces", "parquet")(path, columns=JOB, time="epoch s"),
        lambda: read_column(path, column),
    ):
        try:
            attempt()
        except ScenarioError as refused:
            assert all(problem.file == str(path) for problem in refused.problems)


def test_numbers_of_parquet_are_numbers_however_they_are_stored(tmp_path):
    """Warehouses write decimals, and dictionaries of few values."""
    path = tmp_path / "stored.parquet"
    numbers = [1.5, 2.25, 1.5]
    for column in (
        pa.array([decimal.Decimal(str(number)) for number in numbers]),
        pa.array(numbers).dictionary_encode(),
        pa.array([f"{number}" for number in numbers]).dictionary_encode(),
        pa.array([f"{number}" for number in numbers], pa.large_string()),
        pa.array(numbers, pa.float32()),
    ):
        parquet.write_table(pa.table({"arrival": pa.array([0, 1, 2], pa.int16()), "gpu_time": column}), path)
        assert registry.entry("traces", "tasks")(path).times["gpu_time"].tolist() == numbers
