"""The plain task table: what its cells mean, every complaint with its address, and writing it again."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tiers import examples

from hetsim.errors import ScenarioError
from hetsim.workload.readers import task_table


@pytest.fixture
def table(tmp_path):
    def read(text, name="t.csv"):
        path = tmp_path / name
        path.write_text(text)
        return task_table.read(path)

    return read


@pytest.fixture
def complaints(table, tmp_path):
    def of(text):
        with pytest.raises(ScenarioError) as caught:
            table(text)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return of


def test_blank_and_inf_mean_cannot_run_there(table):
    found = table("cpu_time,gpu_time,gpu_time.v100\n1,inf,\n,2,3\n")
    assert found.times["cpu_time"].tolist() == [1, np.inf]
    assert found.times["gpu_time"].tolist() == [np.inf, 2]
    assert found.times["gpu_time.v100"].tolist() == [np.inf, 3]
    assert found.arrival.tolist() == [0, 0]


def test_estimates_default_to_the_truth(table):
    found = table("gpu_time,gpu_time_estimate\n1,2\n3,\n")
    assert found.estimates["gpu_time"].tolist() == [2, 3]


def test_predecessors_by_id_and_items_by_name(table):
    found = table("id,cpu_time,predecessors,reads,writes\na,1,,x;y,\nb,1,a,x,z\nc,1,a; b,,\n")
    assert found.predecessors == [(), (0,), (0, 1)]
    assert found.reads == [("x", "y"), ("x",), ()]
    assert found.writes == [(), ("z",), ()]


def test_ids_are_whole_numbers_only_if_they_print_the_same(table):
    assert table("id,cpu_time\n7,1\n8,1\n").id.tolist() == [7, 8]
    assert table("id,cpu_time\n007,1\n8,1\n").id.tolist() == ["007", "8"]


def test_further_columns_are_kept_if_numeric(table):
    found = table("cpu_time,tokens,color,prioriti\n1,5,red,2\n")
    assert found.extra["tokens"].tolist() == [5]
    assert "color" not in found.extra
    notes = [note.partition(".csv: ")[2] for note in found.notes]
    assert notes == [
        'column "color" is unknown and not numeric: ignored',
        'column "prioriti" is unknown: kept unchanged; did you mean "priority"?',
    ]


def test_bad_cells_are_named_by_line_row_and_column(complaints):
    # A blank line counts as a line, not as a row.
    assert complaints("arrival,cpu_time,gpus,weight\n0,1,1.5,1\n\nx,-1,1,0\n,nan,1,1\n1e400,1_0,1,1\n") == [
        't.csv:4: row 2, column arrival: "x" is not a number',
        "t.csv:5: row 3, column arrival: the cell is blank; every task needs a value",
        't.csv:6: row 4, column arrival: "1e400" is not finite',
        't.csv:5: row 3, column cpu_time: "nan" is not a number',
        't.csv:6: row 4, column cpu_time: "1_0" is not a number',
        't.csv:4: row 2, column cpu_time: "-1" is negative',
        "t.csv:2: row 1, column gpus: must be a share of one GPU below 1, or whole GPUs; got 1.5",
        "t.csv:4: row 2, column weight: a weight must be above 0",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id,cpu_tme\n1,2\n",
         't.csv:1: missing column: a task table needs cpu_time, gpu_time, gpu_time.TYPE or flops '
         '("cpu_tme"; did you mean "cpu_time"?)'),
        ("cpu_time,gpu_time_estimate\n1,2\n",
         't.csv:1: column "gpu_time_estimate" needs the column "gpu_time" next to it'),
        ("cpu_time,cpu_time\n1,2\n", 't.csv:1: the column "cpu_time" is given twice'),
        ("", "t.csv: is empty"),
        ("cpu_time\n", "t.csv: the table has no rows"),
        ("a,cpu_time\n1,2\n3\n", "t.csv:3: the row has 1 cell, but the header has 2 columns"),
        ("id,cpu_time\na,1\nb,1\na,1\n", 't.csv:4: row 3, column id: "a" is also the id of line 2'),
        ("id,cpu_time\na,1\n,1\n", "t.csv:3: row 2, column id: the cell is blank; every task needs a value"),
        ("id,cpu_time,gpu_time\na,1,1\nb,,inf\n",
         "t.csv:3: row 2, column cpu_time, gpu_time: task b has no finite time on any device"),
        ("id,cpu_time,predecessors\nalpha,1,\nbeta,1,alpa\n",
         't.csv:3: row 2, column predecessors: task beta names the unknown predecessor "alpa"; did you mean "alpha"?'),
        ("id,cpu_time,predecessors\na,1,c\nb,1,a\nc,1,b\n",
         "t.csv:2: row 1, column predecessors: the graph has a cycle: these tasks wait for each other: a → b → c → a"),
        ("id,cpu_time,predecessors\na,1,a\n",
         "t.csv:2: row 1, column predecessors: the graph has a cycle: these tasks wait for each other: a → a"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table(complaints, text, problem):
    assert complaints(text) == [problem]


def test_many_bad_cells_are_counted(complaints):
    found = complaints("cpu_time\n" + "x\n" * 1000)
    assert len(found) == 21
    assert found[-1] == "t.csv: and 980 more bad cells"


def test_parquet_is_read_like_csv_and_rows_are_numbered(tmp_path):
    path = tmp_path / "t.parquet"
    pd.DataFrame({"id": [1, 2], "cpu_time": [1.0, np.nan], "gpu_time": [2, 3]}).to_parquet(path)
    assert task_table.read(path).times["cpu_time"].tolist() == [1, np.inf]
    pd.DataFrame({"id": [1, 1], "cpu_time": [1.0, -2.0]}).to_parquet(path)
    with pytest.raises(ScenarioError) as caught:
        task_table.read(path)
    assert str(caught.value).split("\n") == [
        f'{path}: row 2, column cpu_time: "-2.0" is negative',
        f'{path}: row 2, column id: "1" is also the id of row 1',
    ]
    path.write_text("not parquet")
    with pytest.raises(ScenarioError, match="cannot be read as Parquet"):
        task_table.read(path)


times = st.floats(0, 1e12) | st.just(np.inf)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(times, st.floats(0, 1e9), st.floats(0, 100)), min_size=1, max_size=8),
    st.sampled_from(["csv", "parquet"]),
)
def test_what_is_written_reads_back_the_same(tmp_path, rows, kind):
    frame = pd.DataFrame(rows, columns=["gpu_time", "arrival", "priority"])
    frame["cpu_time"] = 1.0
    frame["id"] = [f"t{k}" for k in range(len(rows))]
    frame["predecessors"] = ["" if k == 0 else f"t{k - 1}" for k in range(len(rows))]
    first, second = tmp_path / "a.csv", tmp_path / f"b.{kind}"
    task_table.write_frame(frame, first)
    table = task_table.read(first)
    task_table.write(table, second)
    again = task_table.read(second)
    for name in ("gpu_time", "cpu_time"):
        assert again.times[name].tolist() == table.times[name].tolist() == frame[name].tolist()
    assert again.arrival.tolist() == frame["arrival"].tolist()
    assert again.numbers["priority"].tolist() == frame["priority"].tolist()
    assert again.id.tolist() == table.id.tolist()
    assert again.predecessors == table.predecessors
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]  # no temporary file is left


def test_compressed_tables(tmp_path):
    frame = pd.DataFrame({"id": [1, 2], "cpu_time": [1.0, 2.0]})
    task_table.write_frame(frame, tmp_path / "t.csv.gz")
    assert (tmp_path / "t.csv.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert task_table.read(tmp_path / "t.csv.gz").times["cpu_time"].tolist() == [1, 2]
    task_table.write_frame(frame.assign(cpu_time=["1", "x"]), tmp_path / "t.csv.gz")
    with pytest.raises(ScenarioError, match='t.csv.gz:3: row 2, column cpu_time: "x" is not a number'):
        task_table.read(tmp_path / "t.csv.gz")


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "t.parquet"
    path.write_text("old")

    class Unwritable:
        pass

    with pytest.raises(Exception, match="."):
        task_table.write_frame(pd.DataFrame({"a": [Unwritable()]}), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_tables_that_are_no_csv_are_described(complaints, tmp_path):
    assert complaints("id;cpu_time\n1;1\n") == [
        "t.csv:1: missing column: a task table needs cpu_time, gpu_time, gpu_time.TYPE or flops; "
        "its columns are separated by semicolons, use commas"
    ]
    assert complaints("cpu_time,class\n1," + "a" * 3_000_000) == [
        "t.csv: a row is longer than 1 MB, the maximum; a quotation mark may not be closed"
    ]
    (tmp_path / "t.csv").write_bytes(b"cpu_time,class\n1,caf\xe9\n")
    with pytest.raises(ScenarioError, match="t.csv:2:6: is not UTF-8 text .byte 0xe9.; save it as UTF-8"):
        task_table.read(tmp_path / "t.csv")


def test_a_column_of_bytes_is_named(tmp_path):
    pd.DataFrame({"cpu_time": [1.0], "id": [b"\xff"]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ScenarioError, match='column "id" has neither texts nor numbers'):
        task_table.read(tmp_path / "t.parquet")


def test_numbers_beyond_any_run_are_refused(complaints):
    assert complaints("cpu_time,memory,gpus\n1e300,1e30,1e9\n") == [
        't.csv:2: row 1, column cpu_time: "1e300" is more than 1e+15',
        't.csv:2: row 1, column memory: "1e30" is more than 1e+18',
        't.csv:2: row 1, column gpus: "1e9" is more than 1e+06',
    ]


def test_a_long_cycle_is_shortened(complaints):
    rows = "".join(f"{n},1,{(n + 1) % 1000}\n" for n in range(1000))
    (said,) = complaints("id,cpu_time,predecessors\n" + rows)
    assert "the graph has a cycle" in said and "(990 more)" in said and len(said) < 200


def test_many_duplicates_are_found_at_once(complaints):
    """The place of each would be looked up in the file: only of those that are shown."""
    found = complaints("id,cpu_time\n" + "1,1\n" * 50_000)
    assert found[-1] == "t.csv: and 49,979 more bad cells"
