"""Validation of scenario files: every problem at once, each a sentence with its address."""

import json
import pickle
from typing import Literal

import jsonschema
import pytest
import yaml
from tiers import some

import hetsim as hs
from hetsim import registry
from hetsim.errors import ScenarioError, UnknownName
from hetsim.model.units import ExistingFile, Seconds
from hetsim.policy import Scheduler
from hetsim.scenario.file import document as documents
from hetsim.scenario.file import shipped
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.whole import json_schema


class Threshold(Scheduler):
    """A scheduler with parameters of several kinds."""

    def __init__(self, limit: Seconds, depth: int = 3, kind: Literal["a", "b"] = "a", placement=None):
        if depth == 13:
            raise ValueError("depth 13 brings bad luck")
        self.limit, self.depth, self.placement = limit, depth, placement


class Replay(Scheduler):
    """A scheduler that needs a file."""

    def __init__(self, path: ExistingFile):
        self.path = path


class Roomy:
    """A placement with a parameter."""

    def __init__(self, spare: float = 0.0):
        self.spare = spare

    def __call__(self, task, view):
        return None


def least(task, view):
    return None


@pytest.fixture(autouse=True)
def policies(monkeypatch):
    """A few policies of the test's own, under names that nothing else uses."""
    ours = {
        "scheduler": {"t_order": lambda task: task.arrival, "t_threshold": Threshold, "t_replay": Replay},
        "placement": {"t_roomy": Roomy, "t_least": least},
        "admission": {"t_gate": Roomy},
    }
    if "fcfs" not in registry.policies("scheduler"):
        ours["scheduler"]["fcfs"] = ours["scheduler"]["t_order"]
    known = {kind: {**registry._registered.get(kind, {}), **items} for kind, items in ours.items()}
    monkeypatch.setattr(registry, "_registered", {**registry._registered, **known})


GOOD = """\
name: tiny
horizon: 1 h
cluster: {nodes: [{cpus: 4, gpus: {type: v100, count: 2}}]}
workload:
  - name: one
    arrivals: {process: poisson, rate: 40/h}
    gpu_time: 5 min
policy: t_order
"""


@pytest.fixture
def complaints(tmp_path):
    def of(text, *overrides):
        path = tmp_path / "s.yaml"
        path.write_text(text)
        with pytest.raises(ScenarioError) as caught:
            load(path, overrides)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return of


def test_all_problems_at_once_in_the_order_of_the_file(complaints):
    text = """\
name:
seed: -1
horizn: 72 h
warmup: 5
cluster:
  nodes:
    - count: 8.5
      cpus: true
      gpus: {type: v100, sharing: mpps, speeed: 1, memory: 11, peak: v1000}
      pcie: {upload: 3 GB}
workload:
  - name: quick
    arrivals: {process: poison, rate: 40/h}
    gpu_time: {distribution: exponental, mean: 5 min}
  - arrivals: {process: poisson, rate: 400}
    gpu_time: -5 s
    gpu_time.v100: 5
    gpu_tme: 5
    cpu_time: {speedup: -1}
    slo: {factr: 2}
    users: {count: 3, zip: 2}
    estimates: perfect
    classes: [{wieght: 2, gpus: 1.5}]
  - trace: {path: foo}
  - service: {}
  - 5
  - {arrivals: {process: poisson, rate: 40/h}, gpu_time: nan s, stopping: {save: 1}}
replications: {precision: 5}
policy: t_ordr
sweep: [1]
"""
    assert complaints(text) == [
        "s.yaml:1:1: name: must be a name; got nothing",
        "s.yaml:2:1: seed: must be at least 0; got -1",
        's.yaml:3:1: horizn: unknown key "horizn"; did you mean "horizon"?',
        's.yaml:4:1: warmup: "5" has no unit; write for instance 5 s; or auto, which finds it from replications',
        's.yaml:7:7: cluster.nodes.0.count: must be a whole number; got "8.5"',
        "s.yaml:8:7: cluster.nodes.0.cpus: must be a number; got true",
        's.yaml:9:26: cluster.nodes.0.gpus.sharing: unknown kind "mpps"; did you mean "mps"?',
        's.yaml:9:41: cluster.nodes.0.gpus.speeed: unknown key "speeed"; did you mean "speed"?',
        's.yaml:9:52: cluster.nodes.0.gpus.memory: "11" has no unit; write for instance 11 GB',
        's.yaml:9:64: cluster.nodes.0.gpus.peak: unknown device "v1000"; did you mean "v100"?',
        's.yaml:10:14: cluster.nodes.0.pcie.upload: "3 GB": "GB" is not a unit here; '
        "use one of MB/s, GB/s, GiB/s, Gb/s",
        's.yaml:13:5: workload.0.arrivals: unknown arrival process "poison"; did you mean "poisson"?',
        's.yaml:14:5: workload.0.gpu_time: unknown distribution "exponental"; did you mean "exponential"?',
        's.yaml:15:34: workload.1.arrivals.rate: "400" has no unit; write 400/s (or per minute: 400/min)',
        's.yaml:16:5: workload.1.gpu_time: "-5 s" is negative',
        's.yaml:17:5: workload.1.gpu_time.v100: "5" has no unit; write for instance 5 s',
        's.yaml:18:5: workload.1.gpu_tme: unknown key "gpu_tme"; did you mean "gpu_time"?',
        "s.yaml:19:16: workload.1.cpu_time.speedup: must be above 0; got -1",
        "s.yaml:20:5: workload.1.slo.factor: this key is missing",
        's.yaml:20:11: workload.1.slo.factr: unknown key "factr"; did you mean "factor"?',
        's.yaml:21:23: workload.1.users.zip: unknown key "zip"; did you mean "zipf"?',
        's.yaml:22:5: workload.1.estimates: must be a mapping; got "perfect"',
        's.yaml:23:16: workload.1.classes.0.wieght: unknown key "wieght"; did you mean "weight"?',
        "s.yaml:23:27: workload.1.classes.0.gpus: must be a share of one GPU below 1, or whole GPUs; got 1.5",
        "s.yaml:24:5: workload.2.trace.format: this key is missing",
        "s.yaml:25:5: workload.3.service: a service needs compute: {per_item: ..., fixed: ...}, "
        "or variants with it",
        's.yaml:26:5: workload.4: must be a mapping; got "5"',
        's.yaml:27:48: workload.5.gpu_time: "nan s" is not a finite number',
        's.yaml:27:76: workload.5.stopping.save: "1" has no unit; write for instance 1 s',
        "s.yaml:28:1: replications.metric: this key is missing",
        "s.yaml:28:16: replications.precision: must be a share above 0 and below 1, such as 5%; got 5",
        's.yaml:29:1: policy.scheduler.name: unknown scheduler "t_ordr"; did you mean "t_order"? '
        "(hetsim list policies)",
        "s.yaml:30:1: sweep: must be a mapping; got a list",
    ]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("cluster: {nodes: [{cpus: 4, gpus: {type: v100, count: 2}}]}\n", "",
         "s.yaml: cluster: this key is missing"),
        ("nodes: [{cpus: 4, gpus: {type: v100, count: 2}}]", "nodes: []",
         "s.yaml:3:11: cluster.nodes: needs at least 1 entry"),
        ("{cpus: 4,", "{cpus: x,", 's.yaml:3:20: cluster.nodes.0.cpus: must be a number; got "x"'),
        ("nodes:", "trace: {format: openb_nodes}, nodes:",
         "s.yaml:3:11: cluster.trace: nodes and trace both list machines; leave one of the two out"),
        ("count: 2}", "count: 2, pcie: {upload: 0}}",
         "s.yaml:3:65: cluster.nodes.0.gpus.pcie.upload: a bandwidth must be above 0"),
        ("    gpu_time: 5 min\n", "",
         "s.yaml:5:5: workload.0: the tasks have no time on any device; "
         "give gpu_time, cpu_time, modes, work or a profile"),
        ("    arrivals: {process: poisson, rate: 40/h}\n", "",
         "s.yaml:5:5: workload.0: an entry needs arrivals (and times), or a trace"),
        ("gpu_time: 5 min", "profile: cnn_trainin",
         's.yaml:7:5: workload.0.profile: unknown profile "cnn_trainin"; did you mean "cnn_training"?'),
        ("gpu_time: 5 min", "scaling: {a: 1}",
         "s.yaml:7:5: workload.0.scaling: scaling must map whole numbers of GPUs to speed-ups, "
         'as in {1: 1, 2: 1.9}; got "a"'),
        ("name: tiny\n", "warmup: 2 h\n",
         "s.yaml:1:1: warmup: must be below the horizon of 3600 s, which includes it; got 7200 s"),
        ("arrivals: {process: poisson, rate: 40/h}\n    gpu_time: 5 min\n", "trace: {format: tasks, path: none.csv}\n",
         's.yaml:6:28: workload.0.trace.path: there is no file "none.csv" (searched at none.csv)'),
        ("arrivals: {process: poisson, rate: 40/h}\n    gpu_time: 5 min\n", "trace: {format: tusks, path: none.csv}\n",
         's.yaml:6:13: workload.0.trace.format: unknown trace format "tusks"; did you mean "tasks"? '
         "(hetsim list traces)"),
        ("name: one\n", "time_scale: 2\n",
         "s.yaml:5:5: workload.0.time_scale: the key scales the arrival times of a trace, but the entry has no trace"),
        ("policy: t_order", "policy: [t_order]",
         "s.yaml:8:1: policy: must be the name of a scheduler, or a mapping"),
        ("policy: t_order", "policy: {schedular: t_order}",
         's.yaml:8:10: policy.schedular: unknown key "schedular"; did you mean "scheduler"?'),
        ("policy: t_order", "policy: {scheduler: t_order, batching: x}",
         's.yaml:8:30: policy.batching.name: unknown batching "x" (hetsim list policies --kind batching)'),
        ("policy: t_order", "policy: {scheduler: t_order, batching: serial_gredy}",
         's.yaml:8:30: policy.batching.name: unknown batching "serial_gredy"; did you mean "serial_greedy"? '
         "(hetsim list policies --kind batching)"),
        ("policy: t_order", "policy: {scheduler: t_order, admission: t_gat}",
         's.yaml:8:30: policy.admission.name: unknown admission "t_gat"; did you mean "t_gate"? '
         "(hetsim list policies --kind admission)"),
        ("policy: t_order", "policy: {scheduler: {name: t_order, placement: t_room}}",
         's.yaml:8:37: policy.scheduler.placement: unknown placement "t_room"; did you mean "t_roomy"? '
         "(hetsim list policies --kind placement)"),
        ("policy: t_order", "policy: {scheduler: {name: t_order, disciplin: skip}}",
         's.yaml:8:37: policy.scheduler.disciplin: scheduler "t_order" has no parameter "disciplin"; '
         'did you mean "discipline"?'),
        ("policy: t_order", "policy: {scheduler: {name: t_order, discipline: skp}}",
         's.yaml:8:37: policy.scheduler.discipline: unknown discipline "skp"; did you mean "skip"?'),
        ("policy: t_order", "policy: t_threshold", "s.yaml:8:1: policy.scheduler.limit: this key is missing"),
        ("policy: t_order", "policy: {scheduler: {name: t_threshold, limit: 5}}",
         's.yaml:8:41: policy.scheduler.limit: "5" has no unit; write for instance 5 s'),
        ("policy: t_order", "policy: {scheduler: {name: t_threshold, limit: 5 s, depth: x}}",
         's.yaml:8:53: policy.scheduler.depth: must be a whole number; got "x"'),
        ("policy: t_order", "policy: {scheduler: {name: t_replay, path: plan.csv}}",
         's.yaml:8:38: policy.scheduler.path: there is no file "plan.csv" (searched at plan.csv)'),
    ],
)  # fmt: skip
def test_one_problem(complaints, old, new, problem):
    assert old in GOOD
    assert complaints(GOOD.replace(old, new)) == [problem]


def test_a_table_is_read_even_where_other_parts_are_wrong(complaints, tmp_path):
    (tmp_path / "t.csv").write_text("cpu_time\n-1\n")
    text = GOOD.replace("policy: t_order", "polcy: t_order").replace(
        "    arrivals: {process: poisson, rate: 40/h}\n    gpu_time: 5 min\n",
        "    trace: {format: tasks, path: t.csv}\n",
    )
    assert complaints(text, "policy=t_order") == [
        's.yaml:7:1: polcy: unknown key "polcy"; did you mean "policy"?',
        't.csv:2: row 1, column cpu_time: "-1" is negative',
    ]


def test_a_problem_of_an_override_names_the_override(complaints):
    assert complaints(GOOD, "workload.one.arrivals.rate=4", "horizn=1 s") == [
        '--set horizn: horizn: unknown key "horizn"; did you mean "horizon"?',
        '--set workload.one.arrivals.rate: workload.0.arrivals.rate: "4" has no unit; write 4/s (or per minute: 4/min)',
    ]


def test_policies_are_made_with_validated_parameters(tmp_path):
    (tmp_path / "plan.csv").write_text("task\n")
    path = tmp_path / "s.yaml"
    placement = "{name: t_roomy, spare: 2}"
    path.write_text(
        GOOD.replace("t_order", f"{{scheduler: {{name: t_threshold, limit: 5 min, placement: {placement}}}}}")
    )
    made = load(path).build().scheduler
    assert (made.limit, made.depth, made.placement.spare) == (300, 3, 2)
    assert load(path).build().scheduler is not load(path).build().scheduler
    made = load(path, ["policy={scheduler: {name: t_replay, path: plan.csv}}"]).build().scheduler
    assert made.path == tmp_path / "plan.csv"
    order = load(path, ["policy={scheduler: {name: t_order, placement: t_least, discipline: skip}, admission: t_gate}"])
    run = order.build()
    assert (run.scheduler.placement, run.scheduler.discipline) == (least, "skip")
    assert isinstance(run.admission, Roomy)
    assert run.policy == "t_order (discipline: skip, placement: t_least) + t_gate"


def test_a_value_that_the_constructor_refuses(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(GOOD)
    scenario = load(path, ["policy={scheduler: {name: t_threshold, limit: 1 s, depth: 13}}"])
    with pytest.raises(ScenarioError, match="policy.scheduler: t_threshold: depth 13 brings bad luck"):
        scenario.build()


@pytest.mark.slow
def test_the_schema_is_a_json_schema_and_accepts_what_loads():
    schema = json_schema()
    some_of_it = {**schema, "$defs": dict(list(schema["$defs"].items())[:: some(1, 8)])}  # no reference is followed
    jsonschema.Draft202012Validator.check_schema(some_of_it)
    json.dumps(schema)
    check = jsonschema.Draft202012Validator(schema)
    check.validate(documents.parse(GOOD).data)
    check.validate(documents.parse(GOOD.replace("gpu_time: 5 min", "gpu_time.v100: 5 min")).data)
    check.validate(documents.parse(GOOD.replace("policy: t_order", "policy: {scheduler: {name: x, y: 1}}")).data)
    assert not check.is_valid(documents.parse(GOOD.replace("horizon", "horizn")).data)
    assert not check.is_valid(documents.parse(GOOD.replace("gpu_time", "gpu_tme")).data)


def test_a_resolved_scenario_loads_again_to_the_same(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(GOOD)
    scenario = load(path, ["seed=7", "sweep={workload.0.count: [1, 2]}"])
    again = tmp_path / "again.yaml"
    again.write_text(scenario.to_yaml())
    assert load(again).raw == scenario.raw
    assert load(again).model == scenario.model
    assert load(again).content_hash == scenario.content_hash
    assert load(again, ["seed=8"]).content_hash != scenario.content_hash


def test_the_hash_covers_the_files_and_full_paths_survive_a_move(tmp_path):
    (tmp_path / "t.csv").write_text("cpu_time\n1\n")
    data = {
        "cluster": {"nodes": {"cpus": 1}},
        "workload": {"trace": {"format": "tasks", "path": "t.csv"}},
        "policy": "t_order",
    }
    scenario = load(data, base=tmp_path)
    before = scenario.content_hash
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "s.yaml").write_text(scenario.to_yaml(absolute_paths=True))
    assert len(load(elsewhere / "s.yaml").build().tasks) == 1
    (tmp_path / "t.csv").write_text("cpu_time\n2\n")
    assert load(data, base=tmp_path).content_hash != before


def test_mappings_keep_their_own_data():
    data = documents.parse(GOOD).data
    scenario = load(data, {"workload.one.count": 3})
    assert "count" not in data["workload"][0]
    assert scenario.model.workload[0].count == 3
    assert scenario.with_overrides(["seed=5"]).model.seed == 5
    assert scenario.model.seed == 0


def test_scenarios_can_be_sent_to_other_processes(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text(GOOD.replace("5 min", "{distribution: lognormal, mean: 5 min, cv: 2}"))
    scenario = load(path)
    there = pickle.loads(pickle.dumps(scenario))
    assert (there.build(3).tasks.time == scenario.build(3).tasks.time).all()


def test_shipped_scenarios_are_found_by_name(tmp_path, monkeypatch):
    (tmp_path / "basics").mkdir()
    (tmp_path / "basics" / "tiny.yaml").write_text("description: >\n  One task.\n  One GPU.\n" + GOOD)
    monkeypatch.setattr(shipped, "_folder", lambda: tmp_path)
    (found,) = shipped.shipped()
    assert (found.name, found.theme, found.description) == ("tiny", "basics", "One task. One GPU.")
    assert load("tiny").description == load("basics/tiny").description == "One task. One GPU."
    with pytest.raises(UnknownName, match='unknown scenario "tinny"; did you mean "tiny"?'):
        load("tinny")


def test_an_unknown_name_is_neither_file_nor_shipped():
    with pytest.raises(UnknownName, match='unknown scenario "no_such_scenario"'):
        load("no_such_scenario")
    with pytest.raises(ScenarioError, match="the file does not exist"):
        load("no_such_scenario.yaml")


@pytest.mark.parametrize(
    ("sweep", "problem"),
    [
        ("{policy: sjf}", 's.yaml:8:9: sweep.policy: must be a list of the values to try; got "sjf"'),
        ("{policy: []}", "s.yaml:8:9: sweep.policy: must be a list of the values to try; got an empty one"),
        ("{workload.two.count: [1]}", 's.yaml:8:9: sweep.workload.two.count: workload has no entry "two"'),
        ("{horizn: [1 h]}", 's.yaml:8:9: sweep.horizn: there is no key "horizn" in a scenario; did you mean "horizon"'),
    ],
)
def test_a_sweep_that_leads_nowhere(complaints, sweep, problem):
    (said,) = complaints(GOOD.replace("policy: t_order", f"sweep: {sweep}"))
    assert said.startswith(problem)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("replications: 1e9", "s.yaml:8:1: replications: must be at most 100,000; got 1,000,000,000"),
        ("replications: {precision: 5%, metric: respones_mean}",
         's.yaml:8:31: replications.metric: unknown metric "respones_mean"; did you mean "response_mean"? '
         "(hetsim list metrics)"),
        ("horizon: 0", "s.yaml:2:1: horizon: must be above 0; leave it out to run until everything is done"),
        ('name: "a\\e[2J"', "s.yaml:1:1: name: a name must be one line of visible characters"),
        (f"seed: {'1' * 350}.5", 's.yaml:8:1: seed: must be a number; got "' + "1" * 57 + '..."'),
    ],
)  # fmt: skip
def test_values_no_run_could_use(complaints, line, problem):
    key = line.partition(":")[0]
    lines = [line if old.startswith(f"{key}:") else old for old in GOOD.splitlines()]
    (said,) = complaints("\n".join(lines if line in lines else [*lines[:-1], line]))
    assert said.startswith(problem)


def test_a_key_that_an_override_made_is_named_by_it(complaints):
    assert complaints(GOOD, "policy.placement=x") == [
        '--set policy.placement: policy.scheduler.placement: unknown placement "x" '
        "(hetsim list policies --kind placement)"
    ]


def test_a_policy_is_called_as_it_is_written():
    from hetsim.scenario.scenario import load

    scenario = load(
        {
            "name": "called",
            "cluster": {"nodes": [{"cpus": 1}]},
            "workload": [{"arrivals": {"process": "all_at_once", "count": 1}, "cpu_time": "1 s"}],
            "policy": {"scheduler": {"name": "priority", "aging": "10/h", "preemptive": True}},
        }
    )
    assert scenario.policies.label == "priority (preemptive: true, aging: 10/h)"


def test_the_text_of_a_run_is_of_its_time_although_it_is_written_later(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "log.csv").write_text("id,arrival,cpu_time\na,0,1\n")
    monkeypatch.chdir(tmp_path / "here")
    trace = {"format": "tasks", "path": "log.csv"}
    scenario = load({"cluster": {"nodes": {"cpus": 1}}, "workload": [{"name": "w", "trace": trace}], "policy": "fcfs"})
    result = hs.run(scenario)
    monkeypatch.chdir(tmp_path)
    assert yaml.safe_load(result.scenario)["workload"][0]["trace"]["path"] == str(tmp_path / "here" / "log.csv")
    assert result.scenario is result.scenario


@pytest.mark.parametrize(("changes", "place"), [
    ({"workload.0.trace.resample": {"rate": 2}}, "it is a key of workload.0, next to trace"),
    ({"workload.0.trace.warmup": "1 s"}, 'the keys here are path'),
    ({"workload.0.horizon": "1 s"}, "it is a key of the scenario as a whole"),
    ({"workload.0.rate": "1/s"}, "it is a key of arrivals"),
    ({"workload.0.arrivals": {"process": "poisson", "rate": "1/s", "count": 3}}, "it is a key of workload.0"),
    ({"workload.0.arrivals": {"process": "poisson", "rate": "1/s", "period": "3 s"}}, "the keys here are process"),
    ({"workload.0.mean": "3 s"}, "the keys here are"),  # of any distribution
    ({"cluster.cpus": 4}, "it is a key of nodes"),
    ({"faults": [{"mean": 3}]}, "it is a key of every and of repair and of for"),
    ({"cluster.nodes.0.gpus.cpus": 4}, "it is a key of cluster.nodes.0"),
    ({"policy": {"scheduler": "easy_backfill", "depth": 4}}, "scheduler: {name: easy_backfill, depth: ...}"),
    ({"policy": {"batching": "async_linear", "max_wait": "1 s"}}, "unknown key"),
    ({"workload.0.gpu_tme": "1 s"}, 'did you mean "gpu_time"?'),
])  # fmt: skip
def test_an_unknown_key_is_told_with_the_place_where_it_belongs(tmp_path, changes, place):
    """The key itself elsewhere comes before a key of a like name: what is right is one level up or down."""
    (tmp_path / "t.csv").write_text("id,arrival,cpu_time\na,0,10\n")
    scenario = {
        "name": "places", "cluster": {"nodes": [{"cpus": 1, "gpus": {"type": "g"}}]},
        "workload": [{"trace": {"format": "tasks", "path": str(tmp_path / "t.csv")}}],
    }  # fmt: skip
    with pytest.raises(ScenarioError) as refused:
        hs.load(scenario).with_overrides(changes)
    assert "unknown key" in str(refused.value) and place in str(refused.value)
    assert "it is a key of workload.0.arrivals" not in str(refused.value)  # where it stands
