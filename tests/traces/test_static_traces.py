"""Task-graph files and matrices of unrelated machines: what their numbers mean, and every complaint."""

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.workload.readers import hcsp, hetero_dag, task_table

PUBLIC = Path(__file__).parents[3] / "shared" / "data" / "hetero_dag"
public = pytest.mark.skipif(not PUBLIC.is_dir(), reason="the public excerpts are not here")
POLICIES = ["fcfs", *({"scheduler": name, "placement": "earliest_finish"} for name in ("fcfs", "priority"))]


@pytest.fixture
def file(tmp_path):
    def write(text, name="t.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def complaints(file, tmp_path):
    def of(reader, text, name="t.txt", **options):
        with pytest.raises(ScenarioError) as caught:
            reader.read(file(text, name), **options)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return of


def run(path, gpus, policy, **trace):
    return hs.run(
        {
            "name": "graph",
            "cluster": {"nodes": {"cpus": 4, "gpus": gpus}},
            "workload": {"trace": {"path": str(path), **trace}},
            "policy": policy,
        }
    )


# Task graphs ----------------------------------------------------------------------------------------------------


def test_a_graph_in_any_order_of_ids(file):
    found = hetero_dag.read(file("7 1 -1\n-3 2.5 0.5 12,7\n12 3e0 3 7\r\n\n# a remark\n5 4 .25"))
    assert found.id.tolist() == [7, -3, 12, 5]
    assert found.times["cpu_time"].tolist() == [0.001, 0.0025, 0.003, 0.004]
    assert found.times["gpu_time"].tolist() == [np.inf, 0.0005, 0.003, 0.00025]
    assert found.predecessors == [(), (2, 0), (0,), ()]
    assert found.arrival.tolist() == [0] * 4
    assert [found.line(row) for row in range(4)] == [1, 2, 3, 6]
    assert pickle.loads(pickle.dumps(found)).line(3) == 6


@pytest.mark.parametrize(("unit", "seconds"), [("ms", 0.003), ("us", 3e-6), ("s", 3.0), ("min", 180.0), ("h", 10800.0)])
def test_units(file, unit, seconds):
    assert hetero_dag.read(file("1 3 3\n"), unit=unit).times["cpu_time"].tolist() == [seconds]


def test_predecessors_may_be_left_out_and_then_need_not_exist(file):
    found = hetero_dag.read(file("1 1 1 99\n2 1 1 1,99\n"), independent=True)
    assert found.predecessors is None and len(found) == 2
    assert hetero_dag.read(file("1 1 1\n2 1 1\n")).predecessors is None  # rows may then be cut by count


@pytest.mark.parametrize(
    ("text", "gpu2", "edges"),
    [
        ("1 1 2\n2 1 2 1\n", None, 1),
        ("1 1 2 3\n2 1 2 4 1\n", [3, 4], 1),
        ("1 1 2 3\n2 1 2 4\n", [3, 4], 0),
        ("1 1 2 -1\n2 1 2 1.5\n", [np.inf, 1.5], 0),
        ("1 1 2 1\n2 1 2 2.5\n", [1, 2.5], 0),
        ("1 1 2 2\n2 1 2 7\n", [2, 7], 0),  # 7 is not an id
        ("1 1 2\n2 1 2 1\n3 1 2 1,2\n", None, 3),
    ],
)
def test_the_number_of_gpu_columns_shows_in_the_whole_file(file, text, gpu2, edges):
    found = hetero_dag.read(file(text))
    second = found.times.get("gpu_time.gpu2")
    assert (None if second is None else (second * 1000).tolist()) == gpu2
    assert sum(map(len, found.predecessors or [])) == edges


def test_times_that_could_be_predecessors_need_types(file, complaints):
    text = "1 1 2 2\n2 1 2 1\n"
    (said,) = complaints(hetero_dag, text)
    assert said.startswith("t.txt: all rows have 4 columns, and the last could be times as well as predecessors")
    assert hetero_dag.read(file(text), types=["a", "b"]).times["gpu_time.b"].tolist() == [0.002, 0.001]
    (said,) = complaints(hetero_dag, text, types=["gpu"])
    assert "the graph has a cycle: these tasks wait for each other: 1 → 2 → 1" in said


def test_types_name_the_columns(file):
    assert list(hetero_dag.read(file("1 1 2\n"), types=["k20"]).times) == ["cpu_time", "gpu_time.k20"]
    assert list(hetero_dag.read(file("1 1 2 3\n"), types=["gpu", "k20"]).times) == [
        "cpu_time", "gpu_time", "gpu_time.k20"
    ]  # fmt: skip
    three = hetero_dag.read(file("1 1 2 3 4\n2 1 2 3 4 1\n"), types=["a", "b", "c"])
    assert three.times["gpu_time.c"].tolist() == [0.004] * 2 and three.predecessors == [(), (0,)]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["t.txt: is empty"]),
        (" \n\n", ["t.txt: has no rows"]),
        ("# nothing\n", ["t.txt: has no rows"]),
        ("id cpu gpu\n1 1 1\n", ["t.txt:1: must not have a header; remove it"]),
        ("1 1 1\n2 1\n3 1 1 2\n",
         ["t.txt:2: the row has 2 columns; with 1 GPU column it needs 3, or 4 with predecessors"]),
        ("1 1 1 1\n2 1 1 1.5 1\n3 1 1\n4 1 1 2 3\n",
         ["t.txt:3: the row has 3 columns; with 2 GPU columns it needs 4, or 5 with predecessors"]),
        ("1,2,3\n", ["t.txt:1: the row has 1 column; with 1 GPU column it needs 3, or 4 with predecessors; "
                     "columns are separated by white space"]),
        ("1 1 1\n2 1 1 1\n3 1 1 1, 2 1\n",
         ["t.txt:3: the row has 6 columns; with 1 GPU column it needs 3, or 4 with predecessors, "
          "separated by commas without spaces"]),
        ("1 1 1 1 1 1 1\n", ["t.txt:1: the row has 7 columns; with 1 GPU column it needs 3, or 4 with predecessors; "
                             "for further GPU columns name them all with types"]),
        ("1 1 -2\n2  nan -1\n3 1e400 inf\n4 1_0 ٣\n",
         ['t.txt:1:5: column gpu_time: "-2" is negative; only -1 (cannot run there) may be',
          't.txt:2:4: column cpu_time: "nan" is not a number',
          't.txt:3:3: column cpu_time: "1e400" is more than 1e+15 s',
          't.txt:3:9: column gpu_time: "inf" is not a number; -1 means that the task cannot run there',
          't.txt:4:3: column cpu_time: "1_0" is not a number',
          't.txt:4:7: column gpu_time: "٣" is not a number']),
        ("1 -1 -1.0\n", ["t.txt:1:3: column cpu_time, gpu_time: task 1 cannot run anywhere: each of its times is -1"]),
        ("1.5 1 1\n1234567890123456789 1 1\n",
         ['t.txt:1:1: column id: "1.5" is not a whole number',
          't.txt:2:1: column id: "1234567890123456789" is not a whole number of at most 18 digits']),
        ("4 1 1\n5 1 1\n04 1 1\n", ["t.txt:3:1: column id: 4 is also the id of line 1"]),
        ("4 1 1\n5 1 1 4,6\n", ["t.txt:2:7: column predecessors: task 5 names the unknown predecessor 6"]),
        ("4 1 1\n5 1 1 4,,x\n",
         ["t.txt:2:7: column predecessors: an id is missing next to a comma",
          't.txt:2:7: column predecessors: "x" is not an id, a whole number']),
        ("0 1 1\n4 1 1 6\n5 1 1 4\n6 1 1 5,0\n",
         ["t.txt:2:7: column predecessors: the graph has a cycle: these tasks wait for each other: 4 → 5 → 6 → 4"]),
        ("0 1 1\n4 1 1 4\n",
         ["t.txt:2:7: column predecessors: the graph has a cycle: these tasks wait for each other: 4 → 4"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_graph(complaints, text, problems):
    assert complaints(hetero_dag, text) == problems


def test_a_long_cycle_is_shortened(complaints):
    rows = "".join(f"{n} 1 1 {(n + 1) % 1000}\n" for n in range(1000))
    (said,) = complaints(hetero_dag, "5000 1 1\n" + rows)
    assert "(990 more)" in said and len(said) < 200


@pytest.mark.parametrize("reader", [hetero_dag, hcsp])
def test_many_problems_are_counted(complaints, reader):
    found = complaints(reader, "".join(f"{n} x 1\n" for n in range(1000)))
    assert len(found) == 21 and found[0].startswith("t.txt:1:") and found[-1] == "t.txt: and 980 more problems"


@pytest.mark.parametrize("reader", [hetero_dag, hcsp])
def test_files_that_are_no_text(complaints, file, reader):
    packed = gzip.compress(b"1 1 2\n2 1 2\n" * 50)
    assert complaints(reader, packed[:-9], "t.gz") == ["t.gz: is damaged: the compressed data end too early"]
    assert complaints(reader, packed[:12] + b"\xff" * 20 + packed[32:], "t.gz")[0].startswith("t.gz: is damaged: ")
    assert complaints(reader, "1 1 2\n", "t.gz") == ["t.gz: is not compressed with gzip, although its name ends in .gz"]
    assert complaints(reader, b"1 1 2\n2 \xe9 2\n") == ["t.txt:2:3: is not UTF-8 text (byte 0xe9); save it as UTF-8"]
    marked = b"\xef\xbb\xbf1 1 2\n2 1 2\n"
    assert len(reader.read(file(marked))) == len(reader.read(file(gzip.compress(marked), "t.gz"))) == 2
    assert complaints(reader, marked + b"\xff") == ["t.txt:3:1: is not UTF-8 text (byte 0xff); save it as UTF-8"]


@examples(300)
@given(st.text(alphabet="0123456789-.,e#x \n", max_size=60), st.sampled_from([hetero_dag, hcsp]))
def test_any_text_is_a_table_or_a_list_of_problems(tmp_path_factory, text, reader):
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_text(text)
    try:
        table = reader.read(path)
    except ScenarioError as error:
        assert 1 <= len(error.problems) <= 21
    else:
        times = np.array(list(table.times.values()))
        assert (times >= 0).all() and np.isfinite(times).any(axis=0).all()


def test_a_graph_written_as_a_task_table_reads_back_the_same(file, tmp_path):
    found = hetero_dag.read(file("7 1 -1\n3 2.5 0.5 12,7\n12 3 3 7\n"))
    task_table.write(found, tmp_path / "t.csv")
    again = task_table.read(tmp_path / "t.csv")
    assert again.id.tolist() == found.id.tolist() and again.predecessors == found.predecessors
    assert {name: values.tolist() for name, values in again.times.items()} == {
        name: values.tolist() for name, values in found.times.items()
    }


def test_a_graph_as_the_workload_of_a_scenario(file):
    path = file("1 10 4\n2 10 2 1\n3 1 -1 2\n")
    result = run(path, {"type": "k20"}, "fcfs", format="hetero_dag")
    assert result.summary.loc["makespan", "value"] == pytest.approx(0.007)
    alone = run(path, {"type": "k20", "count": 2}, "fcfs", format="hetero_dag", unit="s", independent=True)
    assert alone.summary.loc["makespan", "value"] == pytest.approx(4)


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ({"unit": "msec"}, 'trace.unit: "msec" is not a unit of time'),
        ({"types": ["a", "a"]}, 'trace.types: "a" is given twice; each column needs'),
        ({"types": []}, "trace.types: needs at least 1 entry"),
        ({"types": ["cpu"]}, "trace.types: types must name only the GPU columns: the CPU column is before them"),
        ({"types": [3]}, 'trace.types: must be the name of a type of device; got "3"'),
        ({"independent": "yes"}, 'trace.independent: must be true or false; got "yes"'),
        ({"unti": "ms"}, 'unknown key "unti"; did you mean "unit"?'),
    ],
)
def test_options_are_checked(file, trace, said):
    with pytest.raises(ScenarioError) as caught:
        run(file("1 1 1\n"), {"type": "k20"}, "fcfs", format="hetero_dag", **trace)
    assert said in str(caught.value)


def test_at_the_command_line(file):
    path = file("1 1 2 3\n2 1 2 3 1\n")
    told = CliRunner().invoke(
        main, ["trace", "inspect", "--format", "hetero_dag", "--option", "types=[a, b]", "--json", str(path)]
    )
    assert told.exit_code == 0, told.output
    assert '"gpu_time.b"' in told.output and '"edges": 1' in told.output


# Unrelated machines ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("2 3\n1 2 3\n4 -1 6\n", {}),
        ("2 3\n1 2 3 4 -1 6\n", {}),
        ("2 3\n1\n2\n3\n4\n-1\n6\n", {}),
        ("2 3 2\n1\n2\n3\n4\n-1\n6\n", {}),
        ("2 3 0\n1 2 3\n4 -1 6\n", {}),
        ("2 3 0\n1 2 3 4 -1 6\n", {"header": True}),
        ("1 2 3\n4 -1 6\n", {}),
        ("1 2\n3 4\n-1 6\n", {"machines": 3, "header": False}),
        ("1\n2\n3\n4\n-1\n6\n", {"machines": 3}),
        ("1 2 3 4 -1 6\n", {"machines": 3}),
        ("1 2 3 4\n-1 6\n", {"types": ["m0", "m1", "m2"]}),
    ],
)
def test_a_matrix_in_any_layout(file, complaints, text, options):
    if options.get("header") is False:
        assert "every line has 2 numbers, but the option machines says 3" in complaints(hcsp, text, **options)[0]
        return
    found = hcsp.read(file(text), **options)
    assert {name: values.tolist() for name, values in found.times.items()} == {
        "gpu_time.m0": [1, 4], "gpu_time.m1": [2, np.inf], "gpu_time.m2": [3, 6]
    }  # fmt: skip
    assert found.id is None and found.predecessors is None and found.name(1) == 2


def test_three_whole_times_are_a_task_where_they_tell_no_size(file):
    assert len(hcsp.read(file("2 3 1\n4 5 6\n"))) == 2
    assert len(hcsp.read(file("2 3 1\n"))) == 1
    assert len(hcsp.read(file("1 3 2\n4 5 6\n"))) == 1
    assert len(hcsp.read(file("1 3 2\n4 5 6\n"), header=False)) == 2


def test_lines_of_tasks(file):
    assert [hcsp.read(file("2 2\n1\n2\n\n3\n4\n")).line(row) for row in (0, 1)] == [2, 5]


def test_two_machines_without_a_first_line(file, complaints):
    assert len(hcsp.read(file("10 25\n3 4\n5 6\n"))) == 3
    (said,) = complaints(hcsp, "3 2\n3 4\n5 6\n")
    assert said == (
        "t.txt:1: the first line says 3 tasks on 2 machines, so 6 numbers; the file has 4; "
        "if that line is a task, say header: false"
    )
    assert len(hcsp.read(file("3 2\n3 4\n5 6\n"), header=False)) == 3


def test_types_and_units_of_a_matrix(file):
    found = hcsp.read(file("1 3\n1 2 3\n"), types=["cpu", "gpu", "v100"], unit="ms")
    assert {name: values.tolist() for name, values in found.times.items()} == {
        "cpu_time": [0.001], "gpu_time": [0.002], "gpu_time.v100": [0.003]
    }  # fmt: skip


def test_the_size_of_braun_is_known(file, complaints):
    found = hcsp.read(file("1.5\n" * 8192))
    assert len(found) == 512 and len(found.times) == 16
    assert "read as 512 tasks on 16 machines" in found.notes[0]
    (said,) = complaints(hcsp, "1.5\n" * 8191)
    assert said.startswith("t.txt: the number of machines is unknown")
    assert complaints(hcsp, "1.5\n" * 8191, machines=16) == [
        "t.txt: 8,191 numbers are not a whole number of tasks on 16 machines"
    ]


@pytest.mark.parametrize(
    ("text", "options", "problems"),
    [
        ("", {}, ["t.txt: is empty"]),
        ("2 3\n", {"header": True}, ["t.txt: has no times"]),
        ("2 3\n1 2 3\n4 5\n6 7 8\n", {},
         ["t.txt:1: the first line says 2 tasks on 3 machines, so 6 numbers; the file has 8; "
          "if that line is a task, say header: false",
          "t.txt:3: the line has 2 numbers, for 3 machines"]),
        ("1 2 3\n4 5\n6 7 8\n1 2 3 4\n5 6 7\n", {},
         ["t.txt:2: the line has 2 numbers, for 3 machines", "t.txt:4: the line has 4 numbers, for 3 machines"]),
        ("1 2 3\n4 5 6\n", {"types": ["a", "b"]},
         ["t.txt: every line has 3 numbers, but types names 2; if a line is not a task, "
          "a first line with the numbers of tasks and machines states the layout"]),
        ("2 3\n1 2 3\n4 5 6\n", {"types": ["a", "b"]}, ["t.txt:1: the first line says 3 machines, types names 2"]),
        ("1 2 3\n", {"types": ["a", "b"], "machines": 3}, ["t.txt: types must have 3 names (machines); got 2"]),
        ("1 2.5\n", {"header": True},
         ["t.txt:1: the first line is not two whole numbers above 0, tasks and machines"]),
        ("2 3 1\n1\n2\n3\n4\n5\n", {},
         ["t.txt:1: the first line says 2 tasks on 3 machines, so 6 numbers; the file has 5; "
          "if that line is a task, say header: false"]),
        ("2 3\n1 nan 3\n4 -5 6\n", {},
         ['t.txt:2:3: column gpu_time.m1: "nan" is not a number',
          't.txt:3:3: column gpu_time.m1: "-5" is negative; only -1 (cannot run there) may be']),
        ("2 3\n1 2 3\n-1 -1 -1\n", {}, ["t.txt:3: task 2 cannot run anywhere: each of its times is -1"]),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_matrix(complaints, text, options, problems):
    assert complaints(hcsp, text, **options) == problems


def test_a_matrix_as_the_workload_of_a_scenario(file):
    path = file("3 2\n1 9\n9 2\n9 3\n")
    gpus = [{"type": "m0"}, {"type": "m1"}]
    policy = {"scheduler": "fcfs", "placement": "earliest_finish"}
    result = run(path, gpus, policy, format="hcsp")
    assert result.summary.loc["makespan", "value"] == pytest.approx(5)
    assert result.tasks["device_type"].tolist() == ["m0", "m1", "m1"]


# Published files ------------------------------------------------------------------------------------------------


@public
@pytest.mark.parametrize("tile", [64, 320, 960])
@pytest.mark.parametrize("tiles", [5, 10])
def test_sizes_of_the_published_cholesky_graphs(tile, tiles):
    """Of T tiles a side, T of potrf, T(T-1)/2 each of trsm and syrk, T(T-1)(T-2)/6 of gemm."""
    found = hetero_dag.read(PUBLIC / "2_resources" / f"spotrf-{tile}-{tiles}.txt")
    assert len(found) == tiles + tiles * (tiles - 1) + tiles * (tiles - 1) * (tiles - 2) // 6
    assert np.isinf(found.times["gpu_time"]).sum() == tiles  # potrf runs on the CPU only
    assert np.isfinite(found.times["cpu_time"]).all()
    assert sum(not row for row in found.predecessors) == 1


@public
@pytest.mark.parametrize("name", ["sgetrf_nopiv-64-5", "sgetrf_nopiv-64-10", "sgetrf_nopiv-320-5"])
def test_sizes_of_the_published_lu_graphs(name):
    """Of T tiles a side, T of getrf, T(T-1) of trsm, T(T-1)(2T-1)/6 of gemm."""
    tiles = int(name.rpartition("-")[2])
    found = hetero_dag.read(PUBLIC / "2_resources" / f"{name}.txt")
    assert len(found) == tiles + tiles * (tiles - 1) + tiles * (tiles - 1) * (2 * tiles - 1) // 6
    assert np.isinf(found.times["gpu_time"]).sum() == tiles


@public
def test_published_graphs_with_two_gpu_types():
    for tiles, count in ((5, 35), (10, 220)):
        found = hetero_dag.read(PUBLIC / "3_resources" / f"spotrf-320-{tiles}.txt")
        assert len(found) == count and list(found.times) == ["cpu_time", "gpu_time", "gpu_time.gpu2"]


@public
@pytest.mark.parametrize("policy", POLICIES, ids=["fcfs", "fcfs-earliest_finish", "priority-earliest_finish"])
def test_published_graphs_run_to_the_end(policy):
    path = PUBLIC / "2_resources" / "spotrf-320-10.txt"
    result = run(path, {"type": "k20", "count": 2}, policy, format="hetero_dag")
    assert set(result.tasks["status"]) == {"completed"} and len(result.tasks) == 220
    both = run(PUBLIC / "3_resources" / "spotrf-320-5.txt", [{"type": "k20"}, {"type": "gtx970"}], policy,
               format="hetero_dag", types=["k20", "gtx970"])  # fmt: skip
    assert set(both.tasks["status"]) == {"completed"} and len(both.tasks) == 35
