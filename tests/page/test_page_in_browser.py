"""The page of a run in Chromium: what it draws, and what pointer and keys do.  Run by `pytest --nightly`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chromium import BROWSER, Page, browser

import hetsim as hs
from hetsim.page import report, write_report

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)"),
]

HOSTILE = '<img src=x onerror="window.taken = 1">'
PCIE = {"upload": "1 GB/s", "download": "1 GB/s"}
MIX: dict[str, Any] = {
    "name": HOSTILE,
    "seed": 2,
    "cluster": {"nodes": [{"count": 2, "cpus": 4, "gpus": {"type": "g", "count": 2, "pcie": PCIE}}]},
    "workload": [
        {"name": HOSTILE, "count": 30, "arrivals": {"process": "poisson", "rate": "0.2/s"}, "gpus": 2, "users": 3,
         "gpu_time": {"distribution": "exponential", "mean": "6 s"}},
        {"name": "small", "count": 80, "arrivals": {"process": "poisson", "rate": "1/s"}, "bytes_in": "2 GB",
         "bytes_out": "1 GB", "gpu_time": {"distribution": "exponential", "mean": "1 s"}},
    ],
    "policy": "fcfs",
}  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def run() -> hs.Result:
    return hs.run(MIX)


@pytest.fixture(scope="module")
def compared() -> hs.Comparison:
    return hs.compare(MIX, ["fcfs", "sjf"])


@pytest.fixture
def at_run(page: Page, run: hs.Result, tmp_path: Path) -> Page:
    page.open(write_report(run, tmp_path / "page.html"))
    return page


def chart(page: Page) -> tuple[float, float, float, float]:
    """Left, top, width and height of the chart's bars on the screen."""
    x, y, *more = json.loads(page.value("""(() => { const g = explorer.gantt, b = g.canvas.getBoundingClientRect();
        return JSON.stringify([b.x + g.left, b.y + g.top, g.wide, g.high]) })()"""))
    return (x, y, *more)


def place_of(page: Page, launch: int) -> tuple[float, float]:
    """The middle of a launch's first bar on the screen."""
    left, top, wide, high = chart(page)
    x, y = json.loads(page.value(f"""(() => {{ const v = explorer.view, L = explorer.run.launches, i = {launch};
        const row = explorer.rows.findIndex(r => r.bar.includes(i));
        return JSON.stringify([((L.decided[i] + L.end[i]) / 2 - v.low) / (v.high - v.low),
                               (row + 0.5 - v.top) / (v.bottom - v.top)]) }})()"""))
    return left + x * wide, top + y * high


def colors(page: Page, plot: str) -> set[str]:
    """The colors that cover at least 20 pixels of a picture."""
    return set(json.loads(page.value(f"""(() => {{ const c = explorer.{plot}.canvas, n = new Map();
        const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
        for (let i = 0; i < d.length; i += 4) if (d[i + 3] > 250) {{
            const k = "#" + [d[i], d[i + 1], d[i + 2]].map(v => v.toString(16).padStart(2, "0")).join("");
            n.set(k, (n.get(k) || 0) + 1); }}
        return JSON.stringify([...n].filter(([, count]) => count >= 20).map(([k]) => k)) }})()""")))


def tip(page: Page) -> str:
    return str(page.value("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"))


def counted(page: Page) -> int:
    return int(page.value("explorer.said.textContent.split(' ')[0].replace(/,/g, '')"))


def test_stages_have_their_colors_in_light_and_dark(page: Page, run: hs.Result, tmp_path: Path):
    file = write_report(run, tmp_path / "page.html")
    page.open(file)
    assert {"#e69f00", "#0072b2", "#009e73"} <= colors(page, "gantt")
    assert "#d55e00" in colors(page, "queue")
    page.open(file, dark=True)
    assert {"#f0b030", "#3d9bdc", "#1fbf92"} <= colors(page, "gantt")
    page.value("document.getElementById('theme').click()")
    page.settle()
    assert {"#e69f00", "#0072b2", "#009e73"} <= colors(page, "gantt")
    assert page.errors == [] and len(page.picture()) > 10_000


def test_hover_tells_task_user_mode_and_the_wait_by_cause(at_run: Page, run: hs.Result):
    launches = run.launches.merge(run.tasks[["id", "user", "wait"]], left_on="task", right_on="id")
    row = int(launches["wait"].idxmax())
    one = launches.loc[row]
    at_run.mouse("mouseMoved", *place_of(at_run, row))
    at_run.settle()
    told = tip(at_run)
    assert told.startswith(f"task {one['task']}\n") and str(one["mode"]) in told and str(one["user"]) in told
    assert "waited" in told and ("no capacity" in told or "head of line" in told)
    left, top, *_ = chart(at_run)
    at_run.mouse("mouseMoved", left - 30, top)
    at_run.settle()
    assert tip(at_run) == ""


def test_a_drag_zooms_and_everything_follows(at_run: Page, run: hs.Result):
    left, top, wide, high = chart(at_run)
    assert counted(at_run) == len(run.tasks)
    at_run.drag(left + wide / 4, left + wide / 2, top + high / 2)
    low, high_time = json.loads(at_run.value("JSON.stringify([explorer.view.low, explorer.view.high])"))
    assert low == pytest.approx(run.end / 4, rel=0.02) and high_time == pytest.approx(run.end / 2, rel=0.02)
    there = (run.tasks["arrival"] <= high_time) & ~(run.tasks["finish"] < low)
    assert counted(at_run) == there.sum()
    longest = run.tasks[there].nlargest(1, "response")["id"].iloc[0]
    first = "document.querySelector('#explorer > div:last-of-type td button').textContent"
    assert at_run.value(first) == str(longest)
    at_run.value("explorer.gantt.canvas.focus()")
    at_run.key("0")
    assert counted(at_run) == len(run.tasks)


def test_the_wheel_zooms_once_the_chart_has_the_focus(at_run: Page):
    left, top, wide, high = chart(at_run)
    length = "explorer.view.high - explorer.view.low"
    before = at_run.value(length)
    where = left + wide / 2, top + high / 2
    at_run.mouse("mouseWheel", *where, deltaX=0, deltaY=-200)
    at_run.settle()
    assert at_run.value(length) == before  # the page scrolls
    at_run.value("(scrollTo(0, 0), explorer.gantt.canvas.focus({preventScroll: true}))")
    at_run.settle()
    at_run.mouse("mouseWheel", *where, deltaX=0, deltaY=-200)
    at_run.settle()
    assert at_run.value(length) == pytest.approx(before * np.exp(-200 / 300), rel=0.01)


def test_keys_walk_through_the_launches(at_run: Page, run: hs.Result):
    at_run.value("explorer.gantt.canvas.focus()")
    order = run.launches.sort_values(["decided", "launch"], kind="stable")["task"].tolist()
    for task in order[:3]:
        at_run.key("n")
        assert tip(at_run).startswith(f"task {task}\n")
    at_run.key("p")
    assert tip(at_run).startswith(f"task {order[1]}\n")
    at_run.key("Enter")
    assert at_run.value("explorer.run.id[explorer.pinned]") == order[1]
    at_run.key("Escape")
    assert tip(at_run) == "" and at_run.value("explorer.pinned") == -1
    at_run.key("+")
    at_run.key("ArrowRight")
    assert at_run.value("explorer.view.low") == pytest.approx(0.35 * run.end, rel=1e-3)


def test_filters_reach_every_picture_and_table(at_run: Page, run: hs.Result):
    at_run.value("""(() => { const list = [...document.querySelectorAll(".tools select")]
        .find(one => [...one.options].some(option => option.textContent === "small"));
        list.value = [...list.options].find(option => option.textContent === "small").value;
        list.dispatchEvent(new Event("change")) })()""")
    at_run.settle()
    small = run.tasks[run.tasks["class"] == "small"]
    assert counted(at_run) == len(small) and "#d4d7dd" in colors(at_run, "gantt")
    queue = at_run.value("Core.mean(Core.levels(explorer.run, explorer.mask, 0, explorer.run.end, 500).waiting)")
    assert queue == pytest.approx(small["wait"].sum() / run.end, rel=1e-3)
    assert f"{len(small)} tasks: mean" in at_run.value("explorer.spreadSaid.textContent")
    classes = """[...new Set([...explorer.tasks.querySelectorAll("tbody tr")].map(row => row.cells[1].textContent))]
        .join()"""
    assert at_run.value(classes) == "small"
    rows = """JSON.stringify([...explorer.devices.querySelectorAll("tbody tr")]
        .map(row => [...row.cells].map(cell => cell.innerText)))"""
    launched = run.launches[run.launches["task"].isin(small["id"])].astype({"node": str})
    assert sum(int(row[3]) for row in json.loads(at_run.value(rows))) == len(launched)
    at_run.value("[...explorer.devices.querySelectorAll('td button')].find(b => b.textContent === 'n1').click()")
    at_run.settle()
    there = json.loads(at_run.value(rows))
    assert {row[2] for row in there} == {"n1"} and there[0][4].endswith(" %")
    assert sum(int(row[3]) for row in there) == (launched["node"] == "n1").sum() == counted(at_run)


def test_a_range_of_the_distribution_is_a_filter(at_run: Page, run: hs.Result):
    at_run.value("explorer.spread.canvas.scrollIntoView()")
    x, y, wide = json.loads(at_run.value("""(() => { const s = explorer.spread, b = s.canvas.getBoundingClientRect();
        return JSON.stringify([b.x + s.left, b.y + 60, s.wide]) })()"""))
    at_run.drag(x + wide / 2, x + wide + 30, y)
    low = at_run.value("explorer.filter.range.low")
    assert counted(at_run) == (run.tasks["response"] >= low).sum() > 0


def test_names_are_shown_and_never_run(at_run: Page):
    assert at_run.value("document.querySelector('h1').textContent").startswith(HOSTILE)
    assert HOSTILE in at_run.value("explorer.groups.textContent")
    assert at_run.value("window.taken === undefined && document.images.length") == 0 and at_run.errors == []


def test_a_comparison_overlays_its_runs(page: Page, compared: hs.Comparison, tmp_path: Path):
    found = compared
    page.open(write_report(found, tmp_path / "page.html"))
    assert {"#0072b2", "#e69f00"} <= colors(page, "queue") and {"#0072b2", "#e69f00"} <= colors(page, "spread")
    one, other = (found.runs[name].tasks.set_index("id")["response"] for name in ("fcfs", "sjf"))
    cells = json.loads(page.value("JSON.stringify([...explorer.pairs.querySelectorAll('tbody tr')]"
                                  ".map(row => [...row.cells].map(cell => cell.textContent)))"))  # fmt: skip
    shorter = 100 * (other - one < 0).mean()
    assert [row[0] for row in cells] == ["fcfs", "sjf"]
    assert float(cells[1][6].split()[0]) == pytest.approx(shorter, rel=0.01)
    assert "#e69f00" in colors(page, "gaps")
    page.value("explorer.choose(1)")
    page.settle()
    assert page.value("explorer.run.label") == "sjf" and page.errors == []


def stops(page: Page, kind: str = "Points") -> list[tuple[float, float, str]]:
    """The stops of the first panel with such marks: their places on the screen, and what they stand for."""
    found = page.value(f"""(() => {{ const views = [...document.querySelectorAll("figure")].flatMap(one => one.views);
        const view = views.find(one => one.panel.marks.some(mark => mark.kind === "{kind}" && mark.rows.length));
        const {{ canvas }} = view.plot;
        canvas.scrollIntoView({{ block: "center" }}); canvas.focus({{ preventScroll: true }});
        const box = canvas.getBoundingClientRect();
        return JSON.stringify(view.plot.places.map(([x, y, mark]) => [box.x + x, box.y + y, mark.rows[0] || ""]));
        }})()""")
    return [(x, y, row) for x, y, row in json.loads(found)]


def test_points_of_a_picture_tell_their_value_and_lead_to_a_row(page: Page, compared: hs.Comparison, tmp_path: Path):
    page.open(write_report(compared, tmp_path / "page.html"))
    (metric,) = compared.metrics[:1]
    by_policy = {row: (x, y) for x, y, row in stops(page) if row}
    assert set(by_policy) == {"fcfs", "sjf"}
    for policy, (x, y) in by_policy.items():
        page.mouse("mouseMoved", x + 3, y - 2)
        title, *pairs = tip(page).split("\n")
        shown = compared.cells(metric)[list(compared.table.index).index(policy)].split()[0]
        assert title == policy and pairs[-1] == policy and float(pairs[1]) == pytest.approx(float(shown), rel=0.05)
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseReleased", x, y, button="left", clickCount=1)
    chosen = """[...document.querySelectorAll('tr.chosen')].filter(row => !row.closest('#explorer'))
        .map(row => row.cells[0].textContent).join()"""
    assert page.value(chosen) == policy and page.errors == []


def test_keys_step_through_the_points_of_a_picture(page: Page, compared: hs.Comparison, tmp_path: Path):
    page.open(write_report(compared, tmp_path / "page.html"))
    order = [row for *_, row in stops(page)]
    titles = []
    for _ in order:
        page.key("ArrowRight")
        titles.append(tip(page).split("\n")[0])
    assert titles == order and len(order) == 2
    page.key("ArrowRight")
    assert tip(page).startswith(order[0])
    page.key("Escape")
    assert tip(page) == ""


def test_pictures_follow_light_and_dark(page: Page, compared: hs.Comparison, tmp_path: Path):
    page.open(write_report(compared, tmp_path / "page.html"))
    pixels = "[...document.querySelectorAll('figure canvas')].map(one => one.toDataURL()).join()"
    light = page.value(pixels)
    page.value("document.getElementById('theme').click()")
    page.settle()
    dark = page.value(pixels)
    page.value("document.getElementById('theme').click()")
    page.settle()
    assert len(light) > 10_000 and dark != light == page.value(pixels) and page.errors == []


def test_a_box_of_a_pipeline_leads_to_its_task(page: Page, tmp_path: Path):
    run = hs.run("parallel-training")
    page.open(write_report(run, tmp_path / "page.html"))
    x, y, row = stops(page, "Boxes")[-1]
    page.mouse("mouseMoved", x, y)
    assert row.startswith("task ") and tip(page).split("\n")[0].endswith(row)
    page.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    page.mouse("mouseReleased", x, y, button="left", clickCount=1)
    page.settle()
    assert page.value("`task ${explorer.run.id[explorer.pinned]}`") == row
    assert page.value("document.activeElement === explorer.gantt.canvas") and page.errors == []


def test_a_hundred_thousand_tasks_are_two_megabytes(page: Page, tmp_path: Path):
    """With uploads and downloads, twenty users and waits of many lengths."""
    many = {**MIX, "cluster": {"nodes": [{"count": 16, "gpus": {"type": "g", "count": 8}}]}}
    many["workload"] = [
        {**MIX["workload"][1], "count": 60_000, "users": 20, "arrivals": {"process": "poisson", "rate": "60/s"}},
        {**MIX["workload"][0], "name": "gangs", "count": 40_000, "arrivals": {"process": "poisson", "rate": "6/s"}},
    ]
    run = hs.run(many)
    file = tmp_path / "page.html"
    file.write_text(report(run), encoding="utf-8")
    assert file.stat().st_size <= 2e6
    page.open(file)
    assert counted(page) == 100_000 and page.errors == []
