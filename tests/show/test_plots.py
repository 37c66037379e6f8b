"""Pictures: what they show, and that drawing them changes nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from tiers import some

import hetsim as hs
from hetsim.errors import UsageError
from hetsim.results.one_run.over_bins import fill_lanes
from hetsim.results.panels import Axis, Line, Panel, Picture, averaged, highest, settled

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
    return hs.run(SMALL)


def axes(picture: Picture) -> Any:
    """The axes of a picture that matplotlib has drawn, or the one that it has."""
    found = picture.figure().axes
    return found[0] if len(found) == 1 else found


def areas(ax: Any) -> dict[str, float]:
    """Seconds of bars of full height by color."""
    found: dict[str, float] = {}
    for collection in ax.collections:
        for path, color in zip(collection.get_paths(), [collection.get_facecolor()[0]] * 10**6, strict=False):
            low, high = path.vertices[:, 0].min(), path.vertices[:, 0].max()
            key = "#" + "".join(f"{round(255 * part):02X}" for part in color[:3])
            found[key] = found.get(key, 0.0) + float(high - low)
    return found


def test_gantt_shows_each_stage_for_as_long_as_it_took(result: Any):
    ax = axes(hs.plots.gantt(result))
    shown, tasks = areas(ax), result.tasks
    on_gpu = tasks["device_type"] == "k20"
    assert shown["#E69F00"] == pytest.approx(tasks["upload"].sum())
    assert shown["#0072B2"] == pytest.approx(tasks.loc[on_gpu, "compute"].sum())
    assert shown["#56B4E9"] == pytest.approx(tasks.loc[~on_gpu, "compute"].sum())
    assert shown["#009E73"] == pytest.approx(tasks["download"].sum())
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == ["n0/cpu0", "n0/g0", "n0/g1"]
    assert [text.get_text() for text in ax.get_legend().get_texts()][:4] == ["upload", "compute", "CPU", "download"]


def test_gantt_tells_unlike_accelerators_of_a_node_apart():
    few = hs.run("npu-and-gpu", overrides={"workload.requests.count": 3})
    assert [text.get_text() for text in axes(hs.plots.gantt(few)).get_yticklabels()] == ["n0/g0 gpu", "n0/g1 npu"]


def test_gantt_draws_a_gang_on_all_its_devices():
    gang = {
        "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "v100", "count": 4}}]},
        "workload": [{"arrivals": {"process": "all_at_once", "count": 3}, "gpus": 2, "gpu_time": "10 s"}],
    }
    shown = areas(axes(hs.plots.gantt(hs.run(gang))))
    assert shown["#0072B2"] == pytest.approx(3 * 2 * 10)


def test_gantt_of_many_devices_says_what_it_leaves_out(result: Any):
    assert "the 2 busiest of 3 devices" in hs.plots.gantt(result, devices=2).panels[0].title


def test_gantt_draws_on_given_axes(result: Any):
    ax = Figure().add_subplot()
    hs.plots.gantt(result).draw(ax)
    assert areas(ax) == areas(axes(hs.plots.gantt(result)))
    with pytest.raises(ValueError, match="zip"):
        hs.plots.timeline(result).draw(ax)


def test_lanes_do_not_overlap():
    begin, end = np.array([0.0, 1.0, 2.0, 2.0, 5.0]), np.array([2.0, 4.0, 3.0, 6.0, 7.0])
    lanes, used = fill_lanes(begin, end)
    assert used == 3
    for lane in range(used):
        mine = np.flatnonzero(lanes == lane)
        assert (end[mine][:-1] <= begin[mine][1:]).all()


def test_timeline_shows_the_queue(result: Any):
    upper, lower = axes(hs.plots.timeline(result))
    time, waiting = upper.lines[0].get_data()
    assert waiting.max() == result.timeline["waiting"].max()
    assert time[-1] == result.end
    assert [text.get_text() for text in lower.get_legend().get_texts()] == ["cpu (2 cores)", "k20 (2)"]


@pytest.fixture
def flickering() -> tuple[np.ndarray, np.ndarray]:
    """10,000 changes within 100 s, at uneven times, the first after 3 s."""
    random = np.random.default_rng(1)
    return np.sort(random.uniform(3, 100, 10_000)), random.integers(0, 9, 10_000).astype(float)


def test_means_are_exact_and_peaks_are_kept(flickering: Any):
    time, value = flickering
    edges = np.linspace(0.0, 100.0, 38)
    means, peaks = averaged(time, value, edges, 100.0), highest(time, value, edges)
    for low, high, mean, peak in zip(edges[:-1], edges[1:], means, peaks, strict=True):
        inside = (time > low) & (time < high)
        at = np.concatenate([[low], time[inside], [high]])
        held = np.concatenate([[value[time <= low][-1] if (time <= low).any() else 0.0], value[inside]])
        assert mean == pytest.approx((held * np.diff(at)).sum() / (high - low))
        assert peak == held.max()


def test_lines_with_room_show_each_change_and_others_their_means(flickering: Any):
    time, value = flickering

    def shown(time: np.ndarray, *series: np.ndarray) -> Panel:
        """A panel of 1,000 pixels with these series up to 100 s."""
        at = np.append(time, 100.0)
        lines = [Line(at, np.append(values, values[-1]), steps=True) for values in series]
        return settled(Panel(list(lines), Axis(low=0, high=100), Axis("queue"), means=True), 1000.0)

    few = np.cumsum(value[:300])
    (line,) = shown(time[:300], few).marks  # 300 small changes on 1,000 pixels
    assert np.array_equal(line.x, [*time[:300], 100.0]) and np.array_equal(line.y, [*few, few[-1]])
    assert len(shown(time, np.zeros(10_000)).marks[0].x) == 10_001  # rows, but no change
    switched = np.arange(300) % 2 * 1.0  # 300 strokes over the whole height are another thing
    assert len(shown(time[:300], switched).marks[0].x) < 250
    both = shown(time, value, np.zeros(10_000))  # one is enough: lines of a panel share their intervals
    assert both.y.label == "queue\n(mean over 800 ms)"
    assert np.array_equal(both.marks[0].x, both.marks[1].x)
    mean = both.marks[0]
    area = (value * np.diff(time, append=100.0)).sum()
    assert (mean.y[:-1] * np.diff(mean.x)).sum() == pytest.approx(area)


@pytest.mark.slow
def test_a_panel_of_means_says_so_and_dashes_show_what_lies_below():
    upper, lower = axes(hs.plots.timeline(hs.run("npu-and-gpu")))
    assert upper.get_ylabel() == "tasks waiting"
    assert re.fullmatch(r"busy \(%\)\n\(mean over [\d.]+ ms\)", lower.get_ylabel())
    looks = {(line.get_color(), line.get_linestyle()) for line in lower.lines}
    assert len(looks) == len({style for _, style in looks}) == 2


def test_cdf_reaches_one_at_the_greatest_value(result: Any):
    (line,) = hs.plots.cdf(result, "response").panels[0].marks
    x, y = line.x, line.y
    assert x[-1] == result.tasks["response"].max()
    assert y[-1] == 100
    assert (np.diff(y) >= 0).all()


def test_cdf_of_several_runs_has_a_legend_and_unfinished_tasks_stay_below():
    runs = {name: hs.run({**SMALL, "horizon": "6 s", "policy": name}) for name in ("fcfs", "lcfs")}
    ax = axes(hs.plots.cdf(runs, "response"))
    assert len(ax.lines) == 2
    assert ax.lines[0].get_ydata()[-1] < 100
    assert "unfinished" in ax.get_legend().get_texts()[0].get_text()


def test_cdf_of_what_is_no_number(result: Any):
    with pytest.raises(UsageError, match="did you mean"):
        hs.plots.cdf(result, "respones")
    with pytest.raises(UsageError, match="numbers"):
        hs.plots.cdf(result, "device")


def test_default_pictures_can_be_saved(result: Any, tmp_path: Path):
    outcomes = [
        lambda: result, lambda: hs.run(SMALL, overrides={"workload.a.count": 400}),
        lambda: hs.replicate(SMALL, replications=3),
    ]  # fmt: skip
    for number, outcome in enumerate(outcomes[:: some(1, 2)]):
        picture = hs.plots.default(outcome())
        assert isinstance(picture, Picture)
        picture.save(tmp_path / f"{number}.png")
        assert (tmp_path / f"{number}.png").stat().st_size > 5000


def test_comparison_has_a_panel_a_metric():
    found = hs.compare(SMALL, ["fcfs", "lcfs", "sjf"], replications=3)
    assert [panel.title for panel in hs.plots.comparison(found).panels] == [
        "makespan (s)", "response mean (s)", "response p95 (s)", "GPU busy (%)",
    ]  # fmt: skip


@pytest.mark.slow
def test_no_global_state_of_matplotlib():
    code = (
        "import sys, matplotlib, hetsim as hs\n"
        "def state():\n"  # asking for the backend would import pyplot
        "    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if key != 'backend'}\n"
        "before = state()\n"
        f"hs.plots.default(hs.run({SMALL!r})).figure()\n"
        "assert 'matplotlib.pyplot' not in sys.modules\nassert state() == before\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_results_draw_themselves(result: Any):
    """`plot()` gives a picture that a notebook shows by itself; matplotlib loads when it is shown."""
    assert result.plot()._repr_png_().startswith(b"\x89PNG")
    runs = hs.replicate(SMALL, replications=3)
    assert isinstance(runs.plot(), Picture)
    assert isinstance(hs.compare(SMALL, ["fcfs", "lcfs"], replications=2).plot(), Picture)


def test_what_a_notebook_shows_of_a_run(result: Any):
    assert "response_mean" in result._repr_html_() and "small · fcfs" in result._repr_html_()
    assert "±" in hs.replicate(SMALL, replications=3)._repr_html_()


# Awkward input -----------------------------------------------------------------------------------------------------


def saved(picture: Any, path: Path) -> Any:
    """The figure, drawn; warnings of the layout are errors."""
    figure = picture.figure()
    figure.savefig(path)
    return figure


def overlap(figure: Any, one: Any, other: Any) -> bool:
    figure.draw_without_rendering()
    boxes = [artist.get_window_extent() for artist in (one, other)]
    return bool(boxes[0].overlaps(boxes[1]))


def texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [artist.get_text() for artist in figure.findobj(Text)]


@pytest.mark.slow
def test_names_are_no_formulas(tmp_path: Path):
    """Two dollar signs make mathematical text of what is between them, and an error of what is not a formula."""
    policies = {"a $x_1$": "fcfs", "$\\nothing{$": "sjf", "z" * 150: "fcfs_skip"}
    odd = {**SMALL, "name": "costs $5 or $\\frac{6$", "workload": [
        {**SMALL["workload"][0], "name": name} for name in ("$a$", "b", "c" * 90)
    ]}  # fmt: skip
    found = hs.compare(odd, policies, replications=2, by="class")
    first = {label: run.results[0] for label, run in found.runs.items()}
    run = next(iter(first.values()))
    pictures = [
        found.plot(), hs.plots.groups(found.by("class")), hs.plots.regret(found), hs.plots.cdf(first),
        hs.plots.pareto(found, "response_mean", "makespan"), hs.plots.distributions(first),
        hs.plots.over_time(first), run.plot(), hs.plots.gantt(run), hs.plots.power(run),
        hs.plots.timeline(run), hs.plots.fragmentation(run),
    ]  # fmt: skip
    for number, picture in enumerate(pictures):
        figure = saved(picture, tmp_path / f"{number}.png")
        assert all(len(text) < 130 for text in texts(figure))


@pytest.mark.slow
def test_of_many_policies_a_dozen_is_told_apart(tmp_path: Path):
    runs = {f"policy {number} of fifty": hs.run(SMALL, seed=number) for number in range(50)}
    for draw in (hs.plots.cdf, hs.plots.distributions, hs.plots.over_time):
        figure = saved(draw(runs), tmp_path / f"{draw.__name__}.png")
        legend = figure.legends[0] if figure.legends else figure.axes[0].get_legend()
        names = [text.get_text() for text in legend.get_texts()]
        assert names == [*list(runs)[:12], "38 more"]
        assert len(figure.axes[0].lines) == 50
        widths = [ax.get_window_extent().width for ax in figure.axes]
        assert min(widths) > 0.6 * figure.bbox.width / len(widths) if draw is not hs.plots.over_time else True


@pytest.mark.slow
def test_names_of_points_do_not_lie_on_one_another(tmp_path: Path):
    """Close points far from the origin: where a name goes must be judged on the axes as they will be drawn."""
    found = hs.compare("first-steps", ["fcfs", "fcfs_skip", "sjf", "random"], replications=3)
    figure = saved(hs.plots.pareto(found, "response_mean", "energy_j"), tmp_path / "front.png")
    labels = list(figure.axes[0].texts)
    assert len(labels) == 4
    assert not any(overlap(figure, one, other) for n, one in enumerate(labels) for other in labels[:n])
    assert all(label.get_window_extent().x1 <= figure.bbox.x1 for label in labels)


@pytest.mark.slow
def test_titles_and_legends_stand_apart(result: Any, tmp_path: Path):
    long = hs.run({**SMALL, "name": "a scenario with a name that says all there is to say " * 2})
    for draw in (hs.plots.gantt, hs.plots.fragmentation):
        for run in (result, long):
            figure = saved(draw(run), tmp_path / "a.png")
            (ax,) = figure.axes
            assert not overlap(figure, ax._left_title, ax.get_legend())


def test_a_distribution_of_one_task_rises_to_the_whole():
    one = {**SMALL, "workload": [{**SMALL["workload"][0], "count": 1}]}
    run = hs.run(one)
    (line,) = hs.plots.cdf(run).panels[0].marks
    at, share = line.x, line.y
    assert list(at) == [run.tasks["response"][0]] * 2
    assert list(share) == [0, 100]


def test_what_never_ends_or_never_waits_is_said():
    none = {**SMALL, "horizon": "1 ms", "workload": [
        {"arrivals": {"process": "all_at_once", "count": 2}, "gpu_time": "9 s"}
    ]}  # fmt: skip
    ax = axes(hs.plots.cdf(hs.run(none)))
    assert [text.get_text() for text in ax.texts] == ["no task has ended"]
    assert "100 % unfinished" in ax.get_title(loc="left")
    idle = hs.run({**none, "horizon": "1 h"})
    assert [text.get_text() for text in axes(hs.plots.cdf(idle, "wait")).texts] == ["wait is 0 for all"]
    assert axes(hs.plots.timeline(idle))[0].get_ylim() == (0, 1)
    assert hs.run({**none, "horizon": "1 h"}).plot().figure().axes


@pytest.mark.slow
def test_many_device_types_leave_room_for_the_lines(tmp_path: Path):
    nodes = [{"gpus": {"type": f"type-with-a-long-name-{number}", "count": 1 + number}} for number in range(12)]
    run = hs.run({**SMALL, "cluster": {"nodes": nodes}})
    figure = saved(hs.plots.timeline(run), tmp_path / "types.png")
    upper, lower = figure.axes
    names = [text.get_text() for text in lower.get_legend().get_texts()]
    assert names[0] == "type-with-a-long-name-11 (12)"
    assert names[-1] == "7 other types (28)"
    assert lower.get_window_extent().width > 0.8 * figure.bbox.width
    busy = run.timeline_by("type")
    rest = sum(busy[f"busy.type-with-a-long-name-{number}"] for number in range(7))
    drawn = lower.lines[-1].get_ydata()
    assert np.allclose(drawn[:-1], 100 * rest / 28)


def test_a_run_of_no_time_spends_no_energy():
    none = {"cluster": {"nodes": [{"gpus": {"type": "g", "count": 1, "power": {"idle": "9 W"}}}]},
            "workload": [{"arrivals": {"process": "all_at_once", "count": 2}, "gpu_time": "0 s"}]}  # fmt: skip
    assert hs.plots.power(hs.run(none)).panels[0].title.endswith("0 J")


def test_pictures_that_cannot_be_drawn_say_why():
    cores = {**SMALL, "cluster": {"nodes": [{"cpus": 4}]}, "workload": [
        {"arrivals": {"process": "all_at_once", "count": 4}, "cpu_time": "1 s"}
    ]}  # fmt: skip
    with pytest.raises(UsageError, match="no GPUs"):
        hs.plots.fragmentation(hs.run(cores))
    found = hs.compare(cores, ["fcfs", "sjf"], replications=2)
    with pytest.raises(UsageError, match="the table must be a result of Comparison.by with two or more groups"):
        hs.plots.groups(found.by("class"))


def test_a_language_model_is_shown_over_time_not_as_two_bars():
    result = hs.run("chunked-prefill", overrides={"horizon": "30 s", "warmup": "0 s"})
    assert len(result.launches) < 20
    assert len(result.plot().panels) == 4


def test_a_gantt_chart_that_ends_early_draws_nothing_beyond(result: Any, recwarn: pytest.WarningsRecorder):
    """Names of bars beyond the end would stretch what is saved."""
    until = result.end / 4
    figure = hs.plots.gantt(result, until=until).figure()
    (ax,) = figure.axes
    figure.canvas.draw()
    assert not recwarn.list
    bars = [text for text in ax.texts if text.get_text()]
    assert bars and all(0 < text.get_position()[0] < until and text.get_clip_on() for text in bars)
    lanes = [text.get_text() for text in ax.get_yticklabels()]
    assert lanes == [text.get_text() for text in axes(hs.plots.gantt(result)).get_yticklabels()]
    tight = figure.get_tightbbox()
    assert tight.width <= figure.get_figwidth() * 1.02
    begin = result.launches["decided"]
    shown = {text.get_text() for text in bars}
    late = set(result.launches["task"][begin >= until].astype(str))
    assert late and not shown & (late - set(result.launches["task"][begin < until].astype(str)))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pdf", "svg", "png"])
def test_pictures_can_go_into_a_paper(tmp_path, form):
    """Fonts of a PDF are TrueType, text of an SVG is text, and the same picture is the same file."""
    result = hs.run("first-steps")
    files = [tmp_path / f"{number}.{form}" for number in (1, 2)]
    for file in files:
        result.plot().save(file)
    first, second = (file.read_bytes() for file in files)
    assert first == second
    if form == "pdf":
        assert b"/Type3" not in first and b"/Subtype /Type3" not in first and b"/FontFile2" in first
    if form == "svg":
        assert b">Time (" in first or b"<text" in first and b">0<" in first


@pytest.mark.slow
def test_batches_over_time_are_those_of_the_launches():
    """Means by hand from launches and tasks; runs side by side have one scale; runs without batches are refused."""
    ramp = {"horizon": "30 s"}
    runs = {name: hs.run("async-ramp", policy={"batching": name}, overrides=ramp)
            for name in ("serial_greedy", "async_linear")}  # fmt: skip
    panels = np.array(hs.plots.batches(runs).figure().axes).reshape(4, 2)
    for (name, run), column in zip(runs.items(), panels.T, strict=True):
        assert column[0].get_title(loc="left") == name
        tasks = run.tasks
        started = tasks["start"].between(10, 10.5, inclusive="left")
        late = tasks["arrival"].between(10, 10.5, inclusive="left")
        served = tasks["finish"].between(10, 10.5, inclusive="left").sum() / 0.5
        batches = tasks[started].groupby("batch")
        latency = 1e3 * tasks[late]["response"].mean()
        hand = [batches.size().mean(), 1e3 * batches["compute"].first().mean(), latency, served]
        assert [ax.lines[0].get_ydata()[20] for ax in column] == pytest.approx(hand)
    assert all(row[0].get_ylim() == row[1].get_ylim() for row in panels)
    assert [ax.get_ylabel() for ax in panels[:, 0]] == [
        "requests a batch", "GPU time a batch (ms)", "latency (ms)", "requests served a second"]  # fmt: skip
    with pytest.raises(UsageError, match="all runs must have batches, which only services have"):
        hs.plots.batches(hs.run("first-steps"))
