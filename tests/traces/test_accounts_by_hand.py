"""Small logs of each kind of account, and all that is read of them, worked out by hand.

Every cell has a value of its own, so that none can be taken for another.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.workload.readers import snapshot
from hetsim.workload.readers.request_tables import _elapsed, _ids, nanoseconds_of
from hetsim.workload.rows.job_log import JobLog, LogCut
from hetsim.workload.traces import TaskTable

INF, NAN = math.inf, math.nan
GIB = 2.0**30


def read(folder: Path, form: str, text: str, **options: Any) -> TaskTable:
    path = folder / "log"
    path.write_text(text)
    table: TaskTable = registry.entry("traces", form)(path, **options)
    return table


def columns_of(table: TaskTable) -> dict[str, list[Any]]:
    """All columns, and the lines from which the rows are."""
    labels = {"id": table.id, "class": table.class_, "user": table.user, "devices": table.devices}
    columns = {"arrival": table.arrival, **table.times, **table.numbers, **labels, **table.extra}
    return {"line": [table.line(row) for row in range(len(table))],
            **{name: values.tolist() for name, values in columns.items() if values is not None}}  # fmt: skip


def notes_of(table: TaskTable) -> list[str]:
    return [note.replace(table.source, "").removeprefix(": ") for note in table.notes]


def same(columns: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    assert columns.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(columns[name], values, err_msg=name)


def sge_row(**cells: str) -> str:
    row = [f"c{n}" for n in range(45)]
    row[8:11] = ["100", "160", "460"]
    row[34:36], row[39], row[41] = ["6", "0"], "-l h_rt=3600,gpu=2", "NONE"
    for name, value in cells.items():
        row[int(name[1:])] = value
    return ":".join(row) + "\n"


def test_grid_engine(tmp_path: Path):
    """A job; an element of an array in ms; one that never started; a part of another; one whose id comes again."""
    ms = {"_8": "1700000000123", "_9": "1700000010000", "_10": "1700000070999"}
    text = "# head\n\n" + sge_row() + sge_row(_35="7", _39="-U x", **ms) + sge_row(_9="0") + sge_row(_41="1.n2")
    table = read(tmp_path, "sge", text + sge_row(_39="-l gpus=3", _41="", _8="110"))
    same(columns_of(table), {
        "line": [3, 4, 7], "id": ["c5", "c5.7", "c5#2"], "arrival": [0, 1_699_999_900, 10],
        "gpu_time": [300, INF, 300], "cpu_time": [INF, 60, INF], "gpus": [2, 0, 3], "cpus": [6, 6, 6],
        "user": ["c3"] * 3, "queue": ["c0"] * 3, "account": ["c31"] * 3, "status": ["c12"] * 3,
        "recorded_node": ["c1"] * 3, "recorded_start": [60, 1_699_999_910, 60], "time_limit": [3600, NAN, NAN],
    })  # fmt: skip
    assert notes_of(table) == [
        "time 0 is 1970-01-01 00:01:40",
        "1 rows that are not separate jobs: parts of parallel jobs (first: line 6)",
        "1 of 4 jobs left out: never started (first: line 5)",
        "1 ids are repeated; these jobs are named id#2, id#3, ...",
    ]  # fmt: skip


PBS = """\
06/01/2026 08:00:00;Q;1.s;queue=q
06/01/2026 08:00:10;S;1.s;user=ann queue=q ctime=1780300800 start=1780300810 exec_vnode=(n1:ncpus=4:ngpus=2)
06/01/2026 08:10:10;E;1.s;user=ann queue=q account="x y" ctime=1780300800 start=1780300810 end=1780301410 \
exec_vnode=(n1:ncpus=4:ngpus=2)+(n2:ncpus=2) Resource_List.walltime=01:00:00 Resource_List.mem=4gb Exit_status=0
06/01/2026 08:10:11;Q;2.s;queue=q
06/01/2026 08:10:12;D;2.s;queue=q
06/01/2026 08:10:13;Q;3.s;queue=q
06/01/2026 08:10:13;S;4.s;start=1780301413
06/01/2026 08:20:13;R;4.s;user=ben exec_host=n7/0*8+n8/0-3 Resource_List.ngpus=3 project=p Resource_List.mem=512KB
06/01/2026 08:20:14;S;4.s;start=1780302014
06/01/2026 08:20:14;E;5[].s;start=1780302014
06/01/2026 08:30:14;E;6.s;user=cy start=1780302014 end=1780302614 exec_host=n1/0+n1/1 \
Resource_List.nodes=2:ppn=8:gpus=4+n7:ppn=1 Resource_List.mem=100w
06/01/2026 08:30:14;E;7.s;user=cy start=1780302014 end=1780302614 exec_host=n1/0+n1/1
"""


def test_a_submission_without_a_value_is_named_by_its_line(tmp_path: Path):
    text = PBS.replace("ctime=1780300800 start=1780300810 end", "ctime=nan start=1780300810 end")
    with pytest.raises(ScenarioError, match=r":3: the job has no time of submission"):
        read(tmp_path, "pbs", text)


def test_pbs(tmp_path: Path):
    """Units of PBS are powers of 1,024, words have 8 bytes.

    The clock of the server is that of the instants, so that 4 ends at 8:20:13.
    """
    table = read(tmp_path, "pbs", PBS)
    same(columns_of(table), {
        "line": [3, 8, 11, 12], "id": [1, 4, 6, 7], "arrival": [0, 613, 1214, 1214],
        "gpu_time": [600, 600, 600, INF], "cpu_time": [INF, INF, INF, 600],
        "gpus": [2, 3, 2 * 4, 0], "cpus": [4 + 2, 8 + 4, 2 * 8 + 1, 2], "memory": [4 * GIB, 512 * 1024, 800, NAN],
        "user": ["ann", "ben", "cy", "cy"], "queue": ["q", "", "", ""], "account": ["x y", "p", "", ""],
        "status": ["0", "R", "E", "E"], "recorded_node": ["n1|n2", "n7|n8", "n1", "n1"],
        "recorded_start": [10, 613, 1214, 1214], "time_limit": [3600, NAN, NAN, NAN],
    })  # fmt: skip
    assert notes_of(table) == [
        "time 0 is 2026-06-01 08:00:00", "1 rows that are not separate jobs: arrays as a whole (first: line 10)",
        "2 of 7 jobs left out: never started (first: line 4)", "1 of 7 jobs left out: no end (first: line 9)",
    ]  # fmt: skip


def test_the_clock_of_a_pbs_server_east_of_greenwich(tmp_path: Path):
    """Dates of records are local: two hours ahead, as the start that is told in both ways shows."""
    text = "06/01/2026 10:10:13;S;4.s;start=1780301413\n06/01/2026 10:20:13;A;4.s;user=ben exec_host=n7/0\n"
    table = read(tmp_path, "pbs", text)
    assert table.times["cpu_time"].tolist() == [600]
    for date, wrong in (("13/01/2026 10:20:13", "is not a date such as"), ("", "is not a record such as")):
        with pytest.raises(ScenarioError, match=wrong):
            read(tmp_path, "pbs", text.replace("06/01/2026 10:20:13", date).replace(";A;", ";A;" if date else ";AB;"))


def lsb_row(asked: list[str], hosts: list[str], status: str = "64", index: str = "0", name: str = "job",
            **cells: str) -> str:  # fmt: skip
    row = ["JOB_FINISH", *(f"c{n}" for n in range(1, 22))]
    for place, value in {2: "700", 3: "9", 6: "3", 7: "100", 10: "160"}.items():
        row[place] = value
    for place, value in cells.items():
        row[int(place[1:])] = value
    rest = [f"r{n}" for n in range(9)]
    rest[6] = index
    row += [str(len(asked)), *asked, str(len(hosts)), *hosts, status, "10.0", name, "run", *["0"] * 19, *rest]
    return " ".join(cell if cell.replace(".", "").isdigit() else f'"{cell}"' for cell in row) + "\n"


def test_lsf(tmp_path: Path):
    """Two GPUs on each host; an element of an array, one GPU a host; one that never started; slots without hosts."""
    text = lsb_row(["a1", "a2"], ["n1", "n1", "n2"], _13="rusage[ngpus_physical=2.00]")
    text += lsb_row([], ["2*n3", "n4"], "32", "5", 'a ""b"" num=1') + lsb_row([], [], _10="0") + '"JOB_NEW" "x"\n'
    table = read(tmp_path, "lsf", text + lsb_row([], [], "1", _3="11"))
    same(columns_of(table), {
        "line": [1, 2, 5], "id": ["9", "9[5]", "11"], "arrival": [0, 0, 0], "gpu_time": [540, 540, INF],
        "cpu_time": [INF, INF, 540], "gpus": [4, 2, 0], "cpus": [3, 3, 3], "user": ["c11"] * 3, "queue": ["c12"] * 3,
        "account": ["r1"] * 3, "status": ["DONE", "EXIT", "1"], "recorded_node": ["n1|n2", "n3|n4", ""],
        "recorded_start": [60, 60, 60],
    })  # fmt: skip
    assert notes_of(table)[1:] == ["1 rows that are not separate jobs: events JOB_NEW (first: line 4)",
                                   "1 of 4 jobs left out: never started (first: line 3)"]  # fmt: skip


BACCT = """\
Job <7[2]>, Job Name <x>, User <ann>, Project <p>, Status <DONE>, Queue <g
                     pu>, Command <run>
Thu Jan  1 00:00:00{0}: Submitted from host <login>, CWD <$HOME>, 2 Task(s), Reques
                     ted Resources <rusage[ngpus_physical=2.00]>;
Thu Jan  1 00:01:40{0}: Dispatched 2 Task(s) on Host(s) <n1> <n2>, Allocated 2 Slot
                     (s) on Host(s) <n1> <n2>;
Thu Jan  1 00:11:40{0}: Completed <done>.

Job <8>, User <ben>
Thu Jan  1 00:02:00{0}: Submitted from host <login>;
Thu Jan  1 00:03:00{0}: Completed <exit>; TERM_OWNER: job killed by owner.

Job <9>, User <cy>
Thu Jan  1 00:02:00{0}: Submitted from host <login>;
Thu Jan  1 00:03:00{0}: [1] Dispatched to <2*n3>, Effective RES_REQ <num=4>;
Thu Jan  1 00:04:00{0}: Completed <done>.

Job <10>, User <cy>
Thu Jan  1 00:05:00{0}: Submitted from host <login>;
Thu Jan  1 00:06:00{0}: Dispatched to <n1>;
"""


@pytest.mark.parametrize(("year", "begin"), [(" 2026", "2026-01-01"), (" 2015", "2015-01-01"), ("", "2037-01-01")])
def test_bacct(tmp_path: Path, year: str, begin: str):
    """Without a year the last Thursday up to 2037 that is a 1 January."""
    table = read(tmp_path, "lsf", BACCT.format(year))
    same(columns_of(table), {
        "line": [1, 13], "id": ["7[2]", "9"], "arrival": [0, 120], "gpu_time": [600, 60], "gpus": [4, 4],
        "cpus": [2, 2], "user": ["ann", "cy"], "queue": ["gpu", ""], "account": ["p", ""], "status": ["DONE", ""],
        "recorded_node": ["n1|n2", "n3"], "recorded_start": [100, 180],
    })  # fmt: skip
    assert notes_of(table) == [f"time 0 is {begin} 00:00:00", "1 of 4 jobs left out: never started (first: line 9)",
                               "1 of 4 jobs left out: no end (first: line 18)"]  # fmt: skip


RAY = """[{"task_id": "a", "name": "f", "state": "FINISHED", "creation_time_ms": 1000, "start_time_ms": 2000,
"end_time_ms": 5000, "required_resources": {"CPU": 2, "GPU": 1}, "node_id": "n1"},
{"submission_id": "s", "job_id": "j", "status": "FAILED", "start_time": 4000, "end_time": 9000,
"entrypoint_num_cpus": 3, "driver_node_id": "n2"},
{"job_id": "k", "start_time": 4000, "end_time": 6000, "entrypoint_num_gpus": 0.5},
{"job_id": "l", "start_time": 4000}, {"job_id": "m"}]
"""


def test_ray(tmp_path: Path):
    columns = columns_of(read(tmp_path, "ray", RAY))
    del columns["line"]
    same(columns, {
        "id": ["a", "s", "k"], "arrival": [0, 3, 3], "gpu_time": [3, INF, 2], "cpu_time": [INF, 5, INF],
        "gpus": [1, 0, 0.5], "cpus": [2, 3, 0], "class": ["f", "", ""], "recorded_start": [1, 3, 3],
        "status": ["FINISHED", "FAILED", ""], "recorded_node": ["n1", "n2", ""],
    })  # fmt: skip
    with pytest.raises(ScenarioError, match="is not an object with start_time_ms"):
        read(tmp_path, "ray", RAY.replace('{"job_id": "m"}', "7"))


DLRM = """\
instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,\
memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time
a,HN,x,8,80,2,20,50,500,16,160,0,0,3,100,160,400
b,CN,y,4,4,0,0,,,1,1,0,0,-1,,,900
c,CN,y,4,4,0,0,,,1,1,0,0,,200,,
d,HN,z,0,0,0.5,0.5,1,1,2,2,0,0,0,200,210,NaN
e,CN,z,0,0,0,0,1,1,2,2,0,0,0,200,210,300
f,CN,z,1,0,0,0,1,1,2,2,0,0,0,200,310,300
"""


def test_services_of_alibaba(tmp_path: Path):
    """The trace ends at 900, its latest time, unless that is given: until then d stays."""
    table = read(tmp_path, "alibaba_dlrm", DLRM)
    expected = {
        "line": [2, 3, 5], "id": ["a", "b", "d"], "arrival": [100, 0, 200], "gpu_time": [240, INF, 690],
        "cpu_time": [INF, 900, INF], "cpus": [8, 4, 0], "gpus": [2, 0, 0.5], "memory": [16 * GIB, GIB, 2 * GIB],
        "class": ["HN", "CN", "HN"], "user": ["x", "y", "z"], "recorded_start": [160, 0, 210], "rdma": [50, NAN, 1],
        "max_per_node": [3, NAN, NAN],
    }  # fmt: skip
    same(columns_of(table), expected)
    assert notes_of(table) == [
        "1 of 6 jobs left out: never started (first: line 4)",
        "1 of 6 jobs left out: neither a GPU nor a core (first: line 6)",
        "1 of 6 jobs left out: ended before they began (first: line 7)",
        "1 of 6 jobs existed before the trace began; they arrive at time 0 (first: line 3)",
        "1 of 6 jobs existed when the trace ended; they run until then (first: line 5)",
    ]
    same(columns_of(read(tmp_path, "alibaba_dlrm", DLRM, end=1000)), {**expected, "gpu_time": [240, INF, 790]})
    bad = ((",8,80", ",x,80", "cpu_request"), (",50,500", ",x,500", "rdma_request"),
           (",16,160", ",-1,160", "memory_request"), (",0,3,100", ",0,-2,100", "max_instance_per_node"),
           (",2,20", ",1.5,20", "gpu_request"), (",100,160", ",100,x", "scheduled_time"))  # fmt: skip
    for cell, wrong, column in bad:
        with pytest.raises(ScenarioError, match=column) as caught:
            read(tmp_path, "alibaba_dlrm", DLRM.replace(cell, wrong))
        assert "log:2:" in str(caught.value)


def test_spot_jobs_of_alibaba(tmp_path: Path):
    head = "job_name,organization,gpu_model,cpu_request,gpu_request,worker_num,submit_time,duration,job_type\n"
    text = head + "a,o1,A100,4,2,3,10,100,HP\nb,o2,H800,2,0.5,1,20,50,Spot\nc,o3,A10,8,0,2,30,60,spot\n"
    same(columns_of(read(tmp_path, "alibaba_spot", text)), {
        "line": [2, 3, 4], "id": ["a", "b", "c"], "arrival": [10, 20, 30], "gpu_time": [100, 50, INF],
        "cpu_time": [INF, INF, 60], "gpus": [6, 0.5, 0], "cpus": [12, 2, 16], "priority": [1, 0, 0],
        "class": ["HP", "Spot", "spot"], "user": ["o1", "o2", "o3"], "devices": ["A100", "H800", ""],
    })  # fmt: skip
    for row in ("a,o,A,4,0.5,3,1,1,HP", "a,o,A,4,1.5,1,1,1,HP", "a,o,A,4,1,0,1,1,HP", "a,o,A,4,1,1.5,1,1,HP"):
        with pytest.raises(ScenarioError, match="are not a gang of whole GPUs"):
            read(tmp_path, "alibaba_spot", f"{head}{row}\n")
    assert read(tmp_path, "alibaba_spot", f"{head}a,o,A,4,0.5,2,1,1,HP\n").numbers["gpus"].tolist() == [1]


# PAI --------------------------------------------------------------------------------------------------------------

TASKS = """\
j1,worker,2,Terminated,100,400,600,30,200,V100
j1,ps,3,Terminated,100,300,150,10,0,
j2,worker,2,Failed,50,80,100,4,25,MISC
j3,worker,1,Terminated,90,60,100,4,100,T4
j4,worker,1,Running,90,,100,4,100,T4
j5,worker,1,Terminated,10,20,0,4,0,T4
"""


def test_pai(tmp_path: Path):
    """Whole GPUs times instances are one gang, fractions a job each; amounts are hundredths of cores and GPUs, and GB.

    The instances of j1/worker began at 110 and ended at 450, on two machines; those of j1/ps on m1.
    """
    (tmp_path / "jobs").write_text("j1,i1,ann,Terminated,20,500\nj2,i2,ben,Failed,60,80\n")
    instances = ("worker,x,w1,i,Ready,120,450,m1", "worker,x,w2,i,Ready,110,400,m2", "ps,x,w3,i,Ready,130,230,m1",
                 "ps,x,w3,i,Ready,,,m9")  # fmt: skip
    (tmp_path / "instances").write_text("".join(f"j1,{text}\n" for text in instances))
    table = read(tmp_path, "pai", TASKS, jobs=tmp_path / "jobs", instances=tmp_path / "instances")
    same(columns_of(table), {
        "line": [1, 2, 2, 2, 3, 3], "arrival": [20, 20, 20, 20, 50, 50], "gpu_time": [340, INF, INF, INF, 30, 30],
        "id": ["j1/worker", "j1/ps/0", "j1/ps/1", "j1/ps/2", "j2/worker/0", "j2/worker/1"],
        "cpu_time": [INF, 100, 100, 100, INF, INF], "gpus": [4, 0, 0, 0, 0.25, 0.25],
        "cpus": [12, 1.5, 1.5, 1.5, 1, 1], "memory": [60e9, 10e9, 10e9, 10e9, 4e9, 4e9],
        "user": ["ann"] * 4 + ["ben"] * 2, "class": ["worker", "ps", "ps", "ps", "worker", "worker"],
        "devices": ["V100", "", "", "", "", ""], "recorded_start": [110, 130, 130, 130, 50, 50],
        "status": ["Terminated"] * 4 + ["Failed"] * 2, "recorded_node": ["", "m1", "m1", "m1", "", ""],
    })  # fmt: skip
    assert notes_of(table) == [
        "1 of 9 jobs left out: ended before they began (first: line 4)",
        "1 of 9 jobs left out: no start or no end (Running) (first: line 5)",
        "1 of 9 jobs left out: planned neither cores nor GPUs (first: line 6)",
    ]
    alone = read(tmp_path, "pai", TASKS)
    assert alone.arrival.tolist() == [100, 100, 100, 100, 50, 50] and alone.times["gpu_time"][0] == 300
    for gpus, count, fine in (("100", "2", True), ("101", "1", False), ("200", "1", True), ("150", "1", False),
                              ("99", "1", True), ("100", "0", False), ("100", "1.5", False)):  # fmt: skip
        row = f"j1,worker,{count},Terminated,100,400,600,30,{gpus},V100\n"
        if fine:
            assert read(tmp_path, "pai", row).numbers["gpus"].tolist() == [float(gpus) / 100 * int(count)]
            continue
        with pytest.raises(ScenarioError, match=f'"{count}" instances of "{gpus}" hundredths of a GPU'):
            read(tmp_path, "pai", row)


# Cells ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stamp", "nanoseconds"), [
    ("1970-01-01 00:00:00", 0), ("1970-01-01T00:00:01.5Z", 1_500_000_000), ("1970-01-02 00:01:00", 86_460 * 10**9),
    ("1970-01-01 23:59:59.000000007", 86_399 * 10**9 + 7), ("2243-10-16 00:00:00+00:00", 99_999 * 86_400 * 10**9),
    ("2243-10-17 00:00:00", None), ("1969-12-31 23:59:59", None), ("2026-01-01 24:00:00", None),
    ("2026-01-01 00:60:00", None), ("2026-01-01 00:00:60", None), ("2026-02-30 00:00:00", None), ("2026", None),
])  # fmt: skip
def test_time_stamps(stamp: str, nanoseconds: int | None):
    value, wrong = nanoseconds_of(stamp)
    assert bool(wrong) == (nanoseconds is None)
    assert nanoseconds is None or value == nanoseconds


def test_cells_of_requests():
    assert _elapsed("0") == (0, "") and _elapsed("2.5") == (2.5, "") and math.isnan(_elapsed("")[0])
    assert [bool(_elapsed(cell)[1]) for cell in ("", "-0.1", "x", "1e3")] == [False, True, True, False]
    assert _ids("") == ((), "") and _ids("1;22") == ((1, 22), "")
    assert all(_ids(cell)[1] for cell in ("1;", "-1", "x", "9" * 20))


@pytest.mark.parametrize(("text", "gpus"), [
    ("gres:gpu:a100:2", (2, "a100")), ("gres/gpu=2", (2, "")), ("gres/gpu", (1, "")), ("N/A", (0, "")),
    ("cpu=4,gres/gpu=3,gres/gpu:a100=3", (3, "a100")), ("gpu:a100:2,gpu:v100:1", (3, "")), ("gpu:a100", (1, "a100")),
    ("gres:gpu:2(S:0-1)", (2, "")), ("gres:gpu:a100:0,gres:gpu:t4:1", (1, "t4")), ("gpus=2", (0, "")),
])  # fmt: skip
def test_gpus_of_a_waiting_job(text: str, gpus: tuple[float, str]):
    assert snapshot.gpus_of(text) == gpus


def test_counts_and_arrays_of_squeue(tmp_path: Path):
    """Tasks of an array; the first 10,000 of a long one, over all its pieces."""
    assert [snapshot._plain(text) for text in ("7", "2K", "1.5M", "1G")] == ["7", "2048", "1572864", str(2**30)]
    (tmp_path / "log").write_text("x\n")
    log, found = JobLog(tmp_path / "log", LogCut()), snapshot.Snapshot(tmp_path, [])

    def ids(text: str) -> list[str]:
        return snapshot._ids(log, found, 1, text)

    assert ids("12") == ["12"]
    assert ids("12_[1-3,7%2]") == ["12_1", "12_2", "12_3", "12_7"]
    assert ids("12_[1-8:3]") == ["12_1", "12_4", "12_7"] and ids("12_[4-5:0]") == ["12_4", "12_5"]
    assert found.remarks == []
    assert ids("12_[1,3,5...]") == ["12_1", "12_3"]
    assert ids("7_[0-5999,8000-19999]") == [f"7_{n}" for n in (*range(6000), *range(8000, 12000))]
    assert ids("8_[1-9999]")[-1] == "8_9999" and len(found.remarks) == 2
    assert found.remarks[1] == "only the first 10,000 tasks of array 7 are read"
    assert ids("12_[x]") == ids("12_[1-]") == []
    with pytest.raises(ScenarioError, match="is not a job or array such as"):
        log.row_problems.fail_if_any()


SQUEUE = """\
JOBID|PARTITION|USER|ACCOUNT|QOS|STATE|SUBMIT_TIME|START_TIME|TIME_LIMIT|CPUS|TRES_PER_NODE|NODES|NODELIST|REASON|PRIORITY
1|p|ann|lab|high|RUNNING|1970-01-01T00:00:10|1970-01-01T00:00:20|10:00|8|gres:gpu:a100:2|2|n[1-2]|None|7
2|p,q|ben|lab||PENDING|1970-01-01T00:01:00|1970-01-01T01:00:00|UNLIMITED|2K|gpu:1|1-4||Resources|8
3_[1-2]|q|cy|||PD|1970-01-01T00:02:00|N/A|1-00:00:00|4|N/A|1||Priority|9
4|q|cy|||PENDING|1970-01-01T00:02:00|N/A|10:00|4|N/A|1||JobHeldUser|9
5|q|cy|||RH|1970-01-01T00:02:00|N/A|10:00|4|N/A|1||None|9
6|q|cy|||CD|1970-01-01T00:02:00|N/A|10:00|4|N/A|1||None|9
2|q|ben|lab||PENDING|1970-01-01T00:01:00|N/A|10:00|2|N/A|1||Resources|8
7|q|di|||CG|1970-01-01T00:00:30|1970-01-01T00:05:00|10:00|1|N/A|1|n2|None|
"""
WHERE = {"n1": ["p"], "n2": ["p", "q"]}


def snapshot_of(folder: Path, text: str) -> snapshot.Snapshot:
    (folder / "squeue").write_text(text)
    return snapshot.read(folder / "squeue", WHERE)


def test_a_snapshot(tmp_path: Path):
    """Two nodes of 2 GPUs are 4; 2K cores are 2,048; a task for each of an array; the first line of a job counts."""
    found = snapshot_of(tmp_path, SQUEUE)
    one, two, *array, last = found.jobs
    assert one == snapshot.SnapshotJob(
        "1", 2, "ann", "p", 10.0, 20.0, 600.0, 8.0, gpus=4.0, gpu_type="a100", nodes=("n1", "n2"), account="lab",
        qos="high", priority=7.0, expected=one.expected, count=2.0)  # fmt: skip
    assert math.isnan(one.expected) and one.runs and one.group == "p"
    assert (two.id, two.partition, two.limit, two.cpus) == ("2", "p", INF, 2048)
    assert (two.gpus, two.gpu_type, two.count) == (1, "", 1)
    assert (two.expected, two.submit, two.priority, two.nodes, two.runs) == (3600, 60, 8, (), False)
    assert [(job.id, job.line, job.limit, job.gpus) for job in array] == [("3_1", 4, 86400, 0), ("3_2", 4, 86400, 0)]
    assert all(math.isnan(job.expected) for job in array)
    assert (last.id, last.start, last.nodes) == ("7", 300, ("n2",)) and math.isnan(last.priority)
    assert found.latest == 300
    assert found.left_out == {"they wait for another reason than capacity (JobHeldUser)": 1,
                              "they wait for another reason than capacity (RH)": 1, "already ended": 1,
                              "they are listed before, in another partition": 1}  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), [
    ("n[1-2]", "n[1-3]", r'squeue:2: column NODELIST: the cluster has no node "n3"'),
    ("|n2|", "|node2|", 'no node "node2"'), ("p|ann", "px|ann", 'the cluster has no partition "px"; did you mean'),
    ("1970-01-01T00:00:20", "N/A", "a running job must have a start"),
    ("RUNNING", "RUNING", '"RUNING" is not a known state of a job; did you mean'),
    ("7|q|di", "1|q|di", "job 1 is also in line 2"), ("STATE|", "STAT|", 'no column "STATE"'),
    ("|8|gres", "|x|gres", "CPUS"), ("|2|n[", "|x|n[", "NODES"),
])  # fmt: skip
def test_snapshots_that_are_refused(tmp_path: Path, old: str, new: str, message: str):
    assert old in SQUEUE
    with pytest.raises(ScenarioError, match=message):
        snapshot_of(tmp_path, SQUEUE.replace(old, new, 1))


# Matrices ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "options", "message"), [
    ("1 10001\n1.5 2.5\n", {"header": True}, "must have at most 10,000 machines"),
    ("2 2\n1.5 2.5\n3.5\n", {"header": True}, "2 tasks on 2 machines, so 4 numbers; the file has 3"),
    ("2 2\n1 2\n3 4\n", {"machines": 3}, "the first line says 2 machines, the option machines says 3"),
    ("2 2\n1 2\n3 4\n", {"types": ["a", "b", "c"]}, "the first line says 2 machines, types names 3"),
    ("2 2\n1 2\n3 4\n", {"types": ["a"], "machines": 2}, "types must have 2 names .machines.; got 1"),
    ("0 2\n", {"header": True}, "the first line is not two whole numbers above 0"),
    ("1.5\n2.5\n3.5\n", {}, "the number of machines is unknown: give the option machines, or a first"),
    ("1.5 2.5\n3.5 4.5\n5.5\n", {}, r"log:3: the line has 1 number, for 2 machines"),
    ("1.5 2.5\n3.5 4.5\n", {"machines": 3}, "every line has 2 numbers, but the option machines says 3"),
    ("1.5\n2.5\n3.5\n", {"machines": 2}, "3 numbers are not a whole number of tasks on 2 machines"),
    ("1.5,2.5\n", {}, "times are separated by white space"),
    ("1.5 2.5\n-1 -1\n", {}, "task 2 cannot run anywhere"), ("1.5 x\n", {}, "column gpu_time.m1"),
    ("1 2\n3 4\n5 6\n", {}, "the first line says 1 tasks on 2 machines, .* if that line is a task, say header: false"),
])  # fmt: skip
def test_matrices_that_are_refused(tmp_path: Path, text: str, options: dict[str, Any], message: str):
    with pytest.raises(ScenarioError, match=message):
        table = read(tmp_path, "hcsp", text, **options)
        pytest.fail(f"read as {columns_of(table)}")


@pytest.mark.parametrize(("text", "options", "times"), [
    ("2 3\n1 2 3\n4 5 6\n", {}, [[1, 2, 3], [4, 5, 6]]), ("2 3 9\n1 2 3 4 5 6\n", {}, [[1, 2, 3], [4, 5, 6]]),
    ("1 2\n3 4\n5 6\n", {"header": False}, [[1, 2], [3, 4], [5, 6]]), ("1 2\n3 4\n", {"header": True}, [[3, 4]]),
    ("2 3\n", {}, [[2, 3]]), ("1 2 3\n4 5 6\n", {}, [[1, 2, 3], [4, 5, 6]]),
    ("2 2\n1 2\n3 4\n", {"header": False}, [[2, 2], [1, 2], [3, 4]]),
    ("1\n2\n3\n4\n", {"machines": 2}, [[1, 2], [3, 4]]),
    ("1.5 -1\n", {"unit": "ms"}, [[0.0015, INF]]),
])  # fmt: skip
def test_matrices(tmp_path: Path, text: str, options: dict[str, Any], times: list[list[float]]):
    table = read(tmp_path, "hcsp", text, **options)
    assert list(table.times) == [f"gpu_time.m{n}" for n in range(len(times[0]))]
    assert np.array(list(table.times.values())).T.tolist() == times
    assert table.arrival.tolist() == [0] * len(times)


def test_named_machines(tmp_path: Path):
    table = read(tmp_path, "hcsp", "1.5 2.5 3.5\n4.5 5.5 6.5\n", types=["cpu", "gpu", "a100"])
    assert {name: values.tolist() for name, values in table.times.items()} == {
        "cpu_time": [1.5, 4.5], "gpu_time": [2.5, 5.5], "gpu_time.a100": [3.5, 6.5]}  # fmt: skip
    assert [table.line(0), table.line(1)] == [1, 2]
    braun = read(tmp_path, "hcsp", "1.5\n" * 512 * 16)
    assert (len(braun), len(braun.times)) == (512, 16) and "the instances of Braun et al." in braun.notes[0]


# Gavel ------------------------------------------------------------------------------------------------------------

SPEEDS: dict[str, Any] = {
    "v100": {"('a', 1)": {"null": 4.0, "('b', 1)": [1.0, 2.0], "('a', 1)": [2.0, 3.0]},
             "('b', 1)": {"null": 8.0, "('a', 1)": [2.0, 1.0]}, "('a', 2)": {"null": 6.0, "('b', 1)": [3.0, 0.0]}},
    "v100_unconsolidated": {"('a', 2)": {"null": 5.0}},
    "k80": {"('a', 1)": {"null": 0.5, "('b', 1)": [0.0, 0.0]}, "('b', 1)": {"null": 0.0}},
}  # fmt: skip


def throughputs(folder: Path) -> Path:
    import json

    path = folder / "speeds.json"
    path.write_text(json.dumps(SPEEDS))
    return path


def test_gavel(tmp_path: Path):
    """Steps over the steps per second of each type; b cannot run on a K80, and no one knows c."""
    rows = ("a 400 1 2.5 3 10", "b 800 1 -1 -1 20", "a 600 2 0 0 30", "c 600 1 1 1 40")
    ten = "".join(f"{row[0]} x . n 1 {row[2:]}\n" for row in rows).replace(" ", "\t")
    table = read(tmp_path, "gavel", ten, throughputs=throughputs(tmp_path))
    assert {name: values.tolist() for name, values in table.times.items()} == {
        "gpu_time.v100": [100, 100, 100], "gpu_time.k80": [800, INF, INF]}  # fmt: skip
    assert table.numbers["gpus"].tolist() == [1, 1, 2] and table.arrival.tolist() == [10, 20, 30]
    assert [table.line(row) for row in range(3)] == [1, 2, 3] and columns_of(table)["class"] == ["a", "b", "a"]
    np.testing.assert_array_equal(table.numbers["weight"], [2.5, NAN, NAN])
    np.testing.assert_array_equal(columns_of(table)["slo"], [3, NAN, NAN])
    notes = "\n".join(table.notes)
    assert "1 of 4 jobs left out: the table has no throughput for this job type and scale (first: line 4)" in notes
    assert "5 pairs of jobs on one GPU; 1 pairs cannot share it" in notes
    bad = (
        ("\t1\t2.5", "\t1.5\t2.5", '"1.5" is not a number of GPUs'),
        ("\t1\t2.5", "\t0\t2.5", '"0" is not a number of'),
        ("\t", ",", "the row has 1 columns separated by tabs; there must be 10 or 7; they are separated"),
    )
    for old, new, message in bad:
        with pytest.raises(ScenarioError, match=message):
            read(tmp_path, "gavel", ten.replace(old, new), throughputs=throughputs(tmp_path))


def test_nodes_of_gavel(tmp_path: Path):
    """Six V100 are a node of four and one of two.

    Next to b, a runs at a quarter of its speed, and so does b; two of a at half, as the first of such a pair does.
    """
    from hetsim.workload.readers import gavel

    found = gavel.nodes(throughputs(tmp_path), gpus={"v100": 6, "k80": 4}, types={"v100": "V"})
    slower = {"a": {"b": 4.0, "a": 2.0}, "b": {"a": 4.0}}
    v100 = {"type": "V", "streams": 2, "sharing": {"kind": "timeslice", "pairs": slower}}
    never = {"kind": "timeslice", "pairs": {"a": {"b": None}, "b": {"a": None}}}
    assert found == [
        {"name": "V-", "count": 1, "cpus": 32, "gpus": {**v100, "count": 4}},
        {"name": "V-rest", "count": 1, "cpus": 32, "gpus": {**v100, "count": 2}},
        {"name": "k80-", "count": 1, "cpus": 32, "gpus": {"type": "k80", "count": 4, "streams": 2, "sharing": never}},
    ]
    alone = gavel.nodes(throughputs(tmp_path), gpus={"v100": 3}, pairs=False)
    assert alone == [{"name": "v100-rest", "count": 1, "cpus": 32, "gpus": {"type": "v100", "count": 3}}]
    with pytest.raises(ScenarioError, match='no GPU type "v10"; did you mean'):
        gavel.nodes(throughputs(tmp_path), gpus={"v10": 1})


# Kubernetes, workflows ---------------------------------------------------------------------------------------------


def pod(name: str, asks: dict[str, str], begin: int, end: int | None, restarts: int = 0, **spec: Any) -> dict[str, Any]:
    """A pod of the namespace ns that came at 0:00:00; seconds of its container's start and end."""
    stamp = "2026-01-01T00:{:02}:{:02}Z"
    done = {"startedAt": stamp.format(0, begin), "finishedAt": stamp.format(*divmod(end or 0, 60))}
    state = {"terminated": done} if end is not None else {}
    status = {"phase": "Succeeded" if end is not None else "Running", "startTime": stamp.format(0, 2),
              "containerStatuses": [{"state": state, "restartCount": restarts}]}  # fmt: skip
    labels = spec.pop("labels", {})
    return {"metadata": {"name": name, "namespace": "ns", "creationTimestamp": stamp.format(0, 0), "labels": labels},
            "spec": {"containers": [{"resources": {"requests": asks}}], "nodeName": "n", **spec}, "status": status}


def pods_of(folder: Path, *pods: dict[str, Any], **options: Any) -> TaskTable:
    import json

    return read(folder, "kubernetes", "\n".join(json.dumps({"object": one}) for one in pods) + "\n", **options)


def test_pods_by_hand(tmp_path: Path):
    """Requests of all containers add up; init containers count where they ask for more; a restarted pod began at 2."""
    product = {"nodeSelector": {"nvidia.com/gpu.product": "T4"}}
    asks = {"cpu": "250m", "memory": "1Gi", "nvidia.com/gpu": "1"}
    several = pod("a", asks, 5, 65, restarts=2, **product, activeDeadlineSeconds=90, labels={"user": "ann"},
                  initContainers=[{"resources": {"requests": {"cpu": "3", "memory": "1Ki"}}}])  # fmt: skip
    several["spec"]["containers"].append({"resources": {"limits": {"cpu": "1", "memory": "1k"}}})
    table = pods_of(
        tmp_path, several, pod("b", {"amd.com/gpu": "2", "example.com/fpga": "1"}, 6, 16),
        pod("c", {"cpu": "2"}, 7, 17), pod("d", {"cpu": "2"}, 8, None), pod("e", {"memory": "1Gi"}, 8, 18),
        pod("f", {"nvidia.com/gpu": "1", "amd.com/gpu": "1"}, 9, 19), pod("g", {"nvidia.com/gpu": "1"}, 9, 19),
    )  # fmt: skip
    same(columns_of(table), {
        "line": [1, 2, 3, 7], "id": ["ns/a", "ns/b", "ns/c", "ns/g"], "arrival": [0] * 4,
        "gpu_time": [63, 10, INF, 10], "cpu_time": [INF, INF, 10, INF], "cpus": [3, 0, 2, 0], "gpus": [1, 2, 0, 1],
        "memory": [GIB + 1000, 0, 0, 0], "user": ["ann", "", "", ""], "class": ["ns"] * 4,
        "status": ["Succeeded"] * 4, "devices": ["T4", "", "", ""], "attempts": [3, NAN, NAN, NAN],
        "recorded_start": [2, 6, 7, 9], "recorded_node": ["n"] * 4, "time_limit": [90, NAN, NAN, NAN],
    })  # fmt: skip
    assert table.estimates["gpu_time"].tolist() == [90, 10, INF, 10]
    notes = "\n".join(notes_of(table))
    for text in ("1 of 7 jobs left out: no end (Running) (first: line 4)",
                 "1 of 7 jobs left out: request neither cores nor GPUs (first: line 5)",
                 "request GPUs of several types (nvidia.com/gpu, amd.com/gpu) (first: line 6)",
                 "1 of 7 jobs restarted: their time is from scheduling to their last end (first: line 1)",
                 "request example.com/fpga, which is not modeled: these pods are kept without it (first: line 2)",
                 "1 pods request amd.com/gpu without a product (first: line 2); in a cluster with several GPU "
                 "types they may run on any"):
        assert text in notes  # fmt: skip


WORKFLOW = """{"schemaVersion": "1.5", "workflow": {"specification": {
"tasks": [{"id": "t1", "name": "split_ID0000001", "parents": [], "children": ["t2", "t3"], "inputFiles": ["a"],
"outputFiles": ["b", "b"]}, {"id": "t2", "name": "sort-2", "parents": ["t1"], "inputFiles": ["b"]},
{"id": "t3", "name": "sort", "parents": ["t1", "t2"], "outputFiles": ["c"]}],
"files": [{"id": "a", "sizeInBytes": 100}, {"id": "b", "sizeInBytes": 20.4}]},
"execution": {"tasks": [{"id": "t1", "runtimeInSeconds": 8, "coreCount": 2, "machines": ["m1"]},
{"id": "t2", "runtimeInSeconds": 4.5, "memoryInBytes": 1000, "machines": ["m1", "m2"]},
{"id": "t3", "runtimeInSeconds": 0.5}]}}}"""


def test_a_workflow(tmp_path: Path):
    table = read(tmp_path, "wfformat", WORKFLOW, gpu_speedup=4)
    columns = columns_of(table)
    del columns["line"]
    same(columns, {
        "id": ["t1", "t2", "t3"], "arrival": [0] * 3, "cpu_time": [8, 4.5, 0.5], "gpu_time": [2, 1.125, 0.125],
        "cpus": [2, NAN, NAN], "memory": [NAN, 1000, NAN], "class": ["split", "sort", "sort"],
        "recorded_node": ["m1", "", ""],
    })  # fmt: skip
    assert table.predecessors == [(), (0,), (0, 1)]
    assert (table.reads, table.writes) == ([("a",), ("b",), ()], [("b",), (), ("c",)])
    assert table.items == {"a": 100, "b": 20, "c": 0}
    assert notes_of(table) == ['1 files of unknown size count as empty: "c"']


@pytest.mark.parametrize(("old", "new", "message"), [
    ('"1.5"', '"1.3"', "must be WfFormat 1.5, to which WfCommons translates; got"),
    ('"execution"', '"run"', "has no workflow.execution.tasks"),
    ('"specification": {\n"tasks"', '"specification": {"jobs"', "has no workflow.specification.tasks"),
    ('"id": "t2", "run', '"ID": "t2", "run', "workflow.execution.tasks is not a list of objects with an id"),
    ('["t1", "t2"]', '["t1", "t9"]', 'task "t3" names "t9" among its parents: there is none'),
    ('["t1"], "input', '["t1", "t3"], "input', "t2"), ('["a"]', '"a"', 'task "t1": inputFiles is not a list'),
    ('"runtimeInSeconds": 8', '"runtime": 8', '"t1" has no runtimeInSeconds'),
    ("4.5", "-4.5", "is not a number from 0 to"),
    ('"id": "t2", "name"', '"id": "t1", "name"', "task ids must be unique"),
    ("20.4", "true", "is not a number from 0 to"),
])  # fmt: skip
def test_workflows_that_are_refused(tmp_path: Path, old: str, new: str, message: str):
    assert old in WORKFLOW
    with pytest.raises(ScenarioError, match=message):
        read(tmp_path, "wfformat", WORKFLOW.replace(old, new))


def test_a_workflow_without_a_list_of_files(tmp_path: Path):
    text = WORKFLOW.replace('"files"', '"others"')
    assert read(tmp_path, "wfformat", text).items == {"a": 0, "b": 0, "c": 0}
