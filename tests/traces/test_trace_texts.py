"""What is said and drawn of a log, as a whole, of small logs whose figures are worked out by hand."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from hetsim.cli import console
from hetsim.model.ragged import Ragged
from hetsim.results.colors import BLUE, MUTED, ORANGE, VERMILION
from hetsim.results.panels import Boxes, Line, Panel, Picture, settled
from hetsim.traces import from_log, waits_report
from hetsim.traces.contents import contents, text_of
from hetsim.traces.from_log import Compared, Variant, compare, document_of, inferred_nodes, take_in_limits
from hetsim.traces.node_lists import grouped
from hetsim.traces.picture import trace as picture_of
from hetsim.workload.logs.inferred import Limits, Order
from hetsim.workload.logs.recorded_log import Capacity, Jobs
from hetsim.workload.logs.waits import REASONS, Explained
from hetsim.workload.traces import TaskTable


def jobs_table(**more: Any) -> TaskTable:
    """Three jobs on 1, 2 and half a GPU and one on cores, over 96 s."""
    times = {"gpu_time": np.array([24, 48, 12, np.inf]), "cpu_time": np.array([np.inf, np.inf, np.inf, 36])}
    numbers = {"gpus": np.array([1, 2, 0.5, np.nan]), "cpus": np.array([4, 8, np.nan, 3])}
    table = TaskTable("log.csv", times, np.array([0.0, 24, 48, 96]), numbers=numbers, extra={"note": np.arange(4.0)})
    table.class_ = np.array(["a", "b", "a", ""], dtype=object)
    table.user = np.array(["u", "v", "u", "u"], dtype=object)
    table.predecessors = [(), (0,), (0, 1), ()]
    for name, value in more.items():
        setattr(table, name, value)
    return table


def cores_table() -> TaskTable:
    times = {"cpu_time": np.array([10.0, 20, 30, 40])}
    return TaskTable("cores.csv", times, np.zeros(4), numbers={"cpus": np.array([1, 2, 3, 0.5])})


def requests_table() -> TaskTable:
    """Six blocks of prompts, of which four are different."""
    tokens = {"prompt_tokens": np.array([100.0, 200, 600]), "output_tokens": np.array([10.0, 10, 40])}
    blocks = Ragged.from_rows([[1, 2], [1, 2, 3], [4]])
    return TaskTable("chat.csv", {}, np.array([1.0, 2, 5]), extra=tokens, hash_ids=blocks)


JOBS = """log.csv

tasks          4
arrivals       0 s to 96 s (2.5/min)
classes        a 2, b 1, (none) 1
users          2
predecessors   3 edges
columns        class, user, gpus, cpus, predecessors
kept columns   note

duration   tasks   mean    min    p50      p95    max
gpu_time       3   28 s   12 s   24 s   45.6 s   48 s
cpu_time       1   36 s   36 s   36 s     36 s   36 s

GPUs       tasks    share   of GPU time
none           1   25.0 %         0.0 %
fraction       1   25.0 %         4.8 %
1              1   25.0 %        19.0 %
2              1   25.0 %        76.2 %
of the tasks on GPUs 33.3 % take a fraction, 33.3 % are gangs

over the submissions, each sign 2 s
GPUs held     |▃▃▃▃▃▃▃▃▃▃▃▃▇▇▇▇▇▇▇▇▇▇▇▇██████▇▇▇▇▇▇            |   mean 1.312, most 2.5
cores held    |▄▄▄▄▄▄▄▄▄▄▄▄████████████████████████            |   mean 5, most 8
submissions   |█           █           █                      █|   mean 0.08333, most 1"""
CORES = """cores.csv

tasks      4
arrivals   0 s to 0 s
columns    cpus

duration   tasks   mean    min    p50      p95    max
cpu_time       4   25 s   10 s   25 s   38.5 s   40 s

cores     tasks    share   of core time
below 1       1   25.0 %         12.5 %
1             1   25.0 %          6.2 %
2–3           2   50.0 %         81.2 %"""
REQUESTS = """chat.csv

requests        3
arrivals        1 s to 5 s (0.75/s)
columns         hash_ids
kept columns    prompt_tokens, output_tokens
prompt blocks   6, 33.3% seen before

                mean   min   p50   p95   max
prompt tokens    300   100   200   560   600
output tokens     20    10    10    37    40"""


@pytest.mark.parametrize(("table", "text"), [
    (jobs_table(), JOBS), (cores_table(), CORES), (requests_table(), REQUESTS),
])  # fmt: skip
def test_contents_as_text(table: TaskTable, text: str):
    assert "\n".join(text_of(contents(table))) == text


def test_contents_as_numbers():
    shown = contents(jobs_table())
    assert [len(shown["load"][key]) for key in ("jobs", "gpus", "cores")] == [48] * 3
    assert math.fsum(shown["load"]["gpus"]) * shown["load"]["stretch"] == pytest.approx(24 * 1 + 48 * 2 + 12 * 0.5)
    assert math.fsum(shown["load"]["cores"]) * 2 == pytest.approx(24 * 4 + 48 * 8)
    assert [row["work_share"] for row in shown["sizes"]] == pytest.approx([0, 6 / 126, 24 / 126, 96 / 126])
    assert (shown["users"], shown["edges"], shown["classes"]) == (2, 3, {"a": 2, "b": 1, "": 1})
    times = {"cpu_time": np.ones(2), "gpu_time": np.full(2, np.inf)}
    empty = contents(TaskTable("x", times, np.array([3.0, 4])))
    assert empty["durations"]["gpu_time"] == {"tasks": 0, **dict.fromkeys(("mean", "min", "p50", "p95", "max"))}
    assert (empty["users"], empty["edges"], empty["classes"], empty["columns"]) == (0, 0, {}, [])
    assert "only arrival and times" in "\n".join(text_of(empty))
    many = jobs_table(class_=np.array(list("abcdefghij"), dtype=object))
    assert "a 1, b 1, c 1, d 1, e 1, f 1, g 1, h 1, … 2 more" in "\n".join(text_of(contents(many)))


# Waits ------------------------------------------------------------------------------------------------------------


def explained_waits(**more: Any) -> Explained:
    """Four jobs that wait 0, 10, 40 and 0 s; all sentences apply."""
    jobs = Jobs("GPUs", np.array([10.0, 20, 30, 40]), np.array([10.0, 30, 70, 40]), end=np.array([110.0, 90, 100, 60]),
                amount=np.array([2.0, 4, 1, 1]))  # fmt: skip
    beyond = [("n1", 15.0, 30.0, 6.0, [1, 2]), ("", 40.0, 90.0, 9.0, [0, 1, 2, 3] * 3)]
    given: dict[str, Any] = {
        "jobs": jobs, "site": Capacity(8.0, False, {"n1": 4.0, "n2": 4.0}, 0.25, beyond), "warm_end": 25.0,
        "curve": [(10.0, 8.0), (50.0, 6.0)], "looked_at": 4,
        "limits": Limits("user", {f"u{n}": n + 1.0 for n in range(10)}, 3),
        "order": Order("queue", [(f"q{n}", f"q{n + 1}", 5, 1) for n in range(9)]),
        "shares": dict.fromkeys(REASONS, 0.0) | {"no room": 0.5, "limit": 0.2, "held back": 0.3},
    }  # fmt: skip
    return Explained(**(given | more))


def compared_waits() -> Compared:
    policy: dict[str, Any] = {"policy": {"scheduler": {"name": "sjf"}}}
    first = Variant("as it stands", policy, 4, 50.0, 20.0, 0.25, 0.5, 30.0)
    second = Variant("with the limits by user", policy, 3, 50.0, 40.0, 0.75, 0.5, 10.0)
    first.waits = np.array([0.0, 10, 40, 50]), np.array([0.2, 2, 8, 20])
    second.waits = np.array([0.0, 10, 40]), np.array([30.0, 9, 3])
    return Compared([first, second, Variant("worse", policy, error=40.0, kept=False)])


WAITS = """
mean recorded wait 12.5 s over 4 jobs, on 8 GPUs

why jobs waited   of all waiting
no room                   50.0 %   did not fit into the free part of the cluster
nodes down                 0.0 %   did not fit into the free part of the nodes that were up
before the log             0.0 %   the head of the log: running jobs are missing in the log
limit                     20.0 %   its user occupied its inferred limit
priority                   0.0 %   a job with precedence waited for devices
order                      0.0 %   an earlier job waited for devices
fragmented                 0.0 %   fitted into the free part of the cluster, but on no single node
held back                 30.0 %   it fitted; the log does not show why it did not start
"""
INFERRED = """\
capacity: 8 GPUs, the sum of 2 nodes; all of them are occupied for 25.0 % of the time with jobs
the log uses more than the 8 GPUs of the cluster: up to 9 GPUs for 90 s in total, first at 40 s, by the rows 1, 2, 3, \
4, 1, 2, 3, 4, ...
the log uses more than node n1 has: up to 6 GPUs for 30 s in total, first at 15 s, by the rows 2, 3
capacity: at times only 6 of 8 GPUs were up
head: the log reaches its usual number of GPUs 15 s after its first submission
limits by user, in GPUs: u9 10, u8 9, u7 8, u6 7, u5 6, u4 5, u3 4, u2 3 and 2 more
order by queue: """
VARIANTS = """
waits under sjf                   jobs   recorded   simulated   correlation   of ranks
as it stands                         4       50 s        20 s          0.25       0.50
with the limits by user              3       50 s        40 s          0.75       0.50
worse: no improvement, left out      0          –           –             –          –

With what was inferred the correlation rises from 0.25 to 0.75, and the mean wait is 40 s, recorded 50 s."""


def test_waits_as_text():
    pairs = ", ".join(f"q{n} before q{n + 1} (5 passed, 1 back)" for n in range(8))
    inferred = [f"  {text}" for text in (INFERRED + pairs).splitlines()]
    lines = waits_report.lines(explained_waits(), compared_waits(), True)
    assert lines == [*WAITS.splitlines(), *inferred, *VARIANTS.splitlines()]
    assert waits_report.lines(explained_waits(), compared_waits(), False) == [*WAITS.splitlines(), *inferred]
    plain = explained_waits(limits=None, order=None, warm_end=10.0, curve=[(10.0, 8.0)], site=Capacity(8.0, True))
    assert waits_report.lines(plain, None, True) == WAITS.splitlines()
    site = Capacity(8.0, False, full=0.001, beyond=[("", 1.0, 2.0, 9.0, list(range(8)))])
    few = explained_waits(limits=Limits("queue", {str(n): 1.0 for n in range(8)}, 1), site=site)
    texts = "\n".join(waits_report.lines(few, None, False))
    assert "capacity: at least 8 GPUs; all of them are occupied for 0.1 % of the time with jobs" in texts
    assert "by the rows 1, 2, 3, 4, 5, 6, 7, 8\n" in texts and "its queue occupied its inferred limit" in texts
    assert "limits by queue, in GPUs: 0 1, 1 1, 2 1, 3 1, 4 1, 5 1, 6 1, 7 1\n" in texts


def test_conclusions():
    compared = compared_waits()
    compared.variants[1].correlation = 0.125
    assert "the correlation goes from 0.25 to 0.12, and" in waits_report.conclusion(compared)
    for number, value in ((0, 0.25), (1, 0.75)):
        compared.variants[number].correlation = math.nan
        assert waits_report.conclusion(compared) == ""
        compared.variants[number].correlation = value
    compared.variants[1].kept = False
    assert waits_report.conclusion(compared) == ""
    for policy, name in (("sjf", "sjf"), ({"name": "edf"}, "edf"), ({"scheduler": "fcfs"}, "fcfs"), (None, "None")):
        assert waits_report.policy_of(Compared([Variant("", {"policy": policy})])) == name


def test_waits_for_programs(capsys: pytest.CaptureFixture[str]):
    """Also where a variant finished no job that could be compared."""
    console.as_json(waits_report.mapping(explained_waits(), compared_waits(), True))
    read = json.loads(capsys.readouterr().out)
    names = ("jobs", "unit", "mean_recorded_wait", "capacity", "capacity_stated", "head_until")
    assert [read[name] for name in names] == [4, "GPUs", 12.5, 8, False, 25]
    assert read["beyond"][0] == {"node": "n1", "first": 15, "seconds": 30, "most": 6, "rows": [2, 3]}
    assert read["capacity_curve"] == [[10, 8], [50, 6]]
    assert read["limits"]["most"]["u9"] == 10 and read["order"]["pairs"][8] == ["q8", "q9", 5, 1]
    assert read["variants"] == [
        {"name": "as it stands", "kept": True, "error": 30, "jobs": 4, "recorded": 50, "simulated": 20,
         "correlation": 0.25, "rank_correlation": 0.5},
        {"name": "with the limits by user", "kept": True, "error": 10, "jobs": 3, "recorded": 50, "simulated": 40,
         "correlation": 0.75, "rank_correlation": 0.5},
        {"name": "worse", "kept": False, "error": 40, "jobs": 0, "recorded": None, "simulated": None,
         "correlation": None, "rank_correlation": None},
    ]  # fmt: skip
    plain = waits_report.mapping(explained_waits(limits=None, order=None), compared_waits(), False)
    assert plain["limits"] is plain["order"] is None and "variants" not in plain


def test_the_page_of_waits_has_what_the_text_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waits_report, "picture", lambda draw, text: text)
    page = waits_report.waits_page("log.csv", explained_waits(), compared_waits(), ["a note"])
    rows = [[cell for cell in row.split("\x00") if cell] for row in _cells(page)]
    for text in VARIANTS.splitlines()[2:5]:
        cells = [cell for cell in text.split("  ") if cell.strip()]
        assert [cell.strip() for cell in cells] in [row[1:] for row in rows]
    assert [row[0] for row in rows if len(row) == 7] == ["Step", "0", "1", "2"]
    for line in WAITS.splitlines()[4:]:
        assert [cell.strip() for cell in line.split("  ") if cell.strip()] in rows
    for text in ("Recorded waits of log.csv", "Mean recorded wait 12.5 s over 4 jobs, on 8 GPUs.", "a note",
                 "Waits under sjf", *INFERRED.splitlines()[3:5], VARIANTS.splitlines()[-1]):  # fmt: skip
        assert text in page
    alone = waits_report.waits_page("log.csv", explained_waits(), None)
    assert "Waits under" not in alone and "With what was inferred" not in alone


def _cells(page: str) -> list[str]:
    """The rows of all tables, cells apart by NUL."""
    import re

    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    return [re.sub(r"<[^>]*>|\n", "", re.sub(r"</t[dh]>", "\x00", row)) for row in rows]


# Pictures ---------------------------------------------------------------------------------------------------------


def lines_of(panel: Panel) -> list[tuple[Any, ...]]:
    """Of each line the name, color, width and points."""
    lines = [mark for mark in panel.marks if isinstance(mark, Line)]
    return [(line.label, line.color, line.width, np.column_stack([line.x, line.y]).tolist()) for line in lines]


def boxes_of(panel: Panel) -> list[tuple[float, ...]]:
    """Left, bottom, width and height of all boxes, by row."""
    boxes = [mark for mark in panel.marks if isinstance(mark, Boxes)]
    edges = [np.broadcast_arrays(mark.x0, mark.y0, np.subtract(mark.x1, mark.x0), np.subtract(mark.y1, mark.y0))
             for mark in boxes]  # fmt: skip
    return [tuple(round(float(value), 9) for value in box) for mark in edges for box in zip(*mark, strict=True)]


def legend_of(panel: Panel) -> list[str]:
    (legend,) = (ax.get_legend() for ax in Picture([[panel]]).figure().axes)
    return [text.get_text() for text in legend.get_texts()]


def test_the_picture_of_waits():
    picture = waits_report.draw(explained_waits(), compared_waits())
    held, why, long = picture.panels
    assert [len(row) for row in picture.rows] == [1, 2]
    assert [panel.title for panel in picture.panels] == [
        "4 jobs from their recorded starts on", "why jobs waited", "how long they waited"]  # fmt: skip
    steps = [[10, 2], [30, 6], [40, 7], [60, 6], [70, 7], [90, 3], [100, 2], [110, 0], [110, 0]]
    capacity = [[10, 8], [50, 8], [50, 6], [110, 6], [110, 6]]
    assert lines_of(held) == [("held", BLUE, 1.0, steps), ("capacity, as inferred", VERMILION, 1.6, capacity)]
    assert (held.x.low, held.x.high, held.y.low, held.y.high) == (10, 110, 0, pytest.approx(8.64))
    assert held.y.label == "GPUs"
    assert boxes_of(settled(held, 1000)) == [(10, 0, 15, 8.64)]
    rows = boxes_of(why)
    assert sorted(rows, key=lambda box: box[1]) == [
        (0, row - 0.35, 100 * share, 0.7) for row, share in enumerate((.5, 0, 0, .2, 0, 0, 0, .3))]  # fmt: skip
    assert [mark.color for mark in why.marks[:2]] == [MUTED, BLUE] and len(why.marks[0].x0) == 1
    assert why.marks[2].texts[3] == "20.0 %"
    assert (why.x.low, why.x.high, why.x.label) == (0, 60, "of all waiting (%)")
    assert why.y.low > why.y.high, "from above to below"
    thirds = [100 / 3, 200 / 3, 100]
    points = [[[1, 25], [10, 50], [40, 75], [50, 100]], [[1, 25], [2, 50], [8, 75], [20, 100]],
              [list(pair) for pair in zip((3, 9, 30), thirds, strict=True)]]  # fmt: skip
    names = ["recorded", "simulated, as it stands", "simulated, with all that was kept"]
    for line, name, expected in zip(lines_of(long), names, points, strict=True):
        assert (line[0], line[2]) == (name, 1.6) and np.allclose(line[3], expected)
    assert long.x.log and (long.y.low, long.y.high) == (0, 101)
    assert legend_of(long) == names
    assert sorted(legend_of(held)) == sorted(["held", "capacity, as inferred", "head of the log"])


def test_the_picture_of_waits_without_simulated_ones():
    plain = waits_report.draw(explained_waits(warm_end=10.0, shares=dict.fromkeys(REASONS, 0.0))).panels
    assert lines_of(plain[2])[0][3] == [[1, 25], [1, 50], [10, 75], [40, 100]] and len(plain[2].marks) == 1
    assert not boxes_of(plain[0]) and (plain[1].x.low, plain[1].x.high) == (0, 1.2)


def test_the_picture_of_a_trace():
    picture = picture_of(jobs_table())
    load, long, sizes = picture.panels
    assert [len(row) for row in picture.rows] == [1, 2]
    area, edge = load.marks
    exact = np.diff(np.interp(np.linspace(0, 96, 201), [0, 24, 48, 60, 72, 96], [0, 24, 72, 102, 126, 126])) / 0.48
    for x, values in ((area.x, area.high), (edge.x, edge.y)):
        assert np.allclose(x, np.linspace(0, 96, 201))
        assert np.allclose(values, [*exact, exact[-1]])
    assert (load.y.label, load.x.low, load.x.high, load.y.low) == ("GPUs held", 0, 96, 0)
    assert load.title == "4 tasks, each from its submission on"
    assert lines_of(long)[0][1:] == (BLUE, 1.6, [[12, 0.25], [24, 0.5], [36, 0.75], [48, 1]])
    assert (long.x.log, long.x.label, long.y.low, long.y.high) == (True, "duration", 0, 1.01)
    work = (0, 6 / 126, 24 / 126, 96 / 126)
    expected = [(n - 0.39, 0, 0.38, 0.25) for n in range(4)] + [(n + 0.01, 0, 0.38, work[n]) for n in range(4)]
    assert np.allclose(boxes_of(sizes), expected)
    assert [text for _, text in sizes.x.ticks] == ["none", "fraction", "1", "2"]
    assert legend_of(sizes) == ["tasks", "GPU time"]


def test_the_picture_of_a_trace_with_recorded_starts():
    recorded = picture_of(jobs_table(extra={"recorded_start": np.zeros(4)})).panels[0]
    assert recorded.title == "4 tasks, each from its recorded start on"


def test_the_picture_of_a_trace_without_gpus():
    load, _, sizes = picture_of(cores_table()).panels
    assert not load.marks  # all arrive at once
    assert [text for _, text in sizes.x.ticks] == ["below 1", "1", "2"]
    assert (sizes.x.label, sizes.marks[1].label) == ("cores of a task, from", "core time")


def test_the_picture_of_a_trace_of_cores_over_time():
    later = cores_table()
    later.arrival = np.array([0.0, 1, 2, 200])
    load = picture_of(later).panels[0]
    assert load.y.label == "cores held" and load.marks[0].color == ORANGE


def test_a_picture_of_many_tasks_has_two_thousand_points():
    """At most some more: every n-th of the sorted times, the shortest drawn as 1 ms."""
    times = np.random.default_rng(1).permutation(np.arange(5000.0))
    long = picture_of(TaskTable("x", {"cpu_time": times}, np.zeros(5000))).panels[1]
    points = lines_of(long)[0][3]
    assert len(points) == 2500
    assert (points[0], points[1], points[-1]) == ([1e-3, 1 / 5000], [2, 3 / 5000], [4998, 4999 / 5000])


# Nodes and scenarios ----------------------------------------------------------------------------------------------


def test_equal_nodes_are_one_group():
    a100: dict[str, Any] = {"cpus": 8, "gpus": {"type": "A100 80GB", "count": 4}}
    nodes = [{"name": "x", **a100}, {"name": "y", "cpus": 8}, {"name": "z", "count": 3, **a100},
             {"name": "w", **a100, "cpus": 16}, {"name": "v", "cpus": 8, "gpus": [{"type": "--"}]},
             {"name": "u", "cpus": 8, "accelerators": [{"count": 1}]}, {"cpus": 8}]  # fmt: skip
    assert grouped(nodes) == [
        {"name": "a100-80gb", "count": 4, **a100}, {"name": "cpu", "count": 2, "cpus": 8},
        {"name": "a100-80gb-2", "count": 1, **a100, "cpus": 16},
        {"name": "group", "count": 1, "cpus": 8, "gpus": [{"type": "--"}]},
        {"name": "gpu", "count": 1, "cpus": 8, "accelerators": [{"count": 1}]},
    ]  # fmt: skip


def of_jobs(*rows: tuple[float, float, float, float], time: str = "gpu_time", **more: Any) -> TaskTable:
    """Arrival, seconds, GPUs and cores of each job."""
    arrival, took, gpus, cpus = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    table = TaskTable("x", {time: took}, arrival, numbers={"gpus": gpus, "cpus": cpus})
    for name, value in more.items():
        setattr(table, name, np.array(value, dtype=object))
    return table


def test_nodes_that_hold_a_log():
    """Two jobs of 8 GPUs at once are 2 nodes of 8; their 40 cores together 20 a node."""
    assert inferred_nodes(of_jobs((0, 100, 8, 20), (10, 100, 8, 20), (200, 100, 1, 1))) == [
        {"name": "n", "count": 2, "cpus": 20, "gpus": {"type": "gpu", "count": 8}}]  # fmt: skip
    assert inferred_nodes(of_jobs((0, 100, 3, 6), (200, 100, 1, 1))) == [  # no node of 8 for jobs on 3
        {"name": "n", "count": 1, "cpus": 6, "gpus": {"type": "gpu", "count": 3}}]  # fmt: skip
    # Of a gang on 16, 32 cores: 2 for each GPU, 16 on a node; 9 GPUs of the other type are two nodes of 8.
    mixed = of_jobs((0, 100, 16, 32), (0, 100, 9, 9), devices=["b|a", "a"])
    assert inferred_nodes(mixed) == [
        {"name": "a-", "count": 2, "cpus": 11, "gpus": {"type": "a", "count": 8}},
        {"name": "b-", "count": 2, "cpus": 16, "gpus": {"type": "b", "count": 8}}]  # fmt: skip
    cores = of_jobs((0, 1000, 0, 3), (500, 1000, 0, 4), time="cpu_time")
    assert inferred_nodes(cores) == [{"name": "pool", "cpus": 7}]
    cores.numbers["nodes"] = np.array([2.0, np.nan])  # 6 cores over two nodes, and 4 on one
    assert inferred_nodes(cores) == [{"name": "n", "count": 3, "cpus": 4}]


def test_the_scenario_of_a_log():
    trace = {"format": "swf", "path": "x.swf"}
    assert document_of("x", trace, [{"cpus": 4}]) == {
        "name": "x", "cluster": {"nodes": [{"cpus": 4}]}, "policy": "easy_backfill",
        "workload": [{"name": "jobs", "trace": trace, "unfit": "leave_out", "span": "any"}]}  # fmt: skip
    given = document_of("x", trace, {"trace": {}}, "sjf", {"unfit": "error"})
    assert (given["cluster"], given["policy"]) == ({"trace": {}}, "sjf")
    assert given["workload"] == [{"name": "jobs", "trace": trace, "unfit": "error"}]
    for unit, key in (("GPUs", "max_gpus"), ("cores", "max_cpus")):
        document: dict[str, Any] = {"site": {"time_limit": 3}, "workload": [{"name": "jobs"}]}
        jobs = Jobs(unit, *[np.zeros(1)] * 4)
        take_in_limits(document, "user", {"ann": 4.0, "ben": 2.5}, jobs)
        assert document["site"] == {"time_limit": 3, "partitions": {
            "user-ann": {"nodes": "*", key: 4}, "user-ben": {"nodes": "*", key: 2.5},
            "others": {"nodes": "*", "default": True}}}  # fmt: skip
        assert document["workload"][0]["partition"] == {
            "column": "user", "names": {"ann": "user-ann", "ben": "user-ben"}, "others": "others"}  # fmt: skip


@pytest.mark.parametrize(("widest", "share", "span", "tried"), [
    (8.0, 0.05, "any", True), (4.0, 0.05, "any", True), (3.0, 0.05, "any", False), (8.0, 0.04, "any", False),
    (8.0, 0.05, None, False),
])  # fmt: skip
def test_steps_are_kept_if_they_come_nearer(
    widest: float, share: float, span: str | None, tried: bool, monkeypatch: pytest.MonkeyPatch
):
    """Errors 9 as it stands, 9 with a (no nearer), 5 with b, 7 with c; each goes on from the nearest before it."""
    seen: list[tuple[list[str], float]] = []

    def simulate(variant: Variant, begin: float) -> None:
        done = variant.document["workload"][0]["done"]
        seen.append((done, begin))
        variant.error = {"a": 9.0, "b": 5.0, "c": 7.0}.get(done[-1], math.nan) if done else 9.0

    monkeypatch.setattr(from_log, "_simulate", simulate)
    entry: dict[str, Any] = {"done": []} | ({} if span is None else {"span": span})
    compared = Compared([Variant("as it stands", {"workload": [entry]})])
    for name in "abc":
        compared.steps.append((name, lambda last, name=name: last["workload"][0]["done"].append(name)))
    told: list[str] = []
    explained = explained_waits(shares=dict.fromkeys(REASONS, 0.0) | {"held back": 0.01, "fragmented": share - 0.01})
    compare(compared, explained, widest, told.append)
    assert seen[:4] == [([], 25.0), (["a"], 25.0), (["b"], 25.0), (["b", "c"], 25.0)]
    assert [one.kept for one in compared.variants[:4]] == [True, False, True, False]
    assert told[:4] == [f"simulating {name}" for name in ("as it stands", "a", "b", "c")]
    assert [one.name for one in compared.variants[4:]] == ["with each gang on one node"] * tried
    assert all("span" not in one.document["workload"][0] for one in compared.variants[4:])
    assert entry["done"] == []


# Steps that take in what was inferred -----------------------------------------------------------------------------


def log_explained(jobs: int = 30, **more: Any) -> Explained:
    """Jobs that come each second, of which those from 9.5 s on are behind the head of the log."""
    arrival = np.arange(float(jobs))
    columns = Jobs("GPUs", arrival, arrival + 1, end=arrival + 11, amount=np.ones(jobs))
    return explained_waits(jobs=columns, warm_end=9.5, curve=[(0.0, 8.0)], **more)


def steps_of(explained: Explained, trace: dict[str, Any], **more: Any) -> tuple[list[str], list[str], dict[str, Any]]:
    """Names of the steps, notes, and the document after all steps."""
    pooled, names = more.pop("pooled", True), more.pop("names", ["a", "b", "c", "d"])
    document = {"workload": [{"trace": trace}], **more}
    compared = from_log.variants(document, explained, pooled, names)
    last = deepcopy(document)
    for _, take_in in compared.steps:
        take_in(last)
    return [name for name, _ in compared.steps], compared.notes, last


SWF = {"format": "swf", "path": "x"}
WARM, DOWN = "from there with the jobs that ran (warm start)", "with the nodes that were down"


def test_a_warm_start_where_there_is_one_to_make():
    plain = log_explained(limits=None)
    names, notes, last = steps_of(plain, {**SWF})
    assert (names, notes) == ([WARM], [])
    assert last["workload"][0]["trace"] == {**SWF, "since": "10 s", "warm_start": True}
    assert steps_of(log_explained(limits=None, order=None), {**SWF, "sample": 0.5})[1] == [
        "there is no warm start: the trace is already cut or scaled"]  # fmt: skip
    assert steps_of(plain, {"format": "hcsp", "path": "x"})[1] == [
        "there is no warm start: format: hcsp does not support it"]  # fmt: skip
    assert steps_of(log_explained(29, limits=None), {**SWF})[1] == [
        "there is no warm start: fewer than 20 jobs arrive after the warm-up part of the log"]  # fmt: skip
    early = explained_waits(warm_end=10.0, limits=None, curve=[(10.0, 8.0)])
    assert steps_of(early, {**SWF})[:2] == ([], [])


def test_nodes_down_and_limits_are_steps():
    """Two of four nodes lack from 20 s to 30 s; after a warm start at 10 s that is from 10 s on."""
    explained = log_explained()
    explained.curve = [(0.0, 8.0), (20.0, 4.0), (30.0, 8.0)]
    names, notes, last = steps_of(explained, {**SWF}, faults=[{"x": 1}])
    assert (names, notes) == ([WARM, DOWN, "with the limits by user"], [])
    window = {"nodes": ["c", "d"], "from": "10 s", "for": "10 s", "announced": "0 s"}
    assert last["faults"] == [{"x": 1}, {"maintenance": window}]
    assert last["site"]["partitions"]["user-u9"] == {"nodes": "*", "max_gpus": 10}
    names, notes, last = steps_of(explained, {**SWF, "until": "60 s"})
    assert names == [DOWN, "with the limits by user"]
    assert last["faults"][0]["maintenance"]["from"] == "20 s"
    names, notes, last = steps_of(explained, {**SWF}, names=None, pooled=False)
    assert names == [WARM] and "faults" not in last
    assert notes == ["times with less capacity are not simulated: the cluster is one pool, so no part can be down",
                     "the limits are not simulated: the cluster has its own partitions"]  # fmt: skip
    assert steps_of(explained, {**SWF}, site={"partitions": {"p": {}}})[0] == [WARM, DOWN]
    assert steps_of(explained, {**SWF}, site={"time_limit": 1})[0] == [WARM, DOWN, "with the limits by user"]
