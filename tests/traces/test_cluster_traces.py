"""Clusters' job logs in their native formats: what rows mean, what is left out and counted, and the options of all."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

import hetsim as hs
from hetsim import registry
from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.scenario.scenario import Scenario
from hetsim.workload.node_lists import hosts
from hetsim.workload.readers import gavel, task_table

PUBLIC = Path(__file__).parents[3] / "shared" / "data"
public = pytest.mark.skipif(not (PUBLIC / "openb").is_dir(), reason="the public excerpts are not here")

SWF = """\
; Computer: Test machine
; MaxProcs: 64
; UnixStartTime: 1000000
  1   0   5   100  8 -1 -1  8  200 1024  1  3  2 -1  1  1 -1 -1
  2  10  -1    50  4 -1 -1 -1   -1   -1  0  4  2 -1  1  1 -1 -1
  3  20   0    -1  4 -1 -1  4   60   -1  1  3  2 -1  1  1 -1 -1
  4  30   0     0 -1 -1 -1  4   60   -1  5  3  2 -1  1  1 -1 -1
  5  40   7    90  6 -1 -1  4   60   -1  1  3  2 -1  2  1 -1 -1
  6  50   7    90 -1 -1 -1 -1   60   -1  1  3  2 -1  2  1 -1 -1
  7  60   7    90  4 -1 -1  4   60   -1  3  3  2 -1  2  1 -1 -1
  8  70   0     0  2 -1 -1  2   60   -1  1  5  2 -1  2  1 -1 -1
"""
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Succeeded,0,120,5
p1,6000,12288,1,460,V100M16|V100M32,LS,Running,10,110,10
p2,500,1024,0,0,,BE,Succeeded,20,30,20
p3,96000,1024,8,1000,V100M32,BE,Pending,30,40,
p4,8000,1024,2,1000,T4,BE,Failed,40,60,40
"""
NODES = """\
sn,cpu_milli,memory_mib,gpu,model
n-a,64000,262144,2,T4
n-b,96000,393216,4,V100M32
n-c,32000,131072,0,
"""
FLAT = """\
timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 00:10:00,60.0,2,120.0,vc1
2017-10-09 00:00:00,30.0,1,30.0,vc2
2017-10-09 00:10:00,60.0,2,120.0,vc1
"""


def attempt(start, end, **machines):
    return {"start_time": start, "end_time": end, "detail": [{"ip": m, "gpus": g} for m, g in machines.items()]}


PHILLY = json.dumps(
    [
        {
            "status": "Pass", "vc": "v1", "jobid": "a_1", "user": "u1", "submitted_time": "2017-10-07 01:00:00",
            "attempts": [
                attempt("2017-10-07 01:00:30", "2017-10-07 01:01:30", m1=["gpu0", "gpu1"]),
                attempt("2017-10-07 01:02:00", "2017-10-07 01:04:00", m2=["gpu0", "gpu1"]),
            ],
        },
        {
            "status": "Killed", "vc": "v1", "jobid": "a_2", "user": "u2", "submitted_time": "2017-10-07 00:00:00",
            "attempts": [],
        },
        {
            "status": "Failed", "vc": "v2", "jobid": "a_3", "user": "u2", "submitted_time": "2017-10-07 00:30:00",
            "attempts": [
                attempt("2017-10-07 00:30:10", "None", m1=["gpu0"]),
                attempt("2017-10-07 00:30:20", "2017-10-07 00:30:50", m1=["gpu0"], m2=["gpu3"]),
            ],
        },
    ],
    indent=1,
)  # fmt: skip
HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,ua,va,1,4,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:11,2020-06-09 18:42:11,60,10
12,ub,vb,4,16,1,FAILED,2020-06-09 18:40:01,2020-06-09 18:40:01,2020-06-09 18:40:31,30,0
13,ub,vb,0,8,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:41:01,2020-06-09 18:41:02,1,0
14,ub,vb,4,16,1,CANCELLED,2020-06-09 18:40:01,None,2020-06-09 18:40:31,30,0
"""
ACME = """\
job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,type,state,submit_time,start_time,end_time
dl1,u1,2,16,64,500,Pretrain,FAILED,2023-05-17 11:00:00+00:00,2023-05-17 11:00:10+00:00,2023-05-17 11:00:40+00:00
dl2,u2,1,1,8,,Evaluation,COMPLETED,2023-05-17 19:00:30+08:00,2023-05-17 11:00:30+00:00,2023-05-17 11:00:31+00:00
"""
SPOT = """\
job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type
1,13,A10,20,1,1,0,100,HP
2,57,A100,15,0.5,1,50,20,Spot
3,57,A100,15,8,4,60,20,Spot
"""
TASKS = """\
j1,worker,2.0,Terminated,100.0,200.0,600.0,10,50.0,T4
j2,ps,3.0,Terminated,150.0,250.0,400.0,10,200.0,MISC
j3,ps,1.0,Waiting,,,400.0,10,0.0,
"""
JOBS = "j1,i1,ua,Terminated,90.0,200.0\nj2,i2,ub,Terminated,150.0,260.0\n"
INSTANCES = """\
j1,worker,n1,w1,i1,Terminated,110.0,190.0,m1
j1,worker,n2,w2,i1,Terminated,105.0,195.0,m1
j2,ps,n3,w3,i2,Terminated,160.0,250.0,m2
j2,ps,n4,w4,i2,Terminated,155.0,255.0,m3
"""
THROUGHPUTS = json.dumps(
    {
        "k80": {"('A', 1)": {"null": 2.0, "('B', 1)": [1.0, 3.0], "('A', 1)": [0.0, 0.0]}, "('B', 1)": {"null": 4.0}},
        "v100": {"('A', 1)": {"null": 8.0}, "('B', 1)": {"null": 0.0}, "('B', 2)": {"null": 5.0}},
        "v100_unconsolidated": {"('B', 2)": {"null": 2.5}},
    }
)
TEN = "A\tpython x\tdir\t-step\t1\t80\t1\t2\t-1.0\t0\nB\tpython x\tdir\t-step\t1\t100\t2\t1\t1.2\t30\n"
SEVEN = "A\tpython x\t-step\t1\t80\t0.0\t1\nB\tpython x\t-step\t1\t100\t30.5\t2\nC\tpython x\t-n\t1\t9\t31\t1\n"
WORKFLOW = {
    "name": "w", "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "split_ID01", "id": "s", "children": ["m"], "parents": [], "inputFiles": ["in"],
                 "outputFiles": ["half"]},
                {"name": "merge_ID02", "id": "m", "children": [], "parents": ["s"], "inputFiles": ["half"],
                 "outputFiles": ["out"]},
            ],
            "files": [{"id": "in", "sizeInBytes": 1000}, {"id": "half", "sizeInBytes": 500}],
        },
        "execution": {
            "tasks": [
                {"id": "s", "runtimeInSeconds": 10.5, "coreCount": 2, "machines": ["w1"]},
                {"id": "m", "runtimeInSeconds": 4, "memoryInBytes": 1e6, "machines": ["w1"]},
            ],
        },
    },
}  # fmt: skip
SACCT = """\
JobID|User|Account|Partition|Submit|Start|End|State|Timelimit|ReqTRES|AllocTRES|NodeList
5|ann|lab|gpu|2026-01-01T00:00:00|2026-01-01T00:00:10|2026-01-01T00:01:10|COMPLETED|00:05:00||billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1|n01
5.batch||lab|gpu|2026-01-01T00:00:10|2026-01-01T00:00:10|2026-01-01T00:01:10|COMPLETED||||n01
6_1|bob|lab|cpu|2026-01-01T00:01:00|2026-01-01T00:01:00|2026-01-01T00:03:00|TIMEOUT|00:01:00|cpu=4,mem=500M|cpu=4,mem=500M|n[02-03]
7|bob|lab|cpu|2026-01-01T00:02:00|Unknown|Unknown|PENDING|1-00:00:00|cpu=4||None assigned
8|bob|lab|cpu|2026-01-01T00:02:00|2026-01-01T00:02:30|Unknown|RUNNING|UNLIMITED|cpu=4|cpu=4|n02
"""  # noqa: E501
SCONTROL = """\
NodeName=n01 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=0 CPUTot=64 CPULoad=0.01
   Gres=gpu:a100:4(S:0-1)
   RealMemory=512000 State=IDLE ThreadsPerCore=1

NodeName=n02 CPUTot=128 RealMemory=256000 Gres=(null) State=MIXED+PLANNED
NodeName=n03 CPUTot=128 RealMemory=256000 Gres=(null) State=DOWN*+DRAIN
"""


def pod(name, created, started, finished, gpus=0, node="k1", phase="Succeeded", **requests):
    asked = {"cpu": "500m", "memory": "1Gi", **requests} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    state = {"startedAt": started, "finishedAt": finished} if finished else None
    return {
        "metadata": {"name": name, "namespace": "ml", "creationTimestamp": created, "labels": {"user": "ann"}},
        "spec": {
            "nodeName": node,
            "containers": [{"resources": {"requests": asked}}, {"resources": {"requests": {"cpu": "1"}}}],
            "initContainers": [{"resources": {"requests": {"cpu": "250m", "memory": "4Gi"}}}],
            "nodeSelector": {"nvidia.com/gpu.product": "T4"} if gpus else {},
        },
        "status": {
            "phase": phase, "startTime": started,
            "containerStatuses": [{"state": {"terminated": state}}] * 2 if state else [{"state": {"running": {}}}],
        },
    }  # fmt: skip


PODS_JSON = json.dumps(
    {
        "apiVersion": "v1",
        "items": [
            pod("a", "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z", "2026-01-01T00:01:05Z", gpus=1),
            pod("b", "2026-01-01T00:00:10Z", "2026-01-01T00:00:10Z", None, phase="Running"),
            pod("c", "2026-01-01T00:00:20Z", None, None, phase="Pending"),
            pod("d", "2026-01-01T00:00:30Z", "2026-01-01T00:00:31Z", "2026-01-01T00:00:41Z", cpu="2"),
        ],
        "kind": "List",
    },
    indent=4,
)
NODES_JSON = json.dumps(
    {
        "items": [
            {"metadata": {"name": "k1", "labels": {"nvidia.com/gpu.product": "T4"}},
             "status": {"allocatable": {"cpu": "31850m", "memory": "128000Mi", "nvidia.com/gpu": "2"}}},
            {"metadata": {"name": "k2"}, "status": {"capacity": {"cpu": "8", "memory": "32Gi"}}},
        ]
    }
)  # fmt: skip

EXAMPLES = {
    "acme": ACME, "alibaba_spot": SPOT, "gavel": TEN, "helios": HELIOS, "kubernetes": PODS_JSON, "openb": PODS,
    "pai": TASKS, "philly": PHILLY, "slurm": SACCT, "swf": SWF, "wfformat": json.dumps(WORKFLOW, indent=1),
}  # fmt: skip
LINES = [*(name for name in EXAMPLES if name not in ("kubernetes", "philly", "wfformat")), "flat"]


@pytest.fixture
def file(tmp_path):
    def write(text, name="t.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def read(file):
    def of(form, text=None, name="t.txt", **options):
        if form == "gavel":
            options.setdefault("throughputs", file(THROUGHPUTS, "throughputs.json"))
        return registry.entry("traces", form)(file(EXAMPLES[form] if text is None else text, name), **options)

    return of


@pytest.fixture
def complaints(read, tmp_path):
    def of(form, text=None, name="t.txt", **options):
        with pytest.raises(ScenarioError) as caught:
            read("philly" if form == "flat" else form, text, name, **options)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return of


def command(*arguments):
    return CliRunner().invoke(main, [str(part) for part in arguments])


def skipped(table):
    """Reason -> count, as the notes tell."""
    found = {}
    for note in table.notes:
        head, sign, reason = note.partition(" jobs left out: ")
        if sign:
            found[reason.partition(" (first")[0]] = int(head.split(": ")[-1].split(" of ")[0].replace(",", ""))
    return found


def passed_over(table):
    """Rows that are not jobs, by what they are, as the notes tell."""
    marks = [note.split(" rows that are not separate jobs: ") for note in table.notes]
    return {pair[1].partition(" (first")[0]: int(pair[0].split(": ")[-1]) for pair in marks if len(pair) == 2}


# What rows mean -------------------------------------------------------------------------------------------------


def test_swf(read):
    table = read("swf")
    assert table.id.tolist() == [1, 2, 5, 8]
    assert table.arrival.tolist() == [0, 10, 40, 70]
    assert table.times["cpu_time"].tolist() == [100, 50, 90, 0]
    assert table.estimates["cpu_time"].tolist() == [200, 50, 60, 60]  # without a request: exact
    assert table.numbers["cpus"].tolist() == [8, 4, 4, 2]
    assert table.numbers["memory"][0] == 8 * 1024 * 1024 and math.isnan(table.numbers["memory"][1])
    assert table.user.tolist() == ["3", "4", "3", "5"]
    assert table.extra["queue"].tolist() == ["1", "1", "2", "2"]
    recorded = table.extra["recorded_start"]
    assert recorded[[0, 2, 3]].tolist() == [5, 47, 70] and math.isnan(recorded[1])
    assert table.line(2) == 8
    assert skipped(table) == {
        "the run time is unknown": 1, "canceled before they started": 1, "the size is unknown": 1,
    }  # fmt: skip
    assert passed_over(table) == {"parts of jobs that were checkpointed (status 2 to 4)": 1}
    assert any("1 of 7 jobs ran longer than requested (first: line 8)" in note for note in table.notes)
    assert any("MaxProcs 64" in note for note in table.notes)
    assert read("swf", size="used").numbers["cpus"].tolist() == [8, 4, 6, 2]
    gangs = read("swf", processors="gpus")
    assert gangs.numbers["gpus"].tolist() == [8, 4, 4, 2] and "cpu_time" not in gangs.times
    assert read("swf", estimates="perfect").estimates == {}


def test_openb(read):
    table = read("openb")
    assert table.id.tolist() == ["p0", "p1", "p2", "p4"]
    assert table.numbers["gpus"].tolist() == [1, 0.46, 0, 2]
    assert table.numbers["cpus"].tolist() == [12, 6, 0.5, 8]
    assert table.numbers["memory"].tolist() == [16 * 2**30, 12 * 2**30, 2**30, 2**30]
    assert table.times["gpu_time"].tolist() == [115, 100, math.inf, 20]
    assert table.times["cpu_time"].tolist() == [math.inf, math.inf, 10, math.inf]
    assert table.devices.tolist() == ["", "V100M16|V100M32", "", "T4"]
    assert table.extra["recorded_start"].tolist() == [5, 10, 20, 40]
    assert table.class_.tolist() == ["LS", "LS", "BE", "BE"]
    assert skipped(table) == {"never started (Pending)": 1}
    mapped = read("openb", types={"V100M16": "v100", "V100M32": "v100", "T4": "t4"})
    assert mapped.devices.tolist() == ["", "v100", "", "t4"]


def test_philly_flat_is_unsorted_and_repeats_itself(read):
    table = read("philly", FLAT)
    assert table.arrival.tolist() == [600, 0]
    assert table.numbers["gpus"].tolist() == [2, 1]
    assert table.extra["vc"].tolist() == ["vc1", "vc2"]
    assert passed_over(table) == {"repetitions": 1} and skipped(table) == {}
    assert any("time 0 is 2017-10-09 00:00:00" in note for note in table.notes)
    assert len(read("philly", FLAT, repeated=True)) == 3


def test_philly_sums_attempts(read):
    table = read("philly")
    assert table.id.tolist() == ["a_1", "a_3"]
    assert table.arrival.tolist() == [1800, 0]  # the one that never started is left out, and is not the first
    assert table.times["gpu_time"].tolist() == [180, 30]
    assert table.numbers["gpus"].tolist() == [2, 2]
    assert table.extra["recorded_start"].tolist() == [1830, 20]
    assert table.extra["recorded_node"].tolist() == ["m1", "m1|m2"]
    assert table.extra["status"].tolist() == ["Pass", "Failed"]
    assert table.user.tolist() == ["u1", "u2"]
    assert skipped(table) == {"never started": 1}
    assert any("1 of 3 jobs have an attempt without its times" in note for note in table.notes)
    last = read("philly", attempts="last")
    assert last.times["gpu_time"].tolist() == [120, 30] and last.extra["recorded_node"].tolist() == ["m2", "m1|m2"]
    assert table.line(0) == 2 and table.line(1) == 45


def test_helios(read):
    table = read("helios")
    assert table.arrival.tolist() == [60, 0, 60]
    assert table.times["gpu_time"].tolist() == [60, 30, math.inf]
    assert table.times["cpu_time"].tolist() == [math.inf, math.inf, 1]
    assert table.numbers["cpus"].tolist() == [4, 16, 8]
    assert table.extra["vc"].tolist() == ["va", "vb", "vb"]
    assert table.extra["recorded_start"].tolist() == [70, 0, 60]
    assert skipped(table) == {"never started (CANCELLED)": 1}


def test_acme_minds_the_zone(read):
    table = read("acme")
    assert table.arrival.tolist() == [0, 30]
    assert table.numbers["memory"][0] == 1e12 and math.isnan(table.numbers["memory"][1])
    assert table.class_.tolist() == ["Pretrain", "Evaluation"]


def test_alibaba_spot(read):
    table = read("alibaba_spot")
    assert table.numbers["gpus"].tolist() == [1, 0.5, 32]
    assert table.numbers["cpus"].tolist() == [20, 15, 60]
    assert table.numbers["priority"].tolist() == [1, 0, 0]
    assert table.devices.tolist() == ["A10", "A100", "A100"]


def test_pai_joins_its_tables(read, file):
    table = read("pai", jobs=file(JOBS, "jobs.csv"), instances=file(INSTANCES, "instances.csv"))
    assert table.id.tolist() == ["j1/worker/0", "j1/worker/1", "j2/ps"]
    assert table.numbers["gpus"].tolist() == [0.5, 0.5, 6]
    assert table.numbers["cpus"].tolist() == [6, 6, 12]
    assert table.arrival.tolist() == [90, 90, 150]
    assert table.extra["recorded_start"].tolist() == [105, 105, 155]
    assert table.times["gpu_time"].tolist() == [90, 90, 100]
    assert table.extra["recorded_node"].tolist() == ["m1", "m1", ""]
    assert table.user.tolist() == ["ua", "ua", "ub"]
    assert table.devices.tolist() == ["T4", "T4", ""]
    assert skipped(table) == {"no start or no end (Waiting)": 1}
    alone = read("pai", ",".join(registry.load_object("hetsim.workload.readers.pai:TASK")) + "\n" + TASKS)
    assert alone.arrival.tolist() == [100, 100, 150]


def test_gavel_ten_and_seven_columns(read):
    ten = read("gavel")
    assert list(ten.times) == ["gpu_time.k80", "gpu_time.v100"]
    assert ten.times["gpu_time.k80"].tolist() == [40, math.inf]
    assert ten.times["gpu_time.v100"].tolist() == [10, 20]
    assert ten.numbers["weight"].tolist() == [2, 1] and ten.numbers["gpus"].tolist() == [1, 2]
    assert ten.extra["slo"][1] == 1.2 and math.isnan(ten.extra["slo"][0])
    seven = read("gavel", SEVEN)
    assert seven.arrival.tolist() == [0, 30.5]
    assert skipped(seven) == {"the table has no throughput for this job type and scale": 1}
    assert any("2 pairs of jobs on one GPU; 1 pairs cannot share it" in note for note in ten.notes)
    renamed = read("gavel", types={"v100": "V", "v100_unconsolidated": "far"})
    assert list(renamed.times) == ["gpu_time.k80", "gpu_time.V", "gpu_time.far"]


def test_gavel_pairs_are_shares_of_the_speed_alone(file):
    found = gavel.table_of(file(THROUGHPUTS))
    assert found.together["k80"] == {(("A", 1), ("B", 1)): (0.5, 0.75), (("A", 1), ("A", 1)): None}


def test_wfformat_files_are_data_items(read):
    table = read("wfformat")
    assert table.times["cpu_time"].tolist() == [10.5, 4]
    assert table.predecessors == [(), (0,)]
    assert table.reads == [("in",), ("half",)] and table.writes == [("half",), ("out",)]
    assert table.items == {"in": 1000, "half": 500, "out": 0}
    assert table.class_.tolist() == ["split", "merge"]
    assert any("1 files of unknown size" in note for note in table.notes)
    assert read("wfformat", gpu_speedup=4.0).times["gpu_time"].tolist() == [2.625, 1]


def test_a_workflow_runs_with_its_files(file):
    path = str(file(json.dumps(WORKFLOW)))
    nodes = {"count": 2, "cpus": 2, "network": {"out": "100 B/s"}}
    trace = {"format": "wfformat", "path": path}
    result = hs.run({"cluster": {"nodes": nodes}, "workload": [{"trace": trace}]}, check=True)
    assert result.tasks["finish"].tolist() == [10.5, 14.5]
    assert [item.name for item in result.record.input.tasks.items] == ["in", "half", "out"]


def test_slurm(read):
    table = read("slurm")
    assert table.id.tolist() == ["5", "6_1"]
    assert table.arrival.tolist() == [0, 60]
    assert table.times["gpu_time"].tolist() == [60, math.inf] and table.times["cpu_time"].tolist() == [math.inf, 120]
    assert table.estimates["gpu_time"][0] == 300 and table.estimates["cpu_time"][1] == 60
    assert table.numbers["cpus"].tolist() == [8, 4] and table.numbers["gpus"].tolist() == [2, 0]
    assert table.numbers["memory"].tolist() == [64 * 2**30, 500 * 2**20]
    assert table.devices.tolist() == ["a100", ""]
    assert table.extra["recorded_node"].tolist() == ["n01", "n02|n03"]
    assert table.extra["partition"].tolist() == ["gpu", "cpu"]
    assert passed_over(table) == {"steps of jobs": 1}
    assert skipped(table) == {"never started (PENDING)": 1, "still running": 1}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04", 184), ("30", 1800), ("2-12", 216000), ("UNLIMITED", None)],
)
def test_slurm_time_limits(read, text, seconds):
    table = read("slurm", SACCT.replace("00:05:00", text))
    assert table.estimates["gpu_time"][0] == (60 if seconds is None else seconds)


def test_lists_of_hosts():
    assert hosts("n[01-03,7],login,a[1-2]b") == ["n01", "n02", "n03", "n7", "login", "a1b", "a2b"]


def test_kubernetes(read):
    table = read("kubernetes")
    assert table.id.tolist() == ["ml/a", "ml/d"]
    assert table.arrival.tolist() == [0, 30]
    assert table.times["gpu_time"].tolist() == [60, math.inf] and table.times["cpu_time"].tolist() == [math.inf, 10]
    assert table.numbers["cpus"].tolist() == [1.5, 3]
    assert table.numbers["memory"].tolist() == [4 * 2**30] * 2
    assert table.devices.tolist() == ["T4", ""]
    assert table.extra["recorded_node"].tolist() == ["k1", "k1"]
    assert table.user.tolist() == ["ann", "ann"]
    assert skipped(table) == {"no end (Running)": 1, "never started (Pending)": 1}


# Clusters from lists of nodes -----------------------------------------------------------------------------------


def cluster_of(form, path, **options):
    trace = {"format": form, "path": str(path), **options}
    task = {"arrivals": {"process": "poisson", "rate": "1/s"}, "count": 1, "cpu_time": "1 s"}
    return Scenario.load({"cluster": {"trace": trace}, "workload": [task]}).build().cluster


def described(cluster):
    return [
        (node.name, node.cpus, node.memory, [device.type.name for device in node.accelerators])
        for node in cluster.nodes
    ]


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        ("openb_nodes", NODES, [
            ("n-a", 64, 2**38, ["T4"] * 2), ("n-b", 96, 384 * 2**30, ["V100M32"] * 4), ("n-c", 32, 2**37, []),
        ]),
        ("slurm_nodes", SCONTROL, [("n01", 64, 512000 * 2**20, ["a100"] * 4), ("n02", 128, 256000 * 2**20, [])]),
        ("kubernetes_nodes", NODES_JSON, [("k1", 31, 128000 * 2**20, ["T4"] * 2), ("k2", 8, 2**35, [])]),
        ("philly_vc", "vc,node num\nv1,2\nv2,1\n", [
            ("v1-0", 24, None, ["gpu"] * 8), ("v1-1", 24, None, ["gpu"] * 8), ("v2-", 24, None, ["gpu"] * 8),
        ]),
        ("swf_header", SWF, [("pool", 64, None, [])]),
    ],
)  # fmt: skip
def test_node_lists(file, form, text, expected):
    assert described(cluster_of(form, file(text))) == expected


def test_types_of_nodes_are_renamed_and_nodes_that_are_down_stay_out(file):
    assert described(cluster_of("openb_nodes", file(NODES), types={"T4": "t4"}))[0][3] == ["t4", "t4"]
    assert len(described(cluster_of("slurm_nodes", file(SCONTROL), down=True))) == 3


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"format": "openb_node"}, 'unknown format of node lists "openb_node"; did you mean "openb_nodes"?'),
        ({"format": "openb_nodes"}, "the key path is missing"),
        ({"format": "openb_nodes", "path": "none.csv"}, 'path: there is no file "none.csv"'),
        ({"format": "openb_nodes", "path": "t.txt", "type": {}}, 'unknown key "type"; did you mean "types"?'),
        ({"format": "openb_nodes", "path": "t.txt"}, "t.txt:2: column gpu: \"two\" is not a number"),
        ("openb_nodes", "cluster.trace: must be a mapping with format and path"),
    ],
)
def test_complaints_about_node_lists(file, monkeypatch, cluster, message):
    file(NODES.replace("262144,2", "262144,two"))
    monkeypatch.chdir(file("x", "x").parent)
    with pytest.raises(ScenarioError) as caught:
        hs.load({"cluster": {"trace": cluster}, "workload": [{"count": 1, "cpu_time": "1 s", "arrivals": "all"}]})
    assert message in str(caught.value)


@pytest.mark.parametrize("form", sorted(registry.table("clusters")))
def test_empty_and_damaged_node_lists(file, form):
    more = {"gavel_gpus": {"gpus": {"v100": 1}}, "kueue_objects": {"nodes": file('{"items": []}', "nodes.json")}}
    options = more.get(form, {})
    for text in (b"", b"\n", b"\x1f\x8b damaged", b"a,b\n1,2\n", b"\xff\xfe"):
        with pytest.raises(ScenarioError, match="t.txt"):
            registry.entry("clusters", form)(file(text), **options)


def test_a_pod_keeps_to_its_types(file):
    trace = {"format": "openb", "path": str(file(PODS, "pods.csv"))}
    cluster = {"trace": {"format": "openb_nodes", "path": str(file(NODES, "nodes.csv"))}}
    tasks = hs.run({"cluster": cluster, "workload": [{"trace": trace}], "policy": "fcfs"}, check=True).tasks
    assert tasks["device_type"].tolist() == ["T4", "V100M32", "cpu", "T4"]
    assert tasks["compute"].tolist() == [115, 100, 10, 20]


def test_rows_that_fit_nowhere_are_an_error_or_left_out(file):
    trace = {"format": "openb", "path": str(file(PODS.replace("T4", "H100"), "pods.csv"))}
    cluster = {"trace": {"format": "openb_nodes", "path": str(file(NODES, "nodes.csv"))}}
    with pytest.raises(ScenarioError, match="task p4 .*line 6.* can never run on this cluster"):
        hs.run({"cluster": cluster, "workload": [{"trace": trace}]})
    built = Scenario.load({"cluster": cluster, "workload": [{"trace": trace, "unfit": "leave_out"}]}).build()
    assert len(built.tasks) == 3
    assert built.warnings == [
        "stream0: 1 of 4 tasks can never run on this cluster and are left out: task p4 (line 6): "
        "no node has H100; the cluster has cpu, T4, V100M32"
    ]


# Options of all -------------------------------------------------------------------------------------------------


def many(count=400, seed=3):
    rng = np.random.default_rng(seed)
    times = np.sort(rng.integers(0, 100_000, count))
    took = rng.integers(1, 4000, count)
    pairs = enumerate(zip(times, took, strict=True))
    rows = (f"{n + 1} {t} 0 {d} 2 -1 -1 2 {d} -1 1 1 1 -1 1 1 -1 -1" for n, (t, d) in pairs)
    return "\n".join(rows) + "\n"


def test_a_window_begins_at_time_0(read):
    whole, part = read("swf", many()), read("swf", many(), since=20_000.0, until=50_000.0)
    inside = (whole.arrival >= 20_000) & (whole.arrival < 50_000)
    assert part.id.tolist() == whole.id[inside].tolist()
    assert part.arrival.tolist() == (whole.arrival[inside] - 20_000).tolist()
    assert part.extra["recorded_start"].tolist() == part.arrival.tolist()
    assert skipped(part) == {"outside the window": int((~inside).sum())}
    dated = read("philly", FLAT, since=300.0, until=601.0)
    assert dated.arrival.tolist() == [300] and any("time 0 is 2017-10-09 00:05:00" in note for note in dated.notes)
    assert len(read("philly", FLAT, until=300.0)) == 1


def test_a_sample_goes_by_the_id_in_any_order(read):
    lines = many().splitlines()
    some = read("swf", "\n".join(lines), sample=0.3)
    other = read("swf", "\n".join(reversed(lines)), sample=0.3)
    assert sorted(other.id.tolist()) == some.id.tolist()
    assert 0.2 < len(some) / len(lines) < 0.4
    assert read("swf", "\n".join(lines), sample=0.3, sample_seed=1).id.tolist() != some.id.tolist()
    larger = set(read("swf", "\n".join(lines), sample=0.6).id.tolist())
    assert larger.issuperset(some.id.tolist())


@pytest.mark.slow
def test_a_sample_keeps_the_shape_of_the_load(read):
    """Of 20,000 jobs 20 % are left; each tenth of the time has its share of them, within 5 standard deviations."""
    whole, some = read("swf", many(20_000)), read("swf", many(20_000), sample=0.2)
    edges = np.linspace(0, 100_000, 11)
    expected = 0.2 * np.histogram(whole.arrival, edges)[0]
    assert (np.abs(np.histogram(some.arrival, edges)[0] - expected) < 5 * np.sqrt(0.8 * expected)).all()


def test_time_scale_moves_arrivals_and_keeps_waits(read):
    slow, fast = read("openb"), read("openb", time_scale=0.5)
    assert fast.arrival.tolist() == (slow.arrival / 2).tolist()
    waits = [(table.extra["recorded_start"] - table.arrival).tolist() for table in (slow, fast)]
    assert waits[0] == waits[1]


@pytest.mark.parametrize("load", [0.2, 0.9])
def test_a_load_is_reached(file, load):
    trace = {"format": "swf", "path": str(file(many()))}
    scenario = {"cluster": {"nodes": {"cpus": 16}}, "workload": [{"trace": trace, "load": load}], "policy": "fcfs"}
    tasks = hs.run(scenario).tasks
    work = 2 * tasks["compute"].sum()
    assert work / (16 * (tasks["arrival"].max() - tasks["arrival"].min())) == pytest.approx(load)
    plain = hs.run({**scenario, "workload": [{"trace": trace}]}).tasks
    gaps = np.diff(tasks["arrival"]) / np.diff(plain["arrival"]).clip(1)
    assert np.allclose(gaps[np.diff(plain["arrival"]) > 0], gaps.max())  # the load's shape stays


def test_estimates_are_given_once(file):
    workload = {"trace": {"format": "swf", "path": str(file(SWF))}, "estimates": {"factor": 2}}
    scenario = {"cluster": {"nodes": {"cpus": 8}}, "workload": [workload]}
    with pytest.raises(ScenarioError, match=r"estimates must be given once: .*estimates: perfect"):
        hs.run(scenario)
    workload["trace"]["estimates"] = "perfect"
    built = Scenario.load(scenario).build()
    assert (built.tasks.estimate == 2 * built.tasks.time).all()


def test_ids_that_come_again_get_a_number(read):
    text = SWF.replace("  2  10", "  1  10")
    assert read("swf", text).id.tolist() == ["1", "1#2", "5", "8"]


def test_rows_without_an_id_go_by_their_line(read):
    text = PHILLY.replace('"jobid": "a_1"', '"jobid": null')
    assert read("philly", text).id.tolist() == ["line 2", "a_3"]
    assert read("philly", PHILLY.replace("a_3", "")).id.tolist() == ["a_1", "line 45"]


# As recorded ----------------------------------------------------------------------------------------------------


def test_recorded_starts_and_nodes_are_replayed(file):
    trace = {"format": "kubernetes", "path": str(file(PODS_JSON, "pods.json"))}
    cluster = {"trace": {"format": "kubernetes_nodes", "path": str(file(NODES_JSON, "nodes.json"))}}
    result = hs.run({"cluster": cluster, "workload": [{"trace": trace}], "policy": "as_recorded"}, check=True)
    assert result.tasks["start"].tolist() == [5, 31] and result.tasks["node"].tolist() == ["k1", "k1"]
    assert result.record.notes == {"late_starts": 0, "mean_lateness": 0, "max_lateness": 0, "unknown_nodes": 0}


def test_a_start_that_does_not_fit_is_late(file):
    rows = "id,arrival,cpu_time,cpus,recorded_start,recorded_node\na,0,10,2,1,n1\nb,0,5,1,4,n1\nc,0,5,1,2,nx\nd,3,1,2,,"
    trace = {"format": "tasks", "path": str(file(rows, "t.csv"))}
    scenario = {"cluster": {"nodes": {"count": 2, "cpus": 2}}, "workload": [{"trace": trace}]}
    result = hs.run({**scenario, "policy": "as_recorded"}, check=True)
    found = result.tasks.set_index("id")
    assert found["start"].to_dict() == {"a": 1, "b": 11, "c": 2, "d": 7}
    assert found["node"].to_dict() == {"a": "n1", "b": "n1", "c": "n0", "d": "n0"}
    assert result.record.notes == {
        "late_starts": 1, "mean_lateness": pytest.approx(7 / 3), "max_lateness": 7, "unknown_nodes": 1,
    }  # fmt: skip
    free = hs.run({**scenario, "policy": {"name": "as_recorded", "nodes": False}}, check=True)
    assert free.record.notes["late_starts"] == 0


def test_as_recorded_needs_a_record(file):
    trace = {"format": "tasks", "path": str(file("arrival,cpu_time\n0,1\n", "t.csv"))}
    with pytest.raises(ScenarioError, match="as_recorded needs a trace with the starts of tasks"):
        hs.run({"cluster": {"nodes": {"cpus": 1}}, "workload": [{"trace": trace}], "policy": "as_recorded"})


def test_validate_prints_simulated_beside_recorded(file):
    pods, nodes = file(PODS, "pods.csv"), file(NODES.replace("262144,2", "262144,3"), "nodes.csv")
    outcome = command("trace", "validate", pods, "--format", "openb", "--cluster", f"openb_nodes:{nodes}", "--json")
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    assert found["tasks"] == 4
    assert found["metrics"]["wait_mean"] == {"recorded": 1.25, "simulated": 1.25}
    expected = (115 + 46 + 40) / 7 / 120  # GPU seconds on 7 GPUs in 120 s
    assert found["metrics"]["allocation"] == pytest.approx({"recorded": expected, "simulated": expected})
    text = command("trace", "validate", pods, "--format", "openb", "--cluster", f"openb_nodes:{nodes}")
    assert "wait mean" in text.stdout and "late starts" in text.stdout
    replay = ("trace", "validate", pods, "--format", "openb", "--cluster", f"openb_nodes:{nodes}", "--json")
    other = command(*replay, "--policy", "fcfs")
    assert json.loads(other.stdout)["metrics"]["wait_mean"] == {"recorded": 1.25, "simulated": 0.0}
    wrong = command("trace", "validate", pods, "--format", "openb", "--cluster", nodes.name)
    assert wrong.exit_code == 2 and "FORMAT:FILE" in wrong.output


# The command line -----------------------------------------------------------------------------------------------


def test_inspect_tells_sizes_load_and_what_was_left_out(file, tmp_path):
    path = file(PODS, "pods.csv")
    outcome = command("trace", "inspect", path, "--format", "openb", "--json", "--picture", tmp_path / "p.png")
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    assert [(row["gpus"], row["tasks"]) for row in found["sizes"]] == [("none", 1), ("fraction", 1), ("1", 1), ("2", 1)]
    assert found["fractions"] == pytest.approx(1 / 3) and found["gangs"] == pytest.approx(1 / 3)
    load = found["load"]
    assert sum(load["jobs"]) == 4 and load["stretch"] == pytest.approx(40 / 48)
    held = sum(load["gpus"]) * load["stretch"]  # until 40: the first pod from 5 on, 0.46 of a GPU from 10 on
    assert held == pytest.approx(35 + 0.46 * 30)
    assert "never started (Pending)" in outcome.stderr
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    text = command("trace", "inspect", path, "--format", "openb").stdout
    assert "of the tasks on GPUs 33.3 % take a fraction, 33.3 % are gangs" in text and "GPUs held" in text


@pytest.mark.parametrize("form", [name for name in EXAMPLES if name != "wfformat"])
def test_converted_tasks_are_the_same_tasks(file, read, form, tmp_path):
    options = ["--option", f"throughputs={file(THROUGHPUTS, 'th.json')}"] if form == "gavel" else []
    target = tmp_path / "tasks.parquet"
    outcome = command("trace", "convert", file(EXAMPLES[form]), target, "--format", form, *options)
    assert outcome.exit_code == 0, outcome.output
    first, second = read(form), task_table.read(target)
    assert second.arrival.tolist() == first.arrival.tolist()
    for kind in ("times", "estimates", "numbers", "extra"):
        one, other = getattr(first, kind), getattr(second, kind)
        assert set(one) == set(other), kind
        for name, values in one.items():
            assert [str(value) for value in other[name]] == [str(value) for value in values], name
    for kind in ("class_", "user", "devices"):
        one, other = getattr(first, kind), getattr(second, kind)
        assert (one is None) == (other is None) and (one is None or one.tolist() == other.tolist()), kind


def test_formats_are_listed():
    for what, names in (("traces", EXAMPLES), ("clusters", registry.table("clusters"))):
        outcome = command("list", what)
        assert outcome.exit_code == 0 and all(f"  {name} " in outcome.stdout for name in names)
        assert "cannot be loaded" not in outcome.stdout


# Damage ---------------------------------------------------------------------------------------------------------

BROKEN = {
    "acme": (ACME, "submit_time", ",16,", ",-16,", 't.txt:2: column gpu_num: "-16" is negative'),
    "alibaba_spot": (SPOT, "duration", "50,20", "-50,20", 't.txt:3: column submit_time: "-50" is negative'),
    "flat": (FLAT, "num_gpus", "60.0,2", "-60.0,2", 't.txt:2: column duration: "-60.0" is negative'),
    "helios": (HELIOS, "gpu_num", "18:41:11", "18:71:11",
               't.txt:2: column start_time: "2020-06-09 18:71:11" is not a time such as 2020-06-09 18:41:01'),
    "openb": (PODS, "num_gpu", "0,120,5", "-3,120,5", 't.txt:2: column creation_time: "-3" is negative'),
    "pai": (TASKS, "", "100.0,200.0", "-100.0,200.0", 't.txt:1: column start_time: "-100.0" is negative'),
    "slurm": (SACCT, "Submit", "mem=64G", "mem=-64G",
              't.txt:2: column AllocTRES, ReqTRES: "mem=-64G" is not a resource with an amount'),
    "swf": (SWF, "", "  1   0   5", "  1  -9   5", "t.txt:4: column submit: -9 is negative"),
    "gavel": (TEN, "", "\t80\t", "\t-80\t", 't.txt:1: column steps: "-80" is negative'),
}  # fmt: skip


@pytest.mark.parametrize("form", LINES)
def test_a_bad_cell_is_told_with_its_line(complaints, form):
    text, _, old, new, message = BROKEN[form]
    assert old in text
    assert message in complaints(form, text.replace(old, new))[0]


@pytest.mark.parametrize("form", [form for form in LINES if BROKEN[form][1]])
def test_a_missing_column_is_told(complaints, form):
    text, column = BROKEN[form][:2]
    found = complaints(form, text.replace(column, "x_" + column, 1))
    assert found[0].startswith(f't.txt:1: no column "{column}"; did you mean "x_{column}"?')


@pytest.mark.parametrize("form", [form for form in LINES if BROKEN[form][1]])
def test_a_wrong_separator_is_told(complaints, form):
    own = "|" if form == "slurm" else ","
    text = BROKEN[form][0].replace(",", ".") if own == "|" else BROKEN[form][0]
    message = f"t.txt:1: its columns are separated by semicolons; use {'bars' if own == '|' else 'commas'}"
    assert complaints(form, text.replace(own, ";")) == [message]


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("swf", SWF.replace(" ", ","), "t.txt:4: the line has 1 field; there must be 18"),
        ("swf", SWF.replace("  8  200", " 8x 200"), 't.txt:4: column 8 (requested processors): "8x" is not a '
                                                    'usable number'),
        ("swf", SWF.replace("  8  200", " nan 200"), 't.txt:4: column 8 (requested processors): "nan" is not a '
                                                     'usable number'),
        ("pai", TASKS.replace(",", ";"), "t.txt:1: the row has 1 cell; there must be 10"),
        ("gavel", TEN.replace("\t", ","), "t.txt:1: the row has 1 columns separated by tabs; there must be 10 or 7"),
        ("openb", PODS.replace("1,460", "1,1460"), "t.txt:3: column num_gpu, gpu_milli: 1 GPUs of 1460 thousandths"),
        ("openb", PODS.replace("p2,500,1024,", "p2,500,"), "t.txt:4: the row has 10 cells; there must be 11"),
        ("slurm", SACCT.replace("00:05:00", "soon"), 't.txt:2: column Timelimit: "soon" is not a time'),
        ("slurm", SACCT.replace("TRES", "TR"), "t.txt:1: must have a column AllocTRES or ReqTRES, which has the cores"),
        ("philly", PHILLY[: len(PHILLY) // 2], "is not JSON"),
        ("philly", PHILLY[:-1].rstrip(), "ends in the middle of its list"),
        ("philly", PHILLY.replace('"attempts"', '"attempt"'), "t.txt:2: must be a job: an object with submitted_time"),
        ("philly", PHILLY.replace("2017-10-07 01:00:30", "soon"), 't.txt:2: column start_time: "soon" is not a time'),
        ("kubernetes", PODS_JSON.replace('"items"', '"pods"'), 'must be JSON: an object with a list "items"'),
        ("kubernetes", PODS_JSON.replace("500m", "half"), 'cannot be read as a pod: "half" is not a quantity'),
        ("kubernetes", PODS_JSON.replace('"spec"', '"specs"'), "t.txt:4: cannot be read as a pod: 'spec'"),
        ("wfformat", json.dumps(WORKFLOW)[:-9], "t.txt:1: is not JSON"),
        ("wfformat", json.dumps(WORKFLOW).replace("10.5", "-10.5"), '"s": runtimeInSeconds: "-10.5" is not a number'),
        ("wfformat", json.dumps(WORKFLOW).replace('"parents": []', '"parents": ["m"]'),
            "the graph has a cycle: these tasks wait for each other:"),
        ("wfformat", json.dumps(WORKFLOW).replace('["s"]', '["q"]'), 'names "q" among its parents: there is none'),
        ("wfformat", json.dumps(WORKFLOW).replace('"1.5"', '"1.3"'), "must be WfFormat 1.5, to which WfCommons "
                                                                     "translates; got"),
    ],
)  # fmt: skip
def test_complaints(complaints, form, text, message):
    assert message in complaints(form, text)[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("[]", "must be an object"),
        ('{"k80": {"A": {"null": 1}}}', "k80: \"A\" is not a key ('job type', scale)"),
        ('{"k80": {"(\'A\', 1)": {"null": -1}}}', "is not a number of steps per second"),
        ('{"k80": {"(\'A\', 1)": {"null": 1, "(\'A\', 1)": 3}}}', "whose value is a list of two speeds"),
    ],
)
def test_complaints_about_throughputs(complaints, file, text, message):
    assert message in complaints("gavel", TEN, throughputs=file(text, "th.json"))[0]


@pytest.mark.parametrize("form", sorted(EXAMPLES))
def test_damaged_archives_and_bytes(complaints, read, form):
    noise = np.random.default_rng(0).integers(32, 127, 50_000, dtype=np.uint8).tobytes()
    whole = gzip.compress(EXAMPLES[form].encode() + noise)
    assert complaints(form, whole[: len(whole) // 2])[0].startswith("t.txt: is damaged: ")
    assert "t.txt: is damaged" in complaints(form, whole[:20] + b"\x00\xff" * 20 + whole[60:])[0]
    middle = len(EXAMPLES[form]) // 2
    broken = EXAMPLES[form].encode()[:middle] + b"\xff" + EXAMPLES[form].encode()[middle:]
    found = complaints(form, broken)
    assert "is not UTF-8 text (byte 0xff); save it as UTF-8" in found[0] and found[0].startswith("t.txt:")
    assert "empty" in complaints(form, "")[0] or "no rows" in complaints(form, "")[0]
    packed = read(form, gzip.compress(EXAMPLES[form].encode()), "t.gz")
    assert packed.arrival.tolist() == read(form).arrival.tolist()


def test_nothing_left_says_why(complaints):
    assert complaints("swf", SWF, since=1e6) == [
        "t.txt: no job of its 7 jobs remains: 4 outside the window; 1 the run time is unknown; "
        "1 canceled before they started; 1 the size is unknown"
    ]
    assert complaints("swf", "; only a header\n") == ["t.txt: has no jobs"]
    steps = "\n".join(line for line in SACCT.splitlines() if "." in line.split("|")[0] or "JobID" in line)
    assert complaints("slurm", steps) == ["t.txt: has no jobs (steps of jobs: 1)"]
    assert complaints("swf", SWF, since=5.0, until=5.0) == ["t.txt: until (5 s) must be after since (5 s)"]


def test_many_complaints_are_counted(complaints):
    found = complaints("swf", "1 2 3\n" * 40)
    assert len(found) == 21 and found[-1] == "t.txt: and 20 more problems"


@examples(200)
@given(content=st.binary(max_size=200) | st.text(max_size=120).map(str.encode), form=st.sampled_from(sorted(EXAMPLES)),
       begin=st.booleans(), cut=st.integers(0, 3000))  # fmt: skip
@pytest.mark.slow
def test_any_bytes_end_in_a_table_or_a_sentence(tmp_path_factory, content, form, begin, cut):
    folder = tmp_path_factory.mktemp("bytes")
    path = folder / "t"
    example = EXAMPLES[form].encode()
    path.write_bytes(example[:cut] + content + (example[cut:] if begin else b""))
    options = {}
    if form == "gavel":
        options["throughputs"] = folder / "throughputs"
        options["throughputs"].write_text(THROUGHPUTS)
    try:
        table = registry.entry("traces", form)(path, **options)
    except ScenarioError as error:
        assert all(problem.file == str(path) for problem in error.problems)
    else:
        assert np.isfinite(table.arrival).all() and all((values >= 0).all() for values in table.times.values())


LARGE = """
import re
from hetsim.workload.readers import {module}
table = {module}.read({path!r}, **{options!r})
print(len(table), re.search("VmHWM: *([0-9]+)", open("/proc/self/status").read().replace(chr(9), " "))[1])
"""
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the most memory is told by Linux only")


def memory_of(module, path, **options):
    """Tasks and most memory (bytes) of reading a file in a process of its own."""
    code = LARGE.format(module=module, path=str(path), options=options)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, peak = map(int, done.stdout.split())
    return count, peak * 1024


def large_swf(path, lines):
    with gzip.open(path, "wt", compresslevel=1) as stream:
        for start in range(0, lines, 10_000):
            rows = (f"{n} {n} 3 60 8 -1 -1 8 90 -1 1 7 2 -1 1 1 -1 -1\n" for n in range(start, start + 10_000))
            stream.write("".join(rows))


@linux
@pytest.mark.slow
def test_a_large_log_takes_memory_only_for_what_is_kept(tmp_path):
    """100,000 lines: a window of them takes what the program itself does, all of them less than 400 bytes a job.

    What keeps all takes 13 MB more.
    """
    path = tmp_path / "large.swf.gz"
    large_swf(path, 100_000)
    large_swf(tmp_path / "small.swf.gz", 10_000)
    _, base = memory_of("swf", tmp_path / "small.swf.gz", until=1000.0)
    few, windowed = memory_of("swf", path, until=1000.0)
    assert few == 1000 and windowed < base + 5e6
    some, sampled = memory_of("swf", path, sample=0.01)
    assert 800 < some < 1200 and sampled < base + 8e6
    count, peak = memory_of("swf", path)
    assert count == 100_000 and (peak - base) / count < 400


@linux
@pytest.mark.slow
def test_a_large_json_log_is_read_job_by_job(tmp_path):
    """A file of 20 MB takes less than 5 MB more than one of 1 MB; what keeps all jobs takes 8 MB more."""
    job = json.dumps(json.loads(PHILLY)[0], indent=1)
    peaks = []
    for jobs in (2_000, 40_000):
        path = tmp_path / f"{jobs}.json"
        with path.open("w") as stream:
            stream.write("[\n")
            for number in range(jobs):
                stream.write(job.replace("a_1", f"a_{number}") + (",\n" if number < jobs - 1 else "\n]\n"))
        count, peak = memory_of("philly", path, sample=0.01)
        assert 0.6 < count / jobs / 0.01 < 1.4
        peaks.append(peak)
    assert path.stat().st_size > 20e6
    assert peaks[1] - peaks[0] < 5e6


# Excerpts of real traces ----------------------------------------------------------------------------------------


@public
@pytest.mark.parametrize(
    ("form", "name", "tasks", "options"),
    [
        ("swf", "swf/RICC-2010-2_first3000.swf", 3000, {}),
        ("swf", "swf/lublin_256_first1000.swf", 1000, {}),
        ("openb", "openb/openb_pod_list_default_first2000.csv", 1842, {}),
        ("openb", "openb/openb_pod_list_gpuspec33_first2000.csv", 1811, {"since": 9_961_302.0}),
        ("philly", "philly/philly_flat_2017-10-09_to_11.csv", 5998, {}),
        ("philly", "schema_samples/philly/cluster_job_log.json", 1, {}),
        ("helios", "schema_samples/helios/cluster_log.csv", 3, {}),
        ("acme", "schema_samples/acme/trace_kalos.csv", 2, {}),
        ("acme", "schema_samples/acme/trace_seren.csv", 2, {}),
        ("alibaba_spot", "schema_samples/spot_gpu_2026/job_info_df.csv", 4, {}),
        ("pai", "schema_samples/pai_2020/pai_task_table.csv", 1, {
            "jobs": PUBLIC / "schema_samples/pai_2020/pai_job_table.csv",
            "instances": PUBLIC / "schema_samples/pai_2020/pai_instance_table.csv"}),
        ("gavel", "gavel/small_test.trace", 20, {"throughputs": PUBLIC / "gavel/simulation_throughputs_isolated.json"}),
        ("gavel", "gavel/msr_seed0_e13805.trace", 504,
         {"throughputs": PUBLIC / "gavel/simulation_throughputs_isolated.json"}),
        ("wfformat", "wfformat/montage-chameleon-dss-05d-001.json", 58, {}),
        ("wfformat", "wfformat/srasearch-chameleon-10a-001.json", 22, {}),
    ],
)  # fmt: skip
def test_public_excerpts(form, name, tasks, options):
    table = registry.entry("traces", form)(PUBLIC / name, **options)
    assert len(table) == tasks
    assert (table.arrival >= 0).all()


@public
@pytest.mark.slow
def test_the_public_cluster_replays_its_public_record():
    nodes, pods = PUBLIC / "openb/openb_node_list_all_node.csv", PUBLIC / "openb/openb_pod_list_default_first2000.csv"
    outcome = command(
        "trace", "validate", pods, "--format", "openb", "--option", "since=9961302 s", "--json",
        "--cluster", f"openb_nodes:{nodes}",
    )  # fmt: skip
    found = json.loads(outcome.stdout)
    assert found["notes"]["late_starts"] == 0 and found["tasks"] == 1811
    cluster = cluster_of("openb_nodes", nodes)
    assert len(cluster.nodes) == 1523 and sum(len(node.accelerators) for node in cluster.nodes) == 6212
    assert sum(len(node.accelerators) for node in cluster_of("philly_vc", PUBLIC / "philly/philly_vc.csv").nodes) > 0
