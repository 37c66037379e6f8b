"""Pictures: what they show, and that drawing them changes nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

import sim
from sim.errors import UsageError
from sim.plots.gantt import _lanes
from sim.plots.timeline import thinned

SMALL: dict[str, Any] = {
    "name": "small",
    "cluster": {
        "nodes": [
            {
                "cpus": 2,
                "gpus": {"type": "k20", "count": 2, "streams": 2},
                "pcie": {"upload": "6 GB/s", "download": "6 GB/s"},
            }
        ]
    },
    "workload": [
        {
            "name": "a",
            "arrivals": {"process": "poisson", "rate": "2/s"},
            "count": 20,
            "gpu_time": {"distribution": "exponential", "mean": "700 ms"},
            "cpu_time": {"speedup": 4},
            "bytes_in": "1 GB",
            "bytes_out": "500 MB",
        }
    ],
}


@pytest.fixture(scope="module")
def result() -> Any:
    return sim.run(SMALL)


def areas(ax: Any) -> dict[str, float]:
    """Seconds of bars of full height by colour."""
    found: dict[str, float] = {}
    for collection in ax.collections:
        for path, colour in zip(collection.get_paths(), [collection.get_facecolor()[0]] * 10**6, strict=False):
            low, high = path.vertices[:, 0].min(), path.vertices[:, 0].max()
            key = "#" + "".join(f"{round(255 * part):02X}" for part in colour[:3])
            found[key] = found.get(key, 0.0) + float(high - low)
    return found


def test_gantt_shows_each_stage_for_as_long_as_it_took(result: Any):
    ax = sim.plots.gantt(result)
    shown, tasks = areas(ax), result.tasks
    on_gpu = tasks["device_type"] == "k20"
    assert shown["#E69F00"] == pytest.approx(tasks["upload"].sum())
    assert shown["#0072B2"] == pytest.approx(tasks.loc[on_gpu, "compute"].sum())
    assert shown["#56B4E9"] == pytest.approx(tasks.loc[~on_gpu, "compute"].sum())
    assert shown["#009E73"] == pytest.approx(tasks["download"].sum())
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == ["n0/cpu0", "n0/g0", "n0/g1"]
    assert [text.get_text() for text in ax.get_legend().get_texts()][:4] == ["upload", "compute", "CPU", "download"]


def test_gantt_draws_a_gang_on_all_its_devices():
    gang = {
        "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "v100", "count": 4}}]},
        "workload": [{"arrivals": {"process": "all_at_once", "count": 3}, "gpus": 2, "gpu_time": "10 s"}],
    }
    shown = areas(sim.plots.gantt(sim.run(gang)))
    assert shown["#0072B2"] == pytest.approx(3 * 2 * 10)


def test_gantt_of_many_devices_says_what_it_leaves_out(result: Any):
    ax = sim.plots.gantt(result, devices=2)
    assert "the 2 busiest of 3 devices" in ax.get_title(loc="left")


def test_gantt_draws_on_given_axes(result: Any):
    ax = Figure().add_subplot()
    assert sim.plots.gantt(result, ax) is ax


def test_lanes_do_not_overlap():
    begin, end = np.array([0.0, 1.0, 2.0, 2.0, 5.0]), np.array([2.0, 4.0, 3.0, 6.0, 7.0])
    lanes, used = _lanes(begin, end)
    assert used == 3
    for lane in range(used):
        mine = np.flatnonzero(lanes == lane)
        assert (end[mine][:-1] <= begin[mine][1:]).all()


def test_timeline_shows_the_queue(result: Any):
    upper, lower = sim.plots.timeline(result)
    time, waiting = upper.lines[0].get_data()
    assert waiting.max() == result.timeline["waiting"].max()
    assert time[-1] == result.end
    assert [text.get_text() for text in lower.get_legend().get_texts()] == ["cpu (2 cores)", "k20 (2)"]


def test_thinning_keeps_the_area():
    time = np.sort(np.random.default_rng(1).uniform(0, 100, 10_000))
    time[0] = 0.0
    value = np.random.default_rng(2).integers(0, 9, 10_000).astype(float)
    edges, means = thinned(time, value, 100.0)
    assert len(edges) < 1000
    assert (means * np.diff(edges, append=100.0)).sum() == pytest.approx((value * np.diff(time, append=100.0)).sum())


def test_cdf_reaches_one_at_the_greatest_value(result: Any):
    ax = sim.plots.cdf(result, "response")
    x, y = ax.lines[0].get_data()
    assert x[-1] == result.tasks["response"].max()
    assert y[-1] == 100
    assert (np.diff(y) >= 0).all()


def test_cdf_of_several_runs_has_a_legend_and_unfinished_tasks_stay_below():
    runs = {name: sim.run({**SMALL, "horizon": "6 s", "policy": name}) for name in ("fcfs", "lcfs")}
    ax = sim.plots.cdf(runs, "response")
    assert len(ax.lines) == 2
    assert ax.lines[0].get_ydata()[-1] < 100
    assert "unfinished" in ax.get_legend().get_texts()[0].get_text()


def test_cdf_of_what_is_no_number(result: Any):
    with pytest.raises(UsageError, match="did you mean"):
        sim.plots.cdf(result, "respones")
    with pytest.raises(UsageError, match="numbers"):
        sim.plots.cdf(result, "device")


def test_default_pictures_can_be_saved(result: Any, tmp_path: Path):
    long = sim.run(SMALL, overrides={"workload.a.count": 400})
    outcomes = [result, long, sim.run(SMALL, replications=3)]
    for number, outcome in enumerate(outcomes):
        picture = sim.plots.default(outcome)
        assert isinstance(picture, Figure)
        picture.savefig(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000


def test_comparison_has_a_panel_a_metric():
    found = sim.compare(SMALL, ["fcfs", "lcfs", "sjf"], replications=3)
    panels = [ax for ax in sim.plots.comparison(found).axes if ax.get_visible()]
    assert [ax.get_title(loc="left") for ax in panels] == [
        "makespan (s)", "response mean (s)", "response p95 (s)", "GPU busy (%)",
    ]  # fmt: skip


def test_no_global_state_of_matplotlib():
    code = (
        "import sys, matplotlib, sim\n"
        "def state():\n"  # asking for the backend would import pyplot
        "    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != 'backend'}\n"
        "before = state()\n"
        f"sim.plots.default(sim.run({SMALL!r}))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\nassert state() == before\n"
    )
    root = str(Path(sim.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr


def test_results_draw_themselves(result: Any):
    """`plot()` gives a figure that a notebook shows by itself; matplotlib loads when it is called."""
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    runs = sim.run(SMALL, replications=3)
    assert isinstance(runs.plot(), Figure)
    assert isinstance(sim.compare(SMALL, ["fcfs", "lcfs"], replications=2).plot(), Figure)


def test_what_a_notebook_shows_of_a_run(result: Any):
    assert "response_mean" in result._repr_html_() and "small · fcfs" in result._repr_html_()
    assert "±" in sim.run(SMALL, replications=3)._repr_html_()
