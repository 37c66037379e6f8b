"""Qualities of service, accounts and quotas: slurm_multifactor and quota_borrow as sites use them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_sites import GPUS, drawn_jobs, run

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim_policies.dynamic.common.fair_tree import Account, FairTree
from hetsim_policies.dynamic.slurm_multifactor import _next_multiple


def slurm(**parameters):
    return {"scheduler": {"name": "slurm_multifactor", **parameters}}


# Fair Tree --------------------------------------------------------------------------------------------------------


def order(tree, usage):
    factors = tree.factors(usage)
    return sorted(factors, key=lambda member: -factors[member]), factors


def test_users_of_an_account_that_is_owed_more_come_first_whatever_they_used_themselves():
    """a has used a quarter of its half, b three quarters: all of a's users before all of b's."""
    tree = FairTree({"a": Account(), "b": Account()}, {})
    usage = {("a", "heavy"): 24.0, ("a", "light"): 1.0, ("b", "idle"): 0.0, ("b", "busy"): 75.0}
    ranked, factors = order(tree, usage)
    assert ranked == [("a", "light"), ("a", "heavy"), ("b", "idle"), ("b", "busy")]
    assert [factors[member] for member in ranked] == [1.0, 0.75, 0.5, 0.25]


def test_shares_weigh_usage_on_every_level():
    accounts = {"top": Account(shares=3), "other": Account(shares=1),
                "x": Account(parent="top", shares=1), "y": Account(parent="top", shares=9)}  # fmt: skip
    usage = {("x", "u"): 20.0, ("y", "v"): 60.0, ("other", "w"): 25.0}
    # top: 3/4 of the shares and 80/105 of the usage; other: 1/4 and 25/105, so other is owed more (1.05 against 0.98).
    # Within top y is owed more: 9/10 and 3/4 against 1/10 and 1/4.
    assert order(FairTree(accounts, {}), usage)[0] == [("other", "w"), ("y", "v"), ("x", "u")]
    usage[("other", "w")] = 30.0
    assert order(FairTree(accounts, {}), usage)[0] == [("y", "v"), ("x", "u"), ("other", "w")]


def test_siblings_owed_the_same_are_one_and_equals_share_a_place():
    """Accounts that have used the same: their users are ranked together."""
    tree = FairTree({"a": Account(), "b": Account()}, {})
    usage = {("a", "p"): 1.0, ("a", "q"): 3.0, ("b", "r"): 2.0, ("b", "s"): 2.0}
    ranked, factors = order(tree, usage)
    assert ranked[0] == ("a", "p")
    assert factors[("b", "r")] == factors[("b", "s")] == 0.75
    assert ranked[-1] == ("a", "q")
    assert factors[("a", "q")] == 0.25


def test_a_random_tree_never_puts_a_user_before_one_of_an_account_owed_more():
    random = np.random.default_rng(3)
    for _ in range(30):
        accounts = {f"a{k}": Account(shares=float(random.integers(1, 5))) for k in range(4)}
        usage = {(f"a{k}", f"u{n}"): float(random.exponential(10)) for k in range(4) for n in range(3)}
        factors = FairTree(accounts, {}).factors(usage)
        used = {name: sum(amount for (account, _), amount in usage.items() if account == name) for name in accounts}
        owed = {name: account.shares / used[name] for name, account in accounts.items()}
        for one, other in itertools.combinations(usage, 2):
            if one[0] != other[0]:
                assert (factors[one] > factors[other]) == (owed[one[0]] > owed[other[0]])
            else:
                assert (factors[one] > factors[other]) == (usage[one] < usage[other])
        assert sorted(factors.values()) == pytest.approx([n / 12 for n in range(1, 13)])


def test_accounts_decide_who_goes_next(tmp_path):
    """Account a has used the node; b's user goes before a's idle one with accounts, after her without."""
    rows = "arrival,gpus,gpu_time,user,account\n0,4,10,ann,a\n1,4,10,amy,a\n2,4,10,bob,b\n"
    fair = {"fair_share": 1000, "age": 1}
    with_tree = run(tmp_path, rows, policy=slurm(**fair, accounts={"a": {"shares": 1}, "b": {"shares": 1}}))
    assert with_tree.tasks["start"].tolist() == [0, 20, 10]
    assert run(tmp_path, rows, policy=slurm(**fair)).tasks["start"].tolist() == [0, 10, 20]


@pytest.mark.parametrize(("accounts", "told"), [
    ({"a": {"parent": "x"}}, 'the parent of account a must be one of the accounts'),
    ({"a": {"parent": "b"}, "b": {"parent": "a"}}, "a → b → a"),
    ({"a": {"shares": 0}}, "must be above 0; got 0"),
])  # fmt: skip
def test_bad_accounts_are_refused(tmp_path, accounts, told):
    with pytest.raises(ScenarioError) as caught:
        run(tmp_path, "gpu_time\n1\n", policy=slurm(accounts=accounts))
    assert told in str(caught.value)


def test_usage_before_the_start_is_of_users_of_accounts(tmp_path):
    rows = "user,account,arrival,gpu_time\nann,phys,0,1\nbob,phys,0,1\n"
    used = {"accounts": {"phys": {}}, "usage": {"phys/ann": 3600}, "age": 0, "size": 0}
    assert run(tmp_path, rows, policy=slurm(**used)).tasks["start"].tolist()[1] == 0
    with pytest.raises(ScenarioError, match='usage must have users as ACCOUNT/USER, since accounts are given; '
                                            'got "ann"'):
        run(tmp_path, rows, policy=slurm(**used | {"usage": {"ann": 3600}}))


# Qualities of service ---------------------------------------------------------------------------------------------


def test_the_quality_of_service_orders_jobs(tmp_path):
    rows = "arrival,gpus,gpu_time,qos\n0,4,10,low\n1,4,10,low\n2,4,10,high\n"
    tiers = {"high": {"priority": 1}, "low": {}}
    assert run(tmp_path, rows, policy=slurm(qos=tiers)).tasks["start"].tolist() == [0, 20, 10]
    assert run(tmp_path, rows, policy=slurm(qos=tiers, service=0)).tasks["start"].tolist() == [0, 10, 20]


@pytest.mark.parametrize(("limit", "starts"), [
    ({"max_jobs": 2}, [0, 0, 10, 10, 0]),
    ({"max_gpus": 3}, [0, 0, 0, 10, 0]),
    ({"max_jobs_per_user": 1}, [0, 10, 0, 10, 0]),
    ({"max_gpus_per_user": 1}, [0, 10, 0, 10, 0]),
])  # fmt: skip
def test_limits_of_a_quality_of_service_keep_and_block_nobody(tmp_path, limit, starts):
    """Four jobs of two users in the tier, one outside it, on GPUs for all."""
    rows = "gpus,gpu_time,user,qos\n1,10,u,q\n1,10,u,q\n1,10,v,q\n1,10,v,q\n2,1,u,free\n"
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 8}}]
    result = run(tmp_path, rows, nodes=nodes, policy=slurm(qos={"q": limit, "free": {}}, size=0, fair_share=0))
    assert result.tasks["start"].tolist() == starts
    assert "quota" in {cause for *_, cause in result.record.holds}


@pytest.mark.slow
def test_limits_hold_at_every_instant_of_a_long_run(tmp_path):
    rows = drawn_jobs(21, [""], count=300, rate=2.0)
    random = np.random.default_rng(5)
    rows["user"], rows["qos"] = random.choice(["u", "v", "w"], 300), random.choice(["q", "r"], 300)
    nodes = [{"count": 2, "cpus": 4, "gpus": GPUS}]
    tiers = {"q": {"max_gpus_per_user": 4, "max_gpus": 6}, "r": {"max_jobs_per_user": 1}}
    tasks = run(tmp_path, rows, nodes=nodes, policy=slurm(qos=tiers)).tasks
    tasks["gpus"] = rows["gpus"].to_numpy()
    for start in tasks["start"]:
        here = tasks[(tasks["start"] <= start) & (tasks["finish"] > start)]
        of_q = here[here["qos"] == "q"]
        assert of_q["gpus"].sum() <= 6
        assert of_q.groupby("user")["gpus"].sum().max() <= 4 or of_q.empty
        assert here[here["qos"] == "r"].groupby("user").size().max() <= 1 or here[here["qos"] == "r"].empty
    assert (tasks["status"] == "completed").all()


@pytest.mark.parametrize(("mode", "finish", "lost"), [("requeue", [17, 7], 4), ("suspend", [13, 7], 0)])
def test_a_quality_of_service_preempts_a_lower_one(tmp_path, mode, finish, lost):
    """At 4 the high one takes the node for 3 s; what was done by then is lost if requeued."""
    rows = "arrival,gpus,gpu_time,qos\n0,4,10,low\n4,4,3,high\n"
    tiers = {"high": {"preempts": ["low"]}, "low": {"preempt_mode": mode}}
    result = run(tmp_path, rows, policy=slurm(qos=tiers))
    assert result.tasks["finish"].tolist() == finish
    assert result.tasks["preemptions"].tolist() == [1, 0]
    assert result.launches["lost"].sum() == 4 * lost


def test_only_as_many_give_way_as_must_and_not_before_their_time(tmp_path):
    rows = "arrival,gpus,gpu_time,qos\n0,2,10,low\n1,1,10,low\n2,1,10,low\n4,1,3,high\n"
    tiers = {"high": {"preempts": ["low"]}, "low": {}}
    assert run(tmp_path, rows, policy=slurm(qos=tiers)).tasks["preemptions"].tolist() == [0, 0, 1, 0]
    exempt = {"high": {"preempts": ["low"]}, "low": {"exempt": "3 s"}}
    assert run(tmp_path, rows, policy=slurm(qos=exempt)).tasks["preemptions"].tolist() == [0, 1, 0, 0]


def test_an_unknown_quality_of_service_is_named(tmp_path):
    with pytest.raises(ScenarioError, match='qos high must preempt one of high, low'):
        run(tmp_path, "gpu_time\n1\n", policy=slurm(qos={"high": {"preempts": ["lo"]}, "low": {}}))


# Partitions -------------------------------------------------------------------------------------------------------


def test_a_higher_tier_goes_first_and_a_waiting_job_closes_only_its_own_partition(tmp_path):
    nodes = [{"cpus": 4, "gpus": GPUS, "partitions": ["p", "q"]}, {"cpus": 4, "gpus": GPUS, "partitions": "r"}]
    rows = "arrival,gpus,gpu_time,partition\n0,4,10,p\n1,4,10,p\n2,4,10,q\n3,2,1,r\n"
    site = {"partitions": {"q": {"tier": 5}}}
    tasks = run(tmp_path, rows, site, nodes, slurm(bf_max_job_test=0)).tasks
    assert tasks["start"].tolist() == [0, 20, 10, 3]


def test_the_partition_factor_is_by_partition(tmp_path):
    nodes = [{"cpus": 4, "gpus": GPUS, "partitions": ["p", "q"]}]
    rows = "arrival,gpus,gpu_time,partition\n0,4,10,p\n1,4,10,p\n2,4,10,q\n"
    assert run(tmp_path, rows, None, nodes, slurm(partitions={"q": 1.0})).tasks["start"].tolist() == [0, 20, 10]


def test_backfilling_looks_at_few_jobs_of_one_user(tmp_path):
    """Behind a wide head, u's many long jobs leave no place for v's short one unless only one of u is looked at."""
    rows = "arrival,gpus,gpu_time,user\n0,3,10,x\n1,4,10,x\n" + "1,1,20,u\n" * 3 + "2,1,2,v\n"
    wide = {"size": 1_000_000, "fair_share": 0, "age": 1, "bf_interval": 0}
    kept = run(tmp_path, rows, policy=slurm(**wide, bf_max_job_test=3, bf_max_job_user=1)).tasks
    assert kept["start"].tolist()[-1] == 2
    assert run(tmp_path, rows, policy=slurm(**wide, bf_max_job_test=3)).tasks["start"].tolist()[-1] > 2


# When Slurm looks at which jobs --------------------------------------------------------------------------------


NARROW = "arrival,gpus,gpu_time\n0,3,100\n1,4,10\n"
"""Of four GPUs three are busy to 100, when the head gets all four, to 110."""


@pytest.mark.parametrize(("interval", "start"), [(0, 5), ("30 s", 30), ("40 s", 40), ("70 s", 110)])
def test_jobs_are_backfilled_at_multiples_of_an_interval(tmp_path, interval, start):
    """A job of 50 s that comes at 5 may run to 100 on the fourth GPU, from 5 on or from the next pass; at 70 it would
    delay the head.  The first pass was at 1, when a job came that would delay it, too."""
    rows = NARROW + "1,1,500\n5,1,50\n"
    assert run(tmp_path, rows, policy=slurm(bf_interval=interval)).tasks["start"].tolist() == [0, 100, 110, start]


def test_backfilling_tests_no_more_jobs_than_it_may(tmp_path):
    """The head, two jobs that are too long, and a short one."""
    rows = NARROW + "2,1,500\n3,1,500\n4,1,20\n"
    for count, start in ((4, 4), (3, 110)):
        tasks = run(tmp_path, rows, policy=slurm(bf_interval=0, bf_max_job_test=count, fair_share=0, size=0)).tasks
        assert tasks["start"].tolist()[-1] == start


@pytest.mark.parametrize(("resolution", "start"), [(0, 5), ("7 s", 5), ("60 s", 110)])
def test_reservations_are_kept_from_a_multiple_of_the_resolution(tmp_path, resolution, start):
    """The head's is from 100: with 7 s it is kept from 98, with 60 s from 60; the other job would run from 5 to 98."""
    policy = slurm(bf_interval=0, bf_resolution=resolution)
    assert run(tmp_path, NARROW + "5,1,93\n", policy=policy).tasks["start"].tolist() == [0, 100, start]


@pytest.mark.parametrize(("window", "starts"), [(None, [0, 100, 110]), ("95 s", [0, 100, 110]), ("94 s", [0, 505, 5])])
def test_reservations_begin_within_the_window(tmp_path, window, starts):
    """At 5 the head's would begin 95 s later; without it a long job starts at once, and delays the head."""
    policy = slurm(bf_interval=0, bf_window=window)
    assert run(tmp_path, NARROW + "5,1,500\n", policy=policy).tasks["start"].tolist() == starts


@pytest.mark.parametrize(("count", "start"), [(0, 200), (2, 200), (1, 3)])
def test_only_so_many_jobs_get_reservations(tmp_path, count, start):
    """On two nodes: the head gets the first from 100 to 200, the second job the other from 110 to 210.  The last job
    would delay the second; if that has no reservation, it starts at once."""
    nodes = [{"count": 2, "cpus": 4, "gpus": GPUS}]
    rows = "arrival,gpus,gpu_time\n0,4,100\n0,3,110\n1,4,100\n2,4,100\n3,1,150\n"
    policy = slurm(bf_interval=0, bf_job_part_count_reserve=count, fair_share=0, size=0)
    assert run(tmp_path, rows, nodes=nodes, policy=policy).tasks["start"].tolist()[-1] == start


def test_the_main_pass_looks_at_few_jobs_and_at_all_once_in_a_while(tmp_path):
    """Two jobs of a tier that runs one at a time stand before one of another; at 60 all are looked at."""
    rows = "arrival,gpus,gpu_time,qos\n0,1,500,q\n1,1,5,q\n2,1,5,q\n3,1,5,free\n"
    for depth, every, start in ((2, "60 s", 60), (3, "60 s", 3), (2, None, 505)):  # None: not before it is the second
        policy = slurm(qos={"q": {"max_jobs": 1}, "free": {}}, default_queue_depth=depth, bf_max_job_test=0,
                       sched_interval=every)  # fmt: skip
        assert run(tmp_path, rows, policy=policy).tasks["start"].tolist() == [0, 500, 505, start]


@pytest.mark.parametrize(("period", "starts"), [(0, [0, 20, 10]), ("4 s", [0, 20, 10]), ("60 s", [0, 10, 20])])
def test_priorities_are_computed_once_in_a_period(tmp_path, period, starts):
    """At 10 a has used the node and b has not: b is next, unless priorities are those of 1, before a had used much."""
    rows = "arrival,gpus,gpu_time,user\n0,4,10,a\n0,4,10,a\n0,4,10,b\n"
    assert run(tmp_path, rows, policy=slurm(calc_period=period)).tasks["start"].tolist() == starts


# Quotas -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of", "column"), [("user", "user"), ("account", "account"), ("vc", "vc"), ("class", "class")])
def test_quotas_are_of_users_accounts_virtual_clusters_or_classes(tmp_path, of, column):
    """a borrows b's half from 0 on; b takes it back at 5, from a's latest."""
    rows = f"arrival,gpus,gpu_time,{column}\n0,2,20,a\n1,2,20,a\n5,2,3,b\n"
    policy = {"scheduler": {"name": "quota_borrow", "quotas": {"a": 2, "b": 2}, "of": of}}
    tasks = run(tmp_path, rows, policy=policy).tasks
    assert tasks["start"].tolist() == [0, 1, 5]
    assert tasks["finish"].tolist() == [20, 24, 8]


def test_quotas_of_partitions_that_share_nodes(tmp_path):
    rows = "arrival,gpus,gpu_time,partition\n0,2,20,a\n1,2,20,a\n5,2,3,b\n"
    nodes = [{"cpus": 4, "gpus": GPUS, "partitions": ["a", "b"]}]
    policy = {"scheduler": {"name": "quota_borrow", "quotas": {"a": 2, "b": 2}, "of": "partition"}}
    assert run(tmp_path, rows, None, nodes, policy).tasks["finish"].tolist() == [20, 24, 8]


def test_within_a_quota_the_lower_quality_of_service_gives_way_first(tmp_path):
    rows = "arrival,gpus,gpu_time,user,qos\n0,2,20,a,gold\n1,1,20,a,lead\n2,1,20,a,gold\n5,1,3,b,gold\n"
    policy = {"scheduler": {"name": "quota_borrow", "quotas": {"a": 0, "b": 4}, "tiers": {"gold": 1}}}
    assert run(tmp_path, rows, policy=policy).tasks["preemptions"].tolist() == [0, 1, 0, 0]


def test_a_quota_of_nobody_is_refused(tmp_path):
    with pytest.raises(ScenarioError, match='quotas must have a vc with tasks; got "z"; the workload has a, b'):
        run(tmp_path, "gpu_time,vc\n1,a\n1,b\n",
            policy={"scheduler": {"name": "quota_borrow", "quotas": {"z": 2}, "of": "vc"}})  # fmt: skip


def test_nothing_moves_to_make_room_for_whom_a_limit_keeps_waiting():
    """Two gangs of 2 on two nodes of 4, and one of 4 that would be beyond the partition's limit even on a free node."""
    nodes = [{"count": 2, "cpus": 8, "gpus": {"type": "g", "count": 4}, "partitions": "b"}]
    jobs = [{"name": "small", "partition": "b", "arrivals": {"process": "all_at_once", "count": 2}, "gpus": 2,
             "gpu_time": "100 s"},
            {"name": "large", "partition": "b", "gpus": 4, "gpu_time": "10 s",
             "arrivals": {"process": "deterministic", "interval": "1 s", "first": "1 s"}, "count": 1}]  # fmt: skip
    site = {"partitions": {"b": {"default": True, "max_gpus": 6}}}
    policy = {"scheduler": "defragment", "placement": "worst_fit"}
    found = hs.run({"cluster": {"nodes": nodes}, "site": site, "workload": jobs, "policy": policy}, check=True)
    assert found.tasks["start"].tolist() == [0.0, 0.0, 100.0]
    assert (found.tasks["migrations"] == 0).all()


def test_no_borrower_stops_for_a_job_that_a_limit_keeps_waiting(tmp_path):
    """Job 2 is within the quota of u, but p has its one GPU in use: stopping v would not help, and v would start again.
    Job 4 of partition q can have the GPU of v."""
    rows = "arrival,gpus,gpu_time,user,partition\n0,1,10,u,p\n0,1,30,v,q\n1,1,5,u,p\n2,1,4,u,q\n"
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 2}, "partitions": ["p", "q"]}]
    policy = {"scheduler": {"name": "quota_borrow", "quotas": {"u": 3}}}
    site = {"partitions": {"p": {"max_gpus": 1}}}
    tasks = run(tmp_path, rows, site, nodes, policy).tasks
    assert tasks["finish"].tolist() == [10, 34, 15, 6]
    assert tasks["preemptions"].tolist() == [0, 1, 0, 0]


def test_a_victim_in_the_same_partition_frees_what_the_limit_counts(tmp_path):
    rows = "arrival,gpus,gpu_time,user,partition\n0,2,30,v,p\n1,1,5,u,p\n"
    nodes = [{"cpus": 4, "gpus": {"type": "g", "count": 2}, "partitions": ["p"]}]
    policy = {"scheduler": {"name": "quota_borrow", "quotas": {"u": 1}}}
    assert run(tmp_path, rows, {"partitions": {"p": {"max_gpus": 2}}}, nodes, policy).tasks["start"].tolist() == [0, 1]


def test_a_pass_at_each_change_waits_for_no_time_where_a_job_was_preempted(tmp_path):
    rows = "arrival,gpus,gpu_time,qos\n0,2,10,low\n0,2,10,low\n4,4,3,high\n"
    tiers = {"high": {"priority": 1, "preempts": ["low"]}, "low": {}}
    result = run(tmp_path, rows, policy=slurm(qos=tiers, sched_interval=0, bf_interval=0))
    assert result.tasks["finish"].tolist() == [17, 17, 7]


@pytest.mark.parametrize(("now", "period", "due"), [(8.6, 0.2, 8.8), (8.5, 0.2, 8.6), (0, 30, 30), (4, 0, 4)])
def test_the_next_multiple_is_later_than_now(now, period, due):
    """43 × 0.2 is 8.6 in floating point too, and 8.6 // 0.2 is 42."""
    assert _next_multiple(now, period) == pytest.approx(due, abs=1e-12)


@pytest.mark.parametrize("mode", ["suspend", "requeue"])
@pytest.mark.parametrize("depth", [100, 0], ids=["backfill", "main pass"])
def test_a_preemptor_takes_the_room_of_its_victim_where_the_rule_waits_for_other_devices(tmp_path, depth, mode):
    """Job 2 is fastest on the GPU, which is busy; job 1 comes first in order and would resume at the same instant."""
    rows = "arrival,cpus,gpus,cpu_time,gpu_time,qos\n0,1,1,,100,high\n1,2,0,10,,low\n2,2,1,4,3,high\n"
    nodes = [{"cpus": 3, "gpus": {"type": "g", "count": 1}}]
    tiers = {"high": {"preempts": ["low"]}, "low": {"preempt_mode": mode}}
    policy = slurm(qos=tiers, service=0, size=0, bf_max_job_test=depth, sched_interval=0, bf_interval=0, calc_period=0)
    tasks = run(tmp_path, rows, nodes=nodes, policy={"placement": "fastest_device", **policy}).tasks
    assert tasks["preemptions"].tolist() == [0, 1, 0]
    assert tasks["finish"].tolist() == [100, 15 if mode == "suspend" else 16, 6]
