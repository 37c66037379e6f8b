"""The script of a report, run by node: what it decodes, filters and sums is what the tables of the run say."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hetsim as hs
from hetsim.page import columns, elements, report
from hetsim.results import formatting
from hetsim.results.one_run.explain import CAUSES, causes

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no node here: the pure parts of the page's script are not run")
SCRIPTS = [str(Path(elements.__file__).with_name(name)) for name in ("core.js", "pictures.js")]
READ = """
const Core = global.Core = require(process.argv[1]), Pictures = require(process.argv[2]);
const input = JSON.parse(require("fs").readFileSync(0, "utf8"));
const inflate = text => new Uint8Array(require("zlib").inflateSync(Buffer.from(text, "base64")));
const runs = input.columns ? Core.decode(inflate(input.columns)) : [];
const every = {klass: -1, user: -1, node: -1, status: -1, range: null};
"""

HOSTILE = "<script>alert(1)</script>", "</script><!--", "it's \"odd\" & <b>", "–</Script >", "{{x}}${y}"
MIX: dict[str, Any] = {
    "name": HOSTILE[0],
    "seed": 3,
    "warmup": "20 s",
    "cluster": {"nodes": [{"count": 2, "name": "n<b>", "cpus": 4, "gpus": {"type": "g<i>", "count": 2, "streams": 2}}]},
    "workload": [
        {"name": name, "count": 30, "arrivals": {"process": "poisson", "rate": "0.4/s"}, "users": 3, "gpus": gpus,
         "gpu_time": {"distribution": "exponential", "mean": "6 s"}, "bytes_in": size, "bytes_out": size,
         "priority": gpus}
        for name, gpus, size in zip(HOSTILE, (1, 2, 1, 1, 2), ("1 GB", "4 GB", "0 B", "2 GB", "0 B"), strict=True)
    ],
    "policy": {"scheduler": "priority"},
}  # fmt: skip


@cache
def run_of(name: str) -> hs.Result:
    scenario = MIX if name == "mix" else name
    return hs.run(scenario) if name == "mix" else hs.run(scenario, seed=1)


def node(body: str, packed: bytes = b"", **values: Any) -> Any:
    """What a script returns, given `Core`, `Pictures`, the `runs` of a page and the `input`."""
    values["columns"] = base64.b64encode(packed).decode() if packed else None
    code = f"{READ} console.log(JSON.stringify((() => {{ {body} }})()));"
    done = subprocess.run(
        [str(NODE), "-e", code, *SCRIPTS], input=json.dumps(values), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def packed_of(*runs: hs.Result) -> bytes:
    labels = (f"line\u2028{n}</script>" for n in range(len(runs)))
    given = {label: (run, columns.waits_by_cause(run)) for label, run in zip(labels, runs, strict=False)}
    return columns.packed(given)[0]


def script(text: str) -> bytes:
    """The columns that a page carries."""
    (code,) = re.findall(r'<script type="text/plain" id="columns">([A-Za-z0-9+/=]*)</script>', text)
    return base64.b64decode(code)


@needs_node
def test_decoded_columns_are_those_of_the_tables():
    run = run_of("mix")
    found = node("""const r = runs[0], list = c => Array.from(c, v => isNaN(v) ? null : v);
        return {label: r.label, tick: r.tick, id: list(r.id), klass: list(r.klass).map(c => r.classes[c]),
          user: list(r.user).map(c => r.users[c]), status: list(r.status).map(c => r.statuses[c]),
          times: ["arrival", "ready", "start", "finish"].map(n => list(r[n])),
          launches: ["decided", "upload_start", "upload_end", "compute_start", "compute_end", "end"]
            .map(n => list(r.launches[n])), task: list(r.launches.task),
          device: list(r.launches.place).map(p => r.places[p].map(([d, c]) =>
            r.devices[d].name + (c < 0 ? "" : c)).join("+"))}""",
                 packed_of(run))  # fmt: skip
    tasks, launches = run.tasks, run.launches
    assert found["label"] == "line\u20280</script>"
    assert found["id"] == tasks["id"].tolist()
    for name, column in (("klass", "class"), ("user", "user"), ("status", "status")):
        assert found[name] == tasks[column].astype(str).tolist()
    assert set(found["klass"]) == set(HOSTILE)
    assert found["tick"] < 1e-8 * run.end
    names = ["arrival", "ready", "start", "finish"]
    for name, values in zip(names, found["times"], strict=True):
        np.testing.assert_allclose(np.array(values, float), tasks[name], rtol=0, atol=found["tick"])
    names = ["decided", "upload_start", "upload_end", "compute_start", "compute_end", "end"]
    for name, values in zip(names, found["launches"], strict=True):
        np.testing.assert_allclose(np.array(values, float), launches[name], rtol=0, atol=found["tick"])
    assert tasks["id"].to_numpy()[found["task"]].tolist() == launches["task"].tolist()
    assert found["device"] == launches["device"].astype(str).tolist()


@pytest.mark.quick(1)
@needs_node
@pytest.mark.parametrize(
    "name", ["mix", "first-steps", "save-and-restore", pytest.param("chunked-prefill", marks=pytest.mark.slow)]
)
def test_levels_over_time_integrate_to_the_metrics(name: str):
    """The mean queue, of preempted tasks too, and the busy part of each type, over the measured window."""
    run = run_of(name)
    queue, busy = node("""const r = runs[0], l = Core.levels(r, Core.masks(r, every), r.warmup, r.end, 700);
        return [Core.mean(l.waiting), Object.fromEntries(l.busy.map(b =>
          [r.cores.has(b.type), Core.mean(b.values)]))]""",
                       packed_of(run))  # fmt: skip
    assert queue == pytest.approx(run.metric("queue_length_mean"), rel=1e-5)
    assert busy["false"] == pytest.approx(run.metric("gpu_utilization"), rel=2e-4)
    if "true" in busy:
        assert busy["true"] == pytest.approx(run.metric("cpu_utilization"), rel=2e-4)


@pytest.mark.slow
@needs_node
def test_the_busy_part_is_of_devices_that_are_up():
    """Nodes that fail and are repaired; in one pixel, since a mean of parts is not the part of the sums."""
    run = run_of("broken-and-late")
    busy, off = node("""const r = runs[0], l = Core.levels(r, Core.masks(r, every), r.warmup, r.end, 1);
        return [Object.fromEntries(l.busy.map(b => [r.cores.has(b.type), b.values[0]])), r.off.length]""",
                     packed_of(run))  # fmt: skip
    assert off
    assert busy["false"] == pytest.approx(run.metric("gpu_utilization"), rel=2e-4)


@needs_node
@pytest.mark.parametrize("name", ["mix", pytest.param("chunked-prefill", marks=pytest.mark.slow)])
def test_groups_are_those_of_the_metrics(name: str):
    """With a warm-up, and with requests that are unfinished: percentiles count them as infinite."""
    run = run_of(name)
    found = node("""const r = runs[0], rows = Core.within(r, Core.masks(r, every).task, 0, r.end);
        return Core.groups(r, rows, r.klass, r.classes)""", packed_of(run))  # fmt: skip
    names = ["task_count", "wait_mean", "wait_p95", "response_mean", "response_p95"]
    expected = run.by("class", names)
    assert {one["name"] for one in found} == set(expected.index)
    for one in found:
        values = [one[key] for key in ("count", "wait", "waitHigh", "response", "responseHigh")]
        assert values == pytest.approx(expected.loc[one["name"], names].tolist(), rel=1e-5)


@pytest.mark.slow
@needs_node
def test_waits_by_cause_are_those_of_explain():
    run = run_of("mix")
    found = node("""const r = runs[0], rows = [...r.id.keys()];
        return Object.fromEntries(r.causes.map((c, i) => [c, Core.waitByCause(r, rows)[i]]))""",
                 packed_of(run))  # fmt: skip
    totals = causes(run)[list(CAUSES)].sum()
    assert set(found) == set(totals.index[totals > 0])
    for cause, seconds in found.items():  # whole percents of each wait
        assert seconds == pytest.approx(totals[cause], abs=0.005 * totals.sum())


@needs_node
def test_filters_keep_what_pandas_keeps():
    run = run_of("mix")
    tasks = run.tasks
    user, node_name = str(tasks["user"].iloc[0]), str(run.devices["node"].iloc[-1])
    found = node("""const r = runs[0], kept = f => [...Core.masks(r, {...every, ...f}).task.keys()]
          .filter(i => Core.masks(r, {...every, ...f}).task[i]);
        const launches = f => Core.masks(r, {...every, ...f}).launch.reduce((a, b) => a + b, 0);
        const where = {node: r.nodes.indexOf(input.node)}, who = {user: r.users.indexOf(input.user)};
        return [kept(who), kept(where), launches(where), kept({range: {metric: "wait", low: 1, high: 5}})]""",
                 packed_of(run), user=user, node=node_name)  # fmt: skip
    on = run.launches[run.launches["node"].astype(str) == node_name]
    assert found[0] == np.flatnonzero(tasks["user"] == user).tolist()
    assert found[1] == np.flatnonzero(tasks["id"].isin(on["task"])).tolist() and found[2] == len(on)
    assert found[3] == np.flatnonzero(tasks["wait"].between(1, 5)).tolist()


@pytest.mark.slow
@needs_node
def test_no_two_bars_of_a_row_overlap_and_none_is_missing():
    """But for the stages of two launches on a GPU with two streams, each on an engine of its own."""
    run = run_of("mix")
    found = node("""const r = runs[0], L = r.launches;
        return r.rows.map(row => [r.devices[row.device].name, row.engines,
        Array.from(row.bar, i => ["upload", "compute", "download"].map(s => Core.span(L, i, s)))])""",
                 packed_of(run))  # fmt: skip
    assert any(engines for _, engines, _ in found)
    for _, _, bars in found:
        for stage in range(3):
            spans = [bar[stage] for bar in bars if None not in bar[stage]]
            assert all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(spans, spans[1:], strict=False))
    drawn = pd.Series([name for name, _, bars in found for _ in bars]).value_counts()
    given = run.launches["device"].astype(str).str.split("+").explode().value_counts()
    assert drawn.to_dict() == given.to_dict()


@pytest.mark.slow
@needs_node
def test_pixels_keep_the_sum_of_what_they_cover():
    """However narrow bars are: the covered parts of all pixels sum to the bars' lengths."""
    random = np.random.default_rng(4)
    begin = random.uniform(-5, 100, 400)
    bars = np.column_stack([begin, begin + random.exponential(0.3, 400)])
    parts, levels = node("""const c = new Core.Coverage(1, 90), l = new Core.Level(0, 90, 90);
        for (const [a, b] of input.bars) { c.add(0, a, b, [1, 2, 3]); l.add(a, b); }
        return [Array.from({length: 90}, (_, i) => c.sums[4 * i + 3]), Array.from(l.values())]""",
                         bars=bars.tolist())  # fmt: skip
    edges = np.arange(91)
    inside = np.clip(bars[:, 1:], edges[:-1], edges[1:]) - np.clip(bars[:, :1], edges[:-1], edges[1:])
    np.testing.assert_allclose(parts, inside.sum(axis=0), atol=1e-5)
    np.testing.assert_allclose(levels, inside.sum(axis=0), atol=1e-9)


@pytest.mark.slow
@needs_node
def test_numbers_are_written_as_on_the_terminal():
    random = np.random.default_rng(5)
    edges = [0.0, 1.0, 90.0, 119.99, 120.0, 5399.0, 5400.0, 1e-9, 1e7, 99.95, 999.5]
    values = [*edges, *(10 ** random.uniform(-8, 9, 300))]
    plain, times = node("return [input.values.map(v => Core.figures(v)), input.values.map(v => Core.seconds(v))]",
                        values=values)  # fmt: skip
    assert plain == [formatting.figures(value) for value in values]
    assert times == [formatting.seconds(value) for value in values]


@pytest.mark.quick(1)
@needs_node
@pytest.mark.parametrize("high", [3e-9, 0.004, 1.0, 59.0, 61.0, 119.0, 400.0, 5000.0, 6000.0, 90000.0, 4e5, 3e7])
def test_ticks_are_few_evenly_spaced_and_all_different(high: float):
    ticks = node("return Core.timeTicks(input.low, input.high, 9)", low=0.3 * high, high=high)["ticks"]
    times = [time for time, _ in ticks]
    assert 2 <= len(ticks) <= 11 and len({text for _, text in ticks}) == len(ticks)
    np.testing.assert_allclose(np.diff(times), times[1] - times[0], rtol=1e-9)
    assert times[0] >= 0.3 * high * (1 - 1e-9) and times[-1] <= high * (1 + 1e-9)


@pytest.mark.slow
@needs_node
def test_pairs_of_two_runs_are_the_same_tasks():
    one, other = run_of("mix"), hs.run(MIX, policy="fcfs")
    found = node("""const all = new Uint8Array(runs[1].count).fill(1);
        return Array.from(Core.paired(runs[0], runs[1], "response", all))""",
                 packed_of(one, other))  # fmt: skip
    both = one.tasks.merge(other.tasks, on="id")
    both = both[both["arrival_x"] >= one.warmup]
    np.testing.assert_allclose(found, np.sort(both["response_y"] - both["response_x"]), atol=1e-5)


@pytest.mark.slow
@needs_node
def test_shares_by_pixel_are_the_empirical_distribution():
    random = np.random.default_rng(6)
    values = np.sort(random.normal(size=300))
    edges = np.linspace(-2.0, 2.0, 51)[1:]
    body = "return Core.shares(Float64Array.from(input.values), 50, share => -2 + 4 * share)"
    found = node(body, values=values.tolist())
    np.testing.assert_allclose(found, [(values <= edge + 1e-12).mean() for edge in edges])


def test_hostile_names_stay_text_and_the_bytes_are_the_same():
    page = report(run_of("mix"))
    assert page == report(run_of("mix"))
    for name in HOSTILE[:3]:
        assert name not in page
    assert page.count("<script") == 2 == page.count("</script>") and "\u2028" not in page
    assert "http" not in page and "/work" not in page
    head = json.loads(_head(script(page)))
    assert set(HOSTILE) <= set(head["runs"][0]["class"])


def _head(packed: bytes) -> bytes:
    import zlib

    raw = zlib.decompress(packed)
    return raw[4 : 4 + int.from_bytes(raw[:4], "little")]


@pytest.mark.quick(1)
@pytest.mark.parametrize("count", [1, 3])
def test_tiny_runs_have_a_page(count: int):
    entry = {"cpu_time": "1 s", "arrivals": {"process": "all_at_once", "count": count}}
    run = hs.run({"name": "tiny", "cluster": {"nodes": {"cpus": 2}}, "workload": [entry]})
    packed = script(report(run))
    assert json.loads(_head(packed))["runs"][0]["tasks"] == count
    if NODE:
        rows = node("""const r = runs[0]; Core.levels(r, Core.masks(r, every), 0, Math.max(r.end, 1), 50);
            return r.rows.length""", packed)  # fmt: skip
        assert rows == min(count, 2)


@pytest.mark.quick(1)
@needs_node
@pytest.mark.parametrize("name", ["mix", "first-steps", "broken-and-late"])
def test_devices_are_those_of_the_table(name: str):
    """Utilization in the measured window, of all tasks and class by class; and the launches that were there."""
    run = run_of(name)
    end = min(run.end, run.horizon)
    code = """const r = runs[0], of = filter => Core.devices(r, Core.masks(r, filter), r.warmup, input.end).map(
          d => [d.name, d.count, d.utilization]);
        const classes = [...new Set(r.klass)].map(klass => of({...every, klass}));
        return [of(every), classes, of({...every, node: 0}), r.nodes[0]]"""
    found, by_class, on_first, first = node(code, packed_of(run), end=end)
    table = run.devices.set_index("device")
    busy = {name: value for name, _, value in found}
    assert busy == pytest.approx(table["utilization"].to_dict(), abs=2e-3) and max(busy.values()) > 0.05
    assert list(busy.values()) == sorted(busy.values(), reverse=True)
    parts = [{name: value for name, _, value in one} for one in by_class]
    assert {name: sum(one[name] for one in parts) for name in busy} == pytest.approx(busy)
    assert {name for name, *_ in on_first} == set(table.index[table["node"] == first])
    launches = run.launches[(run.launches["end"].fillna(run.end) >= run.warmup) & (run.launches["decided"] <= end)]
    names = launches["device"].astype(str).str.split("+")
    for name, count, _ in found:
        assert count == names.map(lambda on, name=name: any(one.startswith(name) for one in on)).sum()


@needs_node
def test_values_in_pictures_are_written_as_their_axes_are():
    """In the unit of the ticks, also where only the title names it; as times; as the names of rows."""
    axes = [
        ([[0, "0"], [60, "1"], [120, "2"]], 90, "1.5"),
        ([[0, "0 %"], [0.5, "50 %"]], 0.25, "25 %"),
        ([[0, "0"], [2e3, "2,000"]], 1234, "1,234"),
        ([[1, "1 s"], [60, "1 min"], [3600, "1 h"]], 90, "90 s"),
        ([[0, "fcfs"], [1, "sjf"]], 0.9, "sjf"),
        ([[0, "fcfs"], [1, "2 GPUs"]], 1, "2 GPUs"),
        ([], 3.14159, "3.14"),
    ]
    body = "return input.axes.map(([ticks, value]) => Pictures.written({ticks}, value))"
    found = node(body, axes=[one[:2] for one in axes])
    assert found == [text for *_, text in axes]


@needs_node
def test_levels_have_round_ticks_from_zero_to_above_the_highest():
    highest = [0.03, 1.0, 7.0, 38.0, 99.9, 12345.0]
    made = node("return input.highest.map(one => Pictures.levelAxis(one, 90))", highest=highest)
    for value, axis in zip(highest, made, strict=True):
        ticks = [at for at, _ in axis["ticks"]]
        assert axis["low"] == ticks[0] == 0 and axis["high"] >= value and 2 <= len(ticks) <= 5
        assert f"{ticks[1]:e}"[0] in "125" and np.diff(ticks) == pytest.approx(ticks[1])


@needs_node
def test_keys_go_around():
    body = "return [[-1, 1], [-1, -1], [0, -1], [2, 1], [1, 1]].map(([at, by]) => Pictures.following(at, by, 3))"
    assert node(body) == [0, 2, 2, 0, 2]


@pytest.mark.slow
@needs_node
def test_a_column_of_times_has_the_unit_of_the_terminal():
    random = np.random.default_rng(4)
    lists = [[0.0], [0.0, 90.0, 45.0], *(10 ** random.uniform(-7, 7, (40, 5))).tolist()]
    found = node("return input.lists.map(Core.column)", lists=lists)
    assert found == [formatting.several(values, formatting.SECONDS) for values in lists]
