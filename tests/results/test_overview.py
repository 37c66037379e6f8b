"""What runs and comparisons say on a terminal: short lines, units, warnings once."""

from __future__ import annotations

import math

import pytest
from hand_made import cluster, record, workload

import hetsim as hs
from hetsim.report import terminal
from hetsim.report.overview import comparison_lines, comparison_remarks, overview, remarks
from hetsim.results.many_runs.compare import compare
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.result import Result


def run(waits: float, number: int = 0, finished: bool = True) -> Result:
    """One GPU, one task of 1 s that waits so long, and one that arrives with it and may run on beyond the end."""
    rec = record(
        cluster(gpus=2), workload([0, 0], [1, 1]), [waits, 0], [waits + 1, 1 if finished else math.nan], [(1,), (2,)],
        end=waits + 1, horizon=math.inf,
    )  # fmt: skip
    return Result(rec, replication=number)


def runs(waits: list[float], **how: bool) -> Replications:
    return Replications((run(value, number, **how) for number, value in enumerate(waits)), keep=True)


@pytest.mark.slow
def test_a_comparison_is_never_wider_than_the_terminal():
    """Long names of policies are broken, and metrics that find no room go on in a second table."""
    name = "conservative_backfill (placement: earliest_finish, reserve: 12, window: 300 s) + predicted_wait"
    found = compare({name: runs([600, 700, 900.5]), f"{name} 2": runs([100, 130, 99]), "sjf": runs([1, 2, 3])})
    lines = comparison_lines(found)
    assert max(map(terminal.width, lines)) <= terminal.COLUMNS
    assert sum(line.startswith("policy") for line in lines) > 1


def test_one_sentence_a_metric_and_one_note_on_the_intervals():
    found = compare({"a": runs([60, 70, 80]), "b": runs([10, 21, 32]), "c": runs([10, 21, 32])}, ["wait_max"])
    said = " ".join(comparison_lines(found)[5:])
    assert "b: wait max 49.0 ± 4.4 s below a; the same as under c in every run" in said
    assert said.count("Holm") == 1 and "3 replications" in said


def test_devices_that_are_busier_are_not_told_as_better():
    lines = comparison_lines(compare({"a": runs([6, 7, 8]), "b": runs([1, 2, 3])}, ["wait_max", "gpu_utilization"]))
    assert any("GPU busy" in line for line in lines[:1])
    assert not any("GPU busy" in line for line in lines[4:])


def test_a_warning_of_many_replications_is_one_line():
    """Each of three replications leaves one task of two unfinished."""
    text = "1 tasks (50 %) were unfinished when the run ended: means leave them out, so means are too low"
    found = runs([1, 2, 3], finished=False)
    assert remarks(found) == [f"{text} (in all 3 replications)"]
    both = Replications([*(run(n, n) for n in range(3)), run(3, 3, finished=False)], keep=True)
    assert comparison_remarks({"a": found, "b": both}) == [
        f"a: {text} (in all 3 replications)",
        f"b: {text} (in 1 of 4 replications)",
    ]


def test_that_nothing_is_random_is_said_once():
    found = comparison_remarks({"a": runs([1, 1]), "b": runs([2, 2])})
    assert len(found) == 1 and found[0].startswith("all replications are equal: the scenario is not random, so "
                                                   "there are no")


def test_a_makespan_that_some_runs_lack_says_so():
    mixed = Replications([run(1, 0), run(2, 1), run(3, 2, finished=False)])
    (line,) = [line for line in overview(mixed) if line.startswith("makespan")]
    assert line.endswith("(in 2 of 3 replications)")


def test_infinite_percentiles_of_replications_are_explained():
    assert any("unfinished tasks count" in line for line in overview(runs([1, 2], finished=False)))
    assert not any("∞" in line for line in overview(runs([1, 2])))


@pytest.mark.parametrize(
    ("part", "text"), [(1.0, "100 %"), (0.9997, "99.97 %"), (0.99996, "99.996 %"), (0.63, "63 %"), (0.0, "0 %")]
)
def test_almost_all_is_not_all(part: float, text: str):
    assert terminal.share(part) == text


@pytest.mark.parametrize(
    ("moment", "text"),
    [(5.06e-6, "5.06 µs"), (86.17687, "86.1769 s"), (1234567.25, "1,234,567.2 s"), (2e5, "200,000 s")],
)
def test_moments_have_no_exponents(moment: float, text: str):
    assert terminal.clock(moment) == text


def test_replicas_of_language_models_say_what_they_held():
    gpus = {"type": "a100", "count": 1, "memory": "600 MB", "pcie": {"upload": "20 GB/s"}}
    service = {"kind": "llm", "kv": {"per_token": "1 MB"},
               "step": {"fixed": "10 ms", "per_sequence": "1 ms", "per_prompt_token": "0.1 ms"}}  # fmt: skip
    entry = {"name": "chat", "service": service, "arrivals": {"process": "all_at_once", "count": 8},
             "tokens": {"prompt": 100, "output": 60}}  # fmt: skip
    result = hs.run({"name": "t", "cluster": {"nodes": {"gpus": gpus}}, "workload": [entry]})
    told = {line.split("  ")[0].strip(): " ".join(line.split()[1:]) for line in overview(result)}
    assert {"ttft", "tpot", "itl"} <= set(told)
    used, most = (f"{100 * result.metric(name):.3g} %" for name in ("kv_used_mean", "kv_used_max"))
    assert told["KV blocks"] == f"blocks {used} used, maximum {most}"
    assert told["tokens a step"].endswith(f"{result.metric('tokens_per_step'):.3g}")
    stops = int(result.metric("preemptions"))
    assert stops > 0 and told["preemptions"] == f"{stops} ({stops} recompute)"
