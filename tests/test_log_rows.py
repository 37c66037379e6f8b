"""Rows that are not one job each: repetitions, attempts, parts of gangs; and times that contradict each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.workload.mapped import reader as mapped
from hetsim.workload.readers import kubernetes, slurm
from hetsim.workload.traces import TaskTable

COLUMNS = {"id": "id", "arrival": "at", "start": "start", "end": "end", "gpus": "gpus"}
HEAD = "id,at,start,end,gpus,label\n"


def read(tmp_path: Path, rows: str, head: str = HEAD, columns: dict[str, Any] = COLUMNS, **keys: Any) -> TaskTable:
    path = tmp_path / "t.csv"
    path.write_text(head + rows)
    keys = {"time": "s", **keys}
    for key, of in (("fold", mapped.mapping.fold_of), ("gang", mapped.mapping.gang_of)):
        if key in keys:
            keys[key] = of(keys[key])
    return mapped.csv(path, columns=mapped.mapping.columns_of(columns), **keys)


def spans(table: TaskTable) -> list[tuple[float, float, float]]:
    """Arrival, start and time of each job, from the first arrival on."""
    took = np.min(list(table.times.values()), axis=0)
    return list(zip(table.arrival.tolist(), table.extra["recorded_start"].tolist(), took.tolist(), strict=True))


# Rows of a job ----------------------------------------------------------------------------------------------------

ATTEMPTS = "a,0,10,20,2,x\nb,1,5,6,1,x\na,0,30,50,4,y\n"


def test_rows_that_differ_are_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, ATTEMPTS)
    said = str(caught.value)
    assert "t.csv:4" in said and '"a" has several rows that differ' in said
    assert all(word in said for word in ("attempts: restarts", "attempts: separate", "fold:", "gang:"))


def test_exact_repetitions_are_dropped_and_counted(tmp_path: Path) -> None:
    table = read(tmp_path, "a,0,10,20,2,x\nb,1,5,6,1,x\na,0,10,20,2,x\n")
    assert len(table) == 2
    assert any("1 rows that are not separate jobs: repetitions" in note for note in table.notes)


def test_attempts_are_one_job_or_one_each(tmp_path: Path) -> None:
    table = read(tmp_path, ATTEMPTS, attempts="restarts")
    assert spans(table) == [(0, 10, 40), (1, 5, 1)] and table.numbers["gpus"].tolist() == [4, 1]
    assert table.extra["attempts"].tolist() == [2, 1]
    table = read(tmp_path, ATTEMPTS, attempts="separate")
    assert spans(table) == [(0, 10, 10), (1, 5, 1), (20, 30, 20)]  # the second attempt waits from the first's end on


def test_a_fold_says_what_counts_by_column(tmp_path: Path) -> None:
    fold = {"by": "id", "columns": {"gpus": "sum", "start": "max", "tries": "count"}}
    table = read(tmp_path, ATTEMPTS, fold=fold)
    assert spans(table) == [(0, 30, 20), (1, 5, 1)] and table.numbers["gpus"].tolist() == [6, 1]
    assert table.extra["tries"].tolist() == [2, 1]
    with pytest.raises(ScenarioError, match='gpus is "2.0" and "4.0"'):
        read(tmp_path, ATTEMPTS, fold={"by": "id"})


def test_a_gang_holds_what_its_parts_hold_at_one_time(tmp_path: Path) -> None:
    rows = "a,0,10,20,2,g\nb,0,12,22,2,g\nc,1,5,6,1,\nd,0,20,30,2,g\n"  # d takes the place of a
    table = read(tmp_path, rows, gang={"by": "label"})
    assert spans(table) == [(0, 10, 20), (1, 5, 1)] and table.numbers["gpus"].tolist() == [4, 1]
    assert table.id.tolist() == ["g", "c"]


@pytest.mark.parametrize(
    ("fold", "said"),
    [
        ({"by": "nothing"}, 'by: "nothing" is neither mapped nor a column'),
        ({"by": "id", "columns": {"gpsu": "max"}}, 'no column is mapped to gpsu; did you mean "gpus"'),
        ({"by": "id", "columns": {"id": "sum"}}, "id is a text, for which sum is undefined; use one of"),
    ],
)
def test_wrong_folds(tmp_path: Path, fold: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        read(tmp_path, ATTEMPTS, fold=fold)
    assert said in str(caught.value)


def test_a_part_that_no_cell_has_is_not_found(tmp_path: Path) -> None:
    columns = {"arrival": "at", "duration": "took", "gpus": {"column": "tres", "key": "gres/gpu"}}
    with pytest.raises(ScenarioError, match='"gres/gpu" is not found in any cell of column tres'):
        read(tmp_path, '0,1,"cpu=1,gpu=2"\n', "at,took,tres\n", columns)


# Times that contradict each other -----------------------------------------------------------------------------------

JUMPS = {**COLUMNS, "duration": "took", "recorded_node": "node"}


def test_the_devices_tell_which_time_is_wrong(tmp_path: Path) -> None:
    """Of a job whose duration is not end - start one of both is wrong: that at which its node was taken."""
    rows = [f"{i},0,{100 * i},{100 * i + 100},1,100,n1" for i in range(60)]
    rows[5] = "5,0,300,600,1,100,n1"  # began at 500: at 300 job 3 held the node
    rows[9] = "9,0,900,2000,1,100,n1"  # ended at 1000
    table = read(tmp_path, "\n".join(rows), "id,at,start,end,gpus,took,node\n", JUMPS)
    assert [start for _, start, _ in spans(table)] == [100 * i for i in range(60)]
    assert any("2 of 60 jobs have a duration that is not end - start: settled by the devices" in n for n in table.notes)


def test_negative_waits_by_the_order_of_ids(tmp_path: Path) -> None:
    rows = [f"{i},{10 * i},{10 * i + 50},{10 * i + 60},1," for i in range(30)]
    rows[7] = "7,900,120,130,1,"
    assert spans(read(tmp_path, "\n".join(rows)))[7] == (70, 120, 10)
    table = read(tmp_path, "a,0,5,6,1,\nb,9,7,8,1,\n")
    assert spans(table)[1] == (7, 7, 1)
    assert any("1 of 2 jobs began before their submission: settled with the start as the "
               "submission" in note for note in table.notes)


def test_hours_that_clocks_show_twice_by_duration(tmp_path: Path) -> None:
    """02:10 to 02:20 with 70 minutes between them; 02:40 to 02:30 with 50; both are told by one row alone."""
    head = "id,at,start,end,took,gpus\n"
    rows = (
        "a,2026-10-25 01:00:00,2026-10-25 02:10:00,2026-10-25 02:20:00,70,1\n"
        "b,2026-10-25 01:00:00,2026-10-25 02:40:00,2026-10-25 02:30:00,50,1\n"
    )
    columns = {**COLUMNS, "duration": "took"}
    table = read(tmp_path, rows, head, columns, time="iso", zone="Europe/Berlin", units={"duration": "min"})
    assert spans(table) == [(0, 4200, 4200), (0, 6000, 3000)]


def test_hours_that_clocks_show_twice_by_the_order_of_ids(tmp_path: Path) -> None:
    """A submission every ten minutes over the change: only ids tell which 02:10 is meant."""
    from datetime import datetime, timedelta
    from zoneinfo import ZoneInfo

    begin = datetime.fromisoformat("2026-10-24T20:00:00+00:00")
    shown = [(begin + timedelta(minutes=10 * i)).astimezone(ZoneInfo("Europe/Berlin")) for i in range(60)]
    rows = "".join(f"{i},{at:%Y-%m-%d %H:%M:%S},1\n" for i, at in enumerate(shown))
    columns = {"id": "id", "arrival": "at", "duration": "took"}
    table = read(tmp_path, rows, "id,at,took\n", columns, time="iso", zone="Europe/Berlin")
    assert table.arrival.tolist() == [600.0 * i for i in range(60)]
    assert any("12 of 60 jobs have times in an hour that is repeated at the clock change: settled by the order "
               "of ids" in note
               for note in table.notes)  # fmt: skip


def test_jobs_of_one_second_are_in_the_order_of_ids_where_rows_are_not_by_submission(tmp_path: Path) -> None:
    """Accounts are written as jobs end: elements of an array came by their number, whatever ended first."""
    rows = [f"{i},{10 * i},{10 * i},{2000 - i},1,\n" for i in range(30)]  # in which the last to come ends first
    rows += ["40[10],400,400,450,1,\n", "40[2],400,400,460,1,\n", "39,400,400,470,1,\n"]
    table = read(tmp_path, "".join(reversed(rows)))
    assert [str(one) for one in table.id[table.arrival == 400].tolist()] == ["39", "40[2]", "40[10]"]
    assert table.line(int(np.flatnonzero(table.id == "39")[0])) == 2
    plain = read(tmp_path, "".join(sorted(rows[:30], key=lambda row: float(row.split(",")[1]))) + rows[31] + rows[32])
    assert plain.id[-2:].tolist() == ["40[2]", "39"]  # a file by submission is its own evidence
    told = read(tmp_path, "7,5,5,9,1,\n9,4,4,8,1,\n8,4,4,8,1,\n")
    assert told.id.tolist() == [7, 9, 8]  # three ids are none


def test_a_jump_in_the_hour_that_clocks_show_twice(tmp_path: Path) -> None:
    """An end before its start tells nothing of the hour of the submission; the ids next to it do."""
    head, columns = "id,at,start,end,took,gpus\n", {**COLUMNS, "duration": "took"}
    rows = "".join(f"{i},2026-10-25 0{i // 6 - 1 if i > 17 else i // 6}:{i % 6}0:00,2026-10-25 06:00:00,"
                   f"2026-10-25 0{5 if i == 20 else 7}:00:00,60,1\n" for i in range(36))  # fmt: skip
    table = read(tmp_path, rows, head, columns, time="iso", zone="Europe/Berlin", units={"duration": "min"})
    assert table.arrival.tolist() == [600.0 * i for i in range(36)]
    assert any("1 jobs have a duration that is not end - start" in n or "1 of 36 jobs have a duration" in n
               for n in table.notes)  # fmt: skip


# Kubernetes ---------------------------------------------------------------------------------------------------------


def pod(name: str, start: int, end: int, label: str = "", restarts: int = 0, node: str = "n1") -> dict[str, Any]:
    def at(second: int) -> str:
        return f"2026-05-01T08:{second // 60:02}:{second % 60:02}Z"

    labels = {"volcano.sh/job-name": label} if label else {}
    ended = {"startedAt": at(end - 5 if restarts else start), "finishedAt": at(end), "exitCode": 0}
    return {
        "metadata": {"name": name, "namespace": "a", "creationTimestamp": at(0), "labels": labels},
        "spec": {"nodeName": node, "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]},
        "status": {"phase": "Succeeded", "startTime": at(start),
                   "containerStatuses": [{"restartCount": restarts, "state": {"terminated": ended}}]},
    }  # fmt: skip


PODS = [pod("x", 10, 70, restarts=2), pod("w-0", 5, 50, "w"), pod("w-1", 6, 50, "w", node="n2")]


@pytest.mark.parametrize("form", ["items", "list", "lines", "events"])
def test_pods_in_any_form(tmp_path: Path, form: str) -> None:
    """A restarted pod holds its GPU from when it was scheduled; a gang is one job; of events the last one counts."""
    path = tmp_path / "pods.json"
    events = [{"type": "ADDED", "object": {**PODS[0], "status": {"phase": "Pending"}}}]
    lines = {"lines": PODS, "events": [*events, *({"type": "MODIFIED", "object": one} for one in PODS)]}.get(form)
    whole = {"kind": "List", "items": PODS} if form == "items" else PODS
    path.write_text(json.dumps(whole) if lines is None else "".join(json.dumps(one) + "\n" for one in lines))
    table = kubernetes.read(path)
    found = dict(zip(table.id.tolist(), spans(table), strict=True))
    assert found == {"a/x": (0, 10, 60), "a/w": (0, 5, 45)}
    assert dict(zip(table.id.tolist(), table.numbers["gpus"].tolist(), strict=True)) == {"a/x": 1, "a/w": 2}
    assert "n1|n2" in table.extra["recorded_node"].tolist()
    assert len(kubernetes.read(path, gang=False)) == 3


# Slurm --------------------------------------------------------------------------------------------------------------

SACCT = """\
JobID|Submit|Start|End|State|AllocTRES|NodeList
2+0|2026-01-01T00:00:00|2026-01-01T01:00:00|2026-01-01T02:00:00|COMPLETED|cpu=1,gres/gpu=1,node=1|n1
2+1|2026-01-01T00:00:00|2026-01-01T01:00:00|2026-01-01T02:00:00|COMPLETED|cpu=1,gres/gpu=4,node=1|n2
3|2026-01-01T00:00:00|2026-01-01T01:00:00|2026-01-01T02:00:00|REQUEUED|cpu=1,gres/gpu=4,node=1|n3
3|2026-01-01T00:00:00|2026-01-01T04:00:00|2026-01-01T05:00:00|COMPLETED|cpu=1,gres/gpu=4,node=1|n3
3|2026-01-01T00:00:00|2026-01-01T04:00:00|2026-01-01T05:00:00|COMPLETED|cpu=1,gres/gpu=4,node=1|n3
"""


def test_requeued_and_heterogeneous_jobs_of_slurm(tmp_path: Path) -> None:
    """An attempt came when the one before ended, or both are one job; parts with + are one; the repeated row is not."""
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    hour = 3600.0
    for attempts, runs in (
        ("separate", {"3": (0, hour, hour), "3#2": (2 * hour, 4 * hour, hour)}),
        ("restarts", {"3": (0, hour, 4 * hour)}),
    ):  # fmt: skip
        table = slurm.read(path, attempts=attempts)
        ids = [str(one) for one in table.id.tolist()]
        assert dict(zip(ids, spans(table), strict=True)) == {"2": (0, hour, hour), **runs}
        assert table.numbers["gpus"][ids.index("2")] == 5
        assert any("repetitions" in note for note in table.notes)


def test_a_log_over_the_change_of_clocks_is_replayed_as_it_was(tmp_path: Path) -> None:
    """Sixty jobs back to back on one GPU, in local time: at no time do two hold it."""
    from datetime import datetime, timedelta
    from zoneinfo import ZoneInfo

    begin, step = datetime.fromisoformat("2026-10-24T20:00:00+00:00"), timedelta(minutes=20)

    def shown(at: datetime) -> str:
        return f"{at.astimezone(ZoneInfo('Europe/Berlin')):%Y-%m-%d %H:%M:%S}"

    rows = "".join(f"{i},{shown(begin)},{shown(begin + i * step)},1200,1,n1\n" for i in range(60))
    columns = {"id": "id", "arrival": "at", "start": "start", "duration": "took", "gpus": "gpus",
               "recorded_node": "node"}  # fmt: skip
    head = "id,at,start,took,gpus,node\n"
    table = read(tmp_path, rows, head, columns, time="iso", zone="Europe/Berlin")
    assert [start for _, start, _ in spans(table)] == [1200 * i for i in range(60)]
    run = hs.run({
        "cluster": {"nodes": [{"name": "n1", "cpus": 4, "gpus": {"type": "gpu", "count": 1}}]},
        "workload": [{"trace": {"format": "csv", "path": str(tmp_path / "t.csv"), "columns": columns, "time": "iso",
                                "zone": "Europe/Berlin"}}],
        "policy": "fcfs",
    })  # fmt: skip
    assert (run.tasks["start"] - run.tasks["arrival"]).mean() == pytest.approx(1200 * 59 / 2)
