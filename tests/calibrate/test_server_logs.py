"""Servers fitted to several logs, and to summaries of load generators."""

import json

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from hetsim.calibrate import request_log, server_log
from hetsim.calibrate.server_log import Server
from hetsim.calibrate.summaries import SummaryServer
from hetsim.cli import main
from hetsim.engine.simulation import Simulation
from hetsim.model.step_times import LinearSteps
from hetsim.scenario.scenario import load

TRUE = {"fixed": "12 ms", "per_prompt_token": "0.15 ms", "per_context_token": "2 us"}
SERVER = {"kind": "llm", "max_num_seqs": 8}


def scenario(service, **entry):
    return {
        "cluster": {"nodes": [{"count": 1, "gpus": {"type": "g", "count": 1}}]},
        "workload": [{"name": "chat", "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 10,
                      "tokens": {"prompt": 160, "output": 21}, "service": service, **entry}],
    }  # fmt: skip


def run(rate, count, service, **entry):
    """Times of the requests of a server that is known."""
    arrivals = {"process": "poisson", "rate": f"{rate}/s"}
    data = scenario(service, **{"arrivals": arrivals, "count": count, "tokens": TOKENS, **entry})
    record = Simulation(load({**data, "seed": 7}).build()).run()
    tasks = record.input.tasks
    output = tasks.extra["output_tokens"]
    ttft, latency = record.first_token - tasks.arrival, record.finish - tasks.arrival
    return tasks.arrival, tasks.extra["prompt_tokens"], output, ttft, latency


TOKENS = {"prompt": {"distribution": "uniform", "low": 20, "high": 300},
          "output": {"distribution": "uniform", "low": 2, "high": 40}}  # fmt: skip
KNOWN = {**SERVER, "step": TRUE, "front_end": "15 ms"}


def write_log(path, columns):
    names = "arrival_s,prompt_tokens,output_tokens,ttft_s,latency_s"
    np.savetxt(path, np.stack(columns, axis=1), delimiter=",", header=names, comments="", fmt="%.9g")
    return path


def invoke(*arguments):
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


@pytest.fixture
def server(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario({**SERVER, "step": {"fixed": "20 ms"}})))
    return path


def fitted(tmp_path, *arguments):
    done = invoke(*arguments, "--name", "fitted", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    path = tmp_path / "fitted.service.yaml"
    read = load(scenario({"kind": "llm", "profile": str(path)}))
    return yaml.safe_load(path.read_text()), read.model.workload[0].service


@pytest.mark.nightly
def test_logs_of_several_rates_are_fitted_together(tmp_path, server):
    logs = [write_log(tmp_path / f"{rate}.csv", run(rate, 100, KNOWN)) for rate in (2, 6)]
    profile, service = fitted(tmp_path, "--from", logs[0], "--from", logs[1], "--server", server)
    step = service.step
    assert (step.decode.fixed, step.prefill.per_item) == pytest.approx((12e-3, 0.15e-3), rel=0.02)
    assert (step.per_context_token, service.front_end) == pytest.approx((2e-6, 15e-3), rel=0.02)
    assert profile["measured"]["held_back"] == 60
    errors = profile["measured"]["errors"]
    assert {name.partition(":")[0] for name in errors} == {"2.csv", "6.csv"} and max(map(abs, errors.values())) < 0.01


def test_a_busy_log_counts_more(tmp_path, server):
    """The error of a trial is weighted by requests per second."""
    logs = [write_log(tmp_path / f"{rate}.csv", run(rate, 30, KNOWN)) for rate in (1, 5)]
    quiet, busy = (Server(server, request_log.read(one, None, {})) for one in logs)
    times = LinearSteps(fixed=0.02)
    errors = [one.error(times, 0.0) for one in (quiet, busy)]
    share = busy.load / (quiet.load + busy.load)
    together = server_log._Search([quiet, busy]).error(times, 0.0)
    assert 0.7 < share < 0.95 and together == pytest.approx((1 - share) * errors[0] + share * errors[1])


def vllm(columns, rate):
    arrival, prompt, output, ttft, latency = columns
    tpot = ((latency - ttft) / (output - 1))[output > 1]
    figures = {"completed": len(arrival), "request_rate": rate, "burstiness": 1.0, "max_concurrency": None,
               "total_input_tokens": int(prompt.sum()), "total_output_tokens": int(output.sum())}  # fmt: skip
    for key, values in (("ttft", ttft), ("tpot", tpot), ("e2el", latency)):
        figures[f"mean_{key}_ms"] = 1e3 * float(values.mean())
        for word, rank in (("median", 50), ("p90", 90), ("p99", 99)):
            figures[f"{word}_{key}_ms"] = 1e3 * float(np.percentile(values, rank))
    return figures


@pytest.mark.nightly
def test_summaries_of_several_rates(tmp_path):
    """Of other arrivals than those measured: the time of a step, of a first token alone, and the rate in between."""
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario({**SERVER, "step": {"fixed": "20 ms"}}, tokens=TOKENS)))
    files = []
    for rate in (2, 6):
        files += ["--from", tmp_path / f"{rate}.json"]
        files[-1].write_text(json.dumps(vllm(run(rate, 400, KNOWN), rate), indent=1))
    profile, service = fitted(tmp_path, *files, "--server", path)
    assert profile["measured"]["held_back"] == 0
    step = service.step
    assert step.fixed == pytest.approx(12e-3, rel=0.05)
    first = service.front_end + step.fixed + 160 * step.per_prompt_token
    assert first == pytest.approx(15e-3 + 12e-3 + 160 * 0.15e-3, rel=0.1)
    ours, known = run(4, 400, profile["service"]), run(4, 400, KNOWN)
    for place in (3, 4):
        assert ours[place].mean() == pytest.approx(known[place].mean(), rel=0.05)


def genai(columns, **config):
    arrival, prompt, output, ttft, latency = columns
    figures = {"request_count": {"unit": "requests", "avg": len(arrival)}, "input_config": config,
               "request_throughput": {"unit": "requests/sec", "avg": 1.5}}  # fmt: skip
    for key, values in (("input", prompt), ("output", output)):
        figures[f"{key}_sequence_length"] = {"unit": "tokens", "avg": float(values.mean())}
    tpot = ((latency - ttft) / (output - 1))[output > 1]
    for key, values in (("time_to_first_token", ttft), ("inter_token_latency", tpot), ("request_latency", latency)):
        ranks = {f"p{rank}": 1e3 * float(np.percentile(values, rank)) for rank in (50, 90, 99)}
        figures[key] = {"unit": "ms", "avg": 1e3 * float(values.mean()), **ranks}
    return figures


def inference(columns, rate):
    arrival, prompt, output, ttft, latency = columns
    tpot = ((latency - ttft) / (output - 1))[output > 1]
    measures = (("time_to_first_token", ttft), ("time_per_output_token", tpot), ("request_latency", latency))
    found = {
        key: {"mean": float(values.mean())}
        | {name: float(np.percentile(values, rank)) for name, rank in (("median", 50), ("p90", 90), ("p99", 99))}
        for key, values in measures
    }
    lengths = {"prompt_len": {"mean": float(prompt.mean())}, "output_len": {"mean": float(output.mean())}}
    successes = {"count": len(arrival), "latency": found, **lengths}
    return {"load_summary": {"count": len(arrival), "requested_rate": rate}, "successes": successes}


def test_three_load_generators_say_the_same(tmp_path, server):
    columns = run(3, 40, KNOWN)
    found = []
    for name, content in (
        ("vllm", vllm(columns, 3)), ("genai", genai(columns, perf_analyzer={"stimulus": {"request_rate": 3}})),
        ("inference", inference(columns, 3)),
    ):  # fmt: skip
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        found.append(SummaryServer(server, path))
    for one in found:
        assert (len(one.log), one.load, one.count) == (40, 3, 40)
        assert one.tokens == pytest.approx((columns[1].mean(), columns[2].mean()))
        assert one.measured == pytest.approx(found[0].measured) and len(one.measured) == 12
    assert found[0].measured["latency", "p99"] == pytest.approx(np.percentile(columns[4], 99))


@pytest.mark.parametrize("closed", [False, True])
def test_the_known_server_has_the_figures_of_its_own_summary(tmp_path, closed):
    """With the arrivals and tokens that were measured, no error is left; also of clients in a closed loop."""
    if closed:
        arrivals = {"process": "closed", "clients": 4, "think": "0 s"}
        content = genai(run(1, 40, KNOWN, arrivals=arrivals), loadgen={"concurrency": 4})
    else:
        content = genai(run(3, 40, KNOWN), request_rate=3.0, concurrency=None)
    (tmp_path / "own.json").write_text(json.dumps(content))
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump({**scenario(KNOWN, tokens=TOKENS), "seed": 7}))
    server = SummaryServer(path, tmp_path / "own.json")
    figures = server.figures(server.service.times, server.service.front_end, 0)
    assert [one.error for one in figures] == pytest.approx([0.0] * 12, abs=1e-9)
    assert server.error(server.service.times, 0.0) > 0.01


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("completed", None, "json: completed: is missing"),
        ("completed", 0, "json:2:1: completed: must be a number above 0, not 0"),
        ("p99_ttft_ms", "fast", "p99_ttft_ms: must be a number above 0, not fast"),
        ("mean_ttft_ms", None, "has no mean time to first token where vLLM, GenAI-Perf or inference-perf write it"),
    ],
)
def test_summaries_that_cannot_be(tmp_path, server, key, value, message):
    content = {**vllm(run(3, 30, KNOWN), 3), key: value}
    content = {name: one for name, one in content.items() if name != key or value is not None}
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(content, indent=0))
    done = invoke("--from", path, "--server", server, "--out", tmp_path)
    assert done.exit_code == 3 and message in done.output, done.output


def test_a_summary_without_a_rate(tmp_path, server):
    """All requests at once for the rate inf; clients where their number was limited; else the rate that was reached."""
    columns, path = run(3, 30, KNOWN), tmp_path / "one.json"
    at_once = {**vllm(columns, "inf"), "request_throughput": 2.5}
    for content, last, load_ in ((at_once, 0.0, 2.5), (genai(columns), 10.0, 1.5)):
        path.write_text(json.dumps(content))
        one = SummaryServer(server, path)
        assert one.load == load_ and (one.build().tasks.arrival.max() > last) == (last > 0)
    path.write_text(json.dumps({**at_once, "max_concurrency": 3}))
    assert SummaryServer(server, path)._scenario.model.workload[0].arrivals.closed


def test_files_that_do_not_go_together(tmp_path, server):
    (tmp_path / "one.json").write_text(json.dumps(vllm(run(3, 30, KNOWN), 3)))
    log = write_log(tmp_path / "log.csv", run(3, 30, KNOWN))
    assert "logs, or summaries of one server" in invoke("--from", log, "--from", tmp_path / "one.json").output
    done = invoke("--from", tmp_path / "one.json", "--server", server, "--unit", "ms", "--out", tmp_path)
    assert done.exit_code == 2 and "--unit and --where are for tables" in done.output
