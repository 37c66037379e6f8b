"""The policy `kueue` by hand: borrowing, reclaim, strict queues, flavors, topologies, cycles."""

from __future__ import annotations

import random

import pytest

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.results.one_run.explain import explain, explain_all
from hetsim_policies.dynamic.common.admission_cycle import Admission
from hetsim_policies.dynamic.common.topology import Domain, place

NODES = [{"name": "n", "count": 2, "cpus": 8, "gpus": {"type": "a", "count": 4}, "rack": "r0"},
         {"name": "m", "count": 2, "cpus": 8, "gpus": {"type": "b", "count": 4}, "rack": "r1"}]  # fmt: skip


def run(jobs, queues, nodes=NODES, decisions=None, **more):
    """Jobs as (class, arrival, GPUs, seconds, further keys); their rows by order."""
    work = [
        {"name": f"j{k}", "class": queue, "gpus": gpus, "gpu_time": f"{length} s", "count": 1,
         "arrivals": {"process": "deterministic", "interval": "1 s", "first": f"{came} s"}, **keys}
        for k, (queue, came, gpus, length, keys) in enumerate(jobs)
    ]  # fmt: skip
    policy = {
        "scheduler": {"name": "kueue", "queues": queues, **more},
        **({"decisions": decisions} if decisions else {}),
    }
    return hs.run(hs.load({"name": "k", "cluster": {"nodes": nodes}, "workload": work, "policy": policy}))


def waits(result):
    """Waits by order of the jobs; of preempted ones until the first start."""
    tasks = result.tasks.sort_values(["arrival", "class"])
    return (tasks["start"] - tasks["arrival"]).round(6).tolist()


ALL = {"a": {"cohort": "all", "quotas": {"any": {"gpus": 8}}},
       "b": {"cohort": "all", "quotas": {"any": {"gpus": 8}}, "reclaim_within_cohort": "any"}}  # fmt: skip


def test_a_queue_borrows_what_is_idle_and_its_owner_takes_it_back():
    """a holds 12 of 16 GPUs, 4 of them borrowed; b needs all of its 8: the last job of a begins again."""
    jobs = [("a", k, 4, 100, {}) for k in range(3)] + [("b", 10, 4, 50, {}), ("b", 11, 4, 50, {})]
    result = run(jobs, ALL)
    assert waits(result) == [0, 0, 0, 0, 0]
    assert result.metric("preemptions") == 1
    ends = result.tasks.sort_values(["arrival"])["finish"].tolist()
    assert ends[:3] == [100, 101, 160]  # begun again at 60, as b's first job has ended
    kept = run(jobs, ALL, preempt_mode="suspend").tasks.sort_values(["arrival"])["finish"].tolist()
    assert kept[2] == 60 + 91  # 9 s were done


@pytest.mark.parametrize(("more", "again"), [({}, 12), ({"ending": "30 s"}, 40)])
def test_a_preempted_job_queues_again_when_its_pods_have_ended(more, again):
    """a borrows all; b takes its part back from 10 to 12 s, and the job of a is there again at 10 s + ending."""
    jobs = [("a", 0, 4, 100, {}), ("a", 1, 4, 100, {}), ("a", 2, 4, 100, {}), ("a", 3, 4, 100, {}), ("b", 10, 4, 2, {})]
    result = run(jobs, ALL, **more)
    assert result.metric("preemptions") == 1
    assert sorted(result.tasks["finish"])[-1] == again + 100


@pytest.mark.parametrize(("more", "expected"), [({}, [0, 9, 0]), ({"requeue": "1 s"}, [0, 12.5, 0])])
def test_jobs_that_did_not_fit_are_considered_again_some_time_after_a_release(more, expected):
    """When the second is considered again, at 11 s, one of another kind has come; it ends at 12.5 s."""
    jobs = [("a", 0, 4, 10, {}), ("a", 1, 4, 9, {}), ("a", 10.5, 2, 2, {})]
    if not more:
        jobs[2] = ("a", 19, 2, 2, {})
    assert waits(run(jobs, {"a": {"quotas": {"any": {"gpus": 4}}}}, **more)) == expected


@pytest.mark.parametrize("seed", range(2))
def test_what_is_plainly_hopeless_is_what_nomination_finds(seed, monkeypatch):
    """Queues that borrow, reclaim and preempt decide the same with the quick answer and without it."""
    draw, found = random.Random(seed), []
    rules = {"reclaim_within_cohort": "any", "within_cluster_queue": "lower_priority" if seed % 2 else "never"}
    sizes = {"a": 4, "b": 8}
    queues = {name: {"cohort": "all", "quotas": {"any": {"gpus": gpus}}, **rules} for name, gpus in sizes.items()}
    jobs = [(draw.choice("ab"), draw.randrange(30), draw.choice([1, 2, 4]), draw.randrange(5, 30),
             {"priority": draw.randrange(3)}) for _ in range(24)]  # fmt: skip
    quick = Admission.hopeless
    monkeypatch.setattr(Admission, "hopeless", lambda self, job: (found.append(quick(self, job)), found[-1])[1])
    with_it = run(jobs, queues).tasks
    monkeypatch.setattr(Admission, "hopeless", lambda self, job: None)
    assert with_it.equals(run(jobs, queues).tasks)
    assert sum(found) > 5


def test_limits_of_borrowing_and_lending_hold():
    quotas = {"cohort": "all", "quotas": {"any": {"gpus": {"nominal": 4, "borrowing": 4}}}}
    lender = {"cohort": "all", "quotas": {"any": {"gpus": {"nominal": 12, "lending": 2}}}}
    jobs = [("a", 0, 4, 10, {}), ("a", 1, 2, 10, {}), ("a", 2, 2, 10, {}), ("b", 3, 4, 1, {})]
    assert waits(run(jobs, {"a": quotas, "b": ALL["b"]})) == [0, 0, 0, 0]
    assert waits(run(jobs, {"a": quotas, "b": lender})) == [0, 0, 8, 0]  # b lends 2


@pytest.mark.parametrize(("strategy", "expected"), [("strict_fifo", [0, 9]), ("best_effort_fifo", [0, 11])])
def test_the_head_of_a_strict_queue_blocks_those_behind_it(strategy, expected):
    queue = {"quotas": {"any": {"gpus": 4}}, "strategy": strategy}
    assert waits(run([("a", 0, 2, 10, {}), ("a", 1, 4, 10, {}), ("a", 2, 2, 10, {})], {"a": queue}))[:2] == expected
    third = waits(run([("a", 0, 2, 10, {}), ("a", 1, 4, 10, {}), ("a", 2, 2, 5, {})], {"a": queue}))[2]
    assert (third > 0) == (strategy == "strict_fifo")


def test_flavors_are_tried_in_order_and_say_where_a_job_runs():
    flavors = {"b": {"types": ["b"]}, "a": {"nodes": ["n*"]}}
    queue = {"quotas": {"b": {"gpus": 4}, "a": {"gpus": 8}}, "when_can_preempt": "try_next_flavor"}
    tasks = run([("q", k, 4, 10, {}) for k in range(4)], {"q": queue}, flavors=flavors).tasks.sort_values("arrival")
    assert tasks["node"].str[0].tolist() == ["m", "n", "n", "m"]
    assert (tasks["start"] - tasks["arrival"]).tolist() == [0, 0, 0, 7]


def test_fair_sharing_evens_borrowing_out():
    """c lends 8; a borrows all of it first, b gets half by preemption: shares are then equal."""
    rules = {"cohort": "all", "quotas": {"any": {"gpus": 4}}, "reclaim_within_cohort": "any"}
    queues = {"a": rules, "b": rules, "c": {"cohort": "all", "quotas": {"any": {"gpus": 8}}}}
    jobs = [("a", 0, 4, 100, {}) for _ in range(3)] + [("b", 5, 4, 100, {}), ("b", 6, 4, 100, {})]
    assert run(jobs, queues).metric("preemptions") == 0
    assert run(jobs, queues, fair_sharing=True).metric("preemptions") == 1


def test_a_job_over_nodes_lies_in_one_rack_where_its_flavor_says_so():
    nodes = [{"name": f"r{k}n", "count": 2, "cpus": 8, "rack": f"r{k}"} for k in range(2)]
    queue = {"quotas": {"racks": {"cores": 32}}}

    def wait(topology):
        once = {"process": "deterministic", "interval": "1 s"}
        jobs = [
            {"name": f"s{k}", "class": "q", "cpus": 8, "cpu_time": f"{length} s", "count": 1, "arrivals": once}
            for k, length in enumerate((1, 10, 10))
        ]  # of the two nodes that are free at 2 s one is in each rack
        late = {**once, "first": "2 s"}
        jobs += [
            {"name": "gang", "class": "q", "cpus": 8, "nodes": 2, "cpu_time": "10 s", "count": 1, "arrivals": late}
        ]
        policy = {"name": "kueue", "queues": {"q": queue}, "flavors": {"racks": {"topology": topology}}}
        tasks = hs.run(hs.load({"name": "k", "cluster": {"nodes": nodes}, "workload": jobs, "policy": policy})).tasks
        return float((tasks["start"] - tasks["arrival"]).iloc[-1])

    assert (wait("required"), wait("preferred"), wait("unconstrained"), wait(None)) == (8, 0, 0, 0)


@pytest.mark.parametrize(("wide", "racks"), [(2, "c"), (3, "b"), (4, "a"), (6, "ac"), (7, "ab"), (8, "abc")])
def test_a_job_over_racks_uses_the_fewest_and_the_fullest_that_do(wide, racks):
    """Racks of 4, 3 and 2 nodes: the largest whole, and for the rest the smallest that suffices."""
    sizes = {"a": 4, "b": 3, "c": 2}
    nodes = [{"name": f"{rack}n", "count": count, "cpus": 8, "rack": rack} for rack, count in sizes.items()]
    job = {"name": "gang", "class": "q", "cpus": 8, "nodes": wide, "cpu_time": "9 s", "count": 1}
    policy = {"name": "kueue", "queues": {"q": {"quotas": {"all": {"cores": 99}}}},
              "flavors": {"all": {"topology": "preferred"}}}  # fmt: skip
    work = [{**job, "arrivals": {"process": "deterministic", "interval": "1 s"}}]
    tasks = hs.run({"name": "k", "cluster": {"nodes": nodes}, "workload": work, "policy": policy}).tasks
    assert "".join(sorted({name[0] for name in tasks["node"].iloc[0].split("+")})) == racks


@pytest.mark.parametrize("seed", range(6))
def test_pods_are_placed_in_as_few_domains_as_possible(seed):
    """Blocks of racks of hosts: all choices of racks are tried, for one rack, one block or several of them."""
    draw = random.Random(seed)
    blocks = [Domain((f"b{b}",), 0) for b in range(3)]
    for block in blocks:
        racks = [Domain((*block.names, f"r{r}"), 0) for r in range(2)]
        for rack in racks:
            rack.inside = [Domain((*rack.names, f"h{h}"), draw.randrange(4)) for h in range(3)]
            rack.room = sum(one.room for one in rack.inside)
        block.inside, block.room = racks, sum(one.room for one in racks)
    racks = [rack for block in blocks for rack in block.inside]
    levels = [blocks, racks, [host for rack in racks for host in rack.inside]]
    room = {host: host.room for host in levels[2]}
    for count in range(1, sum(one.room for one in blocks) + 2):
        for level, kind in ((0, "required"), (1, "required"), (0, "preferred"), (1, "preferred"), (2, "unconstrained")):
            enough = [one.room for one in levels[level] if one.room >= count]
            got = place(levels, count, level, kind)
            if (kind == "required" and not enough) or count > sum(room.values()):
                assert got is None
                continue
            assert sum(got.values()) == count and all(0 < pods <= room[host] for host, pods in got.items())
            if kind == "unconstrained":
                least = sorted(filter(None, room.values()))[: len(got)]
                assert sorted(room[host] for host in got) == (least if len(got) > 1 else [min(enough)])
                continue
            depth = next((at for at in range(level, -1, -1) if max(one.room for one in levels[at]) >= count), 0)
            used = {host.names[: depth + 1] for host in got}
            sizes = {one.names: one.room for one in levels[depth]}
            fewest = next(n for n in range(1, 7) if sum(sorted(sizes.values())[-n:]) >= count)
            assert len(used) == fewest
            rest = count - sum(sorted(sizes.values())[len(sizes) - fewest + 1 :])
            assert min(sizes[one] for one in used) == min(size for size in sizes.values() if size >= rest)


@pytest.mark.parametrize("requeue", [0, 1])
@pytest.mark.parametrize("busy", [{"p": 1}, {}])
def test_a_job_without_a_rack_is_considered_again_when_nodes_are_released(busy, requeue):
    """The nodes of its rack are occupied by a queue of another tree, or under maintenance: no quota is released."""
    nodes = [{"name": "n", "count": 2, "cpus": 8, "rack": "r"}]
    once = {"process": "deterministic", "interval": "1 s", "first": "1 s"}
    job = {"cpus": 8, "nodes": 2, "cpu_time": "5 s", "count": 1}
    work = [{"name": "gang", "class": "q", **job, "arrivals": once}]
    work += [{"name": "other", "class": name, **job, "arrivals": {**once, "first": "0 s"}} for name in busy]
    queues = {name: {"quotas": {"all": {"cores": 99}}} for name in "pq"}
    policy = {"name": "kueue", "queues": queues, "flavors": {"all": {"topology": "required"}},
              "requeue": f"{requeue} s"}  # fmt: skip
    down = [] if busy else [{"maintenance": {"nodes": ["n0"], "from": "1 s", "for": "4 s"}}]
    scenario = {"name": "k", "cluster": {"nodes": nodes}, "workload": work, "policy": policy, "faults": down}
    assert hs.run(scenario).tasks["start"].max() == 5 + requeue


@pytest.mark.parametrize("racks", [["r", "s"], ["", ""]])
def test_a_job_wider_than_every_rack_is_rejected_where_racks_are_required(racks):
    """It holds no quota afterwards: the job behind it, which needs all of it, starts at once."""
    nodes = [{"name": f"n{k}", "count": 2, "cpus": 8, "rack": rack or None} for k, rack in enumerate(racks)]
    once = {"process": "deterministic", "interval": "1 s"}
    job = {"class": "q", "cpus": 8, "cpu_time": "5 s", "count": 1}
    work = [{"name": "wide", **job, "nodes": 3, "arrivals": {**once, "first": "1 s"}},
            {"name": "gang", **job, "nodes": 1, "cpus": 8, "arrivals": {**once, "first": "2 s"}}]  # fmt: skip
    policy = {"name": "kueue", "queues": {"q": {"quotas": {"all": {"cores": 24}}, "strategy": "strict_fifo"}},
              "flavors": {"all": {"topology": "required"}}}  # fmt: skip
    tasks = hs.run({"name": "k", "cluster": {"nodes": nodes}, "workload": work, "policy": policy}).tasks
    assert tasks["status"].tolist() == ["rejected", "completed"] and tasks["start"].max() == 2
    assert "no rack has as many devices" in tasks["reason"].iloc[0]


def test_a_cycle_that_ends_with_its_last_start_loses_no_job():
    """Each cycle of 1 s may start one job, and b preempts: what a cycle did not decide is left to the next one."""
    queues = {name: {"quotas": {"any": {"gpus": 8}}} for name in "cde"}
    jobs = [(name, 0, 2, 100, {}) for name in "cde"]
    assert waits(run(jobs, queues, decisions={"cycle": "1 s", "max_starts": 1})) == [0, 1, 2]
    jobs = [("a", 0, 4, 100, {})] * 3 + [("b", 10, 4, 50, {})] * 2 + [("c", 10, 4, 5, {})] * 2
    tasks = run(jobs, {**ALL, "c": queues["c"]}, decisions={"cycle": "1 s", "max_starts": 1}).tasks
    assert tasks["status"].tolist() == ["completed"] * 7


def test_a_job_that_admission_drops_at_its_start_keeps_no_quota():
    work = [{"name": name, "class": name, "cpus": 4, "cpu_time": "3 s", "count": 30,
             "arrivals": {"process": "deterministic", "rate": "1/s"}} for name in "pq"]  # fmt: skip
    queues = {name: {"quotas": {"all": {"cores": 8}}} for name in "pq"}
    policy = {"scheduler": {"name": "kueue", "queues": queues},
              "admission": {"name": "head_codel", "target": "1 s", "interval": "2 s"}}  # fmt: skip
    cluster = {"nodes": [{"name": "n", "count": 2, "cpus": 8}]}
    status = hs.run({"name": "k", "cluster": cluster, "workload": work, "policy": policy}).tasks["status"].tolist()
    assert set(status) == {"completed", "rejected"} and status.count("rejected") < 30


@pytest.mark.parametrize("requeue", ["1e-20 s", "0 s"])
def test_a_delay_below_the_resolution_of_the_clock_is_none(requeue):
    jobs = [("a", 0, 4, 10, {}), ("a", 1, 4, 10, {})]
    assert waits(run(jobs, {"a": {"quotas": {"any": {"gpus": 4}}}}, requeue=requeue)) == [0, 9]


def test_a_wait_for_a_rack_has_its_own_cause():
    """At 2 s the gang has no quota, from 5 s on no rack: one node of each rack is free until 10 s."""
    nodes = [{"name": f"r{k}n", "count": 2, "cpus": 9, "rack": f"r{k}"} for k in range(2)]
    given = [("s0", "q", 1, 8, 1), ("s1", "q", 1, 8, 10), ("s2", "q", 1, 8, 10), ("gang", "q", 2, 8, 10),
             ("quota", "p", 1, 1, 5)]  # fmt: skip
    work = [
        {"name": name, "class": queue, "cpus": cpus, "nodes": count, "cpu_time": f"{length} s", "count": 1,
         "arrivals": {"process": "deterministic", "interval": "1 s", "first": "2 s" if name == "gang" else "0 s"}}
        for name, queue, count, cpus, length in given
    ]  # fmt: skip
    queues = {"q": {"cohort": "all", "quotas": {"racks": {"cores": 0}}},
              "p": {"cohort": "all", "quotas": {"racks": {"cores": 32}}}}  # fmt: skip
    policy = {"name": "kueue", "queues": queues, "flavors": {"racks": {"topology": "required"}}}
    result = hs.run(hs.load({"name": "k", "cluster": {"nodes": nodes}, "workload": work, "policy": policy}))
    table = explain(result, result.tasks["id"].tolist()[-1])
    assert table[["from", "to", "cause"]].to_numpy().tolist() == [[2, 5, "quota"], [5, 10, "topology"]]
    assert explain_all(result).loc["q", ["quota", "topology"]].tolist() == [3, 5]


def test_a_job_names_its_topology_in_the_table(tmp_path):
    """Two racks with one free node each at 2 s: `required` waits; an unknown word is refused."""
    nodes = [{"name": f"r{k}n", "count": 2, "cpus": 8, "rack": f"r{k}"} for k in range(2)]
    path = tmp_path / "t.csv"
    levels = {"hall": {"x": ["r0n0", "r1n1"], "y": ["r0n1", "r1n0"]},
              "row": {"p": ["r0n0", "r1n0"], "q": ["r0n1", "r1n1"]},
              "node": {"n": ["r0n0"]}}  # fmt: skip
    policy = {"name": "kueue", "queues": {"q": {"quotas": {"all": {"cores": 99}}}}, "levels": levels}
    scenario = {"name": "k", "cluster": {"nodes": nodes}, "policy": policy,
                "workload": {"trace": {"format": "tasks", "path": str(path)}}}  # fmt: skip
    for word, start in (
        ("required", 5), ("preferred", 2), ("", 2), ("required hall", 2), ("required row", 5), ("preferred row", 2),
    ):  # fmt: skip
        rows = ["0,0,q,8,1,1,", "1,0,q,8,1,5,", "2,0,q,8,1,9,", f"3,2,q,8,2,9,{word}"]
        path.write_text("\n".join(["id,arrival,class,cpus,nodes,cpu_time,topology", *rows]))
        assert hs.run(scenario).tasks["start"].iloc[-1] == start
    path.write_text("\n".join(["id,arrival,class,cpus,nodes,cpu_time,topology", "3,2,q,8,2,9,required node"]))
    assert "no node has as many devices as the job needs" in hs.run(scenario).tasks["reason"].iloc[0]
    path.write_text(path.read_text() + " rack")
    with pytest.raises(ScenarioError, match='column `topology` .* unconstrained, .*; got "required node rack"'):
        hs.run(scenario)


def test_a_cycle_takes_one_head_of_each_queue_and_decisions_take_time():
    """Two queues of three jobs: three cycles of 1 s, each of which starts one job of each queue."""
    queues = {name: {"quotas": {"any": {"gpus": 8}}} for name in "ab"}
    jobs = [(name, 0, 1, 100, {}) for _ in range(3) for name in "ab"]
    assert sorted(waits(run(jobs, queues, decisions={"per_cycle": "1 s"}, one_head=True))) == [1, 1, 2, 2, 3, 3]
    assert sorted(waits(run(jobs, queues, decisions={"per_cycle": "1 s"}))) == [1] * 6


@pytest.mark.parametrize(("recompute", "expected"), [(True, [20, 20]), (False, [20, 30])])
def test_a_head_whose_target_another_head_preempts_looks_for_others(recompute, expected):
    """a borrows all, b and c take their parts back in the same cycle: both would preempt the last job of a."""
    queues = {"a": {"cohort": "all", "quotas": {"any": {"gpus": 0}}}} | {
        name: {"cohort": "all", "quotas": {"any": {"gpus": 8}}, "reclaim_within_cohort": "any"} for name in "bc"}
    given = [("a", 0, 1000), ("a", 1, 1000), ("b", 15, 10), ("c", 15, 10)]
    jobs = [(name, came, 8, length, {"span": "any"}) for name, came, length in given]
    nodes = [{"name": "n", "count": 4, "cpus": 8, "gpus": {"type": "a", "count": 4}}]
    result = run(jobs, queues, nodes, decisions={"cycle": "10 s"}, one_head=True, recompute=recompute, ending="9 s")
    tasks = result.tasks.sort_values(["arrival", "class"])
    assert [start + 15 for start in waits(result)[2:]] == [one + 10 for one in expected], tasks["start"].tolist()


def test_a_gated_job_starts_if_it_fits_but_preempts_nothing(tmp_path):
    """Both jobs of b find 8 GPUs of their quota lent to a until 50 s; only the one without the gate takes them back."""
    path = tmp_path / "jobs.csv"
    rows = [f"{k},{k},a,4,50," for k in range(4)] + ["4,10,b,4,10,gated", "5,11,b,4,10,"]
    scenario = {"name": "k", "cluster": {"nodes": NODES}, "policy": {"scheduler": {"name": "kueue", "queues": ALL}},
                "workload": {"trace": {"format": "tasks", "path": str(path)}}}  # fmt: skip
    path.write_text("\n".join(["id,arrival,class,gpus,gpu_time,preemption", *rows]))
    result = hs.run(scenario)
    assert result.tasks["start"].tolist()[4:] == [21, 11]  # 4 waits until 5 has ended
    assert result.metric("preemptions") == 1
    path.write_text(path.read_text() + "never")
    with pytest.raises(ScenarioError, match='column `preemption` of a task must be gated; got "never"'):
        hs.run(scenario)


def test_what_a_queue_can_never_have_is_rejected_and_waits_for_quota_say_so():
    result = run(
        [("a", 0, 2, 10, {}), ("a", 1, 2, 10, {}), ("a", 2, 4, 10, {})], {"a": {"quotas": {"any": {"gpus": 2}}}}
    )
    assert result.tasks.sort_values("arrival")["status"].tolist() == ["completed", "completed", "rejected"]
    apart = {"a": {"gpus": 4, "cores": 0}, "b": {"gpus": 0, "cores": 4}}  # no flavor has both
    jobs = [("a", 0, 1, 10, {"cpus": 0}), ("a", 1, 1, 10, {"cpus": 1})]
    assert run(jobs, {"a": {"quotas": apart}}).tasks["status"].tolist() == ["completed", "rejected"]


@pytest.mark.parametrize(("parameters", "words"), [
    ({"queues": {"b": {}}}, 'the class "a" of a task has no queue; the queues are b'),
    ({"queues": {"a": {}}, "flavors": {"x": {"types": ["h100"]}}}, 'flavor x names the type "h100"'),
    ({"queues": {"a": {}}, "cohorts": {"x": {"parent": "y"}, "y": {"parent": "x"}}},
        "the parents of cohorts form a cycle:"),
    ({"queues": {"a": {"quotas": {"any": {"disks": 1}}}}}, "gpus"),
    ({"queues": {"a": {"strategy": "lifo"}}}, "strict_fifo"),
])  # fmt: skip
def test_what_does_not_suit_is_refused_in_words(parameters, words):
    with pytest.raises(ScenarioError, match=words):
        run([("a", 0, 1, 1, {})], **parameters)
