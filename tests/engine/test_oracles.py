"""Closed forms of queueing theory: the simulation's 99 % interval must cover the exact value.

The formulas are those of `hetsim.theory` (which `test_theory.py` tests by themselves) where it has them.

Every test goes the whole way from a scenario to `hetsim.run(...).interval(...)`, over at least 20 replications with
fixed seeds; where a recursion of a few lines gives the same waits, it replaces most of the runs
(`reckoned`).  Each docstring quotes the formula it checks, in the usual letters: λ arrival rate, S service time,
μ = 1 / E[S], c servers, ρ = λ E[S] / c, W time in queue (`wait`), T time in system (`response`), L tasks in system.

Runs start empty.  A single server forgets that within a few relaxation times, 1 / (μ (1 - √ρ)²): 38 service times
at ρ = 0.7.  Tasks that arrive during the first `WARMUP` are not counted; that is more than ten of these.  Arrivals
end with the time given and the run goes on until drained, so that no long task is cut off; what is averaged over
time instead has a horizon.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from recursions import Times, by_order, in_line, reckoned, shared, sizes
from scipy import integrate, special

import hetsim as hs
from hetsim import theory
from hetsim.model.task import Task
from hetsim.model.tasks import Tasks
from hetsim.policy import Accept, Admission, Reject, View
from hetsim.results.many_runs.replications import Replications
from hetsim.results.one_run.usage_metrics import littles_law

WARMUP = 500.0
CONFIDENCE = 0.99
Part = dict[str, Any]


# Scenarios -------------------------------------------------------------------------------------------------------


def exponential(mean: float = 1.0) -> Part:
    return {"distribution": "exponential", "mean": f"{mean} s"}


def lognormal(mean: float = 1.0, cv: float = 1.5) -> Part:
    return {"distribution": "lognormal", "mean": f"{mean} s", "cv": cv}


def poisson(rate: float) -> Part:
    return {"process": "poisson", "rate": f"{rate}/s"}


def gpus(count: int = 1, cpus: int = 0, **more: Any) -> Part:
    """A node with GPUs."""
    return {"cpus": cpus, "gpus": {"type": "gpu", "count": count, **more}}


def scenario(nodes: Part, *entries: Part, policy: Any = "fcfs", until: float = 10_000.0, **more: Any) -> Part:
    """A scenario that runs until drained; with `horizon=` it ends there, and so do arrivals."""
    limit = {} if "horizon" in more else {"until": f"{until} s"}
    return {
        "name": "oracle",
        "warmup": f"{WARMUP} s",
        "cluster": {"nodes": [nodes]},
        "workload": [{**limit, **entry} for entry in entries],
        "policy": policy,
        **more,
    }


def one_server(rate: float, size: Part, **more: Any) -> Part:
    """One GPU, one stream of Poisson arrivals."""
    return scenario(gpus(), {"arrivals": poisson(rate), "gpu_time": size}, **more)


def replicated(of: Part, seed: int, replications: int = 20, **more: Any) -> Replications:
    return hs.replicate(of, seed=seed, replications=replications, **more)


def covered(runs: Replications, **exact: float) -> None:
    """The interval of every metric named covers its exact value."""
    for metric, value in exact.items():
        interval = runs.interval(metric, confidence=CONFIDENCE)
        assert interval.covers(value), f"{interval} does not cover {value:.6g}"


def waits(servers: int = 1) -> Callable[[Tasks], Times]:
    """In order of arrival."""
    return lambda tasks: in_line(tasks.arrival, sizes(tasks), servers)


# Formulas --------------------------------------------------------------------------------------------------------


def second_moment(mean: float, cv: float) -> float:
    return mean**2 * (1 + cv**2)


# One server, several servers -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_mm1_wait_response_and_percentile():
    """M/M/1: E[W] = ρ / (μ - λ), E[T] = 1 / (μ - λ), and T is exponential, so that its 95th percentile is
    ln 20 / (μ - λ)."""
    exact = theory.mm1(0.7, 1)
    wanted = {
        "wait_mean": exact.wait_mean,
        "response_mean": exact.response_mean,
        "response_p95": exact.response_percentile(0.95),
    }
    reckoned(one_server(0.7, exponential()), 1, waits(), wanted)


@pytest.mark.slow
def test_mm1_time_averages():
    """M/M/1 seen over time: L = ρ / (1 - ρ), Lq = ρ² / (1 - ρ), busy a share ρ, throughput λ, and therefore
    E[power] = idle + ρ (busy - idle)."""
    of = one_server(0.6, exponential(), horizon="10000 s")
    of["cluster"]["nodes"][0]["gpus"]["power"] = {"idle": "50 W", "busy": "250 W"}
    runs = replicated(of, seed=2)
    covered(runs, jobs_in_system_mean=0.6 / 0.4, queue_length_mean=0.36 / 0.4, gpu_utilization=0.6, throughput=0.6)
    covered(runs, energy_j=(50 + 200 * 0.6) * (10_000 - WARMUP))


@pytest.mark.parametrize(
    ("nodes", "demand"),
    [
        pytest.param(gpus(4), {"gpu_time": exponential()}, id="GPUs"),
        pytest.param({"cpus": 4}, {"cpu_time": exponential()}, id="cores"),
    ],
)
@pytest.mark.slow
def test_mm4_wait_is_erlang_c(nodes: Part, demand: Part):
    """M/M/4: E[W] = C(4, 3) / (4 - 3).  The shipped scenario mm16 tests sixteen servers."""
    of = scenario(nodes, {"arrivals": poisson(3), **demand}, until=4_000)
    reckoned(of, 4, waits(4), {"wait_mean": theory.mmc(3, 1, 4).wait_mean})


@functools.cache
def four_gpus() -> Any:
    """What each of the six is compared with."""
    return hs.run(scenario(gpus(4), {"arrivals": poisson(3), "gpu_time": exponential()}, until=1_000), seed=4)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("nodes", "demand"),
    [
        pytest.param({**gpus(2), "count": 2}, {"gpu_time": exponential()}, id="GPUs of two nodes"),
        pytest.param(gpus(1), {"gpu_time": exponential(), "gpus": 0.25}, id="quarters of a GPU"),
        pytest.param(gpus(8), {"gpu_time": exponential(), "gpus": 2}, id="pairs of GPUs"),
        pytest.param(gpus(8, cpus=12), {"gpu_time": exponential(), "cpus": 3}, id="cores beside GPUs"),
        pytest.param(gpus(4, speed=2), {"gpu_time": exponential(2)}, id="GPUs of double speed"),
        pytest.param({**gpus(9, memory="16 GB"), "cpus": 16, "memory": "13 GB"},
                     {"gpu_time": exponential(), "gpus": 0.5, "gpu_memory": "9 GB", "cpus": 1, "memory": "3 GB"},
                     id="host memory"),
    ],
)  # fmt: skip
def test_mm4_in_six_disguises(nodes: Part, demand: Part):
    """Whatever it is of which there are four: tasks start and finish as with four GPUs, to the last bit."""
    four = four_gpus()
    same: Any = hs.run(scenario(nodes, {"arrivals": poisson(3), **demand}, until=1_000), seed=4)
    assert four.metric("wait_mean") > 0.1
    for column in ("start", "finish"):
        assert same.tasks[column].tolist() == four.tasks[column].tolist()


@pytest.mark.slow
def test_mg1_lognormal_is_pollaczek_khinchine():
    """M/G/1: E[W] = λ E[S²] / (2 (1 - ρ)), here with lognormal S of coefficient of variation 1.5."""
    exact = theory.mg1(0.6, 1, 1.5**2)
    of = one_server(0.6, lognormal(1, 1.5), until=20_000)
    reckoned(of, 5, waits(), {"wait_mean": exact.wait_mean, "response_mean": exact.response_mean})


@pytest.mark.slow
def test_md1():
    """M/D/1: E[W] = ρ / (2 μ (1 - ρ)), half of that of M/M/1; its distribution is Franx's (2001)."""
    exact = theory.md1(0.8, 1)
    of = one_server(0.8, {"distribution": "constant", "value": "1 s"})
    reckoned(of, 6, waits(), {"wait_mean": exact.wait_mean, "wait_p95": exact.wait_percentile(0.95)})


@pytest.mark.slow
@pytest.mark.parametrize("scv", [0.25, 4.0])
def test_gim1_by_its_root(scv: float):
    """GI/M/1: E[W] = σ / (μ (1 - σ)), where σ = A*(μ (1 - σ)) and A* is the transform of the gaps: gamma gaps have
    A*(s) = (1 + s scv / λ)^(-1/scv), hyperexponential ones with balanced means Σ p_i r_i / (r_i + s)."""
    rate = 0.7
    if scv < 1:

        def complement(s: float) -> float:
            return 1 - (1 + s * scv / rate) ** (-1 / scv)
    else:
        share = (1 + math.sqrt((scv - 1) / (scv + 1))) / 2

        def complement(s: float) -> float:
            return 1 - sum(p * (2 * p * rate) / (2 * p * rate + s) for p in (share, 1 - share))

    exact = theory.gim1(rate, 1, complement)
    gaps = {"process": "renewal", "rate": f"{rate}/s", "scv": scv}
    of = scenario(gpus(), {"arrivals": gaps, "gpu_time": exponential()})
    reckoned(of, 8, waits(), {"wait_mean": exact.wait_mean, "wait_p95": exact.wait_percentile(0.95)})


def test_dd1_is_exact():
    """D/D/1: nobody waits while S ≤ gap; with S = gap + d the n-th task waits n d, to the last bit."""
    arrivals = {"process": "deterministic", "interval": "1 s"}
    for size, grows in ((0.75, 0.0), (1.0, 0.0), (1.25, 0.25)):
        entry = {"arrivals": arrivals, "count": 1000, "gpu_time": f"{size} s"}
        result: Any = hs.run({**scenario(gpus(), entry), "warmup": 0, "workload": [entry]}, check=True)
        assert result.tasks["wait"].tolist() == [n * grows for n in range(1000)]
        assert result.tasks["finish"].tolist() == [max(n, n * size) + size for n in range(1000)]


@pytest.mark.slow
def test_littles_law_is_exact_on_a_drained_run():
    """L = λ W holds of every single run in which all tasks complete, not only on average."""
    for policy in ("fcfs", "sjf", "srtf"):
        of = {**one_server(0.9, lognormal(), until=2_000, policy=policy), "warmup": 0}
        result: Any = hs.run(of, seed=9)
        in_system, product = littles_law(result)
        assert in_system == pytest.approx(product, rel=1e-9)


# Orders and preemption -------------------------------------------------------------------------------------------

URGENT = {"name": "urgent", "arrivals": poisson(0.3), "gpu_time": exponential(), "priority": 2}
NORMAL = {"name": "normal", "arrivals": poisson(0.2), "gpu_time": lognormal(0.5, 1.5), "priority": 1}
PATIENT = {"name": "patient", "arrivals": poisson(0.15), "gpu_time": exponential(2), "priority": 0}
CLASSES = {
    "urgent": theory.Class(0.3, 1, 1),
    "normal": theory.Class(0.2, 0.5, 1.5**2),
    "patient": theory.Class(0.15, 2, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        "lcfs",
        "random",
        pytest.param({"name": "round_robin", "quantum": "0.5 s"}, id="round_robin", marks=pytest.mark.slow),
    ],
)
def test_orders_blind_to_sizes_share_one_mean(policy: Any):
    """M/M/1 under any work-conserving order that does not look at sizes: E[T] = 1 / (μ - λ), because what is left of
    an exponential S is as good as new.  With round robin nearly every task is stopped and resumed."""
    covered(replicated(one_server(0.6, exponential(), until=4_000, policy=policy), seed=26), response_mean=1 / 0.4)


def by_priority(stops: bool) -> Callable[[Tasks], Times]:
    """The greatest priority first, then in order of arrival."""
    return lambda tasks: by_order(tasks.arrival, sizes(tasks), lambda row, left: -tasks.priority[row], stops)


@pytest.mark.slow
def test_nonpreemptive_priorities_are_cobhams():
    """Cobham (1954): E[W_k] = Σ_i λ_i E[S_i²] / 2 / ((1 - σ_{k-1}) (1 - σ_k)), σ_k the load of classes 1 to k."""
    of = scenario(gpus(), URGENT, NORMAL, PATIENT, policy={"name": "priority", "preemptive": False})
    found = zip(CLASSES, theory.nonpreemptive(list(CLASSES.values())), strict=True)
    reckoned(of, 10, by_priority(False), {("wait_mean", name): exact.wait_mean for name, exact in found})


@pytest.mark.slow
def test_preemptive_resume_priorities():
    """Preemptive resume: E[T_k] = E[S_k] / (1 - σ_{k-1}) + Σ_{i ≤ k} λ_i E[S_i²] / 2 / ((1 - σ_{k-1}) (1 - σ_k))."""
    of = scenario(gpus(), URGENT, NORMAL, PATIENT, policy={"name": "priority", "preemptive": True})
    found = zip(CLASSES, theory.preemptive_resume(list(CLASSES.values())), strict=True)
    reckoned(of, 11, by_priority(True), {("response_mean", name): exact.response_mean for name, exact in found})


@pytest.mark.slow
def test_sjf_is_phipps():
    """Phipps (1956), M/G/1 with the shortest first: E[W] = λ E[S²] / 2 · ∫ dF(x) / (1 - ρ(x))²,
    ρ(x) = λ E[S; S ≤ x] = λ (1 - (1 + x) e^-x) for exponential S."""
    rate = 0.8
    mean, _ = integrate.quad(lambda x: math.exp(-x) / (1 - rate * (1 - (1 + x) * math.exp(-x))) ** 2, 0, math.inf)
    of = one_server(rate, exponential(), policy="sjf")
    shortest = lambda tasks: by_order(tasks.arrival, sizes(tasks), lambda row, left: left)  # noqa: E731
    reckoned(of, 12, shortest, {"wait_mean": rate * mean})


@pytest.mark.slow
def test_srtf_is_schrage_and_miller():
    """Schrage and Miller (1966), M/G/1 with the shortest remaining time first: a task of size x has
    E[T(x)] = λ (E[S²; S ≤ x] + x² P(S > x)) / (2 (1 - ρ(x))²) + ∫_0^x dt / (1 - ρ(t))."""
    rate = 0.8

    def free(x: float) -> float:
        return 1 - rate * (1 - (1 + x) * math.exp(-x))

    def response(x: float) -> float:
        # E[S²; S ≤ x] + x² P(S > x) = 2 (1 - (1 + x) e^-x) for exponential S
        queueing = rate * (1 - (1 + x) * math.exp(-x)) / free(x) ** 2
        return queueing + integrate.quad(lambda t: 1 / free(t), 0, x)[0]

    exact, _ = integrate.quad(lambda x: response(x) * math.exp(-x), 0, 60)
    of = one_server(rate, exponential(), policy="srtf", until=6_000)
    shortest = lambda tasks: by_order(tasks.arrival, sizes(tasks), lambda row, left: left, stops=True)  # noqa: E731
    reckoned(of, 13, shortest, {"response_mean": exact})


# Processor sharing -----------------------------------------------------------------------------------------------


def sharing(
    rate: float, size: Part, kind: Any = "timeslice", streams: int = 400, until: float = 4_500.0, **more: Any
) -> Part:
    """One GPU on which everybody starts at once and shares."""
    entry = {"arrivals": poisson(rate), "gpu_time": size, **more}
    return scenario(gpus(1, sharing=kind, streams=streams), entry, policy="processor_sharing", until=until)


def together(speed: Callable[[int], float], most: float = math.inf) -> Callable[[Tasks], Times]:
    """Each of k tasks runs at this speed."""
    return lambda tasks: shared(tasks.arrival, sizes(tasks), speed, most)


@pytest.mark.slow
@pytest.mark.parametrize("size", [exponential(), lognormal(1, 2)], ids=["exponential", "lognormal"])
def test_processor_sharing_knows_only_the_mean(size: Part):
    """M/G/1-PS: E[T] = 1 / (μ - λ) whatever the distribution of S, and E[T | S = x] = x / (1 - ρ), so that the mean
    slowdown is 1 / (1 - ρ).  Time slices without switch cost are processor sharing."""
    exact = {"response_mean": theory.mg1_ps(0.65, 1).response_mean, "slowdown_mean": 1 / 0.35}
    reckoned(sharing(0.65, size), 14, together(lambda k: 1 / k), exact)
    assert hs.run(sharing(0.65, size), seed=14).metric("wait_max") == 0


@pytest.mark.slow
def test_half_shares_on_one_gpu_are_processor_sharing_of_two():
    """Time slices of tasks that fill half a GPU: k of them run at rate min(1, 2 / k), an M/M/2-PS, whose number in
    system is that of M/M/2: E[T] = E[S] + C(2, a) / (2 - a)."""
    of = sharing(1.4, exponential(), gpus=0.5, until=3_000)
    exact = theory.mmc(1.4, 1, 2).response_mean
    reckoned(of, 15, together(lambda k: min(1, 2 / k)), {"response_mean": exact})


@pytest.mark.slow
def test_switch_cost_slows_all_but_a_lone_task():
    """Time slices with switch cost d: k tasks are served at total rate 1 - d for k > 1, else 1.  Birth and death
    with these rates gives L, and E[T] = L / λ."""
    rate, cost, most = 0.6, 0.1, 2_000
    chance = theory.birth_death([rate] * most, [1.0] + [1 - cost] * (most - 1))
    of = sharing(rate, exponential(), {"kind": "timeslice", "switch_cost": cost})
    exact = float(chance @ np.arange(most + 1)) / rate
    reckoned(of, 16, together(lambda k: (1 - cost) / k if k > 1 else 1), {"response_mean": exact})


@pytest.mark.slow
def test_interference_of_mps_by_birth_and_death():
    """MPS: k ≤ 4 quarter shares run at 1 / (1 + i (k - 1) / 4) each, later ones wait: birth and death with
    μ_k = min(k, 4) / (1 + i (min(k, 4) - 1) / 4)."""
    rate, interference, most = 1.9, 0.8, 2_000
    served = [min(k, 4) / (1 + interference * (min(k, 4) - 1) / 4) for k in range(1, most + 1)]
    chance = theory.birth_death([rate] * most, served)
    exact = float(chance @ np.arange(most + 1)) / rate
    of = sharing(rate, exponential(), {"kind": "mps", "interference": interference}, streams=1, gpus=0.25, until=2_000)
    pace = lambda k: served[k - 1] / k  # noqa: E731
    reckoned(of, 17, together(pace, 4), {"response_mean": exact})


# Stages ----------------------------------------------------------------------------------------------------------


def exponential_bytes(mean: str) -> Part:
    return {"distribution": "exponential", "mean": mean}


@pytest.mark.slow
@pytest.mark.parametrize("stages", [2, 3])
def test_stages_are_a_tandem(stages: int):
    """Burke (1956): in a tandem of M/M/1 queues each sees Poisson arrivals, E[T] = Σ 1 / (μ_i - λ).  The upload
    engine (exponential bytes over PCIe), the compute engine and the download engine serve launches in turn; with
    streams for all, no launch waits for another stage's queue."""
    rate, means = 0.6, (1.0, 0.8, 0.7)[:stages]
    entry = {"arrivals": poisson(rate), "gpu_time": exponential(means[1]), "bytes_in": exponential_bytes("1 GB")}
    if stages == 3:
        entry["bytes_out"] = exponential_bytes("0.56 GB")
    node = gpus(1, streams=300, pcie={"upload": "1 GB/s", "download": "0.8 GB/s"})
    exact = theory.tandem(rate, [theory.Station(mean) for mean in means])

    def each_in_turn(tasks: Tasks) -> Times:
        start, done = in_line(tasks.arrival, tasks.bytes_in / 1e9)
        _, done = in_line(done, sizes(tasks))
        return start, in_line(done, tasks.bytes_out / 0.8e9)[1] if stages == 3 else done

    wanted = {"response_mean": exact.response_mean, "response_p95": exact.response_percentile(0.95)}
    reckoned(scenario(node, entry, until=4_500), 18, each_in_turn, wanted)


@pytest.mark.slow
def test_serial_stages_are_one_service():
    """With one stream upload and compute are one service in a row: M/G/1 with S = U + C,
    E[S²] = Var U + Var C + (E U + E C)²."""
    rate = 0.6
    entry = {"arrivals": poisson(rate), "gpu_time": exponential(0.7), "bytes_in": exponential_bytes("0.5 GB")}
    of = scenario(gpus(1, streams=1, pcie={"upload": "1 GB/s"}), entry, until=6_000)
    exact = theory.mg1(rate, 1.2, (0.7**2 + 0.5**2) / 1.2**2)
    one = lambda tasks: in_line(tasks.arrival, tasks.bytes_in / 1e9 + sizes(tasks))  # noqa: E731
    reckoned(of, 20, one, {"wait_mean": exact.wait_mean, "response_mean": exact.response_mean})


@pytest.mark.slow
def test_uploads_through_one_switch_share_it():
    """Uploads of different GPUs behind one PCIe switch share its rate fairly: processor sharing, and then nobody
    waits for one of many GPUs: E[T] = 1 / (μ - λ) + E[C], for a lognormal size as well."""
    rate = 0.65
    node = gpus(40, pcie={"upload": "1000 GB/s"})
    node["pcie"] = {"switch": {"size": 40, "upload": "1 GB/s"}}
    size = {"distribution": "lognormal", "mean": "1 GB", "cv": 1.5}
    of = scenario(node, {"arrivals": poisson(rate), "gpu_time": exponential(0.5), "bytes_in": size}, until=4_500)

    def over_the_switch(tasks: Tasks) -> Times:
        start, uploaded = shared(tasks.arrival, tasks.bytes_in / 1e9, lambda k: 1 / k)
        return start, uploaded + sizes(tasks)

    reckoned(of, 21, over_the_switch, {"response_mean": 1 / (1 - rate) + 0.5})


# Closed loops, losses and patience -------------------------------------------------------------------------------


@pytest.mark.slow
def test_closed_loop_is_the_machine_repair_model():
    """N clients that think for 1 / ν each and c servers: birth and death with births (N - k) ν and deaths
    min(k, c) μ; throughput X = Σ p_k min(k, c) μ, L = Σ k p_k, and E[T] = N / X - 1 / ν."""
    clients, think, servers = 9, 4.0, 2
    exact = theory.closed_loop(clients, think, 1, servers)
    entry = {"arrivals": {"process": "closed", "clients": clients, "think": exponential(think)}}
    of = scenario(gpus(servers), {**entry, "gpu_time": exponential()}, horizon="6000 s")
    covered(
        replicated(of, seed=22),
        throughput=exact.throughput,
        gpu_utilization=exact.utilization,
        jobs_in_system_mean=exact.jobs_in_system_mean,
        response_mean=exact.response_mean,
    )


@pytest.mark.slow
@pytest.mark.parametrize("size", [exponential(), lognormal(1, 2)], ids=["exponential", "lognormal"])
def test_loss_is_erlang_b(size: Part):
    """M/G/c/c: who finds all servers busy is lost (here: its patience ends at once), a share B(c, a) of all, whatever
    the distribution of S."""
    entry = {"arrivals": poisson(4), "gpu_time": size, "patience": "1 ns"}
    leaves = lambda tasks: in_line(tasks.arrival, sizes(tasks), 5, tasks.expires)  # noqa: E731
    reckoned(scenario(gpus(5), entry, until=2_500), 23, leaves, {"lost_mean": theory.erlang_b(4, 5)})


@pytest.mark.slow
def test_patience_is_erlang_a():
    """M/M/c + M (Palm): exponential patience with rate θ adds θ per waiting task to the deaths; a share θ Lq / λ
    of all tasks leaves; those who stay wait as `mmc_abandonment` says."""
    rate, servers, patience = 4.5, 4, 2.0
    model = theory.mmc_abandonment(rate, 1, servers, patience)
    entry = {"arrivals": poisson(rate), "gpu_time": exponential(), "patience": exponential(patience)}
    leaves = lambda tasks: in_line(tasks.arrival, sizes(tasks), servers, tasks.expires)  # noqa: E731
    wanted = {"lost_mean": model.loss, "wait_mean": model.wait_mean}
    reckoned(scenario(gpus(servers), entry, until=2_500), 24, leaves, wanted)


class AtMost(Admission):
    """Admit while fewer than `limit` tasks are in the system."""

    def __init__(self, limit: int):
        self.limit = limit

    def admit(self, task: Task, view: View) -> Accept | Reject:
        inside = len(list(view.waiting())) + len(view.running("start"))
        return Accept() if inside < self.limit else Reject(reason="full")


@pytest.fixture
def at_most():
    """The admission policy by name, for one test."""
    from hetsim import registry

    registry.register("at_most", AtMost, kind="admission")
    yield
    registry._registered["admission"].pop("at_most")


@pytest.mark.slow
@pytest.mark.parametrize(("servers", "room"), [(1, 4), (3, 6)])
@pytest.mark.usefixtures("at_most")
def test_finite_room_is_mmck(servers: int, room: int):
    """M/M/c/K: birth and death up to K; a share p_K is turned away, and of those admitted
    E[T] = L / (λ (1 - p_K))."""
    rate = 0.9 * servers
    exact = theory.mmck(rate, 1, servers, room)
    policy = {"scheduler": "fcfs", "admission": {"name": "at_most", "limit": room}}
    of = scenario(gpus(servers), {"arrivals": poisson(rate), "gpu_time": exponential()}, until=4_000, policy=policy)
    turned_away = lambda tasks: in_line(tasks.arrival, sizes(tasks), servers, room=room)  # noqa: E731
    wanted = {"lost_mean": exact.loss, "response_mean": exact.response_mean, "wait_p95": exact.wait_percentile(0.95)}
    reckoned(of, 25, turned_away, wanted)


def test_formulas_agree_with_each_other():
    """The formulas above against one another where two of them meet, so that an oracle's own slip shows."""
    most = 3_000
    chance = theory.birth_death([3.0] * most, [min(k, 4) for k in range(1, most + 1)])
    assert float(chance @ np.maximum(np.arange(most + 1) - 4, 0)) / 3.0 == pytest.approx(theory.mmc(3, 1, 4).wait_mean)
    assert theory.birth_death([4.0] * 5, range(1, 6))[-1] == pytest.approx(theory.erlang_b(4, 5))
    terms = 4 ** np.arange(6) / special.factorial(np.arange(6))
    assert theory.erlang_b(4, 5) == pytest.approx(terms[-1] / terms.sum())
    assert second_moment(1, 1) == 2  # exponential
