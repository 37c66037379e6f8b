"""Servers fitted to several logs, to summaries of load generators, and to a few requests of one's own."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from scipy.stats import binomtest

from hetsim.calibrate import request_log, server_log
from hetsim.calibrate.server_log import Server
from hetsim.calibrate.summaries import SummaryServer
from hetsim.cli import main
from hetsim.engine.simulation import Simulation
from hetsim.errors import ScenarioError
from hetsim.experiment.sensitivity import longer_steps
from hetsim.model.step_times import LinearSteps, scaled
from hetsim.scenario.scenario import load
from hetsim.silicon import engines
from hetsim.silicon.engines import Interval

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
    low, high = service.interval  # logs without noise: the drift of two runs, which count 2 : 6, and of another one
    assert np.log([1 / low, high]) == pytest.approx(1.6449 * 0.02 * 1.625**0.5, rel=0.03)


def test_a_log_of_several_models_is_refused_until_one_is_chosen(tmp_path):
    path = tmp_path / "log.csv"
    rows = [f"{second},20,3,0.1,0.2,{'ab'[second % 2]}" for second in range(60)]
    path.write_text("\n".join(["arrival,prompt_tokens,output_tokens,ttft_s,latency_s,model_name", *rows]))
    with pytest.raises(ScenarioError) as caught:
        request_log.read(path, None, {})
    text = "has requests of 2 models (a, b), and a server has one; choose its requests with --where"
    assert f"{path}:1: {text}, as in --where model_name=a" in str(caught.value)
    assert len(request_log.read(path, None, {"model_name": "b"})) == 30


def test_logs_of_different_models_are_not_fitted_together(tmp_path, server):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        rows = [f"{second},20,3,0.1,0.2,{path.stem}" for second in range(30)]
        path.write_text("\n".join(["arrival,prompt_tokens,output_tokens,ttft_s,latency_s,model", *rows]))
    summaries = [tmp_path / "a.json", tmp_path / "b.json"]
    for path in summaries:
        figures = {"completed": 30, "total_input_tokens": 600, "total_output_tokens": 90, "request_throughput": 1.0}
        path.write_text(json.dumps(figures | {"mean_ttft_ms": 100, "mean_tpot_ms": 50, "model_id": path.stem}))
    for one, other in (paths, summaries):
        done = invoke("--from", one, "--from", other, "--server", server, "--out", tmp_path)
        text = f"{one} has requests to a, and {other} to b; logs that are fitted together are of one server"
        assert (done.exit_code, text in " ".join(done.output.split())) == (2, True), done.output
    assert not [*tmp_path.glob("*.service.yaml")]


def test_files_that_a_profile_names_lie_beside_it(tmp_path):
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "steps.csv").write_text("batch,time_ms\n1,20\n8,30\n")
    step = {"fixed": "1 ms", "decode": {"table": "steps.csv", "time": "time_ms"}, "prefill": {"per_item": "2 ms"}}
    profile = tmp_path / "profiles" / "p.service.yaml"
    profile.write_text(yaml.safe_dump({"service": {**SERVER, "step": step}}))
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario({"kind": "llm", "profile": "profiles/p.service.yaml"})))
    steps = load(path).build().language[0].kinds[0].step
    assert [steps.seconds_for(0, count, 0) for count in (1, 8)] == pytest.approx([0.02, 0.03])
    named = server_log.service_of(path)["step"]["decode"]["table"]
    assert named == str(profile.parent / "steps.csv")


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
        ("completed", 0, "json:2:1: completed: must be a number above 0, at most 1,000,000, not 0"),
        ("completed", 10**9, "json:2:1: completed: must be a number above 0, at most 1,000,000, not 1000000000"),
        ("total_input_tokens", 1e30, "total_input_tokens: must be a number above 0, at most 1,000,000,000,000,000"),
        ("mean_tpot_ms", None, "json: mean_tpot_ms: is missing"),
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


def test_the_values_of_each_request_in_a_summary_are_left_out(tmp_path, server):
    """Lists of `--save-detailed`: more than a scenario may have, with escapes that YAML lacks; mistakes name a key."""
    content, path = vllm(run(3, 30, KNOWN), 3), tmp_path / "detailed.json"
    path.write_text(json.dumps({**content, "itls": [[0.01] * 300] * 1000, "generated_texts": ["\U0001f600"] * 30}))
    one = SummaryServer(server, path)
    path.write_text(json.dumps(content))
    assert one.measured == SummaryServer(server, path).measured and len(one.log) == 30
    path.write_text(json.dumps({**content, "errors": [""], "mean_tpot_ms": -1}))
    with pytest.raises(ScenarioError, match=r"detailed.json: mean_tpot_ms: must be a number above 0, not -1"):
        SummaryServer(server, path)
    path.write_text("[" * 100_000)
    with pytest.raises(ScenarioError, match="nested more than 64 levels"):
        SummaryServer(server, path)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_tokens_of_a_summary_that_no_replica_can_store(tmp_path):
    """A third of the requests is too large after their tokens are scaled to the mean of the file, and then all are."""
    path, file, columns = tmp_path / "server.yaml", tmp_path / "one.json", run(3, 30, KNOWN)
    path.write_text(yaml.safe_dump(scenario({**KNOWN, "kv": {"tokens": 600}}, tokens=TOKENS)))
    for factor, count in ((2.7, "10 of 30"), (100, "30 of 30")):
        file.write_text(json.dumps(vllm((columns[0], factor * columns[1], *columns[2:]), 3)))
        done = invoke("--from", file, "--server", path, "--out", tmp_path)
        text = f"{path}: must serve all requests of {file}; {count} requests need more KV blocks than a replica has"
        assert done.exit_code == 3 and text in " ".join(done.output.split()), done.output


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_summary_without_times_between_tokens_in_the_simulation(tmp_path, server):
    """Answers of 1.2 tokens are simulated as answers of one token."""
    file, columns = tmp_path / "one.json", run(3, 30, KNOWN)
    file.write_text(json.dumps({**vllm(columns, 3), "total_output_tokens": 36}))
    figures = SummaryServer(server, file).figures(LinearSteps(fixed=0.02), 0.0, 0)
    undefined = [one.name for one in figures if math.isnan(one.simulated)]
    assert undefined == [f"{rank} time between tokens" for rank in ("mean", "p50", "p90", "p99")]


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
    for option in ("--from", "--observe"):  # twice the same would narrow an interval twice
        done = invoke(option, log, option, tmp_path / "." / "log.csv", "--server", server, "--out", tmp_path)
        assert done.exit_code == 2 and "each log or summary counts as a run; give it once" in done.output


# An engine's interval, narrowed -----------------------------------------------------------------------------------

PRESET = {"kind": "llm", "model": "llama-3.1-8b", "gpu": "h100", "tensor_parallel": 1, "engine": "vllm-0.15"}
DEMAND = {"tokens": {"prompt": 500, "output": {"distribution": "uniform", "low": 20, "high": 200}}}


def on_h100(service, **entry):
    data = scenario(service, **entry)
    data["cluster"]["nodes"][0]["gpus"] = {"type": "h100", "count": 1}
    return data


def observed_log(path, factor, count=200):
    narrow = {**PRESET, "interval": [factor / 1.0001, factor * 1.0001]}
    record = Simulation(load({**on_h100(narrow, count=count, arrivals={"process": "poisson", "rate": "8/s"}, **DEMAND),
                              "seed": 3}).build()).run()  # fmt: skip
    tasks = record.input.tasks
    columns = [tasks.arrival, tasks.extra["prompt_tokens"], tasks.extra["output_tokens"]]
    return write_log(path, [*columns, record.first_token - tasks.arrival, record.finish - tasks.arrival])


@pytest.mark.nightly
@pytest.mark.parametrize("drift", [None, 0.01])
def test_requests_of_ones_own_narrow_the_interval_of_an_engine(tmp_path, drift):
    """A server 8 % slower than its engine's: the posterior of two normal distributions, and the drift of another run.

    A drift of the service is drawn apart from the interval, which then leaves it out.
    """
    log = observed_log(tmp_path / "log.csv", 1.08)
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(on_h100({**PRESET, **({"drift": {"cv": drift}} if drift else {})}, **DEMAND)))
    done = invoke("--observe", log, "--server", path, "--name", "own", "--out", tmp_path)
    assert done.exit_code == 0, done.output
    profile = yaml.safe_load((tmp_path / "own.service.yaml").read_text())
    before, (low, high) = profile["measured"]["interval_before"], profile["service"]["interval"]
    assert before[0] < low < high < before[1]
    (a, b), z, run = np.log(before), 1.6449, drift or 0.02
    own = ((b - a) / (2 * z)) ** 2 - run**2
    middle = ((a + b) / 2 * run**2 + math.log(1.08) * own) / (run**2 + own)
    half = z * math.sqrt(own * run**2 / (own + run**2) + (0 if drift else run**2))
    assert np.log([low, high]) == pytest.approx([middle - half, middle + half], abs=2e-3)


def plain(path, prior, **service):
    """A server of simple steps with an interval, and a log of its requests."""
    path.write_text(yaml.safe_dump(scenario({**KNOWN, "interval": prior, **service}, tokens=TOKENS)))
    return Server(path, request_log.read(write_log(path.with_suffix(".csv"), run(4, 40, KNOWN)), None, {}))


@pytest.mark.slow
def test_a_log_narrows_the_interval_of_a_profile(tmp_path):
    """The new profile has the keys of the old one, and is a scenario's."""
    log = write_log(tmp_path / "log.csv", run(4, 40, KNOWN))
    (tmp_path / "old.service.yaml").write_text(yaml.safe_dump({"service": {**KNOWN, "interval": [0.8, 1.25]}}))
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(scenario({"kind": "llm", "profile": "old.service.yaml"})))
    profile, service = fitted(tmp_path, "--observe", log, "--server", tmp_path / "server.yaml")
    assert profile["measured"]["interval_before"] == [0.8, 1.25] and service.step.fixed == 12e-3
    assert 0.94 < service.interval[0] < 1 < service.interval[1] < 1.06


@pytest.mark.slow
def test_a_summary_narrows_an_interval_as_a_log_does(tmp_path):
    """A server 8 % slower than the profile says, with other arrivals; also with a log of another run."""
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario({**KNOWN, "interval": [0.8, 1.3]}, tokens=TOKENS)))
    columns = run(4, 100, {**KNOWN, "drift": {"mean": 1.08}})
    (tmp_path / "one.json").write_text(json.dumps(vllm(columns, 4)))
    log = write_log(tmp_path / "log.csv", columns)
    for more in ([], ["--observe", log, "--force"]):
        profile, service = fitted(tmp_path, "--observe", tmp_path / "one.json", *more, "--server", path)
        low, high = service.interval
        assert 0.95 < low < 1.08 < high < 1.25 and profile["measured"]["interval_before"] == [0.8, 1.3]
    done = invoke("--observe", tmp_path / "one.json", "--unit", "ms", "--server", path, "--out", tmp_path)
    assert done.exit_code == 2 and "--unit and --where are for tables" in done.output
    (tmp_path / "few.json").write_text(json.dumps({**vllm(columns, 4), "completed": 0.3}))
    done = invoke("--observe", tmp_path / "few.json", "--server", path, "--out", tmp_path)
    unchanged = f"the interval is unchanged: {tmp_path}/few.json has fewer than 10 answers of several tokens"
    assert done.exit_code == 0 and unchanged in " ".join(done.output.split()), done.output


def test_the_standard_error_of_a_summary_is_that_of_two_random_loads(tmp_path):
    """Of 60 known servers, the intervals from 40 requests had 56; 36 without this error.  Few requests say nothing."""
    path, file = tmp_path / "server.yaml", tmp_path / "one.json"
    path.write_text(yaml.safe_dump(scenario(KNOWN, tokens=TOKENS)))
    file.write_text(json.dumps(vllm(run(4, 40, KNOWN), 4)))
    server = SummaryServer(path, file)
    times, front = server.service.times, server.service.front_end
    loads = server.behind(times, front, 10)
    assert len(set(loads)) == 10 and loads[-1] == server.behind(times, front)[0]
    error = server.standard_error(times, front)
    assert error == pytest.approx(2**0.5 * np.std(loads, ddof=1) * 1.8331 / 1.6449, rel=1e-3)
    assert abs(loads[-1]) < 3 * error < 0.5
    server.count = 9
    assert server.standard_error(times, front) == math.inf


@pytest.mark.nightly
def test_the_posterior_has_the_factor_of_another_run_nine_of_ten_times(tmp_path):
    """200 servers, drawn from the interval before; each runs once for the log, and once more: 0.1 % of tests fail."""
    prior, drift = Interval(0.8, 1.3), 0.02
    server = plain(tmp_path / "server.yaml", [prior.low, prior.high])
    times, front = server.service.times, server.service.front_end
    middle, spread = prior.normal
    inside, narrower = 0, 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        speed = generator.normal(middle, math.sqrt(spread**2 - drift**2))
        measured, other = speed + generator.normal(0.0, drift, 2)
        first, latency, _ = server.simulated(scaled(times, math.exp(measured)), front)
        spans = (latency - first) * np.exp(generator.normal(0.0, 0.1, len(first)))
        server.log = replace(server.log, ttft=first, latency=first + spans)
        _, after = server_log.observed([server])
        inside += after.low <= math.exp(other) <= after.high
        narrower += after.high / after.low < prior.high / prior.low
    assert narrower == 200 and binomtest(inside, 200, 0.9).pvalue > 1e-3


def test_the_standard_error_of_a_pace_halves_with_four_times_the_requests(tmp_path, monkeypatch):
    """Its mean over 300 logs is that of noise of 10 % by request; without requests nothing changes, to the byte."""
    server = plain(tmp_path / "server.yaml", [0.8, 1.3])
    means = []
    for count in (100, 400):
        generator, flat = np.random.default_rng(count), np.ones(count)
        monkeypatch.setattr(server, "simulated", lambda *_, flat=flat: (0 * flat, flat, None))
        errors = []
        for _ in range(300):
            noise = np.exp(generator.normal(0.0, 0.1, count))
            server.log = replace(server.log, output=1 + flat, ttft=0 * flat, latency=noise)
            errors.append(server.standard_error(server.service.times, 0.0))
        means.append(np.mean(errors))
    parts = np.random.default_rng(1).normal(size=(20_000, 10))  # independent ones, of unit variance
    parts -= parts.mean(axis=1, keepdims=True)
    alike = np.sum(parts[:, 1:] * parts[:, :-1], axis=1) / np.sum(parts**2, axis=1)  # in the mean -1 / 10
    lengthened = np.mean(np.sqrt(1 + 2 * np.maximum(0, alike + 0.1)) * np.sqrt(np.sum(parts**2, axis=1) / 9))
    t_over_z = 1.8331 / 1.6449  # of nine degrees of freedom
    assert means == pytest.approx([0.1 / count**0.5 * t_over_z * lengthened for count in (100, 400)], rel=0.06)
    server.log = replace(server.log, output=flat)
    before, after = server_log.observed([server])
    assert after is before and (before.low, before.high) == (0.8, 1.3)


def test_slow_disturbances_lengthen_the_standard_error(tmp_path, monkeypatch):
    """Of a pace with disturbances as long as an eighth of the log: 63 % inside if parts counted as independent."""
    server = plain(tmp_path / "server.yaml", [0.8, 1.3])
    count, keep, generator = 200, math.exp(-8 / 200), np.random.default_rng(5)
    flat, noise, inside = np.ones(count), generator.normal(size=400), 0
    monkeypatch.setattr(server, "simulated", lambda *_: (0 * flat, flat, None))
    logs = []
    for _ in range(count):
        noise = keep * noise + math.sqrt(1 - keep**2) * generator.normal(size=400)
        logs.append(0.01 * noise)
    for log in np.transpose(logs):
        server.log = replace(server.log, output=1 + flat, ttft=0 * flat, latency=np.exp(log))
        inside += abs(log.mean()) <= 1.6449 * server.standard_error(server.service.times, 0.0)
    assert 0.70 * 400 < inside < 0.9 * 400


@pytest.mark.slow
def test_a_fit_has_the_keys_of_the_profile_and_of_the_engine_that_it_replaces(tmp_path):
    """A scenario accepts what is written: fitted steps are in place of an engine, whose batching stays."""
    log = write_log(tmp_path / "log.csv", run(4, 140, KNOWN))
    preset = {**PRESET, "engine": "sglang-0.5", "max_num_seqs": 8}
    (tmp_path / "old.service.yaml").write_text(yaml.safe_dump({"service": preset}))
    (tmp_path / "server.yaml").write_text(yaml.safe_dump(on_h100({"kind": "llm", "profile": "old.service.yaml"})))
    profile, service = fitted(tmp_path, "--from", log, "--server", tmp_path / "server.yaml")
    assert service.engine is None and service.step.decode.fixed == pytest.approx(12e-3, rel=0.05)
    assert (service.max_num_seqs, service.max_num_batched_tokens) == (8, 8192)
    assert profile["service"]["batching"] == engines.defaults("sglang-0.5")["batching"]


def test_the_drift_of_a_service_is_in_its_interval_once(tmp_path):
    """Two runs of known servers: each narrows as one of two measurements; steps are on average longer by its mean."""
    drift = {"cv": 0.02, "mean": 1.1}
    prior = np.exp([-1.6449 * 0.02, 1.6449 * 0.02]).tolist()  # what one run leaves of a wide interval
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario({**KNOWN, "interval": prior, "drift": drift}, tokens=TOKENS)))
    log = write_log(tmp_path / "log.csv", run(0.5, 40, {**KNOWN, "drift": {"mean": 1.1}}))  # requests are alone
    server = Server(path, request_log.read(log, None, {}))
    _, after = server_log.observed([server])
    assert after.normal == pytest.approx((0.0, 0.02 / 2**0.5), abs=2e-4)


@pytest.mark.slow
def test_a_profile_of_a_language_model_is_compared_with_logs_that_it_was_not_fitted_to(tmp_path):
    """Its steps are those of the server: no error.  With an interval around 1.1 the latencies grow by 10 %."""
    log, server = write_log(tmp_path / "log.csv", run(0.5, 20, KNOWN)), tmp_path / "server.yaml"
    server.write_text(yaml.safe_dump(scenario({**KNOWN, "step": {"fixed": "9 s"}}, tokens=TOKENS)))
    profile, shown = tmp_path / "own.service.yaml", []
    options = ["calibrate", "--verify", str(profile), "--from", str(log), "--server", str(server), "--json"]
    for factor in (1.0, 1.1):
        keys = {} if factor == 1 else {"interval": [1.0, factor**2]}
        profile.write_text(yaml.safe_dump({"service": {**KNOWN, **keys}}))
        result = CliRunner().invoke(main, options)
        assert result.exit_code == 0, result.output
        figures = json.loads(result.output)["figures"]
        shown.append([figures[name]["simulated"] / figures[name]["measured"] for name in figures])
    assert shown[0] == pytest.approx([1.0] * 4, rel=1e-3)
    assert shown[1][1:3] == pytest.approx([1.1] * 2, rel=0.03) and sorted(tmp_path.glob("*.yaml")) == [profile, server]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "log.csv").write_bytes(log.read_bytes())
    result = CliRunner().invoke(main, [*options, "--from", str(tmp_path / "b" / "log.csv")])
    assert len(json.loads(result.output)["figures"]) == 8, result.output  # equal names of files are told apart
    without = CliRunner().invoke(main, options[:5])
    assert without.exit_code == 2 and "need --server YAML" in without.output


@pytest.mark.parametrize("drift", [None, {"cv": 0.03}])
def test_several_logs_narrow_an_interval_as_runs_with_errors_of_their_own(tmp_path, monkeypatch, drift):
    """Normal prior and measurements by hand; a log without answers says nothing; another run has a drift again."""
    path, sigma = tmp_path / "server.yaml", 0.1
    keys = {"interval": np.exp([-1.6449 * sigma, 1.6449 * sigma]).tolist()} | ({"drift": drift} if drift else {})
    path.write_text(yaml.safe_dump(scenario({**KNOWN, **keys}, tokens=TOKENS)))
    log = write_log(tmp_path / "log.csv", run(0.5, 40, KNOWN))
    found = iter([(0.08, 0.01), (0.02, 0.03), (0.5, math.inf)])
    monkeypatch.setattr(server_log, "pace", lambda *_: next(found))
    _, after = server_log.observed([Server(path, request_log.read(log, None, {})) for _ in range(3)])
    cv = 0.02 if drift is None else 0.03
    own = sigma**2 - (0.02**2 if drift is None else 0.0)
    weights = 1 / np.array([own, 0.01**2 + cv**2, 0.03**2 + cv**2])
    middle = np.average([0.0, 0.08, 0.02], weights=weights)
    spread = math.sqrt(1 / weights.sum() + (cv**2 if drift is None else 0.0))
    assert after.normal == pytest.approx((middle, spread), rel=1e-6)


@pytest.mark.parametrize(("drift", "expected"), [(None, 0.02 * 1.625**0.5), (0.03, 0.03 * 0.625**0.5)])
def test_the_runs_of_the_logs_are_in_the_interval_of_a_fit(drift, expected):
    """Logs of 1 and 3 requests per second count 1 : 3, so their runs do; a drift of the service draws the other run."""
    service = SimpleNamespace(drift=None if drift is None else SimpleNamespace(cv=drift))
    logs = [
        SimpleNamespace(load=load_, service=service, drift=drift or 0.02, standard_error=lambda *_: 0.0)
        for load_ in (1.0, 3.0)
    ]
    found = server_log._Found(LinearSteps(), 0.0, 0.0)
    assert server_log._spread(logs, found, [0.0, 0.0]) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "options", "code", "message"),
    [
        ({}, ["--unit", "furlong"], 2, "--unit must be one of"),
        ({}, ["--samples"], 2, "--samples has no effect with --observe"),
        ({"interval": [1.2, 1.1]}, [], 3, "server.yaml:15:5: workload.0.service.interval: the first number must be"),
        ({"kv": {"tokens": 160}}, [], 3, "requests need more KV blocks than a replica has and are rejected"),
        ({"also_on": [{"device": "h", "step": TRUE}]}, [], 3, "to one type of device; leave out also_on"),
        ({"kind": "other"}, [], 3, "server.yaml:13:3: workload.0.service: the workload entry must have service:"),
        ({"interval": [2.0, 2.1]}, [], 0, "log.csv do not overlap; does"),
    ],
)
def test_what_observe_says(tmp_path, change, options, code, message):
    """Options and keys that cannot be, at their lines; and a log that the interval before excludes."""
    log = write_log(tmp_path / "log.csv", run(4, 40, KNOWN))
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(scenario({**KNOWN, "interval": [0.8, 1.25], **change}, tokens=TOKENS)))
    done = invoke("--observe", log, "--server", path, "--out", tmp_path, *options)
    assert (done.exit_code, message in done.output) == (code, True), done.output
    assert (tmp_path / "log.service.yaml").exists() == (code == 0)


def test_an_interval_of_ones_own_is_drawn_or_used_in_its_middle():
    """Steps have its middle, or draws from it; the warning names the bounds, and the sensitivity is of interest."""
    more = ({"interval": [0.9, 1.6]}, {"interval": [1.1999, 1.2001], "uncertain": True}, {})
    loaded = [load(scenario({**KNOWN, **one})) for one in more]
    runs = [one.build() for one in loaded]
    factors = [run.tasks.time[0] / runs[2].tasks.time[0] for run in runs]
    assert factors == pytest.approx([1.2, 1.2, 1.0], rel=1e-3)
    bounds = "chat: steps take, 90 %: at least 0.90, at most 1.60 times as long (requests of this server"
    assert bounds in " ".join(runs[0].warnings)
    assert [bool(longer_steps(one)) for one in loaded] == [True, True, False]
    limits = {**KNOWN, "slo": {"tpot": "11 ms"}}  # steps take 12 ms, or 10.8 ms with the interval's first factor
    load(scenario({**limits, **more[0]}))
    with pytest.raises(ScenarioError, match="no request can meet a tpot of 11 ms: a step takes 12"):
        load(scenario(limits))
    with pytest.raises(ScenarioError, match="the first number must be below the second"):
        load(scenario({**KNOWN, "interval": [1.1, 1.0]}))
    with pytest.raises(ScenarioError, match="uncertain needs interval, or a measured engine"):
        load(scenario({**KNOWN, "uncertain": True}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "factor", "message"),
    [
        ({**SERVER, "step": TRUE}, 1.0, "names no engine, whose interval a log could narrow"),
        (PRESET, 8.0, "no factor on the steps of"),
    ],
)
def test_logs_that_narrow_nothing(tmp_path, service, factor, message):
    log = observed_log(tmp_path / "log.csv", factor, count=60)
    path = tmp_path / "server.yaml"
    path.write_text(yaml.safe_dump(on_h100(service, **DEMAND)))
    done = invoke("--observe", log, "--server", path, "--out", tmp_path)
    assert done.exit_code == 3 and message in done.output, done.output
    assert invoke("--observe", log, "--from", log).exit_code == invoke("--observe", log).exit_code == 2
