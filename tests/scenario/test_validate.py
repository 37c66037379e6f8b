"""`validate` does all that `run` does before the clock starts: what one refuses the other does, at the same address.

Every scenario here is wrong in another way: found by the schema, while the workload is built, by a policy that looks at
the tasks, by a planner, or by the engine that is about to start.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim import registry
from hetsim.cli import hetsim
from hetsim.errors import ScenarioError
from hetsim.policy import Scheduler

CPU = "cluster:\n  nodes: [{cpus: 2, memory: 4 GB}]\n"
GPU = "cluster:\n  nodes: [{cpus: 4, gpus: {type: a100, count: 2, memory: 40 GB}}]\n"
TWO = "cluster:\n  nodes: [{cpus: 4, gpus: [{type: a100, count: 2}, {type: t4, count: 1}]}]\n"
PLAIN = "workload:\n  - name: w\n    arrivals: {process: poisson, rate: 1/s}\n    count: 5\n    cpu_time: 1 s\n"
BOTH = "workload:\n  - name: w\n    arrivals: {process: all_at_once, count: 5}\n    gpu_time: 1 s\n    cpu_time: 2 s\n"
TYPED = BOTH.replace("gpu_time", "gpu_time.a100")
CLOSED = BOTH.replace("{process: all_at_once, count: 5}", "{process: closed, clients: 3, think: 1 s}\n    count: 5")
SERVED = (
    "workload:\n  - name: s\n    arrivals: {process: poisson, rate: 1/s}\n    count: 5\n    service:\n"
    "      device: a100\n      max_batch: 8\n      compute: {fixed: 1 ms, per_item: 1 ms}\n"
)
MODEL = (
    "  - name: NAME\n    arrivals: {process: poisson, rate: 1/s}\n    count: 5\n"
    "    tokens: {prompt: 100, output: 10}\n    service:\n      kind: llm\n      device: a100\n"
    "      step: {fixed: 10 ms}\n"
)
LLM = GPU + "workload:\n" + MODEL.replace("NAME", "m")
KV = "      kv: {per_token: 1 kB}\n"
SIZES = "        name: size_or_timeout\n        max_batch_size: 64\n        allowed_batch_sizes: "
SCHEDULER = "policy:\n  scheduler: "
ADMISSION = "policy:\n  admission: "

# name: the scenario, the address and the key of its first problem, and a part of what is said of it
WRONG = {
    # The engine, about to start: replicas take their devices
    "replicas": (LLM + "      replicas: 5\n", "12:7: workload.0.service.replicas",
        "no node has 1 × a100 free for replica 3 of 5 of m"),
    "two models": (
        LLM + "      replicas: 2\n" + MODEL.replace("NAME", "k") + "      replicas: 1\n",
        "21:7: workload.1.service.replicas", "services listed before it are placed first",
    ),
    "default replica": (
        LLM + "      gpus: 2\n" + MODEL.replace("NAME", "k"), "17:5: workload.1.service.replicas", "no node has",
    ),
    "scale": (
        LLM + "      scale: {name: target_requests, min: 3, max: 5, target: 4}\n",
        "12:38: workload.0.service.scale.min", "3 of 3",
    ),
    "decoding": (
        LLM + KV + "      disaggregated: {prefill: 2, decode: 1}\n",
        "13:35: workload.0.service.disaggregated.decode", "no node has",
    ),
    "prefill": (
        LLM + KV + "      disaggregated: {prefill: 3, decode: 1}\n",
        "13:23: workload.0.service.disaggregated.prefill", "no node has",
    ),
    "planned model": (LLM + "policy: heft\n", "12:1: policy.scheduler", "requests to replicas cannot be planned"),
    # Services
    "planned service": (GPU + SERVED + SCHEDULER + "heft\n", "12:3: policy.scheduler", "does not serve requests"),
    "preemptive service": (GPU + SERVED + SCHEDULER + "las\n", "12:3: policy.scheduler",
        "a preemptive scheduler cannot serve requests: batches cannot be preempted"),
    "batch sizes": (
        GPU + SERVED + "policy:\n  batching:\n" + SIZES + "[16, 64]\n",
        "15:9: policy.batching.allowed_batch_sizes", "service s allows batches of at most 8",
    ),
    "own batch sizes": (
        GPU + SERVED + "      batching:\n  " + SIZES.replace("\n", "\n  ") + "[16, 64]\n",
        "14:11: workload.0.service.batching.allowed_batch_sizes", "service s allows batches of at most 8",
    ),
    "order of sizes": (
        GPU + SERVED + "      batching:\n  " + SIZES.replace("\n", "\n  ") + "[64, 4]\n",
        "14:11: workload.0.service.batching.allowed_batch_sizes", "sizes must be increasing; got",
    ),
    "batching alone": (CPU + PLAIN + "policy:\n  batching: serial_greedy\n", "9:3: policy.batching",
        "batching needs a service, but no workload entry has one"),
    "batching of models": (GPU + SERVED + "policy: {batching: continuous}\n", "11:10: policy.batching",
        "needs a language model"),
    # Planners
    "closed loop": (GPU + CLOSED + SCHEDULER + "heft\n", "10:3: policy.scheduler",
        "2 tasks arrive after others have ended"),
    "two GPU types": (TWO + TYPED + SCHEDULER + "dual_approximation\n", "9:3: policy.scheduler", "one GPU type"),
    "deadline": (
        GPU + BOTH + SCHEDULER + "{name: convex_energy, deadline: 1 ms}\n", "9:3: policy.scheduler",
        "no schedule meets the deadline of 0.001 s",
    ),
    "no such plan": (GPU + BOTH + SCHEDULER + "{name: replay, plan: p}\n", "9:29: policy.scheduler.plan", "no file"),
    "items": (
        GPU + BOTH.replace("    cpu_time: 2 s\n", "    gpu_memory: 20 GB\n    reads: [x]\n")
        + "data: {name: x, size: 30 GB}\npolicy: greedy_best_fit\n", "10:1: policy.scheduler", "needs 50 GB",
    ),
    "static classes": (
        GPU + BOTH + SCHEDULER + "{name: semi_static, static: [x]}\n", "9:34: policy.scheduler.static",
            "static must have classes of tasks",
    ),
    # Policies that look at the tasks
    "groups": (GPU + BOTH + SCHEDULER + "{name: hierarchical, groups: rack}\n", "9:3: policy.scheduler",
        "groups: rack needs racks; give the nodes"),
    "inner": (
        GPU + BOTH + SCHEDULER + "{name: hierarchical, inner: easy_backfill}\n", "9:35: policy.scheduler.inner", "nest",
    ),
    "reserve": (
        GPU + BOTH + SCHEDULER + "{name: predictive, reserve: [x]}\n", "9:33: policy.scheduler.reserve", 'class "x"',
    ),
    "recorded starts": (CPU + PLAIN + "policy: as_recorded\n", "8:1: policy.scheduler", "column recorded_start"),
    "quotas": (
        CPU + PLAIN + SCHEDULER + "{name: quota_borrow, quotas: {bob: 1}}\n", "9:3: policy.scheduler",
            'got "bob"; the workload has none',
    ),
    "prices": (
        GPU + BOTH + SCHEDULER + "{name: max_throughput, costs: prices}\n", "9:3: policy.scheduler",
            "give them a price such as 2.5/h",
    ),
    "pairs": (GPU + BOTH + SCHEDULER + "{name: max_throughput, pairs: true}\n", "9:3: policy.scheduler", "pairs: true"),
    "costs": (
        GPU + BOTH + SCHEDULER + "{name: multi_generation, costs: {a100: 2}}\n", "9:3: policy.scheduler",
        "costs need `measure: cost`",
    ),
    "class with a dot": (
        CPU + PLAIN + ADMISSION + "{name: queue_limit, per_class: {x.y: 3}}\n", "9:34: policy.admission.per_class.x.y",
        'no class "x.y"',
    ),
    "no limit": (CPU + PLAIN + ADMISSION + "queue_limit\n", "9:3: policy.admission",
        "queue_limit needs at least one of limit, per_class and per_device"),
    "rewards": (
        CPU + PLAIN + ADMISSION + "{name: mdp_threshold, rewards: {x: 1}}\n", "9:46: policy.admission.rewards.x",
        'no class "x"',
    ),
    "predictor": (
        GPU + BOTH + SCHEDULER + "{name: predictive, predictor: x}\n", "9:33: policy.scheduler.predictor", "unknown",
    ),
    # The workload
    "cores": (CPU + PLAIN + "    cpus: 8\n", "4:5: workload.0", "8 cores exceed the 2 of any node"),
    "no GPU": (CPU + BOTH.replace("    cpu_time: 2 s\n", ""), "4:5: workload.0",
        "the tasks have no time on any type of the cluster (cpu)"),
    "empty": (
        "horizon: 1 ms\n" + CPU + PLAIN.replace("1/s", "0.001/s").replace("    count: 5\n", ""), "4:1: workload",
        "no task ever arrives",
    ),
    "endless": (CPU + PLAIN.replace("    count: 5\n", ""), "4:5: workload.0", "never end; give count or until"),
    "item": (GPU + BOTH + "    reads: [x]\n", "8:5: workload.0.reads", "not listed under data"),
    "home": (
        GPU + BOTH + "    reads: [x]\ndata:\n  - {name: x, size: 1 GB, home: z}\n", "10:27: data.0.home", 'no node "z"',
    ),
    "partition": (CPU + PLAIN + "    partition: x\n", "8:5: workload.0.partition", 'unknown partition "x"'),
    "names": (CPU + PLAIN + PLAIN.split("\n", 1)[1], "8:5: workload.1", 'the name "w" is that of workload.0'),
    # How often it is run
    "warm-up": ("warmup: auto\n" + CPU + PLAIN, "1:1: warmup", "needs at least 5 replications"),
    "warm-up of few": ("replications: 3\nwarmup: auto\n" + CPU + PLAIN, "2:1: warmup",
        "needs at least 5 replications"),
    "metric": ("replications: {precision: 5%, metric: x}\n" + CPU + PLAIN, "1:31: replications.metric", "unknown"),
}  # fmt: skip


def refused(*arguments: str) -> str:
    """What `validate` and `run` both say of a scenario that neither takes."""
    both = [CliRunner().invoke(hetsim, [verb, *arguments]) for verb in ("validate", "run")]
    assert [result.exit_code for result in both] == [3, 3], [result.output for result in both]
    assert both[0].stderr == both[1].stderr
    assert not both[1].stdout
    return both[1].stderr


@pytest.mark.quick(9)
@pytest.mark.parametrize("name", WRONG)
def test_both_refuse_it_at_the_same_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    text, address, said = WRONG[name]
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(text)
    first = refused("s.yaml").splitlines()[0]
    assert first.startswith(f"s.yaml:{address}: ")
    assert said in first


@pytest.mark.parametrize(
    ("entry", "policy", "table", "said"),
    [
        ("", "fcfs", "id,cpu_time\na,x\n", 't.csv:2: row 1, column cpu_time: "x" is not a number'),
        ("", "fcfs", "id,cpu_time,predecessors\na,1,b\nb,1,a\n", "t.csv:2: row 1, column predecessors: the "
                                                                 "graph has a cycle: these tasks wait for each other:"),
        ("", "fcfs", "id,cpu_time,cpus\na,1,9\n", "s.yaml:4:5: workload.0: task a (t.csv, line 2) can never run"),
        ("    unfit: reject\n", "heft", "id,cpu_time,cpus\na,1,9\nb,1,1\n", "s.yaml:3:1: workload: heft plans all"),
        ("", "{name: replay, plan: p.csv}", "id,cpu_time\na,1\n", 'p.csv:2: order "x" of task a is not a number'),
        ("", "{name: learned, path: p.csv}", "id,cpu_time\na,1\n", "p.csv: is not a learned policy"),
    ],
)
def test_what_is_wrong_in_a_file_has_the_address_of_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, policy: str, table: str, said: str
):
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(table)
    Path("p.csv").write_text("task,mode,device,order\na,cpu,n0/cpu0,x\n")
    trace = f"workload:\n  - trace: {{format: tasks, path: t.csv}}\n{entry}"
    Path("s.yaml").write_text(f"{CPU}{trace}policy: {policy}\n")
    assert refused("s.yaml").startswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "las"), "--policy: policy.scheduler: a preemptive scheduler cannot serve requests: "
                              "batches cannot be preempted"),
        (("--set", "policy.scheduler=heft"), "--set policy.scheduler: policy.scheduler: heft does not serve"),
        (("--set", "warmup=auto"), "--set warmup: warmup: auto needs at least"),
        (
            ("--set", "policy.admission={name: queue_limit, per_class: {x: 1}}"),
            "--set policy.admission: policy.admission.per_class.x: no class",
        ),
    ],
)
def test_what_the_command_line_sets_is_named_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
):
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(GPU + SERVED)
    assert refused("s.yaml", *arguments).startswith(said)


def test_every_file_is_checked_and_all_problems_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("replicas", "closed loop", "cores"):
        Path(f"{name}.yaml").write_text(WRONG[name][0])
    Path("right.yaml").write_text(CPU + PLAIN)
    result = CliRunner().invoke(hetsim, ["validate", *sorted(path.name for path in tmp_path.iterdir())])
    assert result.exit_code == 3 and result.stdout.startswith("right.yaml: valid; 2 cores, 5 tasks, fcfs")
    files = [line.split(":")[0] for line in result.stderr.splitlines()[-4:-1]]
    assert files == ["closed loop.yaml", "cores.yaml", "replicas.yaml"]
    assert result.stderr.endswith("3 problems, nothing was run.\n")


def test_a_policy_that_breaks_as_it_begins_fails_in_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Broken(Scheduler):
        def begin(self, view):
            raise KeyError("no such model")

    monkeypatch.setattr(registry, "_registered", {})
    registry.register("broken", Broken)
    path = tmp_path / "s.yaml"
    path.write_text(CPU + PLAIN + "policy: broken\n")
    for verb in ("validate", "run"):
        result = CliRunner().invoke(hetsim, [verb, str(path)])
        assert result.exit_code == 1 and 'policy "broken" raised KeyError in begin at t = 0 s' in result.stderr


def test_a_mapping_has_keys_in_place_of_lines():
    served = {"device": "a100", "max_batch": 8, "compute": {"fixed": "1 ms"}}
    given = {
        "cluster": {"nodes": {"gpus": {"type": "a100", "count": 1}}},
        "workload": {"arrivals": {"process": "poisson", "rate": "1/s"}, "count": 5, "service": served},
        "policy": "heft",
    }
    with pytest.raises(ScenarioError) as caught:
        hs.run(given)
    [problem] = caught.value.problems
    assert (problem.key, problem.file, problem.line) == ("policy.scheduler", None, None)
