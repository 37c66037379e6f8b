"""Schedules of pipelines: their ends are the closed forms, and no stage does what it cannot."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_parallel_training import GPT3, training
from tiers import some

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.formulas.training import ParallelPlan
from hetsim.pipelines.layer_cuts import Layer, chain
from hetsim.pipelines.partition import EqualDevices, PipelinePartition, PipelineStage, unlike_partition
from hetsim.pipelines.schedule import (
    BoundarySeconds,
    PipelineSchedule,
    StageSeconds,
    partition_schedule,
    pipeline_schedule,
    stage_order,
)
from hetsim.planning.picture import training_pipeline
from hetsim.results.panels import Picture

SIZES = [(1, 1, 1), (2, 1, 1), (4, 8, 1), (3, 7, 1), (8, 4, 1), (4, 8, 2), (4, 4, 2), (2, 2, 3), (8, 16, 3), (3, 3, 5)]


def equal(stages: int, chunks: int = 1, hop: float = 0.0, head: float = 0.0) -> list[StageSeconds]:
    """Equal stages, forward 1 s and backward 2 s in all; the last has `head` seconds more."""
    one = StageSeconds(1 / chunks, 2 / chunks, (hop / chunks, hop / chunks))
    return [one] * (stages - 1) + [replace(one, more=(head / 3, head * 2 / 3))]


def check(found: PipelineSchedule) -> None:
    """Every pass once, one at a time on each device, and none before those that it needs."""
    by_device = defaultdict(list)
    end = {}
    for slot in found.slots:
        by_device[slot.stage, slot.replica].append(slot)
        key = (slot.stage, slot.micro_batch, slot.chunk, slot.forward)
        assert key not in end, "once"
        end[key] = slot.free
    inference = found.order == "forward"
    assert len(end) == (1 if inference else 2) * len(found.stages) * found.micro_batches * found.chunks
    for (stage, replica), slots in by_device.items():
        slots.sort(key=lambda one: one.begin)
        assert all(one.free <= then.begin + 1e-12 for one, then in zip(slots, slots[1:], strict=False))
        assert all(one.micro_batch % found.stages[stage].replicas == replica for one in slots)
    last, top = len(found.stages) - 1, found.chunks - 1
    for slot in found.slots:
        stage, number, chunk = slot.stage, slot.micro_batch, slot.chunk
        if slot.forward:
            needs = (stage - 1, number, chunk, True) if stage else (last, number, chunk - 1, True)
            first = stage == 0 and chunk == 0
        else:
            needs = (stage + 1, number, chunk, False) if stage < last else (0, number, chunk + 1, False)
            first = False
            if stage == last and chunk == top:
                needs = (stage, number, chunk, True)
        assert first or end[needs] <= slot.begin + 1e-12
    by_way = {(one.target, one.micro_batch, one.forward): one for one in found.transfers}
    for slot in found.slots if found.chunks == 1 else ():
        sent = by_way.get((slot.stage, slot.micro_batch, slot.forward))
        assert sent is None or sent.end <= slot.begin + 1e-12


@pytest.mark.parametrize(("stages", "micro_batches", "chunks"), SIZES)
@pytest.mark.parametrize(("hop", "head"), [(0.0, 0.0), (0.15, 0.7)])
def test_a_schedule_of_equal_stages_ends_with_the_closed_form(
    stages: int, micro_batches: int, chunks: int, hop: float, head: float
) -> None:
    """(m + p - 1)(f + b), the bubble divided by the chunks; a slower last stage adds m times what it has more."""
    each = (micro_batches + (stages - 1) / chunks) * (3 + 2 * hop) + micro_batches * head
    for order in ("gpipe", "1f1b") if chunks == 1 else ("interleaved",):
        found = pipeline_schedule(equal(stages, chunks, hop, head), micro_batches, order, chunks)
        check(found)
        assert found.makespan == pytest.approx(each, rel=1e-12)
        bubble = (stages - 1) / chunks * (3 + 2 * hop)
        assert found.bubble * found.makespan == pytest.approx(bubble, abs=1e-9)


@pytest.mark.parametrize(("order", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4)])
def test_in_flight_on_the_first_stage_is_as_many_as_memory_is_counted_for(order: Any, chunks: int) -> None:
    found = pipeline_schedule(equal(4, chunks), 16, order, chunks)
    flying = most = 0
    for slot in sorted((one for one in found.slots if one.stage == 0), key=lambda one: one.begin):
        flying += 1 if slot.forward else -1
        most = max(most, flying)
    assert most / chunks == ParallelPlan(16, 1, 1, 4, 1, order, chunks).in_flight


def test_the_order_of_an_interleaved_stage_is_that_of_the_paper() -> None:
    """Narayanan et al. (2021), figure 4, device 1 of 4 with two chunks: 1 2 3 4 of the first, then of the second."""
    order = stage_order("interleaved", 4, 0, range(8), 2)
    assert order[:8] == [(True, n, 0) for n in range(4)] + [(True, n, 1) for n in range(4)]
    assert order[8:14] == [(True, 4, 0), (True, 5, 0), (True, 6, 0), (False, 0, 1), (True, 7, 0), (False, 1, 1)]
    assert order[-4:] == [(False, n, 0) for n in range(4, 8)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"schedule": "gpipe"},
        {"schedule": "interleaved", "chunks": 3},
        {"recomputation": "selective", "sequence_parallel": True, "pipeline": 16},
    ],
)
def test_the_schedule_of_a_job_ends_with_its_step(change: dict[str, Any]) -> None:
    found = hs.run(training(nodes=16, **change))
    schedule, name = training_pipeline(found)
    check(schedule)
    assert name == "0" and schedule.after[-1][0] == "update"
    assert 10 * schedule.makespan == pytest.approx(found.tasks["compute"].iloc[0], rel=1e-9)
    assert schedule.seconds == pytest.approx(schedule.makespan, rel=1e-9)
    assert schedule.bubble == pytest.approx(found.metric("bubble_fraction"), rel=1e-9)


@pytest.mark.slow
def test_the_schedule_of_a_job_is_that_of_its_place() -> None:
    """Two nodes in racks that a slow uplink joins: the stages of the second job send over it."""
    given = training(nodes=16, tensor=8, pipeline=16)
    given["cluster"]["racks"] = {"nodes": 8, "uplink": "20 GB/s"}
    far = hs.run(given)
    schedule, _ = training_pipeline(far)
    assert 10 * schedule.makespan == pytest.approx(far.tasks["compute"].iloc[0], rel=1e-9)
    assert schedule.makespan > training_pipeline(hs.run(training(nodes=16, pipeline=16)))[0].makespan


@pytest.mark.slow
def test_of_very_many_passes_the_first_micro_batches_are_laid_out() -> None:
    found = hs.run(training(batch=20_000))
    schedule, _ = training_pipeline(found)
    assert schedule.bubble == pytest.approx(found.metric("bubble_fraction"), rel=1e-9), "that of the whole step"
    assert schedule.all_micro_batches == 20_000 and len(schedule.slots) <= 20_000
    assert schedule.seconds is not None and schedule.seconds > 10 * schedule.makespan
    few = replace(pipeline_schedule(equal(2), 3, "1f1b"), all_micro_batches=20_000)
    assert "2 stages × 3 of 20,000 micro-batches" in hs.plots.pipeline(few).panels[0].title


def test_requests_in_a_row_take_the_latency_and_the_slowest_for_each_more() -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        layers = [Layer(str(k), *random.uniform(0.1, 1, 2), random.uniform(0, 2), 1.0) for k in range(6)]
        groups = [EqualDevices("a", 1, 2.0, link=5.0), EqualDevices("b", 1, 1.0, link=3.0)]
        cuts = chain(layers)
        found = unlike_partition(cuts, groups, inference=True)
        known = {one.name: one for one in groups}
        schedule = partition_schedule(cuts, found, known, inference=True, micro_batches=9)
        check(schedule)
        assert found.latency is not None
        assert schedule.makespan == pytest.approx(found.latency + 8 * found.seconds, rel=1e-9)


def test_training_passes_no_stage_more_often_than_the_partition_says() -> None:
    """PipeDream's 1F1B: with the slowest stage first it is never idle, and one micro-batch takes the latency."""
    random = np.random.default_rng(7)
    for _ in range(some(20, 6)):
        layers = [Layer(str(k), *random.uniform(0.1, 1, 2), random.uniform(0, 0.3), 0.1) for k in range(7)]
        groups = [EqualDevices("a", 3, 2.0, link=9.0, inside=20.0), EqualDevices("b", 2, 1.0, link=6.0, inside=20.0)]
        cuts = chain(layers)
        found = unlike_partition(cuts, groups)
        known = {one.name: one for one in groups}
        assert found.latency is not None
        one = partition_schedule(cuts, found, known, inference=False, micro_batches=1)
        assert one.makespan == pytest.approx(found.latency, rel=1e-9)
        many = partition_schedule(cuts, found, known, inference=False, micro_batches=60)
        check(many)
        rounds = 60 // max(stage.replicas for stage in found.stages)
        assert many.makespan >= (rounds - 1) * found.seconds


def test_replicas_reduce_gradients_in_each_backward_pass() -> None:
    cuts = chain([Layer("x", 1.0, 2.0, 0.0, 4.0)])
    plan = PipelinePartition((PipelineStage(0, 0, 2, "a"),), 2.0)
    groups = {"a": EqualDevices("a", 2, inside=8.0)}
    found = partition_schedule(cuts, plan, groups, inference=False, micro_batches=4)
    check(found)
    assert found.makespan == pytest.approx(2 * (1 + 2 + 4 * 4.0 / (8.0 * 2)))


def test_transfers_share_the_links_of_a_boundary() -> None:
    stages = [StageSeconds(1.0), StageSeconds(1.0)]
    one = pipeline_schedule(stages, 4, "forward", boundaries=[BoundarySeconds(3.0)])
    assert one.makespan == 1 + 4 * 3 + 1
    two = pipeline_schedule(stages, 4, "forward", boundaries=[BoundarySeconds(3.0, lanes=2)])
    assert two.makespan == 2 + 2 * 3 + 1
    check(one), check(two)


# The picture ----------------------------------------------------------------------------------------------------


def widths(ax: Any) -> dict[str, float]:
    """Seconds of the bars by color; those of idle time are the rows."""
    found: dict[str, float] = {}
    for bars in ax.collections:
        color = "#" + "".join(f"{round(255 * part):02X}" for part in bars.get_facecolor()[0][:3])
        for path in bars.get_paths():
            found[color] = found.get(color, 0.0) + float(np.ptp(path.vertices[:, 0]))
    return found


def test_the_picture_shows_each_pass_for_as_long_as_it_takes() -> None:
    (ax,) = hs.plots.pipeline(pipeline_schedule(equal(4, hop=0.25), 8, "1f1b")).figure().axes
    shown = widths(ax)
    assert shown["#0072B2"] == pytest.approx(4 * 8 * 1)
    assert shown["#009E73"] == pytest.approx(4 * 8 * 2)
    assert shown["#E69F00"] == pytest.approx(4 * 16 * 0.25)
    assert shown["#E4E4E4"] == pytest.approx(4 * 38.5)
    assert sorted(int(text.get_text()) for text in ax.texts) == sorted([*range(1, 9)] * 8)
    assert [text.get_text() for text in ax.get_yticklabels()] == ["1", "2", "3", "4"]
    assert ax.get_title(loc="left") == "1F1B, 4 stages × 8 micro-batches, bubble 27.3 %"


def legend(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.figure().axes[0].get_legend().get_texts()]


def test_the_legend_tells_what_shades_and_thin_bars_are() -> None:
    stages = equal(4)
    assert legend(hs.plots.pipeline(pipeline_schedule(stages, 8, "1f1b"))) == ["forward", "backward", "idle (bubble)"]
    drawn = replace(pipeline_schedule(stages, 8, "interleaved", chunks=2), after=(("gradients", 0.05),))
    assert 0.0005 < 0.05 / drawn.makespan < 0.002, "thin, and seen"
    assert legend(hs.plots.pipeline(drawn)) == [
        "forward", "backward", "lighter: later chunks", "gradients", "idle (bubble)"]  # fmt: skip


def test_a_stream_of_requests_has_items_and_no_bubble() -> None:
    """How much of the first few items is idle time depends on how many are drawn, not on the plan."""
    picture = hs.plots.pipeline(pipeline_schedule(equal(2), 8, "forward"))
    assert picture.panels[0].title == "forward only, 2 stages × 8 items"
    assert legend(picture) == ["forward", "idle"]


def test_the_picture_of_a_run_names_its_job() -> None:
    found = hs.run({**training(steps=1), "name": "gpt"})
    (ax,) = hs.plots.pipeline(found, task=0).figure().axes
    assert ax.get_title(loc="left").startswith("gpt · fcfs · task 0 · 1F1B, 8 stages × 64 micro-batches, step ")
    assert not ax.texts, "64 micro-batches leave no room for numbers"
    plain = hs.run("first-steps")
    requests = hs.run("npu-and-gpu", overrides={"workload.requests.count": 3})
    for what, said in (
        (plain, "no job of this run has a pipeline; give `training` a `pipeline` of 2 or more$"),
        (requests, "hetsim.plots.gantt draws the stages of requests"),
        (found, 'no task "7"'),
    ):
        with pytest.raises(UsageError, match=said):
            hs.plots.pipeline(what, task=7)


@pytest.mark.slow
def test_the_picture_of_a_partition(tmp_path: Any) -> None:
    table = tmp_path / "net.csv"
    table.write_text("layer,activations,weights,forward,backward\na,1e6,1e6,0.01,0.02\nb,1e6,1e6,0.01,0.02\n")

    def run(*options: str) -> Any:
        return CliRunner().invoke(main, ["plan", "partition", str(table), *options])

    for name, options in (("levels.png", ("--level", "2@1GB/s")), ("unlike.svg", ("--device", "a", "--device", "b"))):
        answer = run(*options, "--picture", str(tmp_path / name))
        assert answer.exit_code == 0 and f"picture: {tmp_path / name}" in answer.stderr
        assert (tmp_path / name).stat().st_size > 5000
    for options, said in (
        (("--level", "2@1GB/s", "--picture", "x.txt"), "a picture must be a file name ending in .png, .pdf or .svg"),
        (("--level", "2@1GB/s", "--picture", "nowhere/x.png"), 'the folder "nowhere" does not exist'),
        (("--level", "2@1GB/s", "--level", "1@1GB/s", "--picture", "x.png"), "--picture needs one --level, or "
                                                                             "--device"),
    ):
        answer = run(*options)
        assert answer.exit_code == 2 and said in " ".join(answer.stderr.split())


def test_the_page_of_a_run_has_the_schedule_and_the_links(monkeypatch: pytest.MonkeyPatch) -> None:
    from hetsim.page import elements, of_run

    shown: list[str] = []
    monkeypatch.setattr(elements, "picture", lambda draw, alt, *_, **__: shown.append(alt) or "")
    of_run.of_run(hs.run(training(steps=1)), "runs/x")
    assert {"the schedule of a pipeline", "the links of the network over time"} <= set(shown)
    shown.clear()
    model = {**GPT3, "layers": 12, "hidden": 2048, "heads": 32}
    of_run.of_run(hs.run(training(nodes=1, pipeline=1, model=model, steps=1)), "runs/x")
    assert not {"the schedule of a pipeline", "the links of the network over time"} & set(shown)
