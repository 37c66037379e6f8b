"""Logs of sites as they are: jobs over several nodes, nodes that are away, GPUs of other makes, dates, odd files."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_cluster_traces import FLAT, NODES_JSON, PHILLY, PODS_JSON, SWF
from tiers import examples

import hetsim as hs
from hetsim import registry
from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.workload.logs.recognize import maybe_table, recognize
from hetsim.workload.readers import slurm
from hetsim.workload.rows import json_rows

HEAD = "JobID|Submit|Start|End|State|AllocTRES|NodeList\n"
MPI = "200|{0}00|{0}05|{0}20|COMPLETED|cpu=64|n[1-2]\n"
SMALL = "201|{0}00|{0}20|{0}50|COMPLETED|cpu=4|n1\n"
WIDE = "202|{0}00|{0}51|{0}55|COMPLETED|cpu=64,gres/gpu=8|n[1-2]\n"
SPREAD = "203|{0}00|{0}56|{0}59|COMPLETED|cpu=64,gres/gpu=4|n[1-2]\n"
HUGE = "204|{0}00|{0}56|{0}59|COMPLETED|cpu=64,gres/gpu=16|n[1-4]\n"
ACCOUNTS = (HEAD + MPI + SMALL + WIDE + SPREAD + HUGE).format("2025-03-01T10:00:")
NODES = "".join(f"NodeName=n{n} CPUTot=32 Gres=gpu:a100:4 RealMemory=256000 State=IDLE\n" for n in (1, 2))


@pytest.fixture
def file(tmp_path):
    def written(text, name="t.txt"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def command(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def read(form, path, **options):
    return registry.entry("traces", form)(path, **options)


# Several nodes ---------------------------------------------------------------------------------------------------


def test_a_log_is_validated_with_its_gangs_over_several_nodes(file):
    log, nodes = file(ACCOUNTS), file(NODES, "nodes.txt")
    outcome = command("trace", "validate", log, "--cluster", f"slurm_nodes:{nodes}", "--json")
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    assert found["tasks"] == 4 and found["notes"]["late_starts"] == 0
    assert found["metrics"]["wait_mean"] == {"recorded": 33, "simulated": 33}
    (told,) = found["warnings"]
    assert told == (
        "stream0: 1 of 5 tasks can never run on this cluster and are left out: "
        "task 204 (line 6): 16 × a100 exceed the 8 of the cluster"
    )
    assert told in outcome.stderr
    assert told in command("trace", "validate", log, "--cluster", f"slurm_nodes:{nodes}").stderr


def gangs(file, span, rows):
    text = "id,arrival,gpu_time,gpus,recorded_start,recorded_node\n" + rows
    trace = {"format": "tasks", "path": str(file(text, "t.csv"))}
    cluster = {"nodes": {"count": 2, "cpus": 8, "gpus": {"type": "g", "count": 4}}}
    entry = {"trace": trace, "unfit": "leave_out", **({"span": span} if span else {})}
    return hs.run({"cluster": cluster, "workload": [entry], "policy": "fcfs"}, check=True)


@pytest.mark.parametrize(
    ("span", "node", "gpus", "start"),
    [
        ("recorded", "n0|n1", 4, 1), ("recorded", "n0", 4, 10), ("recorded", "", 4, 10), ("recorded", "", 5, 10),
        ("any", "n0", 4, 1), (None, "n0|n1", 4, 10),
    ],
)  # fmt: skip
def test_gangs_span_as_the_record_shows(file, span, node, gpus, start):
    """Two GPUs are free on each node: a gang of four starts at once only if it may use both nodes."""
    busy = "b0,0,10,2,0,n0\nb1,0,10,2,0,n1\n"
    rows = busy.replace("b1,0,10,2", "b1,0,10,3") if gpus == 5 else busy
    text = "id,arrival,gpu_time,gpus,recorded_start,recorded_node\n" + rows + f"x,1,5,{gpus},1,{node}\n"
    trace = {"format": "tasks", "path": str(file(text, "t.csv"))}
    cluster = {"nodes": {"count": 2, "cpus": 8, "gpus": {"type": "g", "count": 4}}}
    entry = {"trace": trace, **({"span": span} if span else {})}
    policy = {"name": "fcfs", "placement": "worst_fit"}
    result = hs.run({"cluster": cluster, "workload": [entry], "policy": policy}, check=True)
    assert result.tasks.set_index("id")["start"]["x"] == start


def test_a_gang_on_record_with_one_node_is_not_spread_to_make_it_fit(file):
    result = gangs(file, "recorded", "a,0,5,5,0,n0\nb,0,5,4,0,n0\n")
    assert result.tasks["id"].tolist() == ["b"]
    assert "5 × g exceed the 4 of any node" in result.record.input.warnings[0]


def test_span_recorded_needs_a_trace():
    entry = {"gpu_time": "1 s", "gpus": 2, "arrivals": {"process": "all_at_once", "count": 1}, "span": "recorded"}
    with pytest.raises(ScenarioError, match="span: recorded needs a trace"):
        hs.load({"cluster": {"nodes": {"gpus": {"type": "g", "count": 4}}}, "workload": [entry]})


def test_reasons_are_told_by_their_weight_and_beyond_five_counted(file):
    rows = "".join(f"w{n},0,1,{n},0,\n" for n in (5, 6, 7, 8, 9, 10))
    (told,) = gangs(file, None, f"a,0,5,4,0,\n{rows}v6,0,1,6,0,\n").record.input.warnings
    head = "stream0: 7 of 8 tasks can never run on this cluster and are left out: "
    assert told.startswith(head + "2 (the first is task w6 (line 4)): 6 × g exceed the 4 of any node")
    assert "task w9" in told and "task w10" not in told and told.endswith("; and 1 for other reasons")


def test_nothing_left_is_an_error_that_says_so(file):
    with pytest.raises(ScenarioError, match=r"5 × g exceed .* \(no task of this trace would remain\)"):
        gangs(file, None, "a,0,5,5,0,\n")


# Kubernetes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "conditions", "up"),
    [
        ({}, [], True),
        ({"unschedulable": True}, [{"type": "Ready", "status": "True"}], False),
        ({}, [{"type": "Ready", "status": "False"}], False),
        ({}, [{"type": "Ready", "status": "Unknown"}], False),
        ({}, [{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": "True"}], True),
    ],
)
def test_nodes_that_are_cordoned_or_not_ready_stay_out(file, spec, conditions, up):
    listed = json.loads(NODES_JSON)
    listed["items"][0]["spec"] = spec
    listed["items"][0]["status"]["conditions"] = conditions
    path, nodes = file(json.dumps(listed)), registry.entry("clusters", "kubernetes_nodes")
    assert [node["name"] for node in nodes(path)] == ["k1", "k2"][0 if up else 1 :]
    assert [node["name"] for node in nodes(path, down=True)] == ["k1", "k2"]
    listed["items"] = listed["items"][:1]
    if not up:
        with pytest.raises(ScenarioError, match="has no nodes but 1 that are cordoned or not ready; down: true keeps"):
            nodes(file(json.dumps(listed)))


@pytest.mark.parametrize(
    ("resource", "label", "kind"),
    [
        ("amd.com/gpu", "amd.com/gpu.product-name", "amd"),
        ("gpu.intel.com/i915", "gpu.intel.com/product", "intel"),
        ("gpu.intel.com/xe", "gpu.intel.com/product", "intel"),
        ("nvidia.com/gpu", "nvidia.com/gpu.product", "gpu"),
    ],
)
def test_gpus_of_other_makes(file, resource, label, kind):
    own = read("kubernetes", file(PODS_JSON))
    pods = PODS_JSON.replace("nvidia.com/gpu.product", label).replace("nvidia.com/gpu", resource)
    table = read("kubernetes", file(pods))
    assert table.numbers["gpus"].tolist() == own.numbers["gpus"].tolist() and table.numbers["gpus"].max() > 0
    assert table.devices.tolist() == own.devices.tolist()
    listed = json.loads(NODES_JSON.replace("nvidia.com/gpu.product", label).replace("nvidia.com/gpu", resource))
    nodes = registry.entry("clusters", "kubernetes_nodes")
    assert [node.get("gpus") for node in nodes(file(json.dumps(listed)))] == [{"type": "T4", "count": 2}, None]
    listed["items"][0]["metadata"]["labels"] = {}
    assert nodes(file(json.dumps(listed)))[0]["gpus"] == {"type": kind, "count": 2}


def pods(*asked):
    """A finished pod for each mapping of requests."""
    end = {"startedAt": "2026-01-01T00:00:10Z", "finishedAt": "2026-01-01T00:00:20Z"}
    items = [
        {
            "metadata": {"name": f"p{n}", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": one}}]},
            "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": end}}]},
        }
        for n, one in enumerate(asked)
    ]
    return json.dumps({"items": items})


def test_slices_and_other_requests_are_told(file):
    mig, shared = {"cpu": "1", "nvidia.com/mig-1g.10gb": "1"}, {"cpu": "1", "nvidia.com/gpu.shared": "1"}
    bare, both = {"nvidia.com/mig-1g.10gb": "2"}, {"cpu": "1", "nvidia.com/gpu": "1", "amd.com/gpu": "1"}
    text = pods(mig, mig, shared, bare, both, {"cpu": "1", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"})
    table = read("kubernetes", file(text))
    assert table.id.tolist() == ["p0", "p1", "p2", "p5"] and "gpu_time" not in table.times
    told = "\n".join(table.notes)
    assert "2 of 6 jobs request nvidia.com/mig-1g.10gb, which is not modeled: these pods are kept without it" in told
    assert "1 of 6 jobs request nvidia.com/gpu.shared, which is not modeled" in told
    assert "1 of 6 jobs left out: request neither cores nor GPUs, but nvidia.com/mig-1g.10gb" in told
    assert "1 of 6 jobs left out: request GPUs of several types (nvidia.com/gpu, amd.com/gpu)" in told
    assert "hugepages" not in told and "storage" not in told


def test_pods_of_several_makes_without_a_product_are_told(file):
    one, other = {"cpu": "1", "nvidia.com/gpu": "1"}, {"cpu": "1", "amd.com/gpu": "2"}
    table = read("kubernetes", file(pods(one, other, other)))
    told = "\n".join(table.notes)
    assert "1 pods request nvidia.com/gpu without a product (first" in told
    assert "2 pods request amd.com/gpu without a product" in told
    assert not any("without a product" in note for note in read("kubernetes", file(pods(other, other))).notes)


# JSON ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "text", "message"),
    [
        ("philly", "[{} {}]", ":1: is not JSON (Expecting ',' delimiter)"),
        ("philly", PHILLY + "\nmore", "is not JSON (Extra data)"),
        ("philly", PHILLY.rstrip().removesuffix("]") + ",]", "is not JSON (Expecting value)"),
        ("kubernetes", PODS_JSON.rstrip() + "}", "is not JSON (Extra data)"),
        ("kubernetes", PODS_JSON.rstrip().removesuffix("}"), "ends in the middle of its object"),
        ("kubernetes", '{"items": [{}\n{}]}', ":2: is not JSON (Expecting ',' delimiter)"),
        ("kubernetes", '{"items": [] "kind": "List"}', "is not JSON (Expecting ',' delimiter)"),
        ("kubernetes", '{"items": 7}', 'must be JSON: an object with a list "items"'),
        ("kubernetes", '{"spec": {"items": []}}', 'must be JSON: an object with a list "items"'),
    ],
)
def test_lists_in_json_are_read_as_strictly_as_anywhere(file, form, text, message):
    with pytest.raises(ScenarioError) as caught:
        read(form, file(text))
    assert message in str(caught.value)


@examples(150)
@given(cut=st.integers(1, 400), put=st.sampled_from(["", *'x",:{]}1 ']), lost=st.integers(0, 2), size=st.integers(1, 9))
def test_members_of_damaged_json(tmp_path_factory, cut, put, lost, size):
    """Wherever a sign behind the first is lost or added: an error in the line at which json stops.

    Where items is no list any more that is said instead, as soon as its value has been read.
    """
    items = [{"a": [1, 2.5], "b": "x,]"}, 12.5e-3, [], None, "y", {"c": {}}]
    text = json.dumps({"kind": "List", "items": items, "metadata": {"n": [1]}}, indent=1)
    broken = text[:cut] + put + text[cut + lost :]
    path = tmp_path_factory.mktemp("json") / "t.json"
    path.write_text(broken)
    pieces = json_rows.pieces
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows, "pieces", lambda path: pieces(path, size))
        try:
            whole = json.loads(broken)
        except json.JSONDecodeError as error:
            with pytest.raises(ScenarioError) as caught:
                list(json_rows.members(path, "items"))
            is_list, said = '"items": [' in broken, str(caught.value)
            if is_list or not said.endswith('must be JSON: an object with a list "items"'):
                assert said.startswith(f"{path}:{error.lineno}: ")
            return
        if isinstance(whole, dict) and isinstance(whole.get("items"), list):
            found = list(json_rows.members(path, "items"))
            assert [one for _, one in found] == whole["items"]


# Formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["swf", "philly", "kubernetes"])
def test_a_byte_order_mark_hides_no_format(file, form):
    text = {"swf": SWF, "philly": PHILLY, "kubernetes": PODS_JSON.replace("{", '{"kind": "Pod",', 1)}[form]
    path = file(b"\xef\xbb\xbf" + text.encode(), "t.log")
    assert recognize(path) == form
    assert len(read(form, path)) == len(read(form, file(text, "u.log"))) > 0


def test_pods_without_their_kind_are_recognized(file):
    items = json.loads(PODS_JSON)["items"]
    lines = "\n".join(map(json.dumps, items))
    forms = [recognize(file(text, f"{k}.json")) for k, text in enumerate((PODS_JSON, json.dumps(items), lines))]
    assert forms == ["kubernetes"] * 3


def test_the_last_ending_counts(file):
    assert recognize(file("arrival,cpu_time\n0,1\n", "x.swf.csv")) is None
    assert command("trace", "inspect", file("arrival,cpu_time\n0,1\n", "x.swf.csv")).exit_code == 0
    assert recognize(file("1 0 0\n", "x.swf")) == recognize(file("1 0 0\n", "x.SWF.gz")) == "swf"


@pytest.mark.parametrize("separator", ";|\t")
def test_another_separator_is_told_without_a_format(file, separator):
    outcome = command("trace", "inspect", file(FLAT.replace(",", separator), "t.csv"))
    word = {";": "semicolons", "|": "bars", "\t": "tabs"}[separator]
    assert outcome.exit_code == 3 and f"its columns are separated by {word}; use commas" in outcome.stderr


@pytest.mark.parametrize(
    "text",
    [
        "4f057009a5d4,tensorflow,1.0,Terminated,1739162.0,1739200.0,600.0,29.3,50.0,MISC\n",
        "0 3.5 1.25\n1 2.0 0.5 0\n",
        '{"some": "thing"}',
        "one line of prose\n",
    ],
)
def test_what_is_not_recognized_is_said_to_be(file, text):
    outcome = command("trace", "inspect", file(text))
    assert outcome.exit_code == 2
    assert "its format is not recognized; give --format NAME" in outcome.stderr and "hetero_dag" in outcome.stderr


@pytest.mark.parametrize(
    "text", ["", "id,gpu_time\n", "arival,cpu_tme\na,b\n", "arrival;gpu_time\n", b"\xff\xfe\x00", b"caf\xe9 noir\n" * 9]
)
def test_what_may_be_a_table_is_left_to_its_reader(file, text):
    assert recognize(file(text)) is None and maybe_table(file(text))


def test_a_table_of_requests_is_recognized(file):
    assert recognize(file("arrival,prompt_tokens,output_tokens\n0,1,1\n")) == "requests"
    assert recognize(file("arrival,prompt_tokens,gpu_time\n0,1,1\n")) is None


# Dates -----------------------------------------------------------------------------------------------------------

DATED = "timestamp,duration,num_gpus,gpu_time,cluster\n" + "".join(
    f"2017-10-{day:02} {hour:02}:00:00,60.0,1,60.0,c\n" for day in (9, 10, 11) for hour in (3, 9, 15)
)


@pytest.mark.parametrize(
    ("dates", "seconds"),
    [
        ({"since": "2017-10-10"}, {"since": "21 h"}),
        ({"until": "2017-10-10 09:00"}, {"until": "30 h"}),
        ({"since": "2017-10-09T09:00:00", "until": "2017-10-11 00:00"}, {"since": "6 h", "until": "45 h"}),
        ({"since": "2017-10-10 02:00+02:00", "until": "40 h"}, {"since": "21 h", "until": "40 h"}),
    ],
)
def test_a_window_between_dates(file, dates, seconds):
    path = file(DATED)
    found = []
    for options in (dates, seconds):
        given = [part for key, value in options.items() for part in ("--option", f"{key}={value}")]
        target = path.parent / "out.csv"
        outcome = command("trace", "convert", path, target, "--format", "philly", "--force", *given)
        assert outcome.exit_code == 0, outcome.output
        found.append((target.read_bytes(), outcome.stderr))
    assert found[0] == found[1] and found[0][0].count(b"\n") > 1


def test_a_window_that_begins_before_the_log(file):
    outcome = command("trace", "inspect", file(DATED), "--option", "since=2017-10-09", "--json")
    assert json.loads(outcome.stdout)["first_arrival"] == 3 * 3600
    assert "time 0 is 2017-10-09 00:00:00" in outcome.stderr


def test_dates_of_a_log_that_says_when_it_began(file):
    rows = [f"{n} {n * 3600} 0 9 1 -1 -1 1 9 -1 1 1 1 -1 1 1 -1 -1" for n in range(48)]
    dated = "; UnixStartTime: 1272639600\n" + "\n".join(rows)  # 2010-04-30 15:00 UTC
    trace = {"format": "swf", "path": str(file(dated)), "since": "2010-05-01", "until": "2010-05-01 12:00"}
    built = hs.load({"cluster": {"nodes": {"cpus": 1}}, "workload": [{"trace": trace}]}).build()
    assert built.tasks.arrival.tolist() == [n * 3600.0 for n in range(12)]
    assert built.tasks.id.tolist() == list(range(9, 21))
    outcome = command("trace", "inspect", file("\n".join(rows), "u.swf"), "--option", "since=2010-05-01")
    assert outcome.exit_code == 3
    assert "since: this log has no dates to compare 2010-05-01 00:00:00 with; give seconds from its" in outcome.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["since=9437497"], '"9437497" has no unit; write for instance 9437497 s'),
        (["since=2017-13-10"], '"2017-13-10" is not a date such as 2020-06-09 or 2020-06-09 18:41:01'),
        (["since=2017-10-11", "until=2017-10-10"], "until (2017-10-10 00:00:00) must be after since (2017-10-11"),
        (["until=2017-10-09"], "is not after since (0 s), and the log's time 0 is 2017-10-09 03:00:00"),
        (["since=2018-01-01"], "no job of its 9 jobs remains: 9 outside the window"),
    ],
)
def test_windows_that_are_none(file, options, message):
    given = [part for option in options for part in ("--option", option)]
    outcome = command("trace", "inspect", file(DATED), "--format", "philly", *given)
    assert outcome.exit_code == 3 and message in outcome.stderr


def test_a_date_where_seconds_are_meant(file):
    requests = file("arrival,prompt_tokens\n0,1\n")
    outcome = command("trace", "inspect", requests, "--format", "requests", "--option", "since=2017-10-10")
    assert outcome.exit_code == 3
    assert '"2017-10-10" is a date; it must be a value with a unit such as 5 s' in outcome.stderr


# Faults ----------------------------------------------------------------------------------------------------------


def test_the_columns_of_a_file_of_faults_are_named(file, tmp_path):
    file("time,device,what\n1,n0,down\n", "f.csv")
    scenario = {
        "cluster": {"nodes": {"cpus": 1}}, "faults": [{"file": str(tmp_path / "f.csv")}],
        "workload": [{"cpu_time": "5 s", "arrivals": {"process": "all_at_once", "count": 1}}],
    }  # fmt: skip
    told = r"f.csv:1: the column event is missing; faults need time \(seconds\), device .*event \(down, up, slow\)"
    with pytest.raises(ScenarioError, match=told):
        hs.run(scenario)
    file(b"\xef\xbb\xbftime,device,event\n1,n0,down\n3,n0,up\n", "f.csv")
    assert np.allclose(hs.run(scenario).tasks["finish"], 8)


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DRAINED", "MIXED+DRAIN", "DOWN*"])
def test_a_slurm_node_that_takes_no_jobs_is_no_capacity(tmp_path, state):
    file = tmp_path / "nodes.txt"
    file.write_text("".join(f"NodeName=n{n} CPUTot=8 RealMemory=1000 Gres=gpu:a100:4 State={of}\n"
                            for n, of in enumerate(["IDLE", state])))  # fmt: skip
    for down, expected in ((False, 4), (True, 8)):
        trace = {"format": "slurm_nodes", "path": str(file), "down": down}
        job = {"arrivals": {"process": "all_at_once", "count": 1}, "gpu_time": "1 s"}
        assert hs.load({"cluster": {"trace": trace}, "workload": [job]}).build().cluster.count("a100") == expected


@pytest.mark.parametrize("state", ["MIXED+PLANNED", "IDLE+CLOUD+POWERED_DOWN", "IDLE~", "MIXED+REBOOT_REQUESTED", ""])
def test_a_slurm_node_that_is_planned_for_or_asleep_takes_jobs(tmp_path, state):
    (tmp_path / "nodes.txt").write_text(f"NodeName=n1 CPUTot=8 State={state}\n")
    assert [node["name"] for node in slurm.nodes(tmp_path / "nodes.txt")] == ["n1"]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("NodeName=n2 CPUTot=8 State=IDEL", r'txt:2: column State: "IDEL" is not a state of a node; did you .* "IDLE"'),
        ("NodeName=n2 CPUTot=8 State=DOWN+DRIAN", r'"DRIAN" is not a state of a node; did you mean "DRAIN"'),
        ("NodeName=n1 CPUTot=8 State=IDLE", r'nodes.txt:2: column NodeName: node "n1" is also in line 1'),
    ],
)
def test_what_is_wrong_with_a_slurm_node_is_said(tmp_path, second, said):
    (tmp_path / "nodes.txt").write_text(f"NodeName=n1 CPUTot=8 State=IDLE\n{second}\n")
    with pytest.raises(ScenarioError, match=said):
        slurm.nodes(tmp_path / "nodes.txt")


def test_all_problems_of_a_file_are_told_one_a_line(file, tmp_path):
    file("NodeName=n1 CPUTot=8\nNodeName=n2\nNodeName=n3\n", "nodes.txt")
    scenario = file("cluster: {trace: {format: slurm_nodes, path: nodes.txt}}\nworkload: [{cpu_time: 1 s}]\n", "s.yaml")
    for words in (("validate", scenario), ("trace", "convert", tmp_path / "nodes.txt", "--format", "slurm_nodes")):
        done = command(*words)
        assert [line for line in done.output.splitlines() if line.count("nodes.txt:") == 1][:2] == [
            f"{tmp_path}/nodes.txt:{line}: column CPUTot, RealMemory: node \"n{line}\" needs a number of cores "
            f"and of MiB"
            for line in (2, 3)
        ], done.output
