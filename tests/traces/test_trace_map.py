"""`hetsim trace map`: logs of many sites, with names, separators and cells of their own.

Each log is written here as such systems write it; what is proposed has to be what a reader of it would say, and has to
run as it stands where nothing is said to be missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from hetsim.cli import main
from hetsim.workload.logs.recognize import node_list
from hetsim.workload.mapped.cells import composite, count, with_point
from hetsim.workload.mapped.jobs import _part
from hetsim.workload.mapped.propose import form_of, propose
from hetsim.workload.mapped.proposed_columns import Proposal

JOB = "2024-01-01 00:00:00,100,2"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def mapped(path: Path) -> tuple[dict[str, Any], Any]:
    """The keys that are proposed, and what is in the log by them."""
    mapping = path.with_suffix(f"{path.suffix}.yaml")
    done = run("trace", "map", path, "--mapping", mapping)
    assert done.exit_code == 0, done.stderr
    looked = run("trace", "inspect", mapping)
    return yaml.safe_load(mapping.read_text())["workload"][0]["trace"], looked


def proposed(path: Path, content: str) -> Proposal:
    from hetsim.workload.mapped.rows import rows_of

    path.write_text(content)
    form = form_of(path)
    return propose(path, form, rows_of(path, form))


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (  # names of several words, in whatever way they are put together
            "jobSubmitTime,jobStartTime,jobEndTime,numGPUs,numCPUs,userName,jobStatus\n"
            "1704067200,1704067260,1704067900,2,16,al,ok\n1704067300,1704067360,1704067900,1,16,bo,ok\n",
            {"arrival": "jobSubmitTime", "start": "jobStartTime", "end": "jobEndTime", "gpus": "numGPUs",
             "cpus": "numCPUs", "user": "userName", "status": "jobStatus",
             "duration": {"difference": ["jobEndTime", "jobStartTime"]}},
        ),
        (
            "job_submit_timestamp,n_gpus_used,execution_time_seconds,requested_walltime_seconds,owner_name,gpu_card\n"
            "2024-01-01 00:00:00,2,100,3600,al,A100\n",
            {"arrival": "job_submit_timestamp", "gpus": "n_gpus_used", "duration": "execution_time_seconds",
             "time_limit": "requested_walltime_seconds", "user": "owner_name", "devices": "gpu_card"},
        ),
        (  # as a spreadsheet exports it
            '\ufeff"Job ID";"User Name";"Submission Date";"Start Date";"End Date";"GPUs requested"\r\n'
            '"9007199254740993";"Müller, A";"04.03.2024 08:00";"04.03.2024 08:30";"04.03.2024 10:00";"2"\r\n',
            {"id": "Job ID", "user": "User Name", "arrival": "Submission Date", "start": "Start Date",
             "end": "End Date", "gpus": "GPUs requested", "duration": {"difference": ["End Date", "Start Date"]}},
        ),
        ("# exported by a tool\n\nid submit duration gpus\n 1   1704067200  100 1  \n2 1704067201 100 1\n",
         {"id": "id", "arrival": "submit", "duration": "duration", "gpus": "gpus"}),
        (  # GPUs as Slurm writes generic resources
            f"id,submit,duration,tres\n1,{JOB[:-2]},gres:gpu:a100:2\n2,{JOB[:-2]},gpu:1\n3,{JOB[:-2]},\n",
            {"id": "id", "arrival": "submit", "duration": "duration", "gpus": {"column": "tres", "key": "gpu"}},
        ),
        (
            "name,submit,duration,num_gpu,gpu_milli\n1,2024-01-01 00:00:00,5,1,460\n2,2024-01-01 00:00:00,5,8,1000\n",
            {"id": "name", "arrival": "submit", "duration": "duration", "gpus": {"product": ["num_gpu", "gpu_milli"]}},
        ),
    ],
)  # fmt: skip
def test_columns_are_known_by_their_words(tmp_path: Path, content: str, columns: dict[str, Any]) -> None:
    path = tmp_path / "log.csv"
    path.write_text(content)
    keys, looked = mapped(path)
    assert keys["columns"] == columns
    assert looked.exit_code == 0, looked.stderr


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        (f"id,submit,duration,gpus\n1,{JOB}x A100\n", "missing",
         '"2x A100" is not a number; gpus: {column: gpus, values: {"2x A100": 2}} says what it means'),
        ("id,submit,duration\n1,3/4/2024 1:05:00 PM,5\n2,3/5/2024 1:05 PM,5\n", "missing",
         'arrival: "submit" has a matching name, but its dates have several formats:'),
        ("id,submit,duration\n1,Mar 4 10:12,5\n", "missing", "is not in a known format of dates (it names no year)"),
        ("id,submit,duration\n1,2024-01-01 00:00:00,soon\n", "missing", '"soon" is not a duration'),
        ("1,alice,2024-01-01 00:00:00,600\n2,bob,2024-01-01 00:00:00,600\n", "missing",
         "names: the first line seems to be a row of the log; put the column names into"),
        ("submit,runtime_s,replicas\n0,5,2\n", "unsure", 'if each of "replicas" has one GPU, gpus: replicas'),
        ("id,submit,duration\n1,2024-01-01T00:00:00+01:00,5\n2,2024-01-01T00:00:00,5\n", "unsure",
         'have a zone, the others are read as UTC'),
        ("JobID,User,Submitted,Elapsed\n1,a,2024-01-01T00:00:00,00:05:00\n1.batch,,2024-01-01T00:00:00,00:05:00\n",
         "unsure", '"1.batch" seems to be a step of a job'),
        ("id,submit,submit,duration\n1,0,0,5\n", "unsure", 'the file has two columns "submit"'),
    ],
)  # fmt: skip
def test_what_is_unsure_and_missing_is_said(tmp_path: Path, content: str, kind: str, text: str) -> None:
    assert any(text in one for one in getattr(proposed(tmp_path / "log.csv", content), kind))


def test_numbers_with_a_decimal_comma_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("id;submit;duration;gpus\n1;04.03.2024 08:00;1.234,5;1\n2;04.03.2024 08:01;0,5;2\n")
    keys, looked = mapped(path)
    assert keys["decimal"] == ","
    assert looked.exit_code == 0
    assert run("trace", "convert", f"{path}.yaml", tmp_path / "tasks.csv").exit_code == 0
    assert pd.read_csv(tmp_path / "tasks.csv")["gpu_time"].tolist() == [1234.5, 0.5]
    read = with_point(float)
    assert (read("1.234.567,25"), read("7"), read("1.234")) == (1234567.25, 7.0, 1234.0)
    with pytest.raises(ValueError, match='has a decimal point, but the key decimal says ","'):
        read("12.5")


def test_minus_one_is_no_value_where_a_log_writes_it(tmp_path: Path) -> None:
    """In text and, where cells have types, as a number."""
    for name, content in (
        ("log.csv", "id,submit,start,duration\n1,10,20,5\n2,11,-1,-1\n3,12,30,6\n"),
        ("log.jsonl", '{"id":1,"submit":10,"start":20,"duration":5}\n{"id":2,"submit":11,"start":-1,"duration":-1}\n'),
    ):
        path = tmp_path / name
        path.write_text(content)
        keys, looked = mapped(path)
        assert keys["missing"] == {"start": "drop", "duration": "drop"}
        assert "-1" in keys["missing_values"]
        assert looked.exit_code == 0 and "1 of " in looked.stderr, looked.stderr


def test_what_lacks_is_named_before_it_is_run(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("gpus,kind of job\n1,a\n")
    done = run("trace", "map", path)
    assert "# It cannot be run before arrival and duration are mapped." in done.stdout
    assert "# arrival: COLUMN" in done.stdout
    path.write_text("id,duration\n1,5\n")
    assert "arrival: {constant: 0} and time: s" in run("trace", "map", path).stdout
    mapping = tmp_path / "given.yaml"
    mapping.write_text(
        "workload: [{trace: {format: csv, path: log.csv, time: s, "
        "columns: {arrival: {constant: 0}, duration: duration}}}]\n"
    )
    assert run("trace", "inspect", mapping).exit_code == 0


def test_a_log_that_a_reader_knows_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "log.swf"
    path.write_text("; a header\n1 0 5 100 4 -1 -1 4 200 -1 1 3 1 1 1 1 -1 -1\n")
    done = run("trace", "map", path)
    assert done.exit_code == 0
    assert yaml.safe_load(done.stdout)["workload"] == [{"trace": {"format": "swf", "path": str(path)}}]
    assert run("trace", "map", path, "--format", "csv").exit_code != 0


def test_a_list_of_nodes_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("sn,cpu_milli,memory_mib,gpu,model\nn0,32000,1000,2,P100\n")
    done = run("trace", "map", path)
    assert done.exit_code == 3
    assert "seems to be a list of nodes; read it with cluster:" in done.stderr
    assert node_list(tmp_path / "none.csv") is None


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("id,submit\n1,ü\n".encode("utf-16"), "log.csv:1: is not UTF-8 text (it looks like UTF-16); save it as UTF-8"),
        ("id,submit\n1,2\n".encode("utf-16-le"), "log.csv:1: has NUL bytes, so it is not text; if it is "
                                                 "UTF-16, save it as UTF-8"),
        ("id,submit\n1,ü\n".encode("latin-1"), "log.csv:2: is not UTF-8 text (byte 0xfc); save it as UTF-8"),
        (b"id,submit,user\n1,2\n", "log.csv:2: the row has 2 cells, but the header has 3 columns"),
        (b"exported\nid,submit,user\n1,2,3\n",
         'log.csv:2: the row has 3 cells, but the header has 1 column; line 1 ("exported", ...) was read as the names'),
        (b"", "log.csv: is empty"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes, text: str) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    done = run("trace", "map", path)
    assert done.exit_code == 3
    assert text in done.stderr.replace(f"{tmp_path}/", "")


def test_parts_of_cells() -> None:
    assert _part("cpu=8,gres/gpu:a100=2,gres/gpu:v100=1,gres/gpu=3", "gres/gpu") == "3"
    assert _part("cpu=8,gres/gpu:a100=2,gres/gpu:v100=1", "gres/gpu") == "3"
    assert _part("gpu:a100:2(S:0-1),shard:4", "gpu") == "2"
    assert _part("gpu", "gpu") == "1"
    assert _part("cpu=8", "gpu") is None


def test_durations_and_counts_as_other_systems_write_them() -> None:
    assert composite("1h30m") == 5400 and composite("2 days 3 hours") == 183600 and composite("45m") == 2700
    assert composite("PT1H30M") == 5400 and composite("P1DT2.5S") == 86402.5
    assert composite("") is None and composite("P") is None and composite("soon") is None and composite("500ms") is None
    assert count(None)("500m") == 0.5 and count("milli")("500") == 0.5 and count("percent")(50) == 0.5
    with pytest.raises(ValueError, match="has a unit, but units says milli"):
        count("milli")("500m")


def test_a_log_in_another_language_is_mapped_by_its_content(tmp_path: Path) -> None:
    """No name tells anything: dates by their order, a duration by its difference, amounts by which is never larger."""
    import random
    from datetime import datetime, timedelta

    draw, at = random.Random(1), datetime(2026, 3, 1)
    rows = ["vorgang;eingereicht;begonnen;beendet;laufzeit;karten;kerne;rechner;benutzer;zustand;grenze"]
    for number in range(200):
        at += timedelta(seconds=draw.randint(0, 600))
        began = at + timedelta(seconds=draw.choice([0, draw.randint(0, 9000)]))
        took, gpus = draw.randint(30, 20_000), draw.choice([1, 1, 2, 4, 8])
        times = ";".join(f"{one:%d.%m.%Y %H:%M:%S}" for one in (at, began, began + timedelta(seconds=took)))
        who, how = draw.choice(["anna", "bernd", "clara", "dora"]), draw.choice(["fertig"] * 8 + ["fehler"])
        limit = 60 * draw.choice([hours for hours in (1, 2, 4, 6, 12) if hours * 3600 >= took])
        cores, node = gpus * draw.choice([4, 8]), f"knoten{draw.randint(1, 9)}"
        rows.append(f"{number};{times};{took};{gpus};{cores};{node};{who};{how};{limit}")
    found = proposed(tmp_path / "log.csv", "\n".join(rows) + "\n")
    assert found.keys["columns"] == {
        "id": "vorgang", "arrival": "eingereicht", "start": "begonnen", "end": "beendet", "duration": "laufzeit",
        "time_limit": "grenze", "gpus": "karten", "cpus": "kerne", "user": "benutzer", "status": "zustand",
        "recorded_node": "rechner",
    }  # fmt: skip
    assert found.keys["units"] == {"duration": "s", "time_limit": "min"}
    assert any('duration: "laufzeit" was used because of its content: it is end - start in 100 % of rows' in one
               for one in found.unsure)  # fmt: skip


def test_nodes_are_the_names_on_which_least_is_held_at_once(tmp_path: Path) -> None:
    """Users with numbers in their names look like nodes; jobs of one user run side by side, those of a node do not."""
    rows = ["vorgang;wer;beginn;schluss;wo"]
    rows += [f"{k};u{k // 2 % 5};01.03.2026 {k // 4:02}:00:00;01.03.2026 {k // 4:02}:50:00;r{k % 4}" for k in range(40)]
    for order in ((0, 1, 2, 3, 4), (0, 4, 2, 3, 1)):
        text = "\n".join(";".join(row.split(";")[place] for place in order) for row in rows) + "\n"
        found = proposed(tmp_path / "log.csv", text.replace("beginn", "start").replace("schluss", "end"))
        columns = found.keys["columns"]
        assert (columns["recorded_node"], columns.get("user")) == ("wo", "wer")
    assert any("4 names with numbers, which are repeated, on which at most 1" in one for one in found.unsure)


def test_ids_that_come_again_are_told_with_the_choices(tmp_path: Path) -> None:
    log = f"id,submit_time,runtime_s,num_gpus\na,{JOB}\nb,{JOB}\na,2024-01-01 00:05:00,9,2\n"
    found = proposed(tmp_path / "log.csv", log)
    said = "attempts: 1 rows have the id of an earlier one; state their meaning:"
    assert any(one.startswith(said) for one in found.missing)
