"""What `hetsim trace` refuses, and what `identify` says, worked out by hand on small files and scores."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from test_trace_texts import explained_waits

from hetsim.cli import main
from hetsim.traces import identify
from hetsim.traces.waits_command import Subject
from hetsim.workload.logs.decisions import Rule
from hetsim.workload.logs.identified import Identified, PlaceScore, RuleScore
from hetsim.workload.logs.inferred import Order

TASKS = "id,arrival,gpu_time,gpus\n1,0,5,1\n2,3,7,2\n"
REQUESTS = "arrival,prompt_tokens,output_tokens\n0,100,10\n2,200,20\n"
SCENARIO = """name: s
cluster: {nodes: {cpus: 4, gpus: {type: v100, count: 2}}}
workload:
- {name: jobs, trace: {format: tasks, path: tasks.csv}}
policy: fcfs
"""
NO_TRACE = """name: s
cluster: {nodes: {cpus: 4}}
workload: {name: jobs, arrivals: {process: poisson, rate: 1/s}, count: 3, cpu_time: 1 s}
policy: fcfs
"""
TWO_TRACES = SCENARIO.replace("policy:", "- {name: more, trace: {format: tasks, path: tasks.csv}}\npolicy:")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"tasks.csv": TASKS, "chat.csv": REQUESTS, "s.yaml": SCENARIO, "no.yaml": NO_TRACE,
                       "two.yaml": TWO_TRACES, "log.txt": "what\nis\nthis\n"}.items():  # fmt: skip
        Path(name).write_text(text)
    return tmp_path


def run(arguments: str) -> Any:
    return CliRunner().invoke(main, ["trace", *arguments.split()])


@pytest.mark.parametrize(("arguments", "message"), [
    ("inspect no.yaml", "has no trace in its workload; there must be one"),
    ("inspect two.yaml", "has 2 traces in its workload; there must be one"),
    ("inspect s.yaml --format tasks", "--format and --option are for traces"),
    ("inspect s.yaml --option sort=true", "s.yaml is a scenario, which names the format"),
    ("inspect tasks.csv --option sort", '--option must be KEY=VALUE; got "sort"'),
    ("inspect tasks.csv --option =3", '--option must be KEY=VALUE; got "=3"'),
    ("inspect tasks.csv --option sort={", "--option sort={: the value"),
    ("inspect chat.csv --format requests --picture p.png", "--picture needs a trace of tasks; this trace has requests"),
    ("inspect log.txt", "its format is not recognized; give --format NAME"),
    ("map nothing.csv", "the file does not exist"),
    ("validate s.yaml --cluster openb:n.csv", "s.yaml is a scenario"),
    ("validate tasks.csv --cluster n.csv", '--cluster must be FORMAT:FILE'),
    ("validate chat.csv --format requests --page p.html", "--scenario and --page need one log of jobs; the "
                                                          "file is not a log of jobs"),
    ("validate tasks.csv --page p.html", "--page needs recorded waits, but no job of"),
    ("identify tasks.csv", "has no recorded starts"),
    ("convert tasks.csv", "TARGET must end in .csv or .parquet, since a trace is written as a table"),
    ("convert tasks.csv t.yaml", "a trace is written as a table"),
    ("convert tasks.csv no/t.csv", 't.csv cannot be written: the folder "no" does not exist'),
    ("convert tasks.csv chat.csv", "chat.csv"),
    ("convert chat.csv t.parquet --format requests", "a table of requests must be CSV, such as"),
    ("convert nothing.csv n.yaml --format openb_nodes", "there is no file nothing.csv"),
])  # fmt: skip
def test_what_is_refused(files: Path, arguments: str, message: str):
    before = sorted(files.iterdir())
    done = run(arguments)
    assert done.exit_code in (2, 3) and message in " ".join(done.stderr.split()), done.stderr
    assert done.stdout == "" and sorted(files.iterdir()) == before


def test_a_trace_is_read_and_written(files: Path):
    done = run("inspect s.yaml --json")
    assert done.exit_code == 0 and json.loads(done.stdout)["tasks"] == 2
    done = run("convert tasks.csv t.csv")
    assert done.exit_code == 0 and "t.csv: 2 tasks" in done.stderr
    again = json.loads(run("inspect t.csv --json").stdout)
    assert again["last_arrival"] == 3 and again["durations"]["gpu_time"]["mean"] == 6
    done = run("convert chat.csv r.csv --format requests")
    assert done.exit_code == 0 and "r.csv: 2 requests" in done.stderr
    done = run("validate chat.csv --format requests")
    assert done.stdout.strip().endswith("chat.csv: valid; 2 requests")
    assert json.loads(run("validate tasks.csv --json").stdout)["tasks"] == 2


# Which scheduler made a log ---------------------------------------------------------------------------------------


def score(order: str, discipline: str = "block", right: int = 8, early: float = 0.1, **more: Any) -> RuleScore:
    """Of ten jobs judged."""
    figures: dict[str, Any] = {"of_waiting": 0.5, "rank_correlation": 0.25, "alike": False}
    figures |= {name: more.pop(name) for name in figures if name in more}
    return RuleScore(right=np.arange(10) < right, early=early, rule=Rule(order, discipline, **more), **figures)


def scores(*rules: RuleScore, **more: Any) -> Identified:
    order = Order("queue", [("a", "b", 5, 1), ("b", "c", 5, 1)])
    return Identified(explained_waits(order=order), 30.0, list(rules), [], **more)


FAIR = {"size": 0, "priority": 0, "service": 0, "calc_period": 0, "bf_interval": 0}


@pytest.mark.parametrize(("rule", "policy", "name"), [
    (("arrival", "block"), {"name": "fcfs"}, "fcfs"), (("arrival", "skip"), {"name": "fcfs_skip"}, "fcfs_skip"),
    (("arrival", "easy"), {"name": "easy_backfill"}, "easy_backfill"),
    (("arrival", "conservative", "reserved"), {"name": "conservative_backfill"}, "conservative_backfill with limits"),
    (("shortest first", "skip"), {"name": "sjf", "discipline": "skip"}, "sjf (skip)"),
    (("share", "block", "passed"), {"name": "drf", "discipline": "block"}, "drf (block) with limits"),
    (("usage", "easy", "", 0.5, 7200.0), {"name": "slurm_multifactor", **FAIR, "age": 0.5, "fair_share": 1,
     "partition": 0, "half_life": "2 h", "bf_max_job_test": 101},
     "slurm_multifactor (fair share, half-life 2 h, age 0.5, depth 101)"),
    (("usage", "block", "", 0.0, 3600.0), {"name": "slurm_multifactor", **FAIR, "age": 0.0, "fair_share": 1,
     "partition": 0, "half_life": "1 h", "bf_max_job_test": 0},
     "slurm_multifactor (fair share, half-life 1 h, depth 0)"),
    (("class", "easy"), {"name": "slurm_multifactor", **FAIR, "age": 1, "max_age": "10000 d", "fair_share": 0,
     "partition": 1000, "partitions": {"queue-a": 1, "queue-b": pytest.approx(2 / 3), "queue-c": pytest.approx(1 / 3)},
     "bf_max_job_test": 101}, "slurm_multifactor (queue, depth 101)"),
])  # fmt: skip
def test_the_policy_of_a_rule(rule: tuple[Any, ...], policy: dict[str, Any], name: str):
    one = score("arrival")
    one.rule = Rule(*rule)
    found = scores(one)
    assert identify.policy_of(one, found) == {"scheduler": policy}
    assert identify.name_of(one, found) == name
    place = PlaceScore(right=np.ones(4), name="best_fit", prefer=None)  # type: ignore[arg-type]
    for shown in (scores(one, assumed="best_fit"), scores(one)):
        shown.places += [place] if shown.assumed is None else []
        placed = {} if rule[1] == "conservative" else {"placement": "best_fit"}
        assert identify.policy_of(one, shown) == {"scheduler": policy, **placed}


IDENTIFIED = """\
easy_backfill explains 80.0 % of the starts within 30 s, and 50.0 % of those of jobs that waited
indistinguishable from it by this log: drf (skip) with limits
unexplained: 20.0 % of the starts; 10.0 % of the jobs started later than the scheduler predicts (for unknown reasons), \
10.0 % earlier
placement: unknown, since the log has no nodes, or jobs had no choice of nodes

scheduler                        explained   of waiting   too early   too late   of ranks
easy_backfill            best       80.0 %       50.0 %      10.0 %     10.0 %       0.25
drf (skip) with limits   alike      80.0 %       50.0 %      20.0 %      0.0 %       0.25
fcfs                                50.0 %            –      10.0 %     40.0 %          –

  rules are fitted on one half of the 4 jobs and judged on 10 of the other
"""


def three_rules(**more: Any) -> Identified:
    return scores(score("arrival", "easy"), score("share", "skip", limits="passed", early=0.2, alike=True),
                  score("arrival", "block", 5, of_waiting=math.nan, rank_correlation=math.nan), **more)  # fmt: skip


def test_what_identify_says():
    found = three_rules()
    lines = identify.lines(found)
    assert "\n".join(lines).startswith(IDENTIFIED)
    assert lines[-1] == "  order by queue: a before b (5 passed, 1 back), b before c (5 passed, 1 back)"
    assert identify.rows(found)[1] == ["drf (skip) with limits", "alike", "share of users", "any job that fits starts",
                                       "passed by others", "80.0 %", "50.0 %", "20.0 %", "0.0 %", "0.25"]  # fmt: skip
    assert identify.rows(found)[2][2:5] == ["arrival", "no job starts before the first job that does not fit", "–"]
    found.rules[0].of_waiting = 0.49
    assert "most waiting jobs started at other times than any scheduler predicts: do" in identify.conclusion(found)[-1]
    many = scores(*(score("arrival", "block", 9 - number // 4) for number in range(12)))
    assert len(identify.lines(many)) - len(identify.fitted(many)) == 2 + 1 + 1 + (1 + 8) + 1
    for one in many.rules[:10]:
        one.alike = True
    assert sum(line.startswith("fcfs ") and " alike " in line for line in identify.lines(many)) == 9
    assert len(identify.lines(many)) - len(identify.fitted(many)) == 3 + 1 + 1 + (1 + 10) + 1


def test_what_identify_says_of_places():
    first, second = (PlaceScore(right=np.arange(10) < right, name=name, prefer=None, alike=alike)  # type: ignore[arg-type]
                     for right, name, alike in ((9, "best_fit", False), (8, "first_fit", True)))  # fmt: skip
    found = three_rules(by_chance=0.25)
    found.places = [first, second]
    assert identify.places_text(found) == (
        "placement: best_fit 90.0 %, first_fit 80.0 % of 10 places where a job had a choice (25.0 % by chance); "
        "indistinguishable from best_fit: first_fit")  # fmt: skip
    second.alike = False
    assert identify.places_text(found).endswith("(25.0 % by chance)")
    assert identify.places_text(three_rules(assumed="worst_fit")).endswith("worst_fit explains the starts best")
    read = json.loads(json.dumps(identify.mapping(found), allow_nan=False))
    assert (read["jobs"], read["judged"], read["cycle"], read["capacity"], read["unit"]) == (4, 10, 30, 8, "GPUs")
    assert read["placements"] == [{"name": "best_fit", "explained": 0.9, "alike": False},
                                  {"name": "first_fit", "explained": 0.8, "alike": False}]  # fmt: skip
    assert read["rules"][1] == {
        "policy": {"scheduler": {"name": "drf", "discipline": "skip"}, "placement": "best_fit"}, "order": "share",
        "discipline": "skip", "limits": "passed", "alike": True, "explained": 0.8, "of_waiting": 0.5, "early": 0.2,
        "late": 0, "rank_correlation": 0.25}  # fmt: skip
    assert read["rules"][2]["of_waiting"] is read["rules"][2]["rank_correlation"] is read["rules"][0]["limits"] is None
    assert read["placement_by_chance"] == 0.25 and read["order"]["pairs"][1] == ["b", "c", 5, 1]


def scenario_of(found: Identified, inferred: bool = True, **document: Any) -> tuple[dict[str, Any], list[str]]:
    document = {"cluster": {}, "workload": [{"name": "jobs", "span": "any", **document.pop("entry", {})}], **document}
    subject: Any = Subject(None, document, inferred)  # type: ignore[arg-type]
    made, notes = identify.scenario_of(subject, found)
    assert document["workload"][0]["span"] == "any"  # a copy was changed
    return made, notes


def test_the_scenario_of_the_best_rule():
    plain = scores(score("arrival", "easy"))
    made, notes = scenario_of(plain)
    assert made["policy"] == {"scheduler": {"name": "easy_backfill"}} and notes == []
    assert made["workload"][0]["span"] == "any" and "site" not in made
    made, _ = scenario_of(scores(score("arrival"), assumed="best_fit"))
    assert "span" not in made["workload"][0] and made["policy"]["placement"] == "best_fit"
    named = scores(score("arrival"))
    named.half.jobs.nodes = object()  # type: ignore[assignment]
    assert scenario_of(named)[0]["workload"][0]["span"] == "recorded"
    assert scenario_of(named, inferred=False)[0]["workload"][0]["span"] == "any"
    limited = scores(score("arrival", limits="passed"))
    made, notes = scenario_of(limited)
    assert made["site"]["partitions"]["user-u0"] == {"nodes": "*", "max_gpus": 1} and notes == []
    own = "limits and the order of classes are not in the scenario: it has its own partitions"
    for keys in ({"site": {"partitions": {"p": {}}}}, {"entry": {"partition": "p"}}):
        assert scenario_of(limited, **keys)[1] == [own] and scenario_of(plain, **keys)[1] == []
        assert scenario_of(scores(score("class")), **keys)[1] == [own]
    made, notes = scenario_of(scores(score("class")))
    assert notes == [] and made["site"]["partitions"] == {
        "queue-a": {"nodes": "*"}, "queue-b": {"nodes": "*"}, "queue-c": {"nodes": "*"},
        "others": {"nodes": "*", "default": True}}  # fmt: skip
    assert made["workload"][0]["partition"] == {
        "column": "queue", "names": {"a": "queue-a", "b": "queue-b", "c": "queue-c"}, "others": "others"}  # fmt: skip
    assert scenario_of(scores(score("class", limits="passed")))[1] == [
        "the limits are not in the scenario: its partitions are those of the classes"]  # fmt: skip
