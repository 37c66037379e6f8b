"""Sensitivity to step times: paired runs against Lindley's recursion, and what `run` and `size` print."""

import json

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli.program import hetsim
from hetsim.experiment.sensitivity import longer_steps, sensitivity, sentences
from hetsim.scenario.scenario import load

STEP = 0.09  # seconds; requests arrive at 10/s, so the server is 90 % busy


def scenario(drift=True, count=200):
    service = {"kind": "llm", "step": {"fixed": f"{STEP} s"}, "max_num_seqs": 1, "slo": {"ttft": "0.5 s"}}
    if drift:
        service["drift"] = {"mean": 1.0}
    return {
        "name": "queue", "seed": 4, "cluster": {"nodes": [{"gpus": [{"type": "gpu", "count": 1}]}]},
        "workload": [{"name": "one", "arrivals": {"process": "poisson", "rate": "10/s"}, "count": count,
                      "tokens": {"prompt": 10, "output": 1}, "service": service}],
    }  # fmt: skip


def lindley(arrivals, step):
    """Times to the first token of a server that answers one request at a time."""
    free, times = 0.0, []
    for arrival in arrivals:
        free = max(free, arrival) + step
        times.append(free - arrival)
    return np.array(times)


def test_paired_runs_equal_lindleys_recursion_with_longer_steps():
    own = load(scenario())
    result = hs.run(own)
    found = sensitivity(own, result)
    for side, step in {"mean": STEP, "longer": 1.01 * STEP}.items():
        times = lindley(result.tasks["arrival"], step)
        assert found["metrics"]["ttft_mean"][side] == pytest.approx(times.mean(), rel=1e-9)
        assert found["metrics"]["slo_attainment"][side] == pytest.approx((times <= 0.5).mean(), rel=1e-9)
    assert found["metrics"]["ttft_mean"]["longer"] > 1.03 * found["metrics"]["ttft_mean"]["mean"]  # queueing amplifies


def test_of_replications_the_first_two_are_paired():
    own = load(scenario(count=60))
    runs = hs.replicate(own, replications=3)
    found = sensitivity(own, runs)
    assert found["replications"] == 2
    assert found["metrics"]["ttft_mean"]["mean"] == pytest.approx(runs.column("ttft_mean")[:2].mean(), rel=1e-12)


def test_only_uncertain_steps_are_made_longer_and_a_mean_of_drift_is_kept():
    own = scenario()
    own["workload"][0]["service"]["drift"] = {"cv": "3%", "mean": 1.2}
    assert longer_steps(load(own)) == {"workload.0.service.drift": {"cv": 0.03, "mean": 1.2 * 1.01}}
    certain = load(scenario(drift=False, count=5))
    assert longer_steps(certain) == {} and sensitivity(certain, hs.run(certain)) == {}


@pytest.mark.parametrize("keys", [{"drift": {"mean": 2.0}}, {"interval": [1.0, 4.0]}])
def test_the_capacity_is_that_of_the_steps_that_are_simulated(keys):
    """Ten decoding steps of 90 ms, so 1.111 requests per second; half as many with a factor of two on the steps."""
    for more, rate in (({}, "1.111"), (keys, "0.5556")):
        own = scenario(drift=False, count=20)
        own["workload"][0]["service"] |= more
        own["workload"][0]["tokens"]["output"] = 11
        assert f"serve at most {rate}/s" in " ".join(load(own).build().warnings)


def shown(folder, drift, *words, code=0):
    file = folder / "queue.yaml"
    file.write_text(yaml.safe_dump(scenario(drift, count=40)), encoding="utf-8")
    done = CliRunner().invoke(hetsim, [words[0], str(file), *words[1:], "-q"])
    assert done.exit_code == code, done.output
    return done.output


def test_run_prints_the_sensitivity(tmp_path):
    text = " ".join(shown(tmp_path, True, "run").split())
    assert "If steps of language models take 1 % longer: ttft mean +" in text and "deadlines met" in text
    found = json.loads(shown(tmp_path, True, "run", "--json"))["sensitivity"]
    moved = found["metrics"]["ttft_mean"]
    assert found["step_time"] == 1.01 and moved["longer"] > 1.01 * moved["mean"] > 0
    assert "sensitivity" not in json.loads(shown(tmp_path, False, "run", "--json")) and "intervals" not in found
    for more in ((), ("--replications", "2", "--workers", "1")):  # a warning of a run is a value of its JSON
        words = ("run", "--json", "--set", "workload.0.service.interval=[0.9, 1.1]", *more)
        (text,) = json.loads(shown(tmp_path, True, *words))["sensitivity"]["intervals"]
        assert text.startswith("one: steps take, 90 %: at least 0.90, at most 1.10 times as long")


def test_sweep_shows_each_warning_once_and_whole(tmp_path):
    """The warnings of a row are joined by semicolons; that of an interval has one in parentheses.

    Points with different GPUs have different intervals: one is a guess.
    """
    own, file = scenario(drift=False, count=2), tmp_path / "queue.yaml"
    own["workload"][0]["service"] = {"kind": "llm", "model": "llama-3.1-8b", "gpu": "h100", "engine": "vllm-0.15"}
    own["cluster"]["nodes"][0]["gpus"][0] |= {"type": "h100", "memory": "80 GB"}
    file.write_text(yaml.safe_dump(own), encoding="utf-8")
    for more in ((), ("--replications", "2")):
        words = ["sweep", str(file), "--over", "workload.0.service.gpu=h100,mi300x", "--workers", "1", *more]
        text = " ".join(CliRunner().invoke(hetsim, words).output.split())
        steps = "one: steps with vllm-0.15 take, 90 %: at least"
        assert f"2 of 2 rows have warnings, such as point 0: {steps}" in text and text.count(steps) == 2
        blocks = ", KV blocks 0.94 to 1.10 times as many (20 measured servers)"
        assert f"GPUs left out){blocks} warning: point 1: one: gpu names another GPU than h100, on which" in text
        assert text.endswith(f"no measured kernels of this GPU; errors of 885 measured servers, GPUs left out){blocks}")


def test_size_judges_the_target_with_longer_steps(tmp_path):
    """A target between the times with the steps as they are and with longer ones."""
    words = ("size", "--over", "cluster.nodes.0.gpus.0.count", "--from", "1", "--to", "1", "--replications", "2",
             "--workers", "1", "--set", "workload.0.arrivals.process=deterministic")  # fmt: skip
    tight, loose = (
        json.loads(shown(tmp_path, True, *words, "--target", f"ttft_mean < {limit} ms", *further, "--json"))
        for limit, further in ((90.5, ()), (95, ("--target", "ttft_p99 < 90.7 ms")))
    )
    assert "case" not in tight["sensitivity"]
    assert tight["sentences"][-1] == "Verdicts with this difference: ttft_mean < 90.5 ms: missed."
    interval = ("--set", "workload.0.service.interval=[0.9, 1.1]")
    words = (*words, "--target", "ttft_mean < 200 ms", *interval, "--json")
    assert "90 %: at least 0.90, at most 1.10" in json.loads(shown(tmp_path, True, *words))["sentences"][-1]
    assert loose["sensitivity"]["verdicts"] == {"ttft_mean < 95 ms": "met", "ttft_p99 < 90.7 ms": "missed"}
    expected = {"mean": pytest.approx(0.09), "longer": pytest.approx(0.0909)}
    assert tight["sensitivity"]["metrics"]["ttft_mean"] == expected


@pytest.mark.parametrize(
    ("over", "target", "case"),
    [
        (["--from", "1", "--to", "2"], "ttft_mean < 80 ms", " = 2"), (["=1,2"], "ttft_mean < 80 ms", "=2, fcfs"),
        (["--from", "1", "--to", "2"], "ttft_mean > 9 s", " = 2"), (["=1,2"], "ttft_mean > 9 s", "=1, fcfs"),
    ],
)  # fmt: skip
def test_size_prints_sensitivity_and_interval_where_nothing_meets_the_target(tmp_path, over, target, case):
    """Those of the largest size, or of the combination nearest to the target; with one replica requests wait most."""
    key = "workload.0.service.replicas"
    changes = ("--set", "cluster.nodes.0.gpus.0.count=2", "--set", "workload.0.service.interval=[0.9, 1.1]")
    words = ["size", "--over", *([key, *over] if len(over) > 1 else [key + over[0]]), "--target", target]
    found = json.loads(shown(tmp_path, True, *words, "--replications", "2", *changes, "--json", code=4))
    assert not found["met"] and found["sensitivity"]["case"] == key + case
    effect, verdict, interval = found["sentences"][-3:]
    assert effect.startswith(f"If steps of language models take 1 % longer with {key}{case}: ttft mean +")
    assert verdict == f"Verdicts with this difference: {target}: missed." and "at least 0.90, at most 1.10" in interval


def test_intervals_are_printed_where_no_metric_is_finite():
    assert sentences({"metrics": {}, "replications": 1, "intervals": ["an interval"]}) == ["an interval."]
    assert sentences({}) == []
