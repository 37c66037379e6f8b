"""Sentences of readers on files in which whole parts are wrong or missing; and limits, from both sides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cluster_traces import THROUGHPUTS
from test_trace_damage import EXAMPLES, POLLUX, PROFILE

from hetsim import registry
from hetsim.errors import ScenarioError
from hetsim.workload.readers import hcsp, layer_profiles, snapshot
from hetsim.workload.readers.pai import Keyed
from hetsim.workload.readers.pollux import applications
from hetsim.workload.readers.task_table import to_frame, write
from hetsim.workload.rows.job_log import Date
from hetsim.workload.traces import TaskTable

Read = Callable[..., Any]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def of(form: str, text: str, kind: str = "traces", **options: Any) -> Any:
        (tmp_path / "t.txt").write_text(text)
        return registry.entry(kind, form)(tmp_path / "t.txt", **options)

    return of


@pytest.fixture
def said(tmp_path: Path) -> Callable[[Callable[[], Any]], list[str]]:
    """The sentences with which something is refused, without the folder."""

    def of(work: Callable[[], Any]) -> list[str]:
        with pytest.raises(ScenarioError) as caught:
            work()
        texts = [str(problem) for problem in caught.value.problems]
        return [text.replace(f"{tmp_path}/", "").replace(str(tmp_path), "") for text in texts]

    return of


Said = Callable[[Callable[[], Any]], list[str]]
BURST = "Timestamp,Request tokens,Response tokens,Total tokens,Log Type\n5,472,18,490,Conversation log\n"


def wide(count: int) -> str:
    return "\n".join(" ".join("1" * count) for _ in range(3)) + "\n"


@pytest.mark.parametrize(("form", "text", "options", "sentences"), [
    ("pbs", "", {}, ["t.txt: is empty"]), ("sge", "", {}, ["t.txt: is empty"]), ("lsf", "", {}, ["t.txt: is empty"]),
    ("burstgpt", BURST, {"model": "GPT-4"},
     ["t.txt: must have a column Model to select requests to one model"]),
    ("openb", EXAMPLES["openb"], {"duration": 5.0}, ["t.txt: has durations of its jobs; leave out the option "
                                                     "duration"]),
    ("kubernetes", '{"metadata": {}}\n\n[1]\n{"metadata"\n', {},
     ["t.txt:1: cannot be read as a pod: 'spec'", "t.txt:3: the line is not a JSON object",
      "t.txt:4: the line is not a JSON object"]),
    ("wfformat", json.dumps({"schemaVersion": "1.5", "workflow": {
        "specification": {"tasks": [], "files": []}, "execution": {"tasks": []}}}), {}, ["t.txt: has no tasks"]),
    *(("philly", json.dumps([{"submitted_time": "2017-10-07 01:00:00", "attempts": attempts}], indent=0), {},
       ["t.txt:2: column attempts: an attempt must be an object with start_time, end_time and detail"])
      for attempts in ([3], [{"detail": {"a": 1}}], [{"detail": 1}])),
    ("hcsp", wide(3), {"machines": 2, "types": ["a", "b", "c"]}, ["t.txt: types must have 2 names (machines); got 3"]),
    ("hcsp", "1;2;3\n4;5;6\n", {}, ['t.txt:1: "1;2;3" is not a number; times are separated by white space']),
    ("hcsp", wide(3), {"machines": 2},
     ["t.txt: every line has 3 numbers, but the option machines says 2; if a line is not a task, a first line with the "
      "numbers of tasks and machines states the layout"]),
    ("hcsp", "1 1 1\n1 1\n1 1 1\n1 1 1\n", {}, ["t.txt:2: the line has 2 numbers, for 3 machines"]),
    ("hcsp", "1 1 1 1\n1 1 1\n", {"machines": 2}, ["t.txt: 7 numbers are not a whole number of tasks on 2 machines"]),
    ("hcsp", "2 3\n1 1 1\n1 1 1\n", {"types": ["a", "b"]},
     ["t.txt:1: the first line says 3 machines, types names 2"]),
])  # fmt: skip
def test_what_is_refused_as_a_whole(read: Read, said: Said, form: str, text: str, options: Any, sentences: list[str]):
    assert said(lambda: read(form, text, **options)) == sentences


@pytest.mark.parametrize(("form", "text", "options", "sentence"), [
    ("openb_nodes", "sn,cpu_milli,memory_mib,gpu,model\n", {}, "t.txt: has no nodes"),
    ("philly_vc", "vc,node num\nv1,0\n", {}, "t.txt: has no nodes"),
    ("philly_vc", "vc,node num\nv1,2.5\n", {}, 't.txt:2: column node num: "2.5" is not a whole number of nodes'),
    ("gavel_gpus", THROUGHPUTS, {"gpus": {"k8": 1}}, 't.txt: has no GPU type "k8"; did you mean "k80"?'),
    ("gavel_gpus", '{"k80": [1]}', {"gpus": {"k80": 1}},
     "t.txt: k80: must be an object with keys ('job type', scale)"),
    ("gavel_gpus", "[" * 100_000, {"gpus": {"k80": 1}}, "t.txt: is not JSON that can be read (too deep)"),
])  # fmt: skip
def test_lists_of_nodes_that_are_refused(read: Read, said: Said, form: str, text: str, options: Any, sentence: str):
    assert said(lambda: read(form, text, "clusters", **options)) == [sentence]


def test_the_widest_matrix(read: Read, said: Said, monkeypatch: pytest.MonkeyPatch):
    """Without a first line, and with one that says the size; a file that says the least size is read."""
    monkeypatch.setattr(hcsp, "MAX_MACHINES", 4)
    assert len(read("hcsp", wide(4)).times) == 4 and len(read("hcsp", "3 4\n" + wide(4)).times) == 4
    assert said(lambda: read("hcsp", wide(5))) == ["t.txt:1: 5 numbers on a line; at most 4 machines are read"]
    assert said(lambda: read("hcsp", "3 5\n" + wide(5))) == ["t.txt:1: must have at most 4 machines; got 5"]


def times_of(table: TaskTable) -> list[tuple[Any, ...]]:
    gpus = table.numbers["gpus"].tolist()
    return list(zip(table.arrival.tolist(), table.times["gpu_time"].tolist(), gpus, strict=True))


def philly_job(came: str, *attempts: tuple[str | None, str | None, int], **more: Any) -> dict[str, Any]:
    def at(text: str | None) -> str | None:
        return None if text is None else f"2017-10-07 01:00:{text}"

    listed = [{"start_time": at(begin), "end_time": at(end), "detail": [{"ip": "m1", "gpus": ["g"] * gpus}]}
              for begin, end, gpus in attempts]  # fmt: skip
    return {"submitted_time": at(came), "jobid": "a", "user": "u", "status": "Pass", "attempts": listed, **more}


def test_jobs_of_philly_that_are_left_out(read: Read):
    """Of an attempt without GPUs, and of one that began before it came; the others are read with their attempts."""
    jobs = [philly_job("00", ("05", "15", 0)), philly_job("10", ("05", "15", 2)), philly_job("10", ("10", "15", 2)),
            philly_job("00", (None, "05", 1), ("20", "10", 1), ("30", "40", 2), ("41", "45", 3)),
            philly_job("20", (None, None, 1))]  # fmt: skip
    for which, took in (("sum", 14), ("last", 4)):
        table = read("philly", json.dumps(jobs, indent=0), **({"attempts": "last"} if which == "last" else {}))
        gpus = 3 if which == "last" else 2
        assert sorted(times_of(table)) == [(0, took, gpus), (10, 5, 2)]
        for text in ("the GPUs are unknown", "began before their "
                                             "submission", "never started", "took more than one attempt",
                     "have an attempt without its times", "have an attempt that ended before it began"):  # fmt: skip
            assert text in "\n".join(table.notes), text


def test_pods_line_by_line(read: Read, said: Said):
    """A blank line says nothing, and the last state of a pod is the one that counts."""
    pods = json.loads(EXAMPLES["kubernetes"])["items"]
    text = "\n\n".join(json.dumps({"type": "ADDED", "object": pod}) for pod in pods)
    table = read("kubernetes", text)
    assert len(table) == len(read("kubernetes", EXAMPLES["kubernetes"]))
    assert len(read("kubernetes", f"{text}\n{text}\n")) == len(table)
    assert said(lambda: read("kubernetes", f"{text}\n[]\n"))[0] == (
        f"t.txt:{2 * len(pods)}: the line is not a JSON object")  # fmt: skip


# Folders of profiles ----------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p" / "net").mkdir(parents=True)
    for name, text in PROFILE.items():
        (tmp_path / "p" / "net" / name).write_text(text)
    return tmp_path / "p"


HEAD = "placement,local_bsz,step_time,sync_time\n"


@pytest.mark.parametrize(("file", "text", "sentences"), [
    ("placements.csv", None, ["p/net/placements.csv: is missing"]),
    ("placements.csv", "", ["p/net/placements.csv: is empty"]),
    ("placements.csv", HEAD.replace("step", "steps"), [
        'p/net/placements.csv:1: no column "step_time"; did you mean "steps_time"?']),
    ("placements.csv", HEAD, ["p/net/placements.csv: has no rows"]),
    ("placements.csv", HEAD + "\n1,8,x,0\n\n1,16,2\n1,16,2,\n", [
        'p/net/placements.csv:3: column step_time: "x" is not a number',
        "p/net/placements.csv:5: the row has 3 cells; there must be 4",
        'p/net/placements.csv:6: column sync_time: "" is not a number']),
    ("validation-x.csv", "", ['p/net/validation-x.csv: "x" in its name is not a batch size']),
    ("validation-0.csv", "", ['p/net/validation-0.csv: "0" in its name is not a batch size']),
])  # fmt: skip
def test_what_is_wrong_with_a_profile(folder: Path, said: Said, file: str, text: str | None, sentences: list[str]):
    if text is None:
        (folder / "net" / file).unlink()
    else:
        (folder / "net" / file).write_text(text)
    assert said(lambda: applications(folder, {})) == sentences


def test_a_profile_needs_a_validation_and_jobs_need_a_profile(folder: Path, read: Read, said: Said):
    none = ['t.txt: local_limits: "nets" has no profile in p; did you mean "net"?']
    assert said(lambda: read("pollux", POLLUX, profiles=folder, local_limits={"nets": 3})) == none
    (folder / "net" / "placements.csv").write_text((folder / "net" / "placements.csv").read_text() + "\n")
    assert len(read("pollux", POLLUX, profiles=folder)) == 2  # an empty row is none
    for path in (folder / "net").glob("validation-*"):
        path.unlink()
    assert said(lambda: applications(folder, {})) == [
        "p/net: has no validation-N.csv: one file for each batch size N that was trained with"]  # fmt: skip


# Parts of readers -------------------------------------------------------------------------------------------------


def test_keys_whose_first_halves_are_equal_are_apart(monkeypatch: pytest.MonkeyPatch):
    """Half of the hash is the same for all: a key is then looked for among its neighbors."""
    from hetsim.workload.readers import pai

    class Same:
        def __init__(self, key: bytes, digest_size: int):
            self.key = key

        def digest(self) -> bytes:
            return bytes(8) + self.key.ljust(8)

    monkeypatch.setattr(pai, "blake2b", Same)
    table = Keyed(last=("d", "last"), least=("i", "least"), most=("d", "most"))
    for value, key in enumerate("cabac"):
        table.add(key, value, value, value)
    assert len(table) == 3
    assert [table.find(key) for key in "abcd"] == [(3, 1, 3), (2, 2, 2), (4, 0, 4), None]


SQUEUE = "JOBID|PARTITION|USER|STATE|SUBMIT_TIME|START_TIME|TIME_LIMIT|CPUS|NODELIST\n"
ROW = "{}|p|ann|{}|2026-01-01T00:00:00|2026-01-01T00:01:00|1:00:00|8|n1\n"


def test_a_snapshot_says_what_it_lacks(tmp_path: Path, said: Said):
    path = tmp_path / "t.txt"
    for text, nodes, partition in ((SQUEUE + ROW.format(1, "RUNNING"), {"n1": ["p"]}, "p"),
                                   (SQUEUE + ROW.format(1, "RUNNING"), {"n1": []}, "")):  # fmt: skip
        path.write_text(text)
        found = snapshot.read(path, nodes)  # type: ignore[arg-type]
        assert found.jobs[0].partition == partition and found.jobs[0].gpus == 0
        assert [note.replace(f"{tmp_path}/", "") for note in found.notes] == [
            "t.txt: no column TRES_PER_NODE (%b), so no job uses GPUs"]  # fmt: skip
    path.write_text(SQUEUE + ROW.format(1, "COMPLETED") + ROW.format(2, "FAILED"))
    assert said(lambda: snapshot.read(path, {"n1": ["p"]})) == ["t.txt: has no running or waiting jobs"]
    path.write_text(SQUEUE.replace("STATE", "S") + ROW.format(1, "RUNNING"))
    assert said(lambda: snapshot.read(path, {"n1": ["p"]})) == ['t.txt:1: no column "STATE" (or "ST")']


def test_arrays_of_a_snapshot_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As many tasks as are looked at; the bounds are included, and steps are counted from the first."""
    path = tmp_path / "t.txt"
    monkeypatch.setattr(snapshot, "MAX_ARRAY", 5)
    rows = {"7_[1-4]": "1 2 3 4", "7_[1-9]": "1 2 3 4 5", "7_[1-3,8-9]": "1 2 3 8 9", "7_[2-9:3]": "2 5 8",
            "7_[1-3,5,7,9]": "1 2 3 5 7", "7_[4]": "4", "7_[4-5:0]": "4 5", "7_[1,3,5...]": "1 3"}  # fmt: skip
    for name, numbers in rows.items():
        path.write_text(SQUEUE + ROW.format(name, "PENDING"))
        found = snapshot.read(path, {"n1": ["p"]})
        assert [job.id for job in found.jobs] == [f"7_{number}" for number in numbers.split()], name
        full = "only the first 5 tasks of array 7 are read" in "\n".join(found.notes)
        assert full == (len(numbers.split()) == 5)
        assert ("array 7 are cut short" in "\n".join(found.notes)) == ("..." in name)


@pytest.mark.parametrize(("text", "gpus", "kind"), [
    ("gres:gpu:a100:2", 2, "a100"), ("gres/gpu=2", 2, ""), ("gpu", 1, ""), ("gpu:a100", 1, "a100"), ("N/A", 0, ""),
    ("gpu:a:2,gpu:b:3", 5, ""), ("cpu=4,gres/gpu=3,gres/gpu:a=3", 3, "a"), ("gpu:a:0,gpu:b:3", 3, "b"),
    ("gpu:4(S:0-1)", 4, ""), ("gpu:a=2,gpu:a=1", 3, "a"), ("gpu:a:b:2", 2, "a:b"), ("gpu:2,gpu:a:0", 2, ""),
    ("shard:3", 0, ""),
])  # fmt: skip
def test_gpus_of_a_cell(text: str, gpus: float, kind: str):
    assert snapshot.gpus_of(text) == (gpus, kind)


# Profiles of layers -----------------------------------------------------------------------------------------------

NODE = "node{} -- {} -- forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0\n"
ROWS = "layer,activations,weights,forward,backward\na,1,2,3,4\nb,1,2,3,4\n"


def graph(*edges: str, names: str = "A B C D") -> str:
    nodes = "".join(NODE.format(number, name) for number, name in enumerate(names.split(), start=1))
    return nodes + "".join(f"\tnode{one} -- node{other}\n" for one, other in edges)


ZERO = "at least one layer must take more than 0 s"


@pytest.mark.parametrize(("file", "text", "sentences"), [
    ("t.csv", ROWS.replace("b,1,2,3,4", "b,1,2"), ["t.csv:3:6: a row must have 5 values, as the header; got 3"]),
    ("t.csv", ROWS.replace("b,1,2,3,4", "b,1,2,3,4,5"), ["t.csv:3:11: a row must have 5 values, as the header; got 6"]),
    ("t.csv", ROWS.replace("b,1,2,3,4", '"b,1,2,3,4'), ["t.csv:3: a row must have 5 values, as the header"]),
    ("t.csv", ROWS.splitlines()[0] + "\n", ["t.csv: the file has no layer"]),
    ("t.csv", ROWS.replace("1,2,3,4", "1,2,0,4"), [f"t.csv:1:27: forward: {ZERO}"]),
    ("t.csv", "layer,activations,seconds.a,seconds.b\nx,1,0,2\ny,1,0,0\n", [f"t.csv:1:19: seconds.a: {ZERO}"]),
    ("t.csv", "layer,layer,weight,activations\n", [
        "t.csv:1: the column \"forward\" is missing",
        't.csv:1:13: unknown column "weight"; there are layer, activations, weights, forward, backward and '
        "seconds.DEVICE", 't.csv:1:7: the column "layer" appears twice']),
    ("t.txt", "", ["t.txt: the file has no "
                   "layer"]), ("t.txt", NODE.format(1, "Input"), ["t.txt: the file has no layer"]),
    ("t.txt", graph("12", "21", "23", "34"), ['t.txt: the layers form a cycle; "node1" is in it or after it']),
    ("t.txt", graph("12", "23", "32", "34"), ['t.txt: the layers form a cycle; "node2" is in it or after it']),
    ("t.txt", graph("12", "13"), ['t.txt: layer "node4" (D) does not lead to the last layer, the only end']),
    ("t.txt", graph("15"), ['t.txt:5: an edge: there is no layer "node5" before this line']),
    ("t.txt", graph() + "\tnode1\n", ["t.txt:5: an edge: must be NODE -- NODE"]),
    ("t.txt", graph() + NODE.format(2, "B"), ['t.txt:5: layer "node2" is given twice']),
    ("t.txt", graph() + "\nnode5 -- E\n",
     ["t.txt:6: must be NODE -- DESCRIPTION -- FIGURES, or a tab and NODE -- NODE"]),
    ("t.txt", "node1 -- A -- forward_compute_time=1.0, activation_size=2\n",
     ['t.txt:1: layer "node1": backward_compute_time, parameter_size missing']),
    ("t.txt", graph().replace("forward_compute_time=1.0", "forward_compute_time=0"),
     [f"t.txt:1: forward_compute_time: {ZERO}"]),
])  # fmt: skip
def test_profiles_of_layers_that_are_refused(tmp_path: Path, said: Said, file: str, text: str, sentences: list[str]):
    (tmp_path / file).write_text(text)
    assert said(lambda: layer_profiles.read_profile(tmp_path / file)) == sentences


def test_inputs_and_items_of_results_are_no_layers(tmp_path: Path):
    """They go with their edges; an input that is computed, and an item that leads on, stay."""
    path = tmp_path / "t.txt"
    for names, edges, kept in (
        ("Input1 A B", ("12", "23"), "A B"), ("A Input1 B", ("12", "23"), "A Input1 B"),
        ("A B __getitem__(0)", ("12", "13"), "A B"), ("A __getitem__(0) B", ("12", "23"), "A __getitem__(0) B"),
        ("Input A B C __getitem__", ("12", "13", "24", "34", "35"), "A B C"),
    ):  # fmt: skip
        path.write_text(graph(*edges, names=names))
        assert [layer.name for layer in layer_profiles.read_profile(path).layers] == kept.split()


def test_a_network_with_too_many_places_to_cut(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch):
    """A chain of four layers has four."""
    (tmp_path / "t.txt").write_text(graph("12", "23", "34"))
    monkeypatch.setattr(layer_profiles, "MAX_CUTS", 4)
    assert len(layer_profiles.read_profile(tmp_path / "t.txt").layers) == 4
    monkeypatch.setattr(layer_profiles, "MAX_CUTS", 3)
    assert said(lambda: layer_profiles.read_profile(tmp_path / "t.txt")) == [
        "t.txt: the network must have at most 3 cuts; join layers"]  # fmt: skip


def test_a_profile_that_cannot_be_read(tmp_path: Path, said: Said):
    path = tmp_path / "t.csv"
    path.write_bytes(b"layer\xff")
    assert said(lambda: layer_profiles.read_profile(path)) == ["t.csv: the file is not UTF-8 text"]
    assert said(lambda: layer_profiles.read_profile(tmp_path)) == [": cannot be read: Is a directory"]


# Tables of tasks --------------------------------------------------------------------------------------------------


def task_table(text: str, folder: Path) -> TaskTable:
    (folder / "t.csv").write_text(text)
    return registry.entry("traces", "tasks")(folder / "t.csv")


@pytest.mark.parametrize(("column", "cells", "wrong"), [
    ("nodes", "1 2 0 1.5 0.5 64", dict.fromkeys((3, 4, 5), "is not a number of nodes: 1, 2, 3, ...")),
    ("priority", "-1 0 1e15 -1e15 inf -inf x", {5: "is not finite", 6: "is not finite", 7: "is not a number"}),
    ("deadline", "0 1 -1 inf 2", {3: "is negative", 4: "is not finite"}),
    ("gpu_time", "0 1 -1 inf -inf", {3: "is negative", 5: "is negative"}),
    ("arrival", "0 5 -1 inf nan", {3: "is negative", 4: "is not finite", 5: "is not a number"}),
])  # fmt: skip
def test_numbers_that_a_column_takes(tmp_path: Path, said: Said, column: str, cells: str, wrong: dict[int, str]):
    """Each cell alone, and all of them together with their lines."""
    good = [cell for row, cell in enumerate(cells.split(), start=1) if row not in wrong]

    def rows(chosen: list[str]) -> str:
        return f"cpu_time,{column}\n" + "".join(f"1,{cell}\n" for cell in chosen)

    assert len(task_table(rows(good), tmp_path)) == len(good)
    expected = [f't.csv:{row + 1}: row {row}, column {column}: "{cells.split()[row - 1]}" {what}'
                for row, what in wrong.items()]  # fmt: skip
    assert sorted(said(lambda: task_table(rows(cells.split()), tmp_path))) == sorted(expected)


@pytest.mark.parametrize(("text", "sentences"), [
    ("", ["t.csv: is empty"]), ("cpu_time\n", ["t.csv: the table has no rows"]),
    ("cpu_time,user\n1\n", ["t.csv:2: the row has 1 cell, but the header has 2 columns"]),
    ("cpu_time\n1\n1,2\n", ["t.csv:3: the row has 2 cells, but the header has 1 columns"]),
    ("cpu_time,cpu_time\n1,1\n", ['t.csv:1: the column "cpu_time" is given twice']),
    ("cpu_time,gpu_time_estimate\n1,1\n",
     ['t.csv:1: column "gpu_time_estimate" needs the column "gpu_time" next to it']),
    ("cpu_time,bytes,efficiency\n1,1,1\n", [
        f't.csv:1: column "{name}" needs the column "flops" next to it' for name in ("bytes", "efficiency")]),
    ("flops,efficiency\n1,1\n1,0\n1,1.5\n1,0.5\n", [
        f"t.csv:{row + 1}: row {row}, column efficiency: must be a share above 0 and at most 1; got {cell}"
        for row, cell in ((2, 0), (3, 1.5))]),
    ("flops,cpu_time,bytes\n1,1,1\n,1,1\n,1,\n",
     ["t.csv:3: row 2, column bytes: must be empty for a task without flops"]),
    ("cpu_time,gpu_time\n1,\n,\n,1\n",
     ["t.csv:3: row 2, column cpu_time, gpu_time: task 2 has no finite time on any device"]),
    ("flops\n1\n\n", []),
    ("gpu_time,gpus\n1,1\n1,0.5\n1,1.5\n1,2\n",
     ["t.csv:4: row 3, column gpus: must be a share of one GPU below 1, or whole GPUs; got 1.5"]),
    ("cpu_time,weight\n1,1\n1,0\n1,0.1\n", ["t.csv:3: row 2, column weight: a weight must be above 0"]),
    ("cpu_time,id\n1,a\n1,b\n1,a\n", ['t.csv:4: row 3, column id: "a" is also the id of line 2']),
    ("cpu_time,id,predecessors\n1,a,\n1,b,a;c\n",
     ['t.csv:3: row 2, column predecessors: task b names the unknown predecessor "c"']),
    ("cpu_time,id,predecessors\n1,a,c\n1,b,a\n1,c,b\n", [
        "t.csv:2: row 1, column predecessors: the graph has a cycle: these tasks wait for each other: a → b → c → a"]),
])  # fmt: skip
def test_tables_of_tasks_that_are_refused(tmp_path: Path, said: Said, text: str, sentences: list[str]):
    if not sentences:
        assert len(task_table(text, tmp_path)) == 1
        return
    assert said(lambda: task_table(text, tmp_path)) == sentences


def test_bad_cells_beyond_the_first_are_counted(tmp_path: Path, said: Said):
    texts = said(lambda: task_table("cpu_time\n" + "x\n" * 23, tmp_path))
    assert len(texts) == 21 and texts[0] == 't.csv:2: row 1, column cpu_time: "x" is not a number'
    assert texts[-1] == "t.csv: and 3 more bad cells"


def test_a_graph_without_ids_is_written_with_the_numbers_of_its_rows(tmp_path: Path):
    """From 1 on; by these its edges and items are read again."""
    table = TaskTable("x", {"cpu_time": np.array([1.0, 2, 3])}, np.zeros(3))
    table.predecessors, table.reads, table.writes = [(), (0,), (0, 1)], [("a",), (), ("a", "b")], [(), ("b",), ()]
    frame = to_frame(table)
    assert list(frame.columns) == ["id", "arrival", "cpu_time", "predecessors", "reads", "writes"]
    assert frame["id"].tolist() == [1, 2, 3] and frame["predecessors"].tolist() == ["", "1", "1;2"]
    assert (frame["reads"].tolist(), frame["writes"].tolist()) == (["a", "", "a;b"], ["", "b", ""])
    write(table, tmp_path / "w.csv")
    again = registry.entry("traces", "tasks")(tmp_path / "w.csv")
    assert (again.predecessors, again.reads, again.writes) == (table.predecessors, table.reads, table.writes)
    assert list(to_frame(TaskTable("x", {"cpu_time": np.ones(1)}, np.zeros(1))).columns) == ["arrival", "cpu_time"]


# Limits, from both sides ------------------------------------------------------------------------------------------

SWF_ROW = "{} 0 5 10 2 {} -1 2 20 -1 1 3 1 -1 1 -1 -1 -1\n"


@pytest.mark.parametrize(("cell", "taken"), [
    ("999999999999999", True), ("-999999999999999", True), ("1000000000000000", False), ("-1000000000000000", False),
    ("1e15", False), ("nan", False), ("1e14", True),
])  # fmt: skip
def test_numbers_of_a_log_are_below_ten_to_the_fifteen(read: Read, said: Said, cell: str, taken: bool):
    text = SWF_ROW.format(1, -1) + SWF_ROW.format(2, cell)
    if taken:
        assert len(read("swf", text)) == 2
    else:
        (sentence,) = said(lambda: read("swf", text))
        assert sentence.startswith("t.txt:2: column 6 (") and f'"{cell}"' in sentence


@pytest.mark.parametrize(("speed", "taken"), [
    ("999999999999999", True), ("0", True), ("2.5", True), ("1e15", False), ("-1", False), ("true", False),
    ('"1"', False),
])  # fmt: skip
def test_speeds_of_a_table_of_throughputs(read: Read, said: Said, speed: str, taken: bool):
    text = f'{{"k80": {{"(\'A\', 1)": {{"null": {speed}}}}}}}'
    if taken:
        assert len(read("gavel_gpus", text, "clusters", gpus={"k80": 1})) == 1
    else:
        (sentence,) = said(lambda: read("gavel_gpus", text, "clusters", gpus={"k80": 1}))
        assert sentence.startswith("t.txt: k80: \"('A', 1)\": ")
        assert sentence.endswith("is not a number of steps per second")


DLRM = (
    "instance_sn,role,app_name,cpu_request,cpu_limit,gpu_request,gpu_limit,rdma_request,rdma_limit,memory_request,"
    "memory_limit,disk_request,disk_limit,max_instance_per_node,creation_time,scheduled_time,deletion_time\n"
)
"""The header that the documentation of the trace prints."""


def test_gpus_of_an_instance_are_whole_above_one(read: Read, said: Said):
    """Half a GPU is a share, one and a half is none; and at most so many on a node, where it says so."""
    row = "{},CN,app,4,8,{},{},0,0,8,8,10,10,{},{},{},{}\n"
    good = DLRM + row.format("a", 0.5, 1, -1, 0, 5, 50) + row.format("b", 2, 2, 1, 10, 15, 60)
    table = read("alibaba_dlrm", good + row.format("c", 1, 1, 0, 20, 25, 60))
    assert table.numbers["gpus"].tolist() == [0.5, 2, 1]
    (sentence,) = said(lambda: read("alibaba_dlrm", good + row.format("c", 1.5, 2, -1, 20, 25, 60)))
    assert sentence.startswith('t.txt:4: column gpu_request: "1.5" is not a share of GPUs')
    limits = np.asarray(table.extra["max_per_node"], dtype=float)
    assert np.isnan(limits[[0, 2]]).all() and limits[1] == 1


def test_edges_of_accounts(read: Read, said: Said):
    """A row of Grid Engine has 42 cells or more; of 13 digits are milliseconds, of 12 seconds; dates end in 9999."""
    row = [f"c{n}" for n in range(42)]
    row[8:11] = ["253402300000", "253402300000", "253402300799"]
    row[34:36], row[39], row[41] = ["6", "0"], "", "NONE"
    table = read("sge", ":".join(row) + "\n")
    assert len(table) == 1 and table.times["cpu_time"].tolist() == [799]
    assert "time 0 is 9999-12-31 23:46:40" in table.notes[0]
    row[10] = "253402300800"
    assert said(lambda: read("sge", ":".join(row) + "\n")) == [
        't.txt:1: row 1, column end: "253402300800" is after the year 9999 if read as epoch s; give the right unit'
    ]
    row[10] = "253402300799123"
    assert read("sge", ":".join(row) + "\n").times["cpu_time"].tolist() == [799]
    assert said(lambda: read("sge", ":".join(row[:41]) + "\n")) == [
        "t.txt:1: the row has 41 cells separated by colons; there must be 42 or more"]  # fmt: skip


@pytest.mark.parametrize(("start", "dated"), [
    ("1000000000", True), ("253402300799", True), ("253402300800", False), ("9" * 5000, False), ("0", False),
    ("-5", False),
])  # fmt: skip
def test_the_start_of_a_log_is_a_date(read: Read, said: Said, start: str, dated: bool):
    """Without one there is nothing to compare dates with."""
    text = f"; UnixStartTime: {start}\n" + SWF_ROW.format(1, -1)
    window = {"since": Date(0.0), "until": Date(5e11)}
    if dated:
        assert len(read("swf", text, **window)) == 1
    else:
        (sentence,) = said(lambda: read("swf", text, **window))
        assert "this log has no dates to compare" in sentence
    assert len(read("swf", text)) == 1


@pytest.mark.parametrize(("held", "cores", "gpus", "memory"), [
    ("exec_host=n7/1*8+n8/2-5+n9/3", 8 + 4 + 1, 0, None), ("exec_host=n1/0", 1, 0, None),
    ("exec_host=n1/4+n1/5", 2, 0, None),
    ("exec_host=n1/0 Resource_List.ncpus=3 Resource_List.mem=3kb", 3, 0, 3 * 1024),
    ("exec_host=n1/0 Resource_List.nodes=3:ppn=2:gpus=1+n7:gpus=2 Resource_List.mem=2w", 3 * 2 + 1, 3 * 1 + 2, 16),
    ("exec_host=n1/0 Resource_List.nodes=2:ppn=2:gpus=1 Resource_List.ngpus=5 Resource_List.mem=7", 4, 5, 7),
    ("exec_vnode=(n1:ncpus=2:ngpus=1+n2:ncpus=3) Resource_List.ncpus=9 Resource_List.mem=2tb", 5, 1, 2 * 1024**4),
    ("exec_host=n1/0 Resource_List.mem=5mb", 1, 0, 5 * 1024**2),
    ("exec_host=n1/0 Resource_List.mem=5g", 1, 0, 5 * 1024**3),
    ("exec_host=n1/0 Resource_List.mem=1pb", 1, 0, 1024**5), ("exec_host=n1/0 Resource_List.mem=lots", 1, 0, None),
])  # fmt: skip
def test_what_a_job_of_pbs_holds(read: Read, held: str, cores: float, gpus: float, memory: float | None):
    """By its vnodes, else by what it asked for, else by its slots; memory in words of 8 bytes, bytes, and so on."""
    text = f"06/01/2026 08:30:14;E;6.s;user=u start=1780302014 end=1780302614 {held}\n"
    numbers = read("pbs", text).numbers
    assert numbers["cpus"].tolist() == [cores]
    assert numbers["gpus"].tolist() == [gpus] if gpus else not np.nan_to_num(numbers.get("gpus", np.zeros(1))).any()
    np.testing.assert_array_equal(numbers.get("memory", [np.nan]), [np.nan if memory is None else memory])


def test_edges_of_gavel(read: Read, tmp_path: Path):
    """Weights and objectives count from above 0; a job on one GPU of a type needs its speed there."""
    (tmp_path / "s.json").write_text(json.dumps({"v100": {"('a', 1)": {"null": 4.0}}}))
    rows = "".join(f"a\tx\t.\tn\t1\t40\t1\t{cell}\t{cell}\t{at}\n" for at, cell in enumerate(("0", "0.5", "1", "-1")))
    table = read("gavel", rows, throughputs=tmp_path / "s.json")
    np.testing.assert_array_equal(table.numbers["weight"], [np.nan, 0.5, 1, np.nan])
    np.testing.assert_array_equal(np.asarray(table.extra["slo"], dtype=float), [np.nan, 0.5, 1, np.nan])


def test_edges_of_acme(read: Read):
    """Memory is by node; without the number of nodes there is one, without memory none."""
    head = "job_id,user,node_num,gpu_num,cpu_num,mem_per_pod_GB,type,state,submit_time,start_time,end_time\n"
    at = "2023-05-17 11:00:{}+00:00"
    rows = "".join(f"d{n},u,{nodes},1,8,{memory},T,COMPLETED,{at.format('00')},{at.format('10')},{at.format('40')}\n"
                   for n, (nodes, memory) in enumerate((("2", "0.5"), ("", "3"), ("2", ""), ("2", "0"))))  # fmt: skip
    np.testing.assert_array_equal(read("acme", head + rows).numbers["memory"], [1e9, 3e9, np.nan, np.nan])


def test_edges_of_pods_and_nodes(read: Read, said: Said):
    """What init containers ask for counts where it is more, also below 1; nodes that are away are counted."""

    def pod(name: str, first: dict[str, str], init: dict[str, str]) -> dict[str, Any]:
        ended = {"state": {"terminated": {"startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:09Z"}}}
        return {"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"containers": [{"resources": {"requests": first}}],
                         "initContainers": [{"resources": {"requests": init}}]},
                "status": {"phase": "Succeeded", "containerStatuses": [ended]}}  # fmt: skip

    pods = [pod("a", {"memory": "1k"}, {"cpu": "500m"}), pod("c", {"cpu": "2"}, {"cpu": "1", "memory": "5"}),
            pod("b", {"cpu": "250m"}, {"cpu": "100m", "nvidia.com/gpu": "1"})]  # fmt: skip
    table = read("kubernetes", json.dumps({"items": pods}, indent=0))
    assert table.numbers["cpus"].tolist() == [0.5, 2, 0.25] and table.numbers["gpus"].tolist() == [0, 0, 1]
    assert table.numbers["memory"].tolist() == [1000, 5, 0]
    nodes = [{"metadata": {"name": f"k{n}"}, "spec": {"unschedulable": True}, "status": {"capacity": {"cpu": "3"}}}
             for n in range(3)]  # fmt: skip
    text = json.dumps({"items": nodes}, indent=0)
    assert said(lambda: read("kubernetes_nodes", text, "clusters")) == [
        "t.txt: has no nodes but 3 that are cordoned or not ready; down: true keeps them"]  # fmt: skip
    assert said(lambda: read("kubernetes_nodes", '{"items": [\n]}', "clusters")) == ["t.txt: has no nodes"]
    assert read("kubernetes_nodes", text, "clusters", down=True) == [{"name": f"k{n}", "cpus": 3} for n in range(3)]


ROW_OF_GRAPH = "the row has {} columns; with 1 GPU column it needs 3, or 4 with predecessors{}"


@pytest.mark.parametrize(("text", "options", "sentences"), [
    ("1 4 2\n2 4 2 1 3\n", {},
     ["t.txt:2: " + ROW_OF_GRAPH.format(5, "; for further GPU columns name them all with types")]),
    ("1 4 2\n2 4 2 1 3\n", {"types": ["gpu"]}, ["t.txt:2: " + ROW_OF_GRAPH.format(5, "")]),
    ("1 4 2\n2 4 2 1, 3\n", {}, ["t.txt:2: " + ROW_OF_GRAPH.format(5, ", separated by commas without spaces")]),
    ("1 4 2\n2,4,2\n", {},
     ["t.txt:2: the row has 1 column; with 1 GPU column it needs 3, or 4 with predecessors; columns are separated by "
      "white space"]),
    ("1 4 2\n2 -1 -1\n", {},
     ["t.txt:2:3: column cpu_time, gpu_time: task 2 cannot run anywhere: each of its times is -1"]),
    ("1 4 2\n1 4 2\n", {}, ["t.txt:2:1: column id: 1 is also the id of line 1"]),
    ("1 4 2\n2 4 2 7\n", {"types": ["gpu"]},
     ["t.txt:2:7: column predecessors: task 2 names the unknown predecessor 7"]),
    ("1 4 2 2\n2 4 2 1\n3 4 2\n", {"types": ["gpu"]},
     ["t.txt:1:7: column predecessors: the graph has a cycle: these tasks wait for each other: 1 → 2 → 1"]),
])  # fmt: skip
def test_graphs_that_are_refused(read: Read, said: Said, text: str, options: dict[str, Any], sentences: list[str]):
    assert said(lambda: read("hetero_dag", text, **options)) == sentences
