"""What a page promises: its command makes the same again, its words say no more than the runs show, its units agree."""

from __future__ import annotations

import html
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import ttest_rel
from tiers import some

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import UnknownName, UsageError
from hetsim.experiment.points import read_points
from hetsim.page import report
from hetsim.report.overview import overview
from hetsim.results.many_runs.findings import clearly_best
from hetsim.results.many_runs.point_differences import findings_by_point, leads
from hetsim.results.many_runs.sweep import Sweep
from hetsim.results.many_runs.tradeoff import regrets
from hetsim.results.statistics import paired_differences

RATE, GPUS = "workload.jobs.arrivals.rate", "cluster.nodes.0.gpus.count"
SCENARIO: dict[str, Any] = {
    "name": "queue",
    "seed": 3,
    "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "g", "count": 2}}]},
    "workload": [
        {
            "name": "jobs", "count": 60, "arrivals": {"process": "poisson", "rate": "500/h"},
            "gpu_time": {"distribution": "exponential", "mean": "12 s"},
        }
    ],
    "policy": "fcfs",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    import yaml

    monkeypatch.chdir(tmp_path)
    Path("queue.yaml").write_text(yaml.safe_dump(SCENARIO))
    return "queue.yaml"


def call(*words: str) -> Any:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code == 0, found.output
    return found


def page_of(folder: str) -> str:
    call("report", folder)
    return (Path(folder) / "report.html").read_text(encoding="utf-8")


def again(page: str, out: str) -> None:
    """Follow "Make it again" to the letter, into another directory."""
    (command,) = re.findall(r"<pre>(hetsim .*?)</pre>", page, re.DOTALL)
    points = re.findall(r"<summary>points.csv</summary><pre>(.*?)</pre>", page, re.DOTALL)
    for text in points:
        Path("points.csv").write_text(html.unescape(text))
    call(*shlex.split(html.unescape(command))[1:], "--out", out, "-q", "--workers", "1")


POINTS = {
    "policy": f"{GPUS},{RATE},policy\n1,400/h,sjf\n2,500/h,fcfs\n2,500/h,sjf\n",
    "parameters": f'{RATE},policy\n400/h,"{{scheduler: {{name: fcfs_skip, placement: best_fit}}}}"\n500/h,sjf\n',
    "only": "policy\nsjf\nfcfs\n",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--over", f"{RATE}=400/h,500/h", "--policy", "sjf"),
        ("--over", f"{RATE}=400/h,500/h"),
        ("--over", f"{RATE}=400/h,500/h", "--over", "policy=sjf,fcfs"),
        ("--over", "policy.scheduler.name=sjf,fcfs", "--over", f"{GPUS}=1,2"),
        ("--over", "seed=4,5", "--policy", "sjf"),
        ("--over", f"{RATE}=300/h..600/h", "--sample", "random", "--n", "3", "--policy", "sjf"),
        *(("--points", f"{name}.csv") for name in POINTS),
    ],
    ids=lambda words: " ".join(words[1::2]),
)
def test_a_sweep_is_made_again_from_its_page(file: str, words: tuple[str, ...]):
    for name, text in POINTS.items():
        Path(f"{name}.csv").write_text(text)
    call("sweep", file, *words, "--replications", "2", "--out", "one", "-q", "--workers", "1")
    again(page_of("one"), "two")
    one, two = Sweep.load("one"), Sweep.load("two")
    pd.testing.assert_frame_equal(one.table, two.table)
    assert one.points.equals(two.points)


def test_a_sweep_under_one_policy_says_which(file: str):
    call("sweep", file, "--over", f"{GPUS}=1,2", "--policy", "sjf", "--out", "one", "-q", "--workers", "1")
    page = page_of("one")
    assert "<h1>queue under sjf</h1>" in page and "Every point was run under sjf." in page


@pytest.mark.slow
def test_what_was_drawn_twice_stands_once(file: str):
    call("sweep", file, "--over", f"{GPUS}=1,2", "--sample", "random", "--n", "5", "--out", "one", "-q")
    page = page_of("one")
    assert ", without repeated points" in page
    again(page, "two")
    one, two = (Sweep.load(name).table.set_index(GPUS)["response_mean"] for name in ("one", "two"))
    assert len(one) == 5 and one.groupby(level=0).first().equals(two.sort_index())


@pytest.mark.slow
def test_a_name_from_python_is_not_passed_off_as_a_policy(tmp_path: Path):
    found = hs.sweep(SCENARIO, {GPUS: [1, 2]}, policies={"mine": "sjf"}, out=tmp_path / "one")
    assert "mine: a name given in Python" in report(found, "one")


def test_points_given_twice_are_refused(tmp_path: Path):
    path = tmp_path / "points.csv"
    path.write_text(f"{RATE},policy\n400/h,sjf\n500/h,sjf\n400/h,fcfs\n 400 /h, sjf\n")
    with pytest.raises(UsageError, match=r"points\.csv:5: the row repeats the point of line 2"):
        read_points(path)
    points = [{RATE: rate, "policy": "sjf"} for rate in ("60/h", "2/min", "1/min")]
    with pytest.raises(UsageError, match="point 2 is the same as point 0"):
        hs.sweep(SCENARIO, points=points)
    with pytest.raises(UsageError, match="the value 2 is given twice"):
        hs.sweep(SCENARIO, {GPUS: [1, 2, 2]})
    wide = {"seed": [2**70, 2**70 + 1]}  # of which doubles know one
    assert len(hs.sweep(SCENARIO, wide).table) == 2


def test_regrets_of_a_sweep_with_a_point_twice_say_so():
    found = hs.sweep(SCENARIO, {GPUS: [1, 2]}, policies=["fcfs", "sjf"])
    found.table = pd.concat([found.table, found.table.tail(1)], ignore_index=True)
    with pytest.raises(UsageError, match="point 1 is given twice under sjf"):
        regrets(found)


# Differences ------------------------------------------------------------------------------------------------------


TWELVE = some(12, 6)


@pytest.fixture(scope="module")
def swept() -> Sweep:
    over = {GPUS: [1, 2, 60]}  # in the last nobody waits, so all policies are the same
    return hs.sweep(SCENARIO, over, policies=["fcfs", "sjf", "fcfs_skip"], replications=TWELVE)


@pytest.mark.slow
def test_differences_are_those_of_a_comparison_of_each_point(swept: Sweep):
    """But for Holm's correction, which goes over the pairs of all points."""
    found, raw = swept.differences("response_mean"), []
    for point, count in enumerate((1, 2, 60)):
        compared = hs.compare(SCENARIO, ["fcfs", "sjf", "fcfs_skip"], replications=12, metrics=["response_mean"],
                               overrides={GPUS: count})  # fmt: skip
        mine = found[found["point"] == point].drop(columns="point").reset_index(drop=True)
        same = ["policy", "other", "difference", "n"]
        pd.testing.assert_frame_equal(mine[same], compared.pairs[same], rtol=1e-9)
        for one, other in mine[["policy", "other"]].itertuples(index=False):
            runs = [compared.runs[label].contributions("response_mean").to_numpy() for label in (one, other)]
            raw.append(1.0 if (runs[0] == runs[1]).all() else float(ttest_rel(*runs).pvalue))
    tested = found["p"].notna().to_numpy()
    left = [p for p in raw if p < 1.0]
    order = np.argsort(left)
    adjusted = np.maximum.accumulate([min(1.0, (tested.sum() - k) * left[i]) for k, i in enumerate(order)])
    shown = found["p"].to_numpy()[np.array(raw) < 1.0][order]
    assert shown == pytest.approx(adjusted, rel=1e-6)
    assert (found["significant"] == (found["p"] <= 0.05)).all()


@pytest.mark.slow
def test_differences_to_a_base(swept: Sweep):
    found = swept.differences("response_mean", base="sjf")
    assert set(found["other"]) == {"sjf"} and len(found) == 6
    with pytest.raises(UnknownName, match="sjf"):
        swept.differences("response_mean", base="sfj")
    with pytest.raises(UnknownName):
        swept.differences("respons_mean")


@pytest.mark.slow
def test_ties_are_nobodys_lead(swept: Sweep):
    findings = findings_by_point(swept, "response_mean")
    led = leads(swept, "response_mean", findings)
    assert led.points == 3 and led.alone == {"sjf": 2} and led.ties == {("fcfs", "sjf", "fcfs_skip"): 1}
    clear = [clearly_best(findings[point], ["fcfs", "sjf", "fcfs_skip"]) for point in range(3)]
    assert clear[0] == "sjf" and clear[2] is None
    assert led.shown == {"sjf": clear.count("sjf")}
    page = report(swept)
    assert "sjf at 2; fcfs, sjf and fcfs_skip tie at 1." in page
    assert f"Clearly best in response mean, better than all others: sjf at {clear.count('sjf')} of 3 points" in page
    share = -swept.differences("response_mean", base="fcfs").query("point == 0 and policy == 'sjf'")["difference"]
    mean = swept.table.query("point == 0 and policy == 'fcfs'")["response_mean"]
    sentence = rf"With {GPUS} = 1: sjf is better than fcfs in response mean by (\d+) ± \d+ %, n = {TWELVE}"
    (told,) = re.findall(sentence, page)
    assert float(told) == pytest.approx(100 * share.iloc[0] / mean.iloc[0], abs=0.5)


@pytest.mark.slow
def test_one_run_of_each_shows_nothing():
    found = hs.sweep(SCENARIO, {GPUS: [1, 2]}, policies=["fcfs", "sjf"])
    page = report(found)
    assert "gives no confidence intervals" in page and "Clearly best" not in page and ">Differences<" not in page


def test_failed_rows_take_no_part(swept: Sweep):
    table = swept.table.copy()
    table.loc[table["policy"] == "sjf", "status"] = "failed"
    part = Sweep(table, swept.by_replication, swept.points, replications=TWELVE)
    assert set(part.differences("response_mean")["policy"]) == {"fcfs"}


def test_p_is_holms():
    """0.001, 0.02 and 0.03 are 0.003, 0.04 and, no less than the one before, 0.04."""
    from scipy import stats

    def values(p: float) -> np.ndarray:
        shape = np.array([-1.0, 0.0, 1.0] * 4)
        return shape + stats.t.isf(p / 2, 11) * shape.std(ddof=1) / np.sqrt(12)

    found = paired_differences([values(p) for p in (0.03, 0.001, 0.02)])
    assert [one.p for one in found] == pytest.approx([0.04, 0.003, 0.04])
    assert all(one.significant == (one.p <= 0.05) for one in found)
    assert [one.p for one in paired_differences([values(0.8), values(0.7)])] == [1.0, 1.0]


# Comparisons ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_comparison_is_made_again_as_it_was_asked_for(file: str):
    words = ["--policy", "fcfs", "--policy", "sjf", "--policy", "fcfs_skip", "--baseline", "sjf"]
    call("compare", file, *words, "--metric", "wait_p95", "--metric", "makespan", "--by", "gpus", "--replications", "3",
         "--out", "one", "-q")  # fmt: skip
    page = page_of("one")
    again(page, "two")
    for name in ("comparison.json", "pairs.csv", "run.json"):
        assert (Path("one") / name).read_bytes() == (Path("two") / name).read_bytes()
    assert json.loads((Path("two") / "run.json").read_text())["asked"] == {
        "metrics": ["wait_p95", "makespan"], "by": ["gpus"],
    }  # fmt: skip
    (header,) = re.findall(r"<th[^>]*><button[^>]*>(p \(Holm\))</button>", page)
    assert header


@pytest.mark.quick(1)
@pytest.mark.parametrize("replications", [1, 3])
def test_a_comparison_shows_six_figures_with_the_policies_that_have_them(replications: int):
    """Those that were compared first, as the table writes them; then others, without the directionless ones."""
    metrics = ["wait_p95", "gpu_utilization", "makespan"]
    found = hs.compare(SCENARIO, ["fcfs", "sjf", "fcfs_skip"], replications=replications, metrics=metrics)
    (part,) = re.findall(r'<dl class="cards">(.*?)</dl>', report(found))
    cards = re.findall(r'<div title="(.*?)"><dt>(.*?)</dt><dd[^>]*>(.*?)</dd></div>', part)
    assert [name for name, *_ in cards[:2]] == ["wait_p95", "makespan"] and len(cards) == 6
    means = found.table["wait_p95", "mean"]
    best = means.idxmin()
    texts = dict(zip(found.table.index, found.cells("wait_p95"), strict=True))
    name = "fcfs and fcfs_skip" if best == "fcfs" else best
    assert cards[0][1:] == (f"lowest wait p95: {name}", texts[best].removesuffix(" ◂"))
    assert cards[1][1].startswith("lowest makespan: ") and len({name for name, *_ in cards}) == 6


@pytest.mark.slow
def test_a_selection_is_made_again(file: str):
    call("compare", file, "--policy", "fcfs", "--policy", "sjf", "--best", "response_mean", "--delta", "20%",
         "--replications", "4", "--out", "one", "-q")  # fmt: skip
    again(page_of("one"), "two")
    assert (Path("one") / "comparison.json").read_bytes() == (Path("two") / "comparison.json").read_bytes()


@pytest.mark.slow
def test_a_comparison_in_python_is_shown_as_it_was_asked_for():
    found = hs.compare(SCENARIO, ["fcfs", "sjf"], replications=2, metrics=["cluster"], by="gpus")
    assert "--metric cluster --by gpus" in report(found)


# Runs -------------------------------------------------------------------------------------------------------------


def cells(page: str, title: str) -> dict[str, str]:
    """Name of a metric -> its value, of the table of figures."""
    (part,) = re.findall(rf"<h2>{title}</h2>(.*?)</section>", page, re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", part)]
    return {row[-1]: row[1] for row in rows if row}


@pytest.mark.parametrize("replications", [1, 3])
def test_energy_that_nobody_modeled_is_not_told(replications: int):
    page = report(hs.replicate(SCENARIO, replications=replications))
    assert "nergy" not in page.partition("<h2>Scenario</h2>")[0]


@pytest.mark.quick(1)
@pytest.mark.parametrize("replications", [1, 3])
def test_figures_are_written_as_on_the_terminal(replications: int):
    powered = {"type": "g", "count": 2, "power": {"idle": "50 W", "busy": "250 W"}}
    made = {**SCENARIO, "cluster": {"nodes": [{"cpus": 1, "gpus": powered}]}}
    outcome = hs.replicate(made, replications=replications)
    (part,) = re.findall(r"<h2>Figures</h2>(.*?)</section>", report(outcome), re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", part)]
    shown = {row[-1]: row[1:-1] for row in rows if row}
    terminal = {line.split()[0]: re.split(r"  +", line)[1:] for line in overview(outcome) if line.strip()}
    for name in ("response", "wait", "slowdown"):
        assert [text for text in shown[f"{name}_…"] if text in terminal[name]] == terminal[name]
    assert terminal["energy"] == [f"{shown['energy_j'][0]} (idle {shown['energy_idle_j'][0]})"]


def test_figures_that_say_nothing_are_left_out():
    """Zeros, and one value under several names: here no slowdown is bounded, and all that is held computes."""
    slow = {**SCENARIO, "workload": [{**SCENARIO["workload"][0], "gpu_time": "20 s"}]}
    found = cells(report(hs.run(slow)), "Figures")
    assert {"slowdown_…", "gpu_utilization", "makespan", "task_count"} <= set(found)
    hidden = {"bounded_slowdown_10s_…", "gpu_allocation", "completed_count", "rejected_count", "preemptions"}
    assert not hidden & set(found)
    assert "0" not in found.values()


@pytest.mark.slow
def test_diff_has_one_unit_a_table(file: str):
    for policy in ("fcfs", "sjf"):
        call("run", file, "--policy", policy, "--out", policy, "-q", "--set", "workload.jobs.arrivals.rate=900/h")
    shown = call("diff", "fcfs", "sjf").stdout.partition("tasks that changed most")[2]
    rows = [re.findall(r"[\d.,]+ (ns|µs|ms|s|min|h|d)\b", line) for line in shown.splitlines()[2:]]
    assert [len(row) for row in rows] == [3] * 10
    assert len({unit for row in rows for unit in row}) == 1
