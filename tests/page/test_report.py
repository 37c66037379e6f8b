"""The HTML page: it holds what the tables say, needs nothing else, and works in a browser."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
import sys
import zlib
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from tiers import some, spread

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import visible_lines
from hetsim.experiment.directory import load_any
from hetsim.page import report, write_report
from hetsim.page.elements import picture
from hetsim.results.colors import BLUE, INK
from hetsim.results.declared import higher_is_better
from hetsim.results.panels import Axis, Boxes, Panel, Picture, Points, Texts

MIX: dict[str, Any] = {
    "name": "mix <&> match",
    "seed": 2,
    "cluster": {"nodes": [{"count": 2, "cpus": 4, "gpus": {"type": "g", "count": 2}}]},
    "workload": [
        {
            "name": "gang", "count": 30, "arrivals": {"process": "poisson", "rate": "0.2/s"}, "gpus": 2,
            "gpu_time": {"distribution": "exponential", "mean": "6 s"},
        },
        {
            "name": "small", "count": 80, "arrivals": {"process": "poisson", "rate": "1/s"},
            "gpu_time": {"distribution": "exponential", "mean": "1 s"},
        },
    ],
    "policy": "fcfs",
}  # fmt: skip


class Outline(HTMLParser):
    """What matters of a page: its headings, tables, links out, and whether tags are closed."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.headings: list[str] = []
        self.sources: list[str] = []
        self.tables = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.tables += tag == "table"
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag == "figure" and not dict(attrs).get("aria-label"):
            self.wrong.append("picture without a text")

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)


CALLS = {
    "run": ["run"],
    "replications": ["run", "--replications", "3"],
    "comparison": ["compare", "--policy", "fcfs", "--policy", "sjf", "--replications", str(some(4, 2))],
    "sweep": ["sweep", "--over", "cluster.nodes.0.count=1,2", "--over", "policy=fcfs,sjf", "--replications", "2",
              "--workers", "1"],
}  # fmt: skip


class Folders:
    """A directory of each kind, as the command line writes them: made when the first test asks for it."""

    def __init__(self, top: Path):
        self.top = top
        (top / "mix.yaml").write_text(yaml.safe_dump(MIX))

    def __getitem__(self, kind: str) -> Path:
        if not (self.top / kind).exists():
            words = [*CALLS[kind], str(self.top / "mix.yaml"), "--out", str(self.top / kind), "-q"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("hetsim.results.panels.attempt", lambda name, draw: None)  # a page draws its own
                found = CliRunner().invoke(main, words)
            assert found.exit_code == 0, found.output
        return self.top / kind


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("made"))


@pytest.mark.parametrize("kind", spread(["run", "replications", "comparison", "sweep"], 2))
@pytest.mark.slow
def test_a_page_of_each_kind(folders: Folders, kind: str):
    found = CliRunner().invoke(main, ["report", str(folders[kind])])
    assert found.exit_code == 0, found.output
    text = (folders[kind] / "report.html").read_text(encoding="utf-8")
    outline = Outline(text)
    assert not outline.wrong and not outline.open
    assert "mix <&> match" in outline.headings[0] and "In words" in outline.headings
    assert outline.tables and (data_of(text) or 'id="columns"' in text)  # those of a run are drawn from its columns
    outside = [source for source in outline.sources if not source.startswith(("data:", "#"))]
    assert outside == [] and "http" not in text.replace(f"{MIX}", "")
    assert "<script src" not in text and "@import" not in text and "url(" not in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_the_same_directory_gives_the_same_bytes(folders: Folders, tmp_path: Path, kind: str):
    page = write_report(load_any(folders[kind]), tmp_path / "page.html").read_bytes()
    assert page == page_of(folders[kind]).encode()


def data_of(text: str) -> list[Any]:
    """The pictures that a page carries."""
    codes = re.findall(r'<figure role="group" aria-label="[^"<>]+" data-picture="([A-Za-z0-9+/=]+)">', text)
    assert len(codes) == text.count("<figure")
    return [json.loads(zlib.decompress(base64.b64decode(code))) for code in codes]


def test_a_picture_on_a_page_is_its_marks():
    """Limits and ticks are settled, numbers have seven digits, none is infinite, colors follow light and dark."""
    names = ["<script>alert(1)</script>", "line\u2028one\x07"]
    marks = [
        Points([1 / 3, math.nan], np.array([2.0, 4.0]), names[0], BLUE, rows=names),
        Boxes(np.array([0.0]), [math.inf], [0], [3], color="#123456"),
        Texts([1], [2], names, color=[INK, "#FFFFFF"]),
    ]
    given = Picture([[Panel(marks, Axis("x", 0.0, 9.0), Axis("y", 0.0, 5.0), names[1]), None]])
    code = picture(lambda: given, f"{names[0]} & more", names[0])
    assert code == picture(lambda: given, f"{names[0]} & more", names[0]) and "<script" not in code
    (made,) = data_of(code)
    (panel, missing), (points, box, texts) = made["rows"][0], made["rows"][0][0]["marks"]
    assert missing is None and panel["x"]["low"] == 0 and panel["y"]["ticks"][-1] == [5, "5"]
    assert panel["title"] == visible_lines(names[1]) != names[1]
    assert (points["kind"], points["x"], points["y"]) == ("Points", [0.3333333, None], [2, 4])
    assert (points["label"], points["rows"][0], points["color"]) == (names[0], names[0], "c0")
    assert (box["x1"], box["color"], texts["color"]) == ([9], "#123456", ["ink", "#FFFFFF"])


def test_a_page_needs_no_matplotlib(monkeypatch: pytest.MonkeyPatch):
    """Only `hetsim.plots.draw` imports it, as tests/scenario/test_layers.py sees to."""
    monkeypatch.setitem(sys.modules, "hetsim.plots.draw", None)
    found = hs.compare(MIX, ["fcfs", "sjf"])
    text = report(found)
    first, *others = data_of(text)
    assert len(others) == 2 and "could not be drawn" not in text
    panels = [panel for row in first["rows"] for panel in row if panel]
    (column,) = (panel for panel in panels if panel["title"].startswith("response mean"))
    points = {mark["rows"][0]: mark["x"][0] for mark in column["marks"] if mark["kind"] == "Points"}
    means = found.table["response_mean", "mean"]
    assert points["fcfs"] / points["sjf"] == pytest.approx(means["fcfs"] / means["sjf"], rel=1e-5)


@pytest.mark.nightly
def test_report_of_a_comparison_does_not_import_matplotlib(folders: Folders, tmp_path: Path):
    words = ["report", str(folders["comparison"]), "--page", str(tmp_path / "page.html")]
    code = f"import sys; from hetsim.cli import main; main({words}, standalone_mode=False)"
    code += "; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


def test_the_words_are_those_of_the_comparison():
    crowd = {
        "name": "crowd", "cluster": {"nodes": {"gpus": {"type": "g", "count": 1}}},
        "workload": [{"name": "jobs", "count": 80, "arrivals": {"process": "poisson", "rate": "2/s"},
                      "gpu_time": {"distribution": "exponential", "mean": "1 s"}}],
    }  # fmt: skip
    metrics = ["response_mean", "wait_mean"]
    found = hs.compare(crowd, ["fcfs", "sjf"], replications=6, metrics=metrics)
    told = in_words(report(found))
    assert [finding.shown for finding in found.findings] == ["different"] * 2 and len(told) == 2
    for metric, sentence in zip(metrics, told, strict=True):
        (finding,) = (row for row in found.findings if row.metric == metric)
        name = metric.replace("_", " ")
        (share,) = re.findall(rf"^sjf is better than fcfs in {name} by ([\d.]+) ± [\d.]+ %, n = 6 ", sentence)
        base = found.table[metric, "mean"]["fcfs"]
        assert float(share) == pytest.approx(100 * abs(finding.difference) / base, rel=0.02)


def in_words(page: str) -> list[str]:
    """The sentences of the first section."""
    section = page.rpartition(">In words<")[2].partition("</section>")[0]
    return re.findall(r"<li>(.*?)</li>", section)


@pytest.mark.slow
def test_single_runs_are_told_in_few_words_and_chance_once():
    found = hs.compare(MIX, ["fcfs", "sjf", "fcfs_skip"], metrics=["response_mean", "wait_mean"])
    *told, last = in_words(report(found))
    assert last == "One run of each policy gives no confidence intervals; use --replications 10."
    assert len(told) == 2
    for metric, sentence in zip(("response_mean", "wait_mean"), told, strict=True):
        best = found.table[metric, "mean"].idxmin()
        assert re.search(rf"^The lowest {metric.replace('_', ' ')} is [\d.]+ s under {best}, compared with ", sentence)


@pytest.mark.slow
def test_metrics_without_a_significant_difference_share_a_sentence():
    found = hs.compare(MIX, {"one": "fcfs", "two": "fcfs"}, replications=3, metrics=["response_mean", "makespan"])
    assert in_words(report(found)) == ["No significant difference in response mean and makespan (95 %, Holm)."]


def test_a_run_is_told_in_three_sentences_and_six_figures():
    run = hs.run(MIX)
    page = report(run)
    told = in_words(page)
    assert told[0] == "110 of 110 tasks completed." and len(told) == 3
    waits = run.tasks["wait"].mean() / run.tasks["response"].mean()
    sentence = r"^Tasks waited [\d.]+ m?s on average, ([\d.]+) % of their response; causes of the waiting: "
    (part,) = re.findall(sentence, told[1])
    assert float(part) == pytest.approx(100 * waits, rel=0.01)
    shown = re.findall(r'<div title="(\w+)"><dt>[^<]*</dt><dd[^>]*>([^<]*)</dd>', page)
    assert len(shown) == 6 and dict(shown)["response_mean"] == run.text("response_mean")


@pytest.mark.slow
def test_a_loaded_comparison_is_the_one_that_was_saved(folders: Folders):
    again = hs.compare(MIX, ["fcfs", "sjf"], replications=some(4, 2))
    loaded = hs.Comparison.load(folders["comparison"])
    assert loaded.sentences == again.sentences
    assert loaded.table.equals(again.table)


@pytest.mark.slow
def test_failed_points_are_told():
    found = hs.sweep(MIX, {"cluster.nodes.0.count": [1, 2]}, policies=["fcfs"])
    found.table.loc[1, ["status", "error"]] = ["failed", "the worker <died>"]
    assert "point 1 under fcfs failed: the worker &lt;died&gt;" in report(found)


def test_where_it_cannot_be_written(folders: Folders, tmp_path: Path):
    missing = CliRunner().invoke(main, ["report", str(tmp_path / "none")])
    assert missing.exit_code == 2 and "the directory" in missing.stderr
    folder = CliRunner().invoke(main, ["report", str(folders["run"]), "--page", str(tmp_path)])
    assert folder.exit_code == 2 and "a folder" in folder.stderr
    (tmp_path / "empty").mkdir()
    empty = CliRunner().invoke(main, ["report", str(tmp_path / "empty")])
    assert empty.exit_code == 2 and "not a run directory" in empty.stderr
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []


CLICK = """<script>
const fits = document.documentElement.scrollWidth <= innerWidth;
const buttons = document.querySelectorAll("table.sortable thead th button");
const body = document.querySelector("table.sortable").tBodies[0];
const rows = () => Array.from(body.rows).map(row => row.cells[1].dataset.value);
buttons[1].click();
const up = rows();
buttons[1].click();
document.body.innerHTML = "<p id=told>" + JSON.stringify([up, rows(), fits]) + "</p>";
</script>"""

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@cache
def page_of(folder: Path) -> str:
    return report(load_any(folder))


@pytest.mark.quick(0)
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here")
@pytest.mark.parametrize("width", [pytest.param(1100, marks=pytest.mark.slow), 500])
def test_in_a_browser_tables_sort_and_the_page_fits(folders: Folders, tmp_path: Path, width: int):
    text = page_of(folders["comparison"])
    file = tmp_path / "page.html"
    file.write_text(text.replace("</body>", CLICK + "</body>"), encoding="utf-8")
    assert BROWSER is not None
    words = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
             f"--window-size={width},900", "--dump-dom", file.as_uri()]  # fmt: skip
    dom = subprocess.run(words, capture_output=True, text=True, timeout=120).stdout
    told = re.search(r'<p id="told">(.*?)</p>', dom)
    assert told, dom[-2000:]
    up, down, fits = json.loads(told[1])
    values = [float(value) for value in up]
    assert values == sorted(values) and down == up[::-1] and fits


def commands_of(page: str) -> list[str]:
    import html

    return [html.unescape(text) for text in re.findall(r"<pre>(hetsim .*?)</pre>", page, re.DOTALL)]


def run_again(command: str) -> Any:
    import shlex

    done = CliRunner().invoke(main, [*shlex.split(command)[1:], "--json", "-q"])
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_the_command_on_the_page_makes_the_same_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Pasted as it is: with blanks and quotes in names, policies with parameters, labels of one's own."""
    from hetsim.experiment.directory import save, save_comparison

    monkeypatch.chdir(tmp_path)
    odd = {**MIX, "name": "it's </script> \"odd\" $x", "replications": 3}
    one = hs.run(odd, seed=4)
    save(one, "a b", picture=False)
    (command,) = commands_of(report(load_any("a b"), "a b"))
    assert run_again(command)["summary"]["response_mean"] == one.metric("response_mean")

    policies = {"mine": "sjf", "fcfs": {"scheduler": {"name": "fcfs_skip", "placement": "best_fit"}}}
    found = hs.compare(odd, policies, seed=5)
    save_comparison(found, found.runs, "c d", picture=False)
    (command,) = commands_of(report(hs.Comparison.load("c d"), "c d"))
    again = list(run_again(command)["policies"].values())
    assert [values["response_mean"]["mean"] for values in again] == found.table["response_mean", "mean"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("grid", [True, False])
def test_the_command_of_a_sweep_makes_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: bool):
    monkeypatch.chdir(tmp_path)
    keys = {"workload.small.gpu_time.mean": ["1 s", "2 s"], "cluster.nodes.0.count": [1, 2]}
    points = [dict(zip(keys, row, strict=True)) for row in (("1 s", 2), ("2 s", 1))]
    over = {"over": keys} if grid else {"points": points}
    policies = ["fcfs", {"scheduler": {"name": "fcfs_skip", "placement": "best_fit"}}]
    metrics = ["wait_mean", "makespan"]
    found = hs.sweep(MIX, policies=policies, metrics=metrics, replications=2, seed=8, out="s w", workers=1, **over)
    page = report(load_any("s w"), "s w")
    (command,) = commands_of(page)
    if not grid:
        (table,) = re.findall(r"<summary>points.csv</summary><pre>(.*?)</pre>", page, re.DOTALL)
        Path("points.csv").write_text(table)
    rows = run_again(command)["rows"]
    assert [row["metrics"]["wait_mean"]["mean"] for row in rows] == found.table["wait_mean"].tolist()


@pytest.mark.slow
def test_a_page_about_fifty_policies(tmp_path: Path):
    found = hs.compare(MIX, {f"policy {n}": ["fcfs", "sjf", "fcfs_skip"][n % 3] for n in range(50)}, replications=2)
    page = report(found)
    assert 1 <= page.count("<li>") <= 5
    assert "No significant difference in " in page or "more pairs: the table of differences has all" in page
    assert len(page) < 4e5
    (shown,) = re.findall(r"<h2>Differences</h2>(.*?)</section>", page, re.DOTALL)
    assert shown.count("<tr>") == 1 + 49 * len(found.metrics)  # the heading, and each policy against the best
    assert len(found.pairs) == 1225 * len(found.metrics) and f"has all {len(found.pairs):,} pairs" in shown
    assert "the best 30 of 50 policies in " in hs.plots.comparison(found).note
    means = found.table[found.metrics[0], "mean"].sort_values(ascending=not higher_is_better(found.metrics[0]))
    drawn = [mark.rows[0] for mark in hs.plots.comparison(found).panels[0].marks if getattr(mark, "rows", ())]
    assert sorted(means[drawn]) == sorted(means[:30])  # of equal ones any


@pytest.mark.slow
def test_warnings_that_differ_in_their_figures_are_one():
    """And one line for what is so under every policy."""
    from hetsim.report.overview import comparison_remarks, gathered

    late = {**MIX, "workload": [{**entry, "deadline": "1 s"} for entry in MIX["workload"]]}
    found = hs.compare(late, ["fcfs", "sjf"], replications=4)
    (told,) = comparison_remarks(found.runs)
    assert re.match(r"all policies: .* deadlines of \d+ to \d+ of 110 tasks: .* \(in all 4 replications\)$", told)
    assert [told.removeprefix("all policies: ")] == gathered(found.runs["fcfs"])
