"""Services against closed forms, exact Markov chains and published formulas."""

import math

import numpy as np
import pytest
from scipy import stats
from tiers import spread

import hetsim as hs
from hetsim.engine.simulation import Simulation
from hetsim.results.one_run.result import Result
from hetsim.results.statistics import student_interval
from hetsim.scenario.scenario import load

A_UP, B_UP, A_CALC, B_CALC, B_DOWN = 0.114e-3, 0.15e-3, 1.264e-3, 13e-3, 0.05e-3
A, B = A_UP + A_CALC, B_UP + B_CALC + B_DOWN


def served(arrivals, batching="serial_greedy", streams=1, pcie=None, download=0.0, **more):
    """One GPU with the stage times of ResNet-50 on a GTX 1080 Ti."""
    node = {"gpus": {"type": "gpu", "streams": streams}}
    if pcie:
        node["pcie"] = pcie
    service = {
        "upload": {"per_item": f"{A_UP!r} s", "fixed": f"{B_UP!r} s"},
        "compute": {"per_item": f"{A_CALC!r} s", "fixed": f"{B_CALC!r} s"},
        "download": {"per_item": f"{download!r} s", "fixed": f"{B_DOWN!r} s"},
    }
    entry = {"name": "r", "service": {**service, **more.pop("service", {})}, "arrivals": arrivals}
    for key in ("count", "until"):
        if key in more:
            entry[key] = more.pop(key)
    return {
        "name": "theory",
        "cluster": {"nodes": [node]},
        "workload": [entry],
        "policy": {"batching": batching},
        **more,
    }


def poisson(rate):
    return {"process": "poisson", "rate": f"{rate}/s"}


def clockwork(rate):
    return {"process": "deterministic", "rate": f"{rate}/s"}


def saturated(clients=256):
    return {"process": "closed", "clients": clients, "think": 0}


# Fixed points ---------------------------------------------------------------------------------------------------


@pytest.mark.quick(1)
@pytest.mark.parametrize("rate", [100, 300, 500, 650])
def test_batches_of_serial_greedy_come_to_the_fixed_point(rate):
    """n = b c / (1 - a c); a batch's first request takes up to 2 τ and all between τ and 2 τ."""
    result = hs.run(served(clockwork(rate), horizon="40 s", warmup="5 s"), check=False)
    launches = result.launches[result.launches["decided"] > 5]
    size = B * rate / (1 - A * rate)
    assert abs(launches["members"].mean() - size) <= 0.5
    assert launches["members"].max() - launches["members"].min() <= 2 + 0.05 * size
    response = result.tasks["response"][result.tasks["arrival"] > 5].dropna()
    tau = A * size + B
    slack = A * 1.5 + 1 / rate
    assert response.max() <= 2 * tau + 3 * slack
    assert response.min() >= tau - 2 * slack
    assert response.mean() == pytest.approx(1.5 * tau, abs=slack)


def test_a_latency_limit_gives_the_papers_capacity():
    """The largest batch whose first request, at the fixed point, takes L = 2 τ(n) gives 1/a - (2b/a)/L."""
    limit = 0.25
    size = (limit - 2 * B) / (2 * A)
    result = hs.run(served(saturated(), count=8_000, service={"max_batch": int(size)}))
    launches = result.launches[5:-10]
    rate = len(launches) * int(size) / (launches["end"].iloc[-1] - launches["decided"].iloc[0])
    assert rate == pytest.approx(1 / A - (2 * B / A) / limit, rel=0.5 / size)


@pytest.mark.quick(1)
@pytest.mark.parametrize("rate", [300, 500, 700])
def test_async_linear_is_in_flow_balance(rate):
    """n = c τ_calc(n), not the slides' c (τ_calc(n) - τ_up(n)), and the compute engine never idles."""
    result = hs.run(served(clockwork(rate), "async_linear", 2, horizon="30 s", warmup="5 s"))
    launches = result.launches[result.launches["decided"] > 10]
    size = B_CALC * rate / (1 - A_CALC * rate)
    assert launches["members"].mean() == pytest.approx(size, rel=0.03)
    slides = (B_CALC - B_UP) * rate / (1 - (A_CALC - A_UP) * rate)
    assert slides < 0.95 * launches["members"].mean()
    gaps = launches["compute_start"].to_numpy()[1:] - launches["compute_end"].to_numpy()[:-1]
    assert gaps.mean() < 0.01 * launches["busy"].mean()


# Throughput of a pipeline ---------------------------------------------------------------------------------------


@pytest.mark.quick(3)
@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("duplex", ["full", "half"])
@pytest.mark.parametrize("download", [0.0, 1.5e-3])
def test_throughput_of_a_pipeline(streams, duplex, download):
    """Batches per second: min(1 / longest stage, streams / all stages); on a half-duplex link upload and download are
    one stage.  A bound in general, as fixed orders may lose some; reached with one stream and with enough."""
    size = 32
    stages = [A_UP * size + B_UP, A_CALC * size + B_CALC, download * size + B_DOWN]
    longest = max(stages) if duplex == "full" else max(stages[0] + stages[2], stages[1])
    bound = min(1 / longest, streams / sum(stages))
    pcie = {"upload": "12 GB/s", "download": "12 GB/s", "duplex": duplex}
    scenario = served(saturated(), "serial_greedy" if streams == 1 else {"name": "fixed_size", "size": size}, streams,
                      pcie, download, count=4_000, service={"max_batch": size})  # fmt: skip
    launches = hs.run(scenario).launches
    ends = np.sort(launches["end"].to_numpy())[5:-10]
    rate = (len(ends) - 1) / (ends[-1] - ends[0])
    assert rate <= bound * (1 + 1e-9)
    if streams == 1 or not download or (streams == 3 and duplex == "full"):
        assert rate == pytest.approx(bound, rel=1e-6)


# Greedy batch service, exactly ----------------------------------------------------------------------------------


def greedy_batch_queue(rate, fixed, slope):
    """Batch sizes at service starts (probabilities of 1, 2, ...), and the mean response, of a greedy server with
    deterministic batch times fixed + slope·n and Poisson arrivals.

    The sizes at service starts are a Markov chain: after n, as many as arrive during the batch, at least 1.  By
    renewal-reward a cycle costs n·τ(n) for those in service and rate·τ(n)²/2 for those that arrive meanwhile, and lasts
    τ(n) plus, if nobody came, the time to the next arrival.
    """
    middle = rate * fixed / (1 - rate * slope)
    most = int(middle + 14 * math.sqrt(middle / (1 - (rate * slope) ** 2)) + 60)
    size = np.arange(1, most + 1)
    tau = fixed + slope * size
    chain = stats.poisson.pmf(np.arange(most + 1)[None, :], rate * tau[:, None])
    nobody = chain[:, 0].copy()
    chain[:, 1] += nobody
    chain = chain[:, 1:]
    chain[:, -1] += 1 - chain.sum(axis=1)
    equations = chain.T - np.eye(most)
    equations[-1] = 1
    share = np.linalg.solve(equations, np.eye(most)[-1])
    cycle = share @ (tau + nobody / rate)
    present = share @ (size * tau + rate * tau**2 / 2)
    return share, present / cycle / rate


def inoue_bounds(rate, fixed, slope):
    """Inoue, Queueing Analysis of GPU-Based Inference Servers with Dynamic Batching: A Closed-Form Characterization
    (2021): two upper bounds of the mean response.

    The second is that of a server which never idles but serves empty batches: sizes with mean m = λb/(1 - λa) and
    variance m/(1 - (λa)²), put into the formula of `greedy_batch_queue`.
    """
    load, beside = rate * slope, rate * fixed
    light = (slope + fixed) / (2 * (1 - load)) * (1 + 2 * beside + (1 - beside) / (1 + load))
    heavy = 1.5 * fixed / (1 - load) + 0.5 * slope * (load + 2) / (1 - load**2)
    return light, heavy


@pytest.mark.parametrize("fixed_part", spread([0.1, 1, 10, 100], 1))
@pytest.mark.parametrize("load", [0.05, 0.3, 0.6, 0.9])
def test_the_chain_keeps_inoues_bounds(load, fixed_part):
    """And they are as close as he says: the heavy one next to exact where batches are large."""
    _, response = greedy_batch_queue(load, fixed_part, 1.0)
    bounds = inoue_bounds(load, fixed_part, 1.0)
    assert response <= min(bounds) * (1 + 1e-9)
    if load * fixed_part > 10:
        assert response == pytest.approx(min(bounds), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [20, 196, 400])
def test_greedy_batch_service_is_its_markov_chain(rate):
    check_against_the_chain(rate, 40, 12)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [100, 300, 500, 600, 653])
def test_greedy_batch_service_is_its_markov_chain_under_more_loads(rate):
    check_against_the_chain(rate, 150, 20)


def greedy_batches(arrival, horizon):
    """When each batch starts, and its size: all that have come when the one before ends."""
    starts, sizes, first, now = [], [], 0, 0.0
    while first < len(arrival) and (now := max(now, arrival[first])) < horizon:
        last = int(np.searchsorted(arrival, now, side="right"))
        starts.append(now)
        sizes.append(last - first)
        first, now = last, now + A * (last - first) + B
    return np.array(starts), np.array(sizes)


def check_against_the_chain(rate, seconds, replications):
    """The mean response and the mean batch, within their intervals at 99.9 %.

    The batches of each replication are reckoned one after another; the engine runs the first and the last, and its
    launches are these.
    """
    share, response = greedy_batch_queue(rate, B, A)
    of = load(served(poisson(rate), horizon=f"{seconds} s", warmup=f"{seconds / 10} s"))
    responses, sizes = np.empty((2, replications))
    for replication in range(replications):
        arrival = of.build(replication=replication).tasks.arrival
        decided, members = greedy_batches(arrival, seconds)
        finish = np.repeat(decided + A * members + B, members)
        counted = (arrival[: len(finish)] > seconds / 10) & (finish <= seconds)
        responses[replication] = (finish - arrival[: len(finish)])[counted].mean()
        sizes[replication] = members[decided > seconds / 10].mean()
        if replication in (0, replications - 1):
            run = Result(Simulation(of.build(replication=replication)).run())
            assert run.launches["members"].tolist() == members.tolist()
            assert run.launches["decided"].to_numpy() == pytest.approx(decided)
            assert run.metric("response_mean") == pytest.approx(responses[replication])
    assert student_interval(responses, 0.999).covers(response)
    mean = share @ np.arange(1, len(share) + 1)
    assert student_interval(sizes, 0.999).covers(mean)


def test_the_chain_itself():
    """Alone at low load; at high load never idle, with the fluid's batches."""
    share, response = greedy_batch_queue(1e-6, B, A)
    assert share[0] == pytest.approx(1)
    assert response == pytest.approx(A + B, rel=1e-6)
    for rate in (196, 400, 653):
        share, response = greedy_batch_queue(rate, B, A)
        mean = share @ np.arange(1, len(share) + 1)
        fluid = B * rate / (1 - A * rate)
        assert fluid * (1 - 1e-9) <= mean <= fluid + 1  # those who come to an idle server make the difference
        assert 1.5 * (A * fluid + B) <= response


# Closed loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 5, 40])
def test_closed_loop_without_thinking(clients):
    """All clients are in every batch: N per τ(N), and the response is τ(N)."""
    launches = hs.run(served(saturated(clients), count=40 * clients)).launches
    assert (launches["members"] == clients).all()
    assert np.diff(launches["end"]).tolist() == pytest.approx([A * clients + B] * 39)


@pytest.mark.quick(1)
@pytest.mark.parametrize("clients", [2, 64])
def test_closed_loop_on_two_streams(clients):
    """Every client is in one of two batches that take turns: N per τ_calc(n₁) + τ_calc(n₂), if n₁ + n₂ = N; and
    Little's law gives the response."""
    result = hs.run(served(saturated(clients), "async_linear", 2, count=400 * clients))
    launches = result.launches[40:-40]
    rate = launches["members"].sum() / (launches["end"].iloc[-1] - launches["end"].iloc[0])
    most = clients / (A_CALC * clients + 2 * B_CALC)
    assert rate <= clients / (A_CALC * clients + B_CALC)
    assert rate >= 0.9 * most
    tasks = result.tasks[40 * clients : -40 * clients]
    assert rate * tasks["response"].mean() == pytest.approx(clients, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("think", [0.05, 1.0])
def test_closed_loop_of_thinking_clients(think):
    """Little's law for the loop: N = X (R + Z), up to the ends of the run."""
    arrivals = {"process": "closed", "clients": 50, "think": {"distribution": "exponential", "mean": f"{think} s"}}
    result = hs.run(served(arrivals, horizon=f"{200 * (0.1 + think)} s", warmup=f"{20 * (0.1 + think)} s"))
    throughput, response = result.metric("throughput"), result.metric("response_mean")
    assert throughput * (response + think) == pytest.approx(50, rel=0.05)
    chain = 50 / (think + A * 50 + B), 50 / think
    assert chain[0] * 0.9 <= throughput <= chain[1]
