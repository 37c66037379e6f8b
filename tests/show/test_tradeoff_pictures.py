"""Fronts and regrets, shares and power over time, and the pictures of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiers import some

import hetsim as hs
from hetsim import plots
from hetsim.errors import UnknownName, UsageError
from hetsim.results.many_runs.tradeoff import front, regrets
from hetsim.results.one_run.over_bins import power_over_time

MIX: dict[str, Any] = {
    "name": "mix",
    "seed": 2,
    "cluster": {
        "nodes": [
            {"count": 2, "cpus": 4, "gpus": {"type": "g", "count": 2, "power": {"idle": "50 W", "busy": "250 W"}}},
            {"count": 1, "cpus": 8},
        ]
    },
    "workload": [
        {
            "name": "gang", "count": 40, "arrivals": {"process": "poisson", "rate": "0.2/s"}, "gpus": 2,
            "gpu_time": {"distribution": "exponential", "mean": "6 s"},
        },
        {
            "name": "small", "count": 80, "arrivals": {"process": "poisson", "rate": "1/s"},
            "gpu_time": {"distribution": "exponential", "mean": "1 s"}, "cpu_time": {"speedup": 6},
        },
    ],
    "policy": "fcfs",
}  # fmt: skip


@pytest.fixture(scope="module")
def run() -> hs.Result:
    return hs.run(MIX, check=True)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def compared() -> hs.Comparison:
    return hs.compare(MIX, ["fcfs", "sjf", "fcfs_skip"], replications=4, metrics=["response_mean", "wait_p95"])


@pytest.fixture(scope="module")
def swept() -> Any:
    over = {"cluster.nodes.0.count": [1, 2, 3], "workload.small.arrivals.rate": ["0.5/s", "1/s"]}
    return hs.sweep(MIX, over, policies=["fcfs", "sjf"], replications=2)


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", ["nights-asleep", "slack-before-the-deadline"])
def test_the_area_of_power_is_the_energy(name: str):
    result = hs.run(name)
    table = power_over_time(result, 50)
    spent = table.drop(columns="time").to_numpy().sum() * result.end / 50
    assert spent == pytest.approx(result.devices["energy_j"].sum(), rel=1e-9)


@pytest.mark.slow
def test_the_front_by_brute_force(swept: Any):
    found = front(swept, "response_mean", "wait_p95")
    values = found[["response_mean", "wait_p95"]].to_numpy()
    for at, (one, other) in enumerate(values):
        beaten = ((values[:, 0] <= one) & (values[:, 1] <= other) & ((values[:, 0] < one) | (values[:, 1] < other)))
        assert found["front"].iloc[at] == (not beaten.any())
    assert found["front"].any() and not found["front"].all()


@pytest.mark.slow
def test_a_key_may_be_the_cost(swept: Any):
    found = front(swept, "cluster.nodes.0.count", "response_mean")
    best = found[found["front"]].sort_values("cluster.nodes.0.count")
    assert best["cluster.nodes.0.count"].is_unique and best["response_mean"].is_monotonic_decreasing
    more = front(swept, "cluster.nodes.0.count", "response_mean", {"cluster.nodes.0.count": "more"})
    assert more[more["front"]]["cluster.nodes.0.count"].min() == 3


def test_directions_have_to_be_known(compared: hs.Comparison, swept: Any):
    with pytest.raises(UsageError, match="gpu_utilization: neither more nor less is always better"):
        front(swept, "gpu_utilization", "response_mean")
    front(swept, "gpu_utilization", "response_mean", {"gpu_utilization": "more"})
    with pytest.raises(UsageError, match="twice"):
        front(compared, "wait_p95", "wait_p95")
    with pytest.raises(UnknownName, match="did you mean"):
        front(compared, "wait_p95", "respons_mean")
    with pytest.raises(UsageError, match="\"more\" or \"less\""):
        front(swept, "gpu_utilization", "response_mean", {"gpu_utilization": "up"})  # type: ignore[dict-item]


def test_regret_by_hand(compared: hs.Comparison):
    table = regrets(compared, "response_mean")
    values = np.stack([compared.runs[name].values["response_mean"] for name in table.columns])  # type: ignore[union-attr]
    np.testing.assert_allclose(table.to_numpy().T, values / values.min(axis=0) - 1, atol=1e-12)
    assert (table.min(axis=1) == 0).all() and table.index.name == "replication"
    with pytest.raises(UsageError, match="neither more nor less is always better"):
        regrets(compared, "gpu_utilization")


def test_pictures(run: hs.Result, compared: hs.Comparison, swept: Any):
    count, rate = "cluster.nodes.0.count", "workload.small.arrivals.rate"
    drawn = [
        plots.power(run),
        plots.pareto(compared, "response_mean", "wait_p95"),
        plots.pareto(swept, count, "response_mean"), plots.regret(compared), plots.regret(swept),
        plots.against(swept, rate, where={count: 2}), plots.sweep_map(swept, rate, count, where={"policy": "sjf"}),
    ]  # fmt: skip
    for picture in drawn[:: some(1, 3)]:
        picture.figure().canvas.draw()
    (lines,) = plots.against(swept, rate, "response_mean", where={count: 2}).figure().axes
    assert [text.get_text() for text in lines.get_legend().get_texts()] == ["fcfs", "sjf"]
    assert [tick.get_text() for tick in lines.get_xticklabels()] == ["0.5/s", "1/s"]


def test_pictures_say_what_they_need(run: hs.Result, swept: Any):
    with pytest.raises(UsageError, match="several rows have the same value of.*choose cluster.nodes.0.count"):
        plots.against(swept, "workload.small.arrivals.rate")
    with pytest.raises(UnknownName):
        plots.against(swept, "cluster.nodes.0.count", "nonsense")


@pytest.mark.parametrize(
    ("key", "beside", "name"),
    [
        ("cluster.nodes.0.gpus.count", (), "gpus count"),
        ("cluster.nodes.0.count", (), "nodes count"),
        ("workload.jobs.arrivals.rate", (), "jobs arrivals rate"),
        ("workload.0.arrivals.rate", ("seed",), "arrivals rate"),
        ("workload.0.arrivals.rate", ("workload.0.arrivals.rate", "workload.1.arrivals.rate"), "0 arrivals rate"),
        ("policy.scheduler.name", (), "scheduler name"),
        ("seed", (), "seed"),
        ("policy", (), "policy"),
    ],
)
def test_names_of_keys_have_no_places_in_lists(key: str, beside: tuple[str, ...], name: str):
    from hetsim.plots.sweeps import key_name

    assert key_name(key, beside) == name


@pytest.mark.slow
def test_values_are_found_as_they_are_written(swept: Any):
    rate, count = "workload.small.arrivals.rate", "cluster.nodes.0.count"
    for half in ("0.5/s", 0.5, "30/min", " 0.5 /s"):
        grid = swept.pivot(count, "policy", "response_mean", {rate: half})
        assert grid.equals(swept.pivot(count, "policy", "response_mean", {rate: "0.5/s"}))
        lines = plots.against(swept, count, "response_mean", where={rate: half}).figure().axes[0].lines
        assert [len(line.get_xdata()) for line in lines] == [3, 3]
    for wrong in ("0.7/s", "0.5 s", 7, True):
        with pytest.raises(UsageError, match=r"there are 0\.5/s, 1/s$"):
            swept.pivot(count, "policy", "response_mean", {rate: wrong})
        with pytest.raises(UsageError, match=r"there are 0\.5/s, 1/s$"):
            plots.against(swept, count, where={rate: wrong})
    assert swept.pivot(rate, "policy", "response_mean", {count: "2"}).notna().all(axis=None)


def bars_of(ax: Any) -> np.ndarray:
    """Ends of all error bars."""
    found = [np.asarray(segment) for part in ax.containers for line in part[2] for segment in line.get_segments()]
    return np.concatenate(found)


@pytest.mark.slow
def test_a_front_stays_where_its_metrics_can_be():
    """Of two replications intervals are many times the mean: they end at 0, and at 100 %."""
    found = hs.compare(MIX, ["fcfs", "sjf", "fcfs_skip"], replications=2,
                        metrics=["wait_mean", "gpu_utilization"])  # fmt: skip
    assert (found.table["wait_mean", "half_width"] > found.table["wait_mean", "mean"]).any()
    picture = plots.pareto(found, "wait_mean", "gpu_utilization", better={"gpu_utilization": "more"})
    (ax,) = picture.figure().axes
    ends = bars_of(ax)
    assert ends[:, 0].min() == 0 and ends[:, 1].max() <= 100 and ends[:, 1].min() >= 0
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    assert left >= -0.05 * right and bottom >= 0 and top <= 103


@pytest.mark.slow
def test_names_lie_on_no_marker():
    found = hs.compare(MIX, ["fcfs", "sjf", "fcfs_skip", "edf", "ljf"], replications=3)
    figure = plots.pareto(found, "response_mean", "response_p95").figure()
    (ax,) = figure.axes
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    marks = [ax.transData.transform(part[0].get_xydata()[0]) for part in ax.containers]
    assert ax.texts and len(marks) == 5
    for text in ax.texts:
        box = text.get_window_extent()
        for x, y in marks:
            inside = box.x0 - 2 * scale < x < box.x1 + 2 * scale and box.y0 - 2 * scale < y < box.y1 + 2 * scale
            assert not inside, text.get_text()


@pytest.mark.slow
def test_marks_of_a_sweep_name_the_rows_of_its_table(swept: Any):
    """Each mark that stands for a point and policy names a row of the table of all points, and all rows are named."""
    keys, one = swept.keys, {"policy": "sjf"}
    cells = swept.shown()[1]
    drawn = {
        "regret": plots.regret(swept), "front": plots.pareto(swept, "response_mean", "wait_p95"),
        "map": plots.sweep_map(swept, *keys, where=one),
        "against": plots.against(swept, keys[0], where={keys[1]: swept.table[keys[1]].iloc[0]}),
    }  # fmt: skip
    for kind, picture in drawn.items():
        names = [name for panel in picture.panels for mark in panel.marks for name in getattr(mark, "rows", ())]
        rows = [[number for number, row in enumerate(cells) if row[0] == name.partition(" · ")[0]
                 and name.partition(" · ")[2] in row[3:]] for name in names]  # fmt: skip
        assert all(len(numbers) == 1 for numbers in rows), kind
        assert len({number for (number,) in rows}) == {"regret": 12, "front": 12}.get(kind, 6), kind
