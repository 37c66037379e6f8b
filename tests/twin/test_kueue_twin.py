"""Kueue's objects as a scenario and as a forecast."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import kueue_objects
import numpy as np
import pytest
from click.testing import CliRunner
from yaml import safe_dump, safe_dump_all, safe_load

import hetsim as hs
from hetsim.cli import hetsim
from hetsim.errors import ScenarioError
from hetsim.twin.kueue import KueueCluster


def call(*arguments):
    return CliRunner().invoke(hetsim, [str(one) for one in arguments])


def test_objects_become_cluster_and_policy(tmp_path):
    k, n = kueue_objects.write(tmp_path)
    result = call("trace", "convert", k, tmp_path / "site.yaml", "--option", f"nodes={n}")
    assert result.exit_code == 0, result.output
    made = safe_load((tmp_path / "site.yaml").read_text())
    assert [node["rack"] for node in made["cluster"]["nodes"]] == ["r0", "r1"]
    scheduler = made["policy"]["scheduler"]
    assert scheduler["flavors"] == {"a100": {"partitions": ["a100"], "topology": "preferred"}}
    assert scheduler["queues"]["a"] == {
        "cohort": "all", "quotas": {"a100": {"gpus": {"nominal": 4.0}}}, "strategy": "best_effort_fifo",
        "reclaim_within_cohort": "any", "within_cluster_queue": "lower_priority"}  # fmt: skip
    job = {"class": "a", "gpus": 1, "gpu_time": "1 h", "count": 2, "arrivals": {"process": "poisson", "rate": "1/h"}}
    assert hs.run(hs.load({"name": "x", **made, "workload": job})).tasks["status"].tolist() == ["completed"] * 2


@pytest.mark.slow
def test_a_forecast_says_when_why_and_who_borrows(tmp_path):
    k, n = kueue_objects.write(tmp_path)
    change = "clusterqueues.b.nominalQuota.gpu=1"
    result = call("twin", "--kueue", k, "--nodes", n, "--hours", 2, "--samples", 4, "--json", "--what-if", change)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["causes"] == {"b/w1": "preemption", "a/w2": "quota", "a/w3": "the scheduler"} | {
        name: cause for name, cause in told["causes"].items() if name[2] == "r"
    }
    queues = {row["queue"]: row for row in told["queues"]}
    assert (queues["a"]["used"], queues["a"]["borrows"], queues["a"]["starves"]) == (6, 2, False)
    assert (queues["b"]["used"], queues["b"]["borrows"], queues["b"]["starves"]) == (1, 0, True)
    first = {job["id"]: job["start_p50"] for job in told["jobs"]}
    assert first["b/w1"] < 1  # b owns what it asks for, and takes it back at once
    later = {job["id"]: job["start_p50"] for job in told["what_if"]["jobs"]}
    assert later["b/w1"] > 60  # it has 1 GPU and one job on it: nothing to reclaim


def test_a_workload_is_restricted_to_flavors_that_suit_its_pods(tmp_path):
    """Node selectors, affinity and taints, the flavor of a running workload, reclaimable pods, boosts and gates."""
    items = kueue_objects.objects()
    items[2]["spec"]["nodeTaints"] = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    items.append({"kind": "ResourceFlavor", "metadata": {"name": "spot"}, "spec": {"nodeLabels": {"gpu": "l4"}}})
    quota = [{"name": "nvidia.com/gpu", "nominalQuota": "0"}]
    for queue in items[:2]:
        queue["spec"]["resourceGroups"][0]["flavors"].append({"name": "spot", "resources": quota})
    of = {item["metadata"]["name"]: item for item in items if item["kind"] == "Workload"}
    template = {name: of[name]["spec"]["podSets"][0]["template"]["spec"] for name in of}
    tolerates = {"tolerations": [{"key": "gpu", "operator": "Exists"}]}
    template["w1"] |= tolerates
    affinity = {"key": "gpu", "operator": "NotIn", "values": ["l4", "h100"]}
    template["w2"] |= tolerates | {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [affinity]}]}}}}  # fmt: skip
    template["w3"]["nodeSelector"] = {"gpu": "a100"}  # without a toleration no flavor is left
    of["w3"]["metadata"]["annotations"] = {"kueue.x-k8s.io/priority-boost": "-3"}
    of["w2"]["spec"]["preemptionGates"] = [{"name": "x"}]
    of["w1"]["spec"] |= {"preemptionGates": [{"name": "x"}]}
    of["w1"]["spec"]["podSets"][0]["topologyRequest"] = {"required": "rack"}
    of["w1"]["status"] |= {"preemptionGates": [{"name": "x", "position": "Open"}],
                           "reclaimablePods": [{"name": "main", "count": 1}]}  # fmt: skip
    of["r1"]["status"]["admission"]["podSetAssignments"] = [{"flavors": {"nvidia.com/gpu": "a100"}}]
    jobs = {job.id[2:]: job for job in KueueCluster(*kueue_objects.write(tmp_path, items), None, False).jobs}
    assert {name: jobs[name].more["flavors"] for name in jobs} == {
        "r1": "a100", "r2": "spot", "r3": "spot", "w1": "a100", "w2": "a100", "w3": "(none)"}  # fmt: skip
    assert [jobs[name].gpus for name in ("w1", "w2")] == [1, 4]  # one pod of w1 is over
    assert [jobs[name].count for name in ("w1", "w2")] == [1, 0]  # pods of 1 GPU may share the nodes of 2
    of["w2"]["spec"]["podSets"][0]["template"]["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "2"
    jobs = {job.id[2:]: job for job in KueueCluster(*kueue_objects.write(tmp_path, items), None, False).jobs}
    assert jobs["w2"].count == 4  # two pods need more than a node has
    assert [jobs[name].priority for name in ("w2", "w3")] == [5, -3]
    assert [jobs[name].more["preemption"] for name in ("w1", "w2", "w3")] == ["", "gated", ""]
    assert [jobs[name].more["topology"] for name in ("w1", "w2")] == ["required", ""]


POD = {"containers": [{"resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}}}]}
LABELS = {"kueue.x-k8s.io/queue-name": "main", "kueue.x-k8s.io/priority-class": "high"}
META = {"name": "new", "namespace": "a", "labels": LABELS}
JOB = {"kind": "Job", "metadata": META, "spec": {"parallelism": 4, "completions": 3, "template": {"spec": POD}}}
PODS = [{"count": 3, "template": {"spec": POD}}]
WORKLOAD = {"kind": "Workload", "metadata": META, "spec": {"queueName": "main", "priority": 7, "podSets": PODS}}
ONE_POD = {"spec": {"containers": [{"resources": {"limits": {"cpu": 6, "nvidia.com/gpu": 3}}}]}}
CLASS = {"kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 7}


@pytest.mark.slow
def test_a_manifest_is_forecast_as_if_it_were_submitted_now(tmp_path):
    """The same workload among the objects, created at the instant of the snapshot, starts at the same times."""
    now = kueue_objects.instant(205)
    there = [*kueue_objects.objects(), CLASS, kueue_objects.workload("new", "a", 3, came=205, priority=7)]
    other = KueueCluster(*kueue_objects.write(tmp_path, there), now, fair_sharing=False)
    assert other.jobs[-1].more.pop("file") == str(tmp_path / "k.json")
    k, n = kueue_objects.write(tmp_path, there[:-1])
    template = {"metadata": {"labels": LABELS}, **ONE_POD}
    for given in (
        {"kind": "Pod", "metadata": META, **ONE_POD}, WORKLOAD,
        {"kind": "PodTemplate", "metadata": META | {"labels": {}}, "template": template}, JOB,
    ):  # fmt: skip
        manifest = tmp_path / "my.yaml"
        manifest.write_text("# mine\n" + safe_dump_all([{"kind": "Service", "metadata": {"name": "s"}}, given]))
        ahead = KueueCluster(k, n, now, fair_sharing=False, manifests=[manifest])
        (job,) = ahead.unsubmitted
        assert (job.more.pop("file"), job.line > 1) == (str(manifest), True)
        assert job.count == (1 if "Pod" in given["kind"] else 0)  # one pod of 3 GPUs, or three pods
        assert replace(job, line=0, reason="", count=0) == replace(other.jobs[-1], line=0, reason=""), given["kind"]
    assert ahead.causes()["a/new"] == "not submitted"
    one, same = (cluster.forecast(cluster.policy, 1, 2, seed=1) for cluster in (ahead, other))
    assert [job.id for job in one.jobs] == [job.id for job in same.jobs]
    assert one.starts.tolist() == same.starts.tolist() and np.isfinite(one.starts).all()
    assert one.occupied.max() == one.capacity == 8  # preempted jobs occupy nothing while they wait again


def test_a_workload_that_is_left_out_is_said(tmp_path):
    """One that is deactivated, and one whose queue does not exist."""
    there = kueue_objects.objects()
    off, lost = kueue_objects.workload("off", "a", 3, came=205), kueue_objects.workload("lost", "a", 3, came=205)
    off["spec"]["active"], lost["spec"]["queueName"] = False, "typo"
    files = kueue_objects.write(tmp_path, [*there, off, lost])
    found = KueueCluster(*files, kueue_objects.instant(205), fair_sharing=False)
    assert not {"a/off", "a/lost"} & {job.id for job in found.jobs}
    for reason in ("deactivated (spec.active)", "in no ClusterQueue (typo)"):
        assert any(f"Workloads are left out: {reason}" in note for note in found.objects.notes), found.objects.notes


@pytest.mark.parametrize(("given", "words"), [
    ({**JOB, "metadata": META | {"labels": {}}}, "my.yaml:3:1: kind: cannot be read as a Job: no queue is named; add"),
    ({**JOB, "metadata": META | {"namespace": "b", "name": "w1"}}, "b/w1 is already on the cluster; --job b/w1 prints"),
    ({**JOB, "metadata": META | {"namespace": "c"}}, "there is no LocalQueue c/main"),
    ({**JOB, "spec": {"template": {"spec": {}}}}, "it has no pods, or they request neither cores nor GPUs"),
    ({**JOB, "spec": {}}, "the key 'template' is missing"),
    ({**JOB, "spec": {"template": [1]}}, "a field does not have the type"),
    ({"kind": "List", "items": 5}, "my.yaml:4:1: items: must be a list of objects"),
    ({**JOB, "metadata": META | {"labels": {"kueue.x-k8s.io/max-exec-time-seconds": "1h"}}},
     "metadata.labels.max-exec-time-seconds must be a whole number from 1 to 2,147,483,647; got 1h"),
    ({"kind": "Deployment", "spec": {}}, "has no object of kind Job, Pod, PodTemplate, Workload"),
])  # fmt: skip
def test_a_wrong_manifest_is_refused_with_its_line(tmp_path, given, words):
    k, n = kueue_objects.write(tmp_path)
    manifest = tmp_path / "my.yaml"
    manifest.write_text("---\n---\n" + safe_dump_all([given], sort_keys=False))
    with pytest.raises(ScenarioError) as caught:
        KueueCluster(k, n, None, fair_sharing=False, manifests=[manifest])
    assert words in str(caught.value)


@pytest.mark.slow
def test_the_page_of_a_manifest_has_its_start_and_the_queues(tmp_path):
    items = kueue_objects.objects()
    items[1]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["lendingLimit"] = "0"  # a has its own 4 GPUs
    k, n = kueue_objects.write(tmp_path, items)
    manifest, page = tmp_path / "my.yaml", tmp_path / "f.html"
    manifest.write_text(safe_dump_all([JOB, {**JOB, "metadata": META | {"name": "large"}, "spec": {
        "parallelism": 5, "template": {"spec": POD}}}]))  # fmt: skip
    result = call("twin", "--kueue", k, "--nodes", n, "--hours", 1, "--samples", 2, "--job", manifest, "--page", page)
    assert result.exit_code == 0, result.output
    shown = [line.split()[:3] for line in result.stdout.splitlines() if line.startswith("a/")]
    assert shown == [["a/new", "a", "a"], ["a/large", "a", "a"], ["a/new", "a", "not"], ["a/large", "a", "not"]]
    assert "the priority of class high is not known, and 0 here" in result.output
    assert "a/large never starts: the request exceeds the quota of queue a for gpus" in result.output
    text = page.read_text()
    for words in ("Queues", "Why workloads wait", "starves", "a/large", "not submitted", "namespace"):
        assert words in text, words


@pytest.mark.parametrize(("arguments", "words"), [
    (("--job", "none.yaml"), "the file none.yaml does not exist"),
    (("--what-if", "clusterqueues.z.nominalQuota.gpu=1"), "clusterqueues has no z"),
    (("--what-if", "policy=fcfs"), "must be like clusterqueues.NAME.nominalQuota.gpu=64"),
    (("--what-if", "clusterqueues.a.nominalQuota.cpu=1"), "name one of the flavors of a before cpu"),
    (("--job", "a/none"), "--job must be the id of a waiting job of"),
    (("--policy", "fcfs"), "--kueue needs --nodes, and allows only --nodes"),
])  # fmt: skip
def test_wrong_options_are_refused(tmp_path, arguments, words):
    k, n = kueue_objects.write(tmp_path)
    result = call("twin", "--kueue", k, "--nodes", n, "--hours", 1, "--samples", 2, *arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_wrong_objects_are_told_with_their_line(tmp_path):
    items = kueue_objects.objects()
    items[0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "many"
    k, n = kueue_objects.write(tmp_path, items)
    result = call("trace", "convert", k, "--option", f"nodes={n}")
    assert result.exit_code == 3
    assert "k.json:4" in result.output
    assert "many is not a quantity" in result.output.replace('"', "")
    for place, wrong in (("nodeLabels", "a field does not have the type that Kueue "
                                        "defines"), (None, "cannot be read as an object")):
        items = kueue_objects.objects()
        items[2]["spec"] = {place: ["x"]} if place else ["x"]
        k, n = kueue_objects.write(tmp_path, items)
        output = call("trace", "convert", k, "--option", f"nodes={n}").output
        assert ("k.json:62" in output, wrong in " ".join(output.split())) == (True, True), output
    items = kueue_objects.objects()
    items.append({"kind": "Topology", "metadata": {"name": "t"}, "spec": {"levels": [{"nodeLabel": {}}]}})
    k, n = kueue_objects.write(tmp_path, items)  # a level that no node has: no racks
    assert call("trace", "convert", k, "--option", f"nodes={n}").exit_code == 0
    k, n = kueue_objects.write(tmp_path, [{"kind": "Pod", "metadata": {"name": "x"}}])
    assert (
        "has no ClusterQueue"
        in call("trace", "convert", k, "--format", "kueue_objects", "--option", f"nodes={n}").output
    )


def changed(tmp_path, change, nodes=None, manifests=(), now=None):
    """The cluster of the objects after `change(objects by name, all objects)`, and of nodes with these labels."""
    items = kueue_objects.objects()
    change({f"{item['kind']}/{item['metadata']['name']}": item for item in items}, items)
    k, n = kueue_objects.write(tmp_path, items)
    if nodes is not None:
        there = kueue_objects.nodes()
        for node, labels in zip(there, nodes, strict=True):
            node["metadata"]["labels"] |= labels
        n.write_text(json.dumps({"kind": "List", "items": there}, indent=1))
    return KueueCluster(k, n, now, fair_sharing=False, manifests=manifests)


def spec_of(item):
    return item["spec"]["podSets"][0]["template"]["spec"]


def test_pods_start_on_nodes_with_all_that_they_select(tmp_path):
    """No flavor has the label `zone`: flavors are chosen without it, and the pods start where it is."""
    def change(of, items):
        term = {"matchExpressions": [{"key": "disk", "operator": "Gt", "values": [str(1 << 40)]},
                                     {"key": "zone", "operator": "NotIn", "values": ["b"]}]}  # fmt: skip
        spec_of(of["Workload/w1"])["nodeSelector"] = {"gpu": "a100", "zone": "b"}
        spec_of(of["Workload/w2"])["affinity"] = {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}  # fmt: skip
        spec_of(of["Workload/w3"])["nodeSelector"] = {"zone": "c"}

    labels = [{"disk": str(1 << 41)}, {"disk": "many"}, {"zone": "b", "disk": str(1 << 42)}, {"disk": "-1"}]
    cluster = changed(tmp_path, change, labels)
    jobs = {job.id[2:]: job for job in cluster.jobs}
    assert [jobs[name].more["partition"] for name in ("r1", "w1", "w2")] == ["", "selector 0", "selector 1"]
    assert [[*node["partitions"]] for node in cluster.nodes] == [
        ["a100", "selector 1"], ["a100"], ["a100", "selector 0"], ["a100"]]  # fmt: skip
    assert "w3" not in jobs
    assert "Workloads are left out: no node has the labels that its pods select" in cluster.objects.notes
    alone = [item for item in cluster.jobs if not item.runs]
    cluster.jobs = alone
    made = cluster.forecast(cluster.policy, 1, 2, 0)
    assert {job.id: start for job, start in zip(made.jobs, made.starts[0].tolist(), strict=True)}["b/w1"] < 1


@pytest.mark.parametrize(("request_", "expected"), [
    ({"required": "block"}, ("required block", 0, "a100")), ({"preferred": "rack"}, ("preferred", 0, "a100")),
    ({"required": "kubernetes.io/hostname"}, ("required", 1, "a100")),
    ({"required": "zone"}, ("required", 0, "(none)")), ({"unconstrained": True}, ("unconstrained", 0, "")),
])  # fmt: skip
def test_a_topology_has_the_level_that_a_workload_names(tmp_path, request_, expected):
    """As part of a Workload, and as annotations of a Job; two of the four nodes are in each block, one in each rack."""
    def change(of, items):
        of["Workload/w2"]["spec"]["podSets"][0]["topologyRequest"] = request_
        items.append({"kind": "ResourceFlavor", "metadata": {"name": "plain"}, "spec": {}})
        quota = [{"name": "nvidia.com/gpu", "nominalQuota": "0"}]
        of["ClusterQueue/a"]["spec"]["resourceGroups"][0]["flavors"].append({"name": "plain", "resources": quota})

    ((key, level),) = request_.items()
    notes = {f"kueue.x-k8s.io/podset-{key}-topology": str(level).lower() if level is True else level}
    manifest = tmp_path / "my.yaml"
    template = {"metadata": {"annotations": notes}, "spec": POD}
    manifest.write_text(safe_dump_all([{**JOB, "spec": {"parallelism": 4, "template": template}}]))
    labels = [{"block": f"b{k // 2}", "rack": f"r{k % 2}"} for k in range(4)]
    cluster = changed(tmp_path, change, labels, [manifest])
    of = {job.id: job for job in [*cluster.jobs, *cluster.unsubmitted]}
    for name in ("a/w2", "a/new"):
        assert (of[name].more["topology"], of[name].count, of[name].more["flavors"]) == expected, name
    assert [node["rack"] for node in cluster.nodes] == ["b0/r0", "b0/r1", "b1/r0", "b1/r1"]
    assert cluster.policy["levels"] == {"block": {"b0": ["n0", "n1"], "b1": ["n2", "n3"]}}


def test_init_containers_and_sidecars_count_as_in_kubernetes(tmp_path):
    """max(1 + 2 + sidecars of 0.5 and 1, a start of 3 beside the first sidecar) and 0.25 of overhead."""
    def cpu(amount, **more):
        return {"resources": {"requests": {"cpu": amount, "nvidia.com/gpu": more.pop("gpu", 0)}}, **more}

    def change(of, items):
        start = [cpu("500m", restartPolicy="Always"), cpu("3", gpu=2), cpu("1", restartPolicy="Always")]
        spec_of(of["Workload/w2"]).update(containers=[cpu("1"), cpu("2")], initContainers=start,
                                          overhead={"cpu": "250m"})  # fmt: skip
        spec_of(of["Workload/w3"])["initContainers"] = [cpu("9")]

    jobs = {job.id: job for job in changed(tmp_path, change).jobs}
    assert [(jobs[name].cpus, jobs[name].gpus) for name in ("a/w2", "a/w3")] == [(4 * 4.75, 8), (9, 1)]


def test_what_the_model_leaves_out_is_noted(tmp_path):
    """A stopped LocalQueue, a flavor that does not exist, and running jobs for which the nodes have no room."""
    def change(of, items):
        of["LocalQueue/main"]["spec"]["stopPolicy"] = "Hold"
        quota = [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]
        of["ClusterQueue/b"]["spec"]["resourceGroups"][0]["flavors"].append({"name": "h100", "resources": quota})
        for name in "ab":
            of[f"ClusterQueue/{name}"]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["nominalQuota"] = "20"
        items.append(kueue_objects.workload("r4", "b", 7, 173, start=173))

    cluster = changed(tmp_path, change)
    assert {"LocalQueue b/main is stopped (Hold); the model admits its workloads",
            "ClusterQueue b names the flavor h100, which the file does not have"} <= {*cluster.objects.notes}
    assert cluster.policy["flavors"]["h100"] == {"nodes": ["(none)"]}
    notes = cluster.forecast(cluster.policy, 1, 2, 0).notes
    text = "2 jobs that run do not fit next to the others, and start later or never: a/r1, a/r2"
    assert text in notes, notes


@pytest.mark.parametrize(("change", "words"), [
    (lambda of, items: of["Workload/w2"]["spec"]["podSets"][0].update(count=-1),
     "spec.podSets.count must be a whole number from 0 to 1,000,000; got -1"),
    (lambda of, items: of["Workload/w2"]["spec"]["podSets"][0].update(count=10**9), "to 1,000,000; got 1000000000"),
    (lambda of, items: of["Workload/w2"]["metadata"].update(annotations={"kueue.x-k8s.io/priority-boost": "inf"}),
     'metadata.annotations.kueue.x-k8s.io/priority-boost must be a whole number from -2,147,483,647 to'),
    (lambda of, items: of["Workload/w2"]["spec"].update(maximumExecutionTimeSeconds="1h"),
     'spec.maximumExecutionTimeSeconds must be a whole number from 1 to 2,147,483,647; got 1h'),
    (lambda of, items: items.append(of["Workload/w2"]), "Workload a/w2 is also in line"),
])  # fmt: skip
def test_nonsense_in_objects_is_refused_with_its_line(tmp_path, change, words):
    with pytest.raises(ScenarioError) as caught:
        changed(tmp_path, change)
    assert words in str(caught.value)
    assert re.match(rf"{tmp_path}/k.json:\d+: ", str(caught.value))


@pytest.mark.parametrize(("spec", "words"), [
    ({"parallelism": 10**9},
     "my.yaml:10:5: items.0.spec.parallelism: cannot be read as a Job: spec.parallelism must be a whole number from"),
    ({"completions": -2}, "my.yaml:10:5: items.0.spec.completions: cannot be read as a Job: spec.completions must be"),
    ({}, "my.yaml:17:3: items.1.kind: a/new is also in "),
])  # fmt: skip
def test_a_list_of_manifests_is_read_object_by_object(tmp_path, spec, words):
    """With the line of the key; two objects of one name are refused."""
    manifest, job = tmp_path / "my.yaml", {"kind": "Job", "metadata": {"name": "new", "namespace": "a", "labels": {
        "kueue.x-k8s.io/queue-name": "main"}}, "spec": {"template": {"spec": POD}, **spec}}  # fmt: skip
    manifest.write_text(safe_dump({"kind": "JobList", "items": [job, job]}, sort_keys=True))
    with pytest.raises(ScenarioError) as caught:
        changed(tmp_path, lambda of, items: None, manifests=[manifest])
    assert words in str(caught.value)
