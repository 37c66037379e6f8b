"""Logs with columns of their own: CSV, Parquet and JSON lines by a mapping, and `hetsim trace map`.

The same jobs come as `sacct` prints them and as tables with other names, dates, separators and nesting: what is read
must be the same task by task.
"""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.scenario.file import document
from hetsim.scenario.schema.workload import check_traces
from hetsim.workload.mapped import reader as mapped
from hetsim.workload.mapped.cells import Instants, clock, duration, guess_form, size
from hetsim.workload.mapped.propose import form_of, propose
from hetsim.workload.mapped.rows import rows_of
from hetsim.workload.readers import slurm
from hetsim.workload.readers.task_table import to_frame

DATA = Path(__file__).parents[3] / "shared" / "data"
GERMAN = "%d.%m.%Y %H:%M:%S"
COLUMNS = {
    "id": "jid", "user": "who", "account": "project", "partition": "part", "arrival": "submitted", "start": "began",
    "end": "ended", "status": "state", "time_limit": "limit", "cpus": "cores", "gpus": "gpus", "devices": "kind",
    "memory": "mem", "recorded_node": "node", "qos": "tier",
}  # fmt: skip
MISSING = {"start": "drop", "end": "drop", "time_limit": "default"}


def jobs(count: int = 80) -> list[dict[str, Any]]:
    random = np.random.default_rng(5)
    found, came = [], datetime(2024, 3, 1)
    for number in range(count):
        came += timedelta(seconds=int(random.integers(1, 600)))
        began = came + timedelta(seconds=int(random.integers(0, 4000)))
        gpus = int(random.choice([0, 1, 2, 4]))
        found.append({
            "jid": 1000 + number, "who": f"u{number % 7}", "project": "acc", "part": "gpu", "submitted": came,
            "began": None if number % 17 == 3 else began,
            "ended": None if number % 17 == 3 else began + timedelta(seconds=int(random.integers(1, 100_000))),
            "state": str(random.choice(["COMPLETED", "FAILED"])),
            "limit": str(random.choice(["1-00:00:00", "02:00:00", "UNLIMITED"])), "cores": max(1, 8 * gpus),
            "gpus": gpus, "kind": str(random.choice(["a100", "v100"])) if gpus else "",
            "mem": f"{random.choice([4, 16])}G", "node": "n7", "tier": "normal",
        })  # fmt: skip
    return found


def text(value: datetime | None, form: str = GERMAN) -> str:
    return "" if value is None else value.strftime(form)


def sacct(rows: list[dict[str, Any]], path: Path) -> pd.DataFrame:
    lines = ["JobID|User|Account|Partition|Submit|Start|End|State|Timelimit|AllocTRES|NodeList|QOS"]
    for row in rows:
        tres = f"cpu={row['cores']},mem={row['mem']}"
        tres += f",gres/gpu:{row['kind']}={row['gpus']},gres/gpu={row['gpus']}" if row["gpus"] else ""
        dates = [text(row[name], "%Y-%m-%dT%H:%M:%S") or "None" for name in ("submitted", "began", "ended")]
        cells = [row["jid"], row["who"], row["project"], row["part"], *dates, row["state"], row["limit"], tres]
        lines.append("|".join(map(str, [*cells, row["node"], row["tier"]])))
    path.write_text("\n".join(lines) + "\n")
    return to_frame(slurm.read(path))


def frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    dates = [{name: text(row[name]) for name in ("submitted", "began", "ended")} for row in rows]
    return pd.DataFrame([{**row, **written} for row, written in zip(rows, dates, strict=True)])


def checked(form: str, path: Path, **keys: Any) -> Any:
    """The task table of a mapped log, by way of the scenario's checks."""
    data = {"workload": [{"trace": {"format": form, "path": str(path), **keys}}]}
    specs, problems = check_traces(document.from_mapping(data), Path())
    if problems:
        raise ScenarioError(problems)
    return specs[0].read()


def refused(form: str, path: Path, **keys: Any) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        checked(form, path, **keys)
    return [str(problem).replace(f"{path.parent}/", "") for problem in caught.value.problems]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, [str(one) for one in arguments])


# The same log in every form ---------------------------------------------------------------------------------------


def test_a_mapped_csv_gives_the_tasks_of_sacct_row_for_row(tmp_path: Path) -> None:
    rows = jobs()
    expected = sacct(rows, tmp_path / "sacct.txt")
    table = pd.DataFrame(
        [{**row, **{name: text(row[name]) for name in ("submitted", "began", "ended")}} for row in rows]
    )
    for name, separator in (("jobs.csv", ","), ("jobs.txt", ";"), ("jobs.tsv", "\t")):
        table.to_csv(tmp_path / name, index=False, sep=separator)
        found = to_frame(checked("csv", tmp_path / name, columns=COLUMNS, time=GERMAN, missing=MISSING))
        pd.testing.assert_frame_equal(found[expected.columns], expected)
    (tmp_path / "jobs.csv.gz").write_bytes(gzip.compress((tmp_path / "jobs.csv").read_bytes()))
    found = to_frame(checked("csv", tmp_path / "jobs.csv.gz", columns=COLUMNS, time=GERMAN, missing=MISSING))
    pd.testing.assert_frame_equal(found[expected.columns], expected)


def test_parquet_with_time_stamps_gives_the_same_tasks(tmp_path: Path) -> None:
    rows = jobs()
    expected = sacct(rows, tmp_path / "sacct.txt")
    pd.DataFrame(rows).to_parquet(tmp_path / "jobs.parquet")
    found = to_frame(checked("parquet", tmp_path / "jobs.parquet", columns=COLUMNS, missing=MISSING))
    pd.testing.assert_frame_equal(found[expected.columns], expected)


def test_json_lines_with_objects_inside_give_the_same_tasks(tmp_path: Path) -> None:
    rows = jobs()
    expected = sacct(rows, tmp_path / "sacct.txt")
    inside = ("submitted", "began", "ended")
    with (tmp_path / "jobs.jsonl").open("w") as file:
        for row in rows:
            times = {name: row[name] and int(row[name].timestamp() * 1000) for name in inside}
            print(json.dumps({**{k: v for k, v in row.items() if k not in inside}, "times": times}), file=file)
    columns = {target: f"times.{name}" if name in inside else name for target, name in COLUMNS.items()}
    zone = datetime(2024, 3, 1).timestamp() - datetime.fromisoformat("2024-03-01T00:00:00+00:00").timestamp()
    assert zone % 900 == 0
    found = checked("jsonl", tmp_path / "jobs.jsonl", columns=columns, time="epoch ms", missing=MISSING)
    pd.testing.assert_frame_equal(to_frame(found)[expected.columns], expected)


def test_a_log_in_parts_is_the_log_as_a_whole(tmp_path: Path) -> None:
    rows = jobs()
    table = pd.DataFrame(
        [{**row, **{name: text(row[name]) for name in ("submitted", "began", "ended")}} for row in rows]
    )
    table.to_csv(tmp_path / "jobs.csv", index=False)
    keys = {"columns": COLUMNS, "time": GERMAN, "missing": MISSING}
    data = {"format": "csv", "path": str(tmp_path / "jobs.csv"), **keys}
    (tmp_path / "map.yaml").write_text(document.dump({"workload": [{"trace": data}]}))
    assert run("trace", "convert", tmp_path / "map.yaml", tmp_path / "out.csv").exit_code == 0
    whole = to_frame(checked("csv", tmp_path / "jobs.csv", columns=COLUMNS, time=GERMAN, missing=MISSING))
    read = pd.read_csv(tmp_path / "out.csv", keep_default_na=False, na_values=[""])
    assert read["arrival"].tolist() == whole["arrival"].tolist()
    assert read["id"].tolist() == whole["id"].tolist()


# Cells ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("03:04", 184), ("1-02", 93600), ("1 day, 2:03:04", 93784),
     ("0 days 00:00:01.500", 1.5), ("5 min", 300), ("90", 90), ("1e3", 1000), ("250ms", 0.25)],
)  # fmt: skip
def test_durations_as_logs_write_them(cell: str, seconds: float) -> None:
    assert duration(None)(cell) == seconds


@pytest.mark.parametrize(
    ("cell", "count"),
    [
        ("16G", 16 * 2**30),
        ("16GiB", 16 * 2**30),
        ("16GB", 16e9),
        ("512M", 2**29),
        ("1.5T", 1.5 * 2**40),
        ("4096", 4096),
    ],
)
def test_sizes_as_logs_write_them(cell: str, count: float) -> None:
    assert size(None)(cell) == count


def test_a_clock_is_read_as_slurm_reads_it() -> None:
    assert clock("30") is None
    assert clock("1-00:00:00") == 86400
    assert clock("12:30") == 750


@pytest.mark.parametrize(
    ("time", "zone", "cells", "gap"),
    [
        (None, None, ["2024-03-01 00:00:00", "2024-03-01T01:00:00.5"], 3600.5),
        ("iso", None, ["2024-03-01T00:00:00Z", "2024-03-01T00:00:00-01:00"], 3600.0),
        ("epoch s", None, ["1709251200", "1709251260.25"], 60.25),
        ("epoch ms", None, ["1709251200000", "1709251260250"], 60.25),
        ("epoch us", None, ["1709251200000000", "1709251260250000"], 60.25),
        ("%m/%d/%Y %H:%M", None, ["03/01/2024 00:00", "3/2/2024 00:30"], 88200.0),
        ("%Y-%m-%d %H:%M:%S.%f", None, ["2024-03-01 00:00:00.0", "2024-03-01 00:00:01.1234567"], 1.123456),
        ("%a %b %d %H:%M:%S %Y", None, ["Fri Mar 01 00:00:00 2024", "Fri Mar 01 00:01:00 2024"], 60.0),
        # The clocks of Berlin go from 02:00 to 03:00 in between.
        ("iso", "Europe/Berlin", ["2024-03-31 01:00:00", "2024-03-31 04:00:00"], 7200.0),
        ("iso", "+02:00", ["2024-03-31 01:00:00", "2024-03-31 04:00:00"], 10800.0),
        ("min", None, ["10", "12.5"], 150.0),
    ],
)  # fmt: skip
def test_instants(tmp_path: Path, time: str | None, zone: str | None, cells: list[str], gap: float) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,took\n" + "".join(f"{cell},1\n" for cell in cells))
    keys = {key: value for key, value in (("time", time), ("zone", zone)) if value}
    table = checked("csv", path, columns={"arrival": "at", "duration": "took"}, **keys)
    assert table.arrival[1] - table.arrival[0] == pytest.approx(gap, abs=2e-6)
    assert table.arrival[0] == (600.0 if time == "min" else 0.0)


def test_times_that_the_clocks_showed_twice_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,took\n2024-10-27 01:30:00,1\n2024-10-27 02:30:00,1\n2024-10-27 03:30:00,1\n")
    table = checked("csv", path, columns={"arrival": "at", "duration": "took"}, zone="Europe/Berlin")
    assert table.arrival.tolist() == [0, 3600, 10800]
    said = "1 jobs have times in an hour that is repeated at the clock change, and the right value is unknown:"
    assert any(said in note for note in table.notes)


def test_operations(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,wait,ended,nodes,per_node,queue,tres\n"
                    '2024-03-01 00:00:00,60,2024-03-01 01:01:00,2,4,s,"cpu=8,gres/gpu=2"\n'
                    '2024-03-01 00:01:00,0,2024-03-01 00:02:00,1,8,l,"cpu=16"\n')  # fmt: skip
    columns = {
        "arrival": "at", "start": {"sum": ["at", "wait"]}, "end": "ended",
        "gpus": {"product": ["nodes", "per_node"]}, "cpus": {"column": "tres", "key": "cpu"},
        "memory": {"constant": "4 GB"}, "class": {"column": "queue", "values": {"s": "short"}},
    }  # fmt: skip
    table = checked("csv", path, columns=columns)
    assert table.times["gpu_time"].tolist() == [3600, 60]
    assert table.extra["recorded_start"].tolist() == [60, 60]
    assert table.numbers["gpus"].tolist() == [8, 8]
    assert table.numbers["cpus"].tolist() == [8, 16]
    assert table.numbers["memory"].tolist() == [4e9, 4e9]
    assert table.class_.tolist() == ["short", "l"]
    with_gpus = {**columns, "gpus": {"column": "tres", "key": "gres/gpu"}}
    table = checked("csv", path, columns=with_gpus, missing={"gpus": {"default": 0}})
    assert table.numbers["gpus"].tolist() == [2, 0]
    assert table.times["cpu_time"].tolist() == [np.inf, 60]


def test_a_value_can_mean_none_and_drop_the_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,took,state\n0,5,DONE\n1,6,CANCELLED\n2,7,DONE\n")
    columns = {"arrival": "at", "duration": "took", "status": {"column": "state", "values": {"CANCELLED": None}}}
    table = checked("csv", path, columns=columns, time="s", missing={"status": "drop"})
    assert table.arrival.tolist() == [0, 2]
    assert any("1 of 3 jobs left out: no status (column state is blank) (first: line 3)" in one for one in table.notes)


def test_times_by_device_with_estimates(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,v,a,c,guess,due\n10,5,2,100,9,50\n20,6,,120,9,70\n")
    columns = {"arrival": "at", "gpu_time.v100": "v", "gpu_time.a100": "a", "cpu_time": "c", "estimate": "guess",
               "deadline": "due"}  # fmt: skip
    missing = {"gpu_time.a100": "default"}
    table = checked("csv", path, columns=columns, time="s", missing=missing, since="10 s")
    assert table.times["gpu_time.a100"].tolist() == [2, np.inf]
    assert table.estimates["gpu_time.a100"].tolist() == [9, np.inf]
    assert table.arrival.tolist() == [0, 10]
    assert table.numbers["deadline"].tolist() == [40, 60]


def test_cells_with_separators_quotes_and_line_feeds(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('at,name,took\r\n0,"a, ""b""\nc",5\r\n1,d,x\r\n')
    keys = {"columns": {"arrival": "at", "user": "name", "duration": "took"}, "time": "s"}
    assert refused("csv", path, **keys) == [
        't.csv:4: row 2, column took: "x" is not a number, nor written as 1-02:03:04, 02:03:04 or 5 min'
    ]
    path.write_text('at,name,took\r\n0,"a, ""b""\nc",5\r\n')
    assert checked("csv", path, **keys).user.tolist() == ['a, "b"\nc']


def test_a_file_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("0|5\n1|6\n")
    table = checked("csv", path, header=["at", "took"], columns={"arrival": "at", "duration": "took"}, time="s")
    assert table.times["cpu_time"].tolist() == [5, 6]


# What is wrong ----------------------------------------------------------------------------------------------------

LOG = "at,ran_s,gpus,mem_gb,who\n2024-03-01 00:00:00,5,1,4,ann\n2024-03-01 00:00:09,6,2,8,bob\n"
GOOD = {"arrival": "at", "duration": "ran_s", "gpus": "gpus", "user": "who"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"columns": {**GOOD, "gpus": "gpu"}},
         'columns.gpus: t.csv has no column "gpu"; did you mean "gpus"?'),
        ({"columns": {**GOOD, "class": "who"}},
         'columns.class: the column "who" is mapped twice, to user and to class; a column must be mapped once'),
        ({"columns": {"duration": "ran_s"}},
         "columns: no column is mapped to arrival, the time of submission"),
        ({"columns": {"arrival": "at"}},
         "columns: no column is mapped to the run time: map duration, gpu_time or cpu_time, or start and "
         "end"),
        ({"columns": {**GOOD, "gpu": "gpus"}}, 'columns.gpu: "gpu" is not a property of jobs; did '
         'you mean "gpus"?'),
        ({"columns": {**GOOD, "gpu_time": "mem_gb"}}, "columns.duration: duration is the time on "
         "any device, gpu_time the time on one type; map one of them"),
        ({"columns": GOOD, "units": {"duration": "GB"}}, "units.duration: GB is not a unit of duration"),
        ({"columns": GOOD, "units": {"duration": "ms"}}, 'units.duration: the column name "ran_s" '
         "says s, but the unit is ms; correct it, or rename the column if its name is wrong"),
        ({"columns": {**GOOD, "memory": "mem_gb"}}, 'columns.memory: the column name "mem_gb" '
         "says gb, but no unit is stated, which means bytes; state units: {memory: ...}"),
        ({"columns": GOOD, "units": {"memory": "GB"}}, "units.memory: no column is mapped to memory"),
        ({"columns": GOOD, "units": {"arrival": "s"}},
         "units.arrival: arrival has no unit; time: states how instants are written"),
        ({"columns": GOOD, "time": "%H:%M"}, 'time: "%H:%M" must have a year (%Y), a month (%m) and a'),
        ({"columns": GOOD, "time": "isoo"}, 'time: "isoo" is not a format of times; did you mean'),
        ({"columns": GOOD, "time": "%s"}, "time: %s is not supported; use epoch s for seconds since 1970"),
        ({"columns": GOOD, "zone": "Europe/Berln"}, 'zone: "Europe/Berln" is not a time zone'),
        ({"columns": GOOD, "time": "%Y-%m-%d %H:%M:%S %z", "zone": "UTC"},
         "zone: the dates have a time zone (%z); leave zone out"),
        ({"columns": GOOD, "time": "epoch s", "zone": "UTC"}, "zone: epoch s has no time zone; leave zone out"),
        ({"columns": {**GOOD, "start": "mem_gb"}, "time": {"start": "s"}}, "time: start is a number "
         "(s of the log's clock), but others are dates; they cannot be compared"),
        ({"columns": GOOD, "missing": {"arrival": "default"}}, "missing.arrival: arrival has no default"),
        ({"columns": GOOD, "missing": {"gpus": {"default": "x"}}},
         'missing.gpus: the default "x" is not a number'),
        ({"columns": GOOD, "missing": {"gpus": "dorp"}}, 'missing.gpus: must be drop, error, default or '
         '{default: VALUE}; got "dorp"; did you mean "drop"?'),
        ({"columns": {**GOOD, "gpus": {"eval": "1+1"}}}, "columns.gpus: must be a column, or one of "
         'column, constant, difference, sum, product, not "eval"'),
        ({"columns": {**GOOD, "duration": {"difference": ["at"]}}},
         "columns.duration: difference needs a list of two columns"),
        ({"columns": {**GOOD, "gpus": {"constant": -1}}}, 'columns.gpus: the constant "-1" is negative'),
        ({"columns": GOOD, "separator": ";"}, "t.csv:1: its columns are separated by commas, not by semicolons"),
    ],
)  # fmt: skip
def test_a_mapping_that_does_not_fit(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(LOG)
    found = refused("csv", path, **keys)
    assert len(found) == 1
    assert message in found[0].replace(str(path), "t.csv")


def test_dates_that_do_not_parse_are_named_with_row_and_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(LOG + "".join(f"31/12/2024 0{n}:00:00,1,1,1,x\n" for n in range(6)))
    assert refused("csv", path, columns=GOOD, time="%Y-%m-%d %H:%M:%S") == [
        *[
            f't.csv:{4 + n}: row {3 + n}, column at: "31/12/2024 0{n}:00:00" is not of the form "%Y-%m-%d %H:%M:%S"; '
            'it reads as "%d/%m/%Y %H:%M:%S"'
            for n in range(3)
        ],
        "t.csv:7: from row 6 on, column at: 3 more cells cannot be read",
    ]
    assert "; use time: epoch s for seconds since 1970" in refused("csv", _log(path, "1709251200"), columns=GOOD)[0]


def _log(path: Path, cell: str) -> Path:
    path.write_text(f"at,ran_s,gpus,mem_gb,who\n{cell},5,1,4,ann\n")
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "t.csv: is empty"),
        ("at,ran_s,gpus,mem_gb,who\n", "t.csv: has no jobs"),
        (LOG + "2024-03-01 00:00:00,5,1\n", "t.csv:4: the row has 3 cells, but the header has 5 columns"),
        (LOG + '2024-03-01 00:00:00,5,1,4,"ann\n', "t.csv:4: cannot be read as a row of cells: a quotation mark"),
        (LOG + "2024-03-01 00:00:00,,1,4,ann\n",
         "t.csv:4: row 3: column ran_s is blank, and missing does not state its meaning for duration; missing: "
         "{duration: drop} leaves such jobs out"),
        (LOG + "2024-03-01 00:00:00,-5,1,4,ann\n", 't.csv:4: row 3, column ran_s: "-5" is negative'),
        (LOG + "2024-03-01 00:00:00,5 min,1,4,ann\n",
         't.csv:4: row 3, column ran_s: "5 min" has a unit, but units says s'),
        (LOG + '2024-03-01 00:00:00,"1,5",1,4,ann\n',
         't.csv:4: row 3, column ran_s: "1,5" is not a number, nor written as'),
        (LOG + "2024-03-01 00:00:00,5,1.5,4,ann\n", "t.csv:4: row 3, column gpus: must be a share of one GPU "
                                                    "below 1, or whole"),
    ],
)  # fmt: skip
def test_a_log_that_is_damaged(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    found = refused("csv", path, columns=GOOD, units={"duration": "s"})
    assert len(found) == 1
    assert message in found[0]


def test_json_lines_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    keys = {"columns": {"arrival": "at", "duration": "took"}, "time": "s"}
    path.write_text('{"at": 0, "took": 1}\n[1, 2]\n')
    assert refused("jsonl", path, **keys) == ["t.jsonl:2: the line is not a JSON object"]
    path.write_text('{"at": 0, "took": 1}\n{"at": 0,\n')
    assert refused("jsonl", path, **keys)[0].startswith("t.jsonl:2: the line is not JSON")
    path.write_text('{"at": 0, "took": [1]}\n')
    told = "t.jsonl:1: row 1, column took: the cell is neither a text nor a number"
    assert refused("jsonl", path, **keys) == [told]
    path.write_text('{"at": 0, "tooks": 1}\n')
    assert 'has no column "took"; did you mean "tooks"?' in refused("jsonl", path, **keys)[0]


def test_a_key_that_is_not_there_is_no_blank_cell(tmp_path: Path) -> None:
    """Of an object a key may be missing, and so may a part of a cell: both are told apart from a blank cell."""
    path = tmp_path / "t.jsonl"
    path.write_text('{"at": 0, "took": 1, "use": {"gpus": 1}}\n{"at": 0, "took": 2, "use": {}}\n')
    keys = {"columns": {"arrival": "at", "duration": "took", "gpus": "use.gpus"}, "time": "s"}
    assert refused("jsonl", path, **keys)[0].startswith("t.jsonl:2: row 2: the key use.gpus is not there, or null, and")
    path = tmp_path / "t.csv"
    path.write_text('at,took,tres\n0,1,"cpu=1,gres/gpu=1"\n0,2,cpu=1\n')
    columns = {"arrival": "at", "duration": "took", "gpus": {"column": "tres", "key": "gres/gpu"}}
    said = refused("csv", path, columns=columns, time="s")[0]
    assert said.startswith('t.csv:3: row 2: "gres/gpu" is not found in column tres, and missing does not state '
                           'its meaning for')


def test_parquet_is_told_by_rows(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"at": [0.0, 1.0, 2.0], "took": ["5", "x", "7"]}).to_parquet(path)
    keys = {"columns": {"arrival": "at", "duration": "took"}, "time": "s"}
    assert refused("parquet", path, **keys)[0].startswith('t.parquet: row 2, column took: "x" is not a number')
    path.write_text("at,took\n")
    assert "cannot be read as Parquet" in refused("parquet", path, **keys)[0]


def test_a_window_without_a_zone_is_in_the_logs_zone(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("at,took\n2024-03-01 00:30:00,1\n2024-03-01 01:30:00,2\n2024-03-01 02:30:00,3\n")
    keys = {"columns": {"arrival": "at", "duration": "took"}, "zone": "+05:00"}
    assert checked("csv", path, since="2024-03-01 01:00", **keys).times["cpu_time"].tolist() == [2, 3]
    assert checked("csv", path, since="2024-02-29 21:00+00:00", **keys).times["cpu_time"].tolist() == [3]


# trace map --------------------------------------------------------------------------------------------------------


def test_the_proposal_for_a_log_reads_it(tmp_path: Path) -> None:
    rows = jobs()
    expected = sacct(rows, tmp_path / "sacct.txt")
    table = pd.DataFrame(
        [{**row, **{name: text(row[name]) for name in ("submitted", "began", "ended")}} for row in rows]
    )
    table.to_csv(tmp_path / "jobs.csv", index=False)
    done = run("trace", "map", tmp_path / "jobs.csv", "--mapping", tmp_path / "map.yaml")
    assert done.exit_code == 0
    assert run("trace", "convert", tmp_path / "map.yaml", tmp_path / "out.csv").exit_code == 0
    found = pd.read_csv(tmp_path / "out.csv")
    for name in ("arrival", "gpu_time", "cpu_time", "recorded_start", "gpus", "cpus", "memory", "time_limit"):
        assert found[name].tolist() == pytest.approx(expected[name].tolist(), nan_ok=True), name
    for name in ("user", "devices", "partition", "status"):
        assert found[name].fillna("").tolist() == expected[name].tolist(), name
    assert run("trace", "map", tmp_path / "jobs.csv", "--mapping", tmp_path / "map.yaml").exit_code == 2


def test_it_says_what_it_is_unsure_of(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "when_submitted,Submit Time,Run Time,Mem,GPU Hours\n1,02/03/2024 10:00,5,4,3\n2,03/03/2024 10:00,6,8,4\n"
    )
    found = propose(path, form_of(path), rows_of(path, "csv"))
    assert found.keys["columns"] == {"arrival": "Submit Time", "duration": "Run Time", "memory": "Mem"}
    assert found.keys["time"] == "%m/%d/%Y %H:%M"
    assert found.keys["units"] == {"duration": "s", "memory": "GiB"}
    told = " ".join(found.unsure)
    assert "read as %m/%d/%Y %H:%M, and could be %d/%m/%Y %H:%M" in told
    assert '"Run Time" (duration) has no unit' in told
    assert '"GPU Hours" may be GPUs × time' in told
    assert any(text.startswith("gpus: no column") for text in found.missing)
    as_json = json.loads(run("trace", "map", path, "--json").output)
    assert as_json["trace"]["columns"]["arrival"] == "Submit Time"


def test_the_unit_of_a_duration_is_told_from_start_and_end(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("submit,start,end,elapsed,gpus\n0,0,3600,60,1\n10,20,7220,120,2\n")
    found = propose(path, "csv", rows_of(path, "csv"))
    assert found.keys["units"] == {"duration": "min"}


def test_submit_time_is_not_taken_for_gpu_time(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("submit_time,run_time,user\n0,5,ann\n")
    done = run("trace", "inspect", path)
    assert done.exit_code == 3
    assert "did you mean" not in done.output + done.stderr
    assert "hetsim trace map" in done.stderr


@pytest.mark.parametrize("form", [GERMAN, "%Y-%m-%dT%H:%M:%S", "%Y%m%d", "%H:%M %d-%m-%Y", "%d/%m/%y %H:%M"])
def test_dates_in_full_width_are_those_of_strptime(form: str) -> None:
    read = Instants(form, None)
    for value in (datetime(2024, 3, 9, 7, 5, 1), datetime(1999, 12, 31, 23, 59, 59), datetime(2024, 2, 29)):
        written = value.strftime(form)
        expected = datetime.strptime(written, form).replace(tzinfo=UTC).timestamp()
        assert read(written) == expected
        assert "%Y%m" in form or read(written.replace("0", "", 1) if written[0] == "0" else written) == expected
    for wrong in ("31.02.2024 07:05:00", "2024-02-30T00:00:00", "20240230", "25:00 01-01-2024", "0٩.03.2024 07:05:00"):
        with pytest.raises(ValueError):
            read(wrong)


def test_ways_of_writing_dates() -> None:
    assert guess_form(["2024-03-01 00:00:00"])[0] == "iso"
    assert guess_form(["31.12.2024 10:00:00"]) == ["%d.%m.%Y %H:%M:%S"]
    assert guess_form(["12/31/2024 10:00"]) == ["%m/%d/%Y %H:%M"]
    assert guess_form(["nothing"]) == []


@pytest.mark.skipif(not DATA.is_dir(), reason="public logs are not here")
@pytest.mark.slow
def test_public_logs_by_their_proposals() -> None:
    """The readers of these formats and the proposals for plain CSVs agree on when, how long and on how much."""
    from hetsim import registry

    logs = {
        "philly": "philly/philly_flat_2017-10-09_to_11.csv",
        "helios": "schema_samples/helios/cluster_log.csv",
        "acme": "schema_samples/acme/trace_seren.csv",
        "openb": "openb/openb_pod_list_default_first2000.csv",
    }
    for name, path in logs.items():
        file = DATA / path
        keys = propose(file, "csv", rows_of(file, "csv")).keys
        found = checked("csv", file, **{key: value for key, value in keys.items() if key not in ("format", "path")})
        expected = registry.entry("traces", name)(file)
        if name == "philly":
            expected = registry.entry("traces", name)(file, repeated=True)
        assert found.arrival.tolist() == expected.arrival.tolist()
        assert found.times["gpu_time"].tolist() == expected.times["gpu_time"].tolist()
        assert found.numbers["gpus"].tolist() == expected.numbers["gpus"].tolist()


def test_the_readers_are_registered() -> None:
    done = run("list", "traces")
    assert all(f"  {name} " in done.output for name in ("csv", "parquet", "jsonl"))
    assert mapped.csv.__doc__ is not None
