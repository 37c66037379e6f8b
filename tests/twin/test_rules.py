"""The rules of a site that Slurm prints, on a made-up site whose rules are known, and the log of forecasts."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from click.testing import CliRunner

import hetsim as hs
from benchmarks.twin_sites import DAY, EPOCH, OPEN, Kind, forecasts, made, printed, row_of
from hetsim.cli.program import hetsim
from hetsim.errors import ScenarioError
from hetsim.twin.command import _history, _ruled, _site_rules, _snapshot
from hetsim.twin.forecast import SnapshotCluster, Twin
from hetsim.twin.rules import Rules, Weights, learned, with_policy
from hetsim.twin.shadow import MAX_AGE, ShadowLog
from hetsim.twin.widening import Past, widening
from hetsim.workload.readers.snapshot import SnapshotJob

KIND = Kind((("s", 1, ("short",)), ("b", 2, ("batch",)), ("l", 1, ("long",))), {"age": 2000.0, "fair_share": 9000.0},
            2 * DAY, {"normal": 6.0}, 120.0, 10, 0.85, 7)  # fmt: skip


@pytest.fixture(scope="module")
def site():
    return made(KIND, 8.0)


@pytest.fixture(scope="module")
def seen(site, tmp_path_factory):
    """The jobs and the history of an instant."""
    folder = printed(site, 5.6 * DAY, tmp_path_factory.mktemp("site"))
    log, *_ = _history(str(folder / "sacct"))
    return folder, _snapshot(folder / "squeue", str(folder / "nodes"))[1].jobs, log


def call(folder, *more):
    files = ["--squeue", f"{folder}/squeue", "--nodes", f"{folder}/nodes", "--history", f"{folder}/sacct"]
    asked = ["--samples", "2", "--hours", "6", "--look-back", "0"]
    return CliRunner().invoke(hetsim, ["twin", *files, *asked, *more])


@pytest.mark.slow
def test_rules_are_those_of_the_site(seen):
    _, jobs, log = seen
    rules = learned(jobs, EPOCH + 5.6 * DAY, log)
    assert rules.caps == {"normal": {"max_gpus_per_user": 6.0}} and not rules.limits
    weights = rules.weights
    assert weights is not None and not weights.tree
    assert weights.age == pytest.approx(2000, rel=0.05) and weights.fair == pytest.approx(9000, rel=0.05)
    assert weights.half_life == pytest.approx(2 * DAY, rel=0.3)


@pytest.mark.slow
def test_nothing_later_than_the_snapshot_is_looked_at(seen):
    _, jobs, log = seen
    now = EPOCH + 5.6 * DAY
    later = log.take(np.arange(len(log)))
    later.runtime[later.end > now - DAY] += 40 * DAY
    other = log.take(np.flatnonzero(log.end <= now - DAY))
    assert learned(jobs, now, later) == learned(jobs, now, other)


@pytest.mark.slow
def test_a_forecast_tells_its_rules_and_their_evidence(seen):
    folder = seen[0]
    text = call(folder, "-q").stdout
    assert "learned: cap of GPUs of a user in QOS normal: 6, never exceeded (REASON of " in text
    assert "learned: weights of priority: age " in text
    assert "learned: cycle of backfilling not used: little evidence," in text
    assert "learned:" not in call(folder, "-q", "--rules", "none").stdout
    given = call(folder, "-q", "--policy", "{name: slurm_multifactor, age: 1, bf_interval: 1 h}").stdout
    assert "weights of priority not used: --policy sets it" in given
    other = call(folder, "--policy", "sjf")
    assert other.exit_code == 0 and "--policy sjf has no parameters for rules of the site" in other.stderr


def of(name, user="ann", start=float("nan"), gpus=2.0, reason="", qos="q", priority=float("nan")):
    return SnapshotJob(name, 0, user, "batch", 0.0, start, 1000.0, 1.0, gpus=gpus, qos=qos, reason=reason,
                       priority=priority)  # fmt: skip


@pytest.mark.parametrize(
    ("waiting", "occupied", "said", "cap"),
    [
        (3, 8.0, ": 8, never exceeded (REASON of 3 jobs)", 8.0),
        (2, 8.0, " not used: little evidence, 3 are needed (REASON of 2 jobs)", None),
        (3, 12.0, " not used: 12 are occupied, and jobs wait to reach 10: not one cap", None),
    ],
)
def test_caps_need_evidence_that_agrees(seen, waiting, occupied, said, cap):
    """Ann holds eight GPUs and waits for two more; Bob holds as many or more."""
    jobs = [of("r", start=0.0, gpus=8.0), of("b", "bob", 0.0, occupied)]
    jobs += [of(f"w{k}", reason="QOSMaxGRESPerUser") for k in range(waiting)]
    rules = learned(jobs, EPOCH + 5.6 * DAY, seen[2])
    assert any(one.startswith(f"cap of GPUs of a user in QOS q{said}") for one in rules.evidence)
    assert rules.caps.get("q") == (None if cap is None else {"max_gpus_per_user": cap})


def held_before(log, held, submit):
    """Of each user a job with so many GPUs from 0 to 2,000 s, and one with two GPUs that starts then."""
    log = log.take(np.arange(2 * len(held)))
    second = np.arange(len(log)) % 2 == 1
    log.submit[:], log.start[:] = np.where(second, submit, 0.0), np.where(second, 2000.0, 0.0)
    log.runtime[:], log.gpus[:] = 2000.0, np.where(second, 2.0, np.repeat(held, 2))
    log.labels["user"][:] = [f"u{k // 2}" for k in range(len(log))]
    log.labels["qos"][:] = "q"
    return log


@pytest.mark.parametrize(
    ("held", "submit", "reasons", "cap"),
    [
        ((6.0, 6.0, 6.0), 600.0, 0, 6.0),
        ((6.0, 6.0, 6.0, 5.0), 600.0, 2, 6.0),
        ((6.0, 6.0, 4.0), 600.0, 0, None),  # two users are not enough
        ((6.0, 6.0, 6.0), 2000.0, 0, None),  # their next jobs did not wait
        ((6.0, 6.0, 6.0, 8.0), 600.0, 0, None),  # one held more
    ],
)
def test_a_cap_is_what_several_users_held_and_waited_with(seen, held, submit, reasons, cap):
    """The same amount is the largest of three users, and each had a job that waited."""
    log = held_before(seen[2], held, submit)
    jobs = [of("r", start=9000.0, gpus=5.0), *(of(f"w{k}", reason="QOSMaxGRESPerUser") for k in range(reasons))]
    rules = learned(jobs, 9500.0, log)
    assert rules.caps == ({} if cap is None else {"q": {"max_gpus_per_user": cap}})
    text = f"in QOS q: 6, never exceeded, and reached by 3 users whose next job waited (REASON of {reasons} jobs)"
    assert (text in " ".join(rules.evidence)) == (cap is not None)
    over = learned([replace(jobs[0], gpus=7.0), *jobs[1:]], 9500.0, log)
    assert not over.caps  # more is held now


def test_a_cap_from_what_was_held_is_not_taken_against_the_queue(seen):
    """A job that asks for more could never start; a cap that REASON names may be why no more was held."""
    log = held_before(seen[2], (6.0, 6.0, 6.0), 600.0)
    running = of("r", start=9000.0, gpus=5.0)
    assert learned([running], 9500.0, log).caps == {"q": {"max_gpus_per_user": 6.0}}
    assert not learned([running, of("w", reason="Resources", gpus=16.0)], 9500.0, log).caps
    named = [of(f"w{number}", reason="QOSMaxJobsPerUserLimit") for number in range(3)]
    assert "max_gpus_per_user" not in learned([running, *named], 9500.0, log).caps.get("q", {})


def test_weights_of_an_earlier_forecast_are_taken_where_evidence_is_thin(seen, tmp_path):
    _, jobs, log = seen
    now, few = EPOCH + 5.6 * DAY, [job for job in jobs if job.runs]
    rules = learned(few, now, log, WEIGHTS)
    assert rules.weights is WEIGHTS and "those of an earlier forecast; now little evidence," in " ".join(rules.evidence)
    random = np.random.default_rng(1)
    drawn = [replace(job, priority=float(random.integers(1, 10_000))) for job in jobs]
    assert learned(drawn, now, log, WEIGHTS).weights is None  # what is seen now has another order
    shadow = ShadowLog(tmp_path)
    cluster = SnapshotCluster([{"name": "n", "cpus": 64, "gpus": {"type": "g", "count": 8}}])
    for number, weights in enumerate((None, WEIGHTS, None)):
        one = Twin([of("a")], now, log, cluster).forecast(1)
        one.rules = Rules(weights=weights)
        shadow.keep(one, now + 60.0 * number)
    kept = [ShadowLog(tmp_path).weights(now + later) for later in (60.0, 61.0, 500.0, 60.0 + MAX_AGE, 61.0 + MAX_AGE)]
    assert kept == [None, WEIGHTS, WEIGHTS, WEIGHTS, None]


def test_an_order_that_weights_do_not_explain_is_not_taken(seen):
    _, jobs, log = seen
    random = np.random.default_rng(1)
    drawn = [replace(job, priority=float(random.integers(1, 10_000))) for job in jobs]
    rules = learned(drawn, EPOCH + 5.6 * DAY, log)
    assert rules.weights is None and "of the pairs of one half" in " ".join(rules.evidence)
    few = learned([job for job in jobs if job.user == jobs[0].user], EPOCH + 5.6 * DAY, log)
    assert few.weights is None and "little evidence, 12 jobs of 4 users are needed" in " ".join(few.evidence)


def test_limits_that_no_rule_has_are_counted(seen):
    reasons = ("AssocGrpCpuLimit", "Priority", "Licenses", "Resources")
    jobs = [of("r", start=0.0), *(of(reason, reason=reason) for reason in reasons)]
    assert learned(jobs, EPOCH + 5.6 * DAY, seen[2]).limits == {"AssocGrpCpuLimit": 1, "Licenses": 1}
    thin = learned([*jobs, of("x", reason="QOSMaxGRESPerUser")], EPOCH + 5.6 * DAY, seen[2])
    assert thin.limits == {"AssocGrpCpuLimit": 1, "Licenses": 1, "QOSMaxGRESPerUser": 1} and "q" not in thin.caps


def test_caps_of_jobs_are_learned_and_simulated(seen):
    """Ann runs two jobs and waits with three; each of the three then waits for an end of one of hers."""
    folder, jobs, log = seen
    now = EPOCH + 5.6 * DAY
    own = [of(f"r{k}", start=now - 60.0, gpus=1.0) for k in range(2)]
    own += [of(f"w{k}", gpus=1.0, reason="QOSMaxJobsPerUserLimit") for k in range(3)]
    rules = learned(own, now, log)
    assert rules.caps["q"] == {"max_jobs_per_user": 2.0} and not rules.limits
    assert "cap of jobs of a user in QOS q: 2" in " ".join(rules.evidence)
    policy, rules = with_policy(None, rules)
    cluster = SnapshotCluster([{"name": "n", "cpus": 64, "gpus": {"type": "g", "count": 8}}])
    own = [replace(job, partition="") for job in own]
    told = Twin(own, now, log, cluster, horizon=3600.0, policy=policy, rules=rules).forecast(3)
    assert (told.starts > 1.0).all() and told.occupied[:, 1].max() == 2
    free = Twin(own, now, log, cluster, horizon=3600.0, policy="easy_backfill").forecast(3)
    assert (free.starts < 1.0).all()


def test_a_cap_without_a_column_of_qos_is_not_taken(seen):
    jobs = [of("r", start=0.0, qos=""), *(of(f"w{k}", reason="QOSMaxGRESPerUser", qos="") for k in range(3))]
    rules = learned(jobs, EPOCH + 5.6 * DAY, seen[2])
    assert "" not in rules.caps and "squeue has no column QOS" in rules.evidence[0]


@pytest.mark.parametrize(("period", "count", "cycle"), [(120, 60, 120), (45, 60, 45), (120, 15, None), (1, 60, None)])
def test_the_cycle_is_that_of_starts_that_nothing_lets_start(seen, period, count, cycle):
    """Jobs far apart start at the next multiple; of few of them, or with no period, none is learned."""
    log = seen[2].take(np.arange(count))
    random = np.random.default_rng(5)
    log.submit[:] = np.arange(count) * 5000.0 + random.integers(0, 4000, count)
    log.start[:] = np.ceil(log.submit / period) * period if period > 1 else log.submit + random.integers(2, 600, count)
    log.runtime[:] = 10.0
    rules = learned([of("r", start=0.0)], 1e9, log)
    assert rules.cycle == cycle
    assert (f"cycle of backfilling: every {period} s (100 % of " in " ".join(rules.evidence)) == (cycle is not None)


def test_rules_become_parameters_of_the_policy_that_is_named():
    rules = Rules({"q": {"max_gpus_per_user": 8.0}}, cycle=60.0)
    policy, kept = with_policy("easy_backfill", rules)
    scheduler = kept.scheduler(policy["scheduler"])
    assert scheduler["bf_job_part_count_reserve"] == 1 and scheduler["qos"] == rules.caps
    assert scheduler["bf_interval"] == "60.0 s" and scheduler["age"] == 1.0
    own = {"scheduler": {"name": "slurm_multifactor", "qos": {"q": {"max_gpus": 2}}}, "placement": "best_fit"}
    policy, kept = with_policy(own, rules)
    tier = {"max_gpus_per_user": 8.0, "max_gpus": 2}
    assert policy["placement"] == "best_fit" and kept.scheduler(policy["scheduler"])["qos"] == {"q": tier}
    assert with_policy({"name": "sjf"}, rules) is None and with_policy({}, rules) is None
    assert with_policy({"scheduler": {"name": "easy_backfill"}, "placement": "pack"}, rules)[0]["placement"] == "pack"


WEIGHTS = Weights(1000.0, 2000.0, 0.0, 0.0, half_life=DAY, max_age=DAY, tree=False)


def test_given_parameters_replace_learned_ones_and_the_evidence_says_it():
    """A cap by QOS and key, the cycle and the weights; the other caps stay."""
    caps = {"q": {"max_gpus_per_user": 8.0, "max_jobs": 3.0}, "r": {"max_gpus": 9.0}}
    evidence = ["cap of GPUs of a user in QOS q: 8", "cap of jobs in QOS q: 3", "cap of GPUs in QOS r: 9",
                "weights of priority: age 1000", "cycle of backfilling: every 60 s"]  # fmt: skip
    site = Rules(caps, WEIGHTS, 60.0, evidence)
    own = {"name": "slurm_multifactor", "qos": {"q": {"max_gpus_per_user": 2}}, "bf_interval": "1 h", "size": 5}
    policy, kept = with_policy(own, site)
    assert kept.caps == {"q": {"max_jobs": 3.0}, "r": {"max_gpus": 9.0}} and kept.weights is kept.cycle is None
    assert kept.evidence == [
        "cap of GPUs of a user in QOS q not used: --policy sets it", *evidence[1:3],
        "weights of priority not used: --policy sets it",
        "cycle of backfilling not used: --policy sets it",
    ]  # fmt: skip
    scheduler = kept.scheduler(policy["scheduler"])
    assert scheduler["qos"] == {"q": {"max_gpus_per_user": 2, "max_jobs": 3.0}, "r": {"max_gpus": 9.0}}
    assert scheduler["bf_interval"] == "1 h" and "age" not in scheduler
    waiting = [of("a", reason="QOSMaxGRESPerUser"), of("b", reason="QOSGrpGRES"), of("c", reason="QOSGrpGRES", qos="r")]
    assert kept.for_jobs(waiting).limits == {"QOSGrpGRES": 1}  # that of QOS q, which has none
    own = {"name": "slurm_multifactor", "qos": {"q": {"max_gpus_per_user": None}}}  # no cap, says the user
    assert "max_gpus_per_user" not in with_policy(own, site)[1].caps["q"]
    assert with_policy(own, site)[1].for_jobs(waiting).limits == {"QOSGrpGRES": 1, "QOSMaxGRESPerUser": 1}


@pytest.mark.parametrize(
    "own",
    [{"size": 1}, {"partition": 1}, {"partitions": {"batch": 1}}, {"service": 1}, {"qos": {"q": {"priority": 1}}}],
)
def test_any_given_parameter_of_priority_turns_learned_weights_off(own):
    _, kept = with_policy({"name": "slurm_multifactor", **own}, Rules(weights=WEIGHTS))
    assert kept.weights is None
    _, kept = with_policy({"name": "slurm_multifactor", "qos": {"q": {"max_gpus": 1}}}, Rules(weights=WEIGHTS))
    assert kept.weights is WEIGHTS


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("{admission: x}", 'unknown admission "x"'),
        ("{depth: 3}", 'unknown key "depth"'),
        ("{scheduler: {depth: 3}}", "depth"),
        ("{scheduler: {name: [1]}}", "name"),
        ("{name: slurm_multifactor, qos: {q: 3}}", "qos"),
        ("{name: slurm_multifactor, qos: 3}", "qos"),
    ],
)
def test_a_policy_that_is_wrong_is_told_by_the_schema(seen, policy, said):
    done = call(seen[0], "--policy", policy)
    assert done.exit_code == 3 and said in done.output and "defect" not in done.output, done.output


@pytest.mark.quick(0)
def test_what_if_another_policy_keeps_the_rules_of_the_site(seen):
    """EASY with the cap starts no more of the user's jobs than the cap; a policy that takes none is named."""
    folder = seen[0]
    done = call(folder, "--json", "--what-if", "policy={name: slurm_multifactor, bf_max_job_user: 1000}")
    found = json.loads(done.stdout)
    assert found["jobs"] == found["what_if"]["jobs"] and "no parameters for rules" not in done.stderr
    done = call(folder, "--json", "--what-if", "policy=sjf")
    assert "what if: policy=sjf has no parameters for rules of the site" in done.stderr
    done = call(folder, "--json", "--what-if", "policy={name: slurm_multifactor, age: 1}")
    assert "what if: weights of priority not used: policy= sets it" in done.stderr
    done = call(folder, "--rules", "none", "--what-if", "policy=sjf")
    assert "rules of the site" not in done.stderr


@pytest.mark.quick(0)
def test_jobs_that_limits_keep_are_counted_without_rules(seen):
    folder, jobs, _ = seen
    kept = sum(job.reason == "QOSMaxGRESPerUser" for job in jobs)
    for more in (("--rules", "none"), ("--policy", "sjf")):
        found = json.loads(call(folder, "--json", "-q", *more).stdout)
        assert found["limits_not_modeled"] == {"QOSMaxGRESPerUser": kept} and kept and not found["rules"]
    own = "{name: slurm_multifactor, qos: {normal: {max_gpus_per_user: 6}}}"
    found = json.loads(call(folder, "--json", "-q", "--rules", "none", "--policy", own).stdout)
    assert found["limits_not_modeled"] == {}


def test_a_cycle_alone_is_not_taken_and_the_sentence_says_so(seen):
    _, jobs, log = seen
    log = log.take(np.arange(60))
    log.submit[:] = np.arange(60) * 5000.0 + np.arange(60) * 37 % 4000
    log.start[:] = np.ceil(log.submit / 60) * 60
    log.runtime[:] = 10.0
    jobs = [replace(job, reason="", priority=float("nan")) for job in jobs]
    rules = _site_rules(None, None, jobs, 1e9, log)
    assert not rules and _ruled("easy_backfill", rules, jobs, "--policy ") == (("easy_backfill", rules), [])
    assert rules.evidence[0].startswith("cycle of backfilling not used: without learned caps or weights ")
    assert "(cycle of backfilling: every 60 s (" in rules.evidence[0]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["easy_backfill", "conservative_backfill"])
@pytest.mark.parametrize(("place", "fills"), [(100, True), (101, False)])
def test_backfilling_looks_as_deep_with_rules_as_without(tmp_path, name, place, fills):
    """Of the jobs behind the head, none of which fits, 100 are looked at."""
    path = tmp_path / "jobs.csv"
    rows = ["r,0,100,1", *(f"w{k},{1 + k / 1000},50,2" for k in range(place)), "f,2,10,1"]
    path.write_text("id,arrival,gpu_time,gpus\n" + "\n".join(rows) + "\n")
    policy, rules = with_policy(name, Rules({"q": {"max_gpus": 99.0}}))
    often = {"bf_interval": 0, "sched_interval": 0, "calc_period": 0}
    for scheduler in (name, rules.scheduler(policy["scheduler"]) | often):
        run = hs.run({"cluster": {"nodes": [{"name": "n", "cpus": 8, "gpus": {"type": "g", "count": 2}}]},
                      "workload": [{"trace": {"format": "tasks", "path": str(path)}}],
                      "policy": {"scheduler": scheduler}})  # fmt: skip
        starts = dict(zip(run.tasks["id"], run.tasks["start"], strict=True))
        assert (starts["f"] == 2.0) == fills


@pytest.mark.parametrize("accounts", [None, {"lab": {}}])
def test_usage_before_the_start_counts(tmp_path, accounts):
    """One GPU; Ann used it before, so that Bob's job goes first though it came later."""
    path = tmp_path / "jobs.csv"
    names = {"ann": 1e6} if accounts is None else {"lab/ann": 1e6, "lab/bob": 0.0}
    scheduler = {"name": "slurm_multifactor", "age": 0, "size": 0, "bf_interval": 0, "calc_period": 0, "usage": names}
    scheduler |= {} if accounts is None else {"accounts": accounts}
    path.write_text("id,arrival,user,account,gpu_time,gpus\nc,0,cho,lab,60,1\na,1,ann,lab,60,1\nb,2,bob,lab,60,1\n")
    entries = [{"trace": {"format": "tasks", "path": str(path)}}]
    run = hs.run({"cluster": {"nodes": [{"name": "n", "cpus": 1, "gpus": {"type": "g", "count": 1}}]},
                  "workload": entries, "policy": scheduler})  # fmt: skip
    starts = dict(zip(run.tasks["user"], run.tasks["start"], strict=True))
    assert starts["bob"] < starts["ann"]


# The log of forecasts -----------------------------------------------------------------------------------------------


@pytest.mark.quick(0)
def test_a_log_of_forecasts_tells_what_came(site, tmp_path):
    folder = tmp_path / "log"
    for number, day in enumerate((5.0, 5.6)):
        (tmp_path / str(number)).mkdir()
        done = call(printed(site, day * DAY, tmp_path / str(number)), "-q", "--shadow", str(folder))
        assert done.exit_code == 0, done.output
        assert f"shadow log: the outcome is known for {number} of {number} " in done.stdout
    files = sorted(folder.iterdir())
    assert len(files) == 2 and files[0].name.startswith("forecast-2026030")
    before = [file.read_bytes() for file in files]
    again = call(tmp_path / "1", "--json", "-q", "--shadow", str(folder))
    shadow = json.loads(again.stdout)["shadow"]
    assert shadow["forecasts"] == 2 and shadow["shadow_error_by_limit"] == {} and shadow["all"] == {
        key: value for key, value in shadow["rows"][0].items() if key != "now"}  # fmt: skip
    assert shadow["rows"][0]["now"].startswith("2026-03-06T23:")
    assert 0 <= shadow["all"]["inside_50"] <= shadow["all"]["inside_90"] <= 1
    assert f"{shadow['all']['error_mean'] / 3600:.1f} h" in call(tmp_path / "1", "-q", "--shadow", str(folder)).stdout
    assert "shadow" not in json.loads(call(tmp_path / "1", "--json", "-q").stdout)
    assert [file.read_bytes() for file in files] == before
    log = ShadowLog(folder)
    starts = {str(row + 1): EPOCH + start for row, start in enumerate(site.start.tolist())}
    log.learn(starts, EPOCH + 5.6 * DAY)
    first = log.forecasts[0]
    assert len(log.judged) == 1
    rows = [int(name) - 1 for name in first.ids]
    assert np.allclose(first.actual, np.clip(EPOCH + site.start[rows] - first.now, 0.0, 6 * 3600.0))
    for content, text, code in ((before[0][:-40], "is not a forecast of a shadow log, or it is damaged", 3),
                                (b"[" * 100_000 + b"]" * 100_000, "its lists are nested too deeply", 2)):  # fmt: skip
        files[0].write_bytes(content)
        broken = call(tmp_path / "1", "--shadow", str(folder))
        assert broken.exit_code == code and text in " ".join(broken.output.split())
        assert "Traceback" not in broken.output


STORED = {
    "now": 1.7e9, "horizon": 3600.0, "policy": "", "ids": ["1"], "groups": [""], "limits": [""], "table": [[0.0] * 11],
    "rules": {"caps": {"q": {"max_gpus": 8.0}}, "weights": asdict(WEIGHTS), "cycle": 60.0, "evidence": ["a"],
              "limits": {"Licenses": 1}, "given": {}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("horizon", None), ("horizon", -3600.0), ("horizon", 0), ("horizon", float("inf")), ("now", "x"),
        ("now", 1e300), ("actual", [1.0]), ("ids", "1"), ("ids", [1]), ("limits", [None]), ("table", []),
        ("table", [[0.0] * 10]), ("table", [[float("nan")] * 11]), ("rules", None), ("rules", []), ("rules.caps", []),
        ("rules.caps", {"q": 3}), ("rules.caps", {"q": {"max_gpus": "x"}}), ("rules.evidence", None),
        ("rules.evidence", "a"), ("rules.limits", {"a": "x"}), ("rules.cycle", "x"), ("rules.cycle", -1),
        ("rules.weights", []), ("rules.weights.age", "x"), ("rules.weights.tree", 1), ("rules.weights.labels", []),
        ("rules.weights.half_life", 0), ("rules.more", 1), ("rules.weights.more", 1),
    ],
)  # fmt: skip
def test_a_damaged_forecast_of_the_log_is_named(tmp_path, place, value):
    """Each in one sentence; the one that it is made from is read."""
    path = tmp_path / "forecast-20231114T221320.json"
    path.write_text(json.dumps(STORED))
    assert ShadowLog(tmp_path).forecasts[0].now == 1.7e9
    document = json.loads(path.read_text())
    *outer, key = place.split(".")
    inner = document
    for name in outer:
        inner = inner[name]
    inner[key] = value
    path.write_text(json.dumps(document))
    with pytest.raises(ScenarioError, match="is not a forecast of a shadow log, or it is damaged"):
        ShadowLog(tmp_path)


def test_only_forecasts_of_the_same_policy_and_horizon_widen(tmp_path):
    for number, policy in enumerate(("", "", "sjf")):
        text = json.dumps(STORED | {"now": 1.7e9 + number, "policy": policy})
        (tmp_path / f"forecast-{number}.json").write_text(text)
    log = ShadowLog(tmp_path)
    log.learn({"1": 1.7e9 + 60.0}, 1.7e9 + MAX_AGE + 0.5)  # the first is too old
    assert len(log.judged) == 2
    log.learn({"1": 1.7e9 + 60.0}, 1.7e9 + 4000.0)
    counts = [len(log.pasts(*asked)) for asked in ((3600.0, ""), (3600.0, "sjf"), (3600.0, "fcfs"), (60.0, ""))]
    assert counts == [2, 1, 0, 0]


@pytest.mark.quick(0)
def test_the_command_keeps_the_policy_that_was_asked_for(site, tmp_path):
    files = printed(site, 5.0 * DAY, tmp_path)
    kept = []
    for more in ((), ("--rules", "learned"), ("--rules", "none"), ("--policy", "sjf")):
        assert call(files, "-q", "--shadow", f"{tmp_path}/log", *more).exit_code == 0
        kept.append(ShadowLog(tmp_path / "log").forecasts[0].policy)
    assert kept == ["of the site, rules learned"] * 2 + ["of the site, rules none", "sjf, rules learned"]


def test_a_folder_that_cannot_be_is_said_before_anything_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/log"):
        done = call(tmp_path, "--shadow", f"{tmp_path}/{folder}")  # without squeue, nodes and sacct
        assert done.exit_code == 3 and "file: must be a folder that can be written" in done.output, done.output


def test_judging_takes_no_rules_and_says_so(seen):
    done = CliRunner().invoke(hetsim, ["twin", "--history", f"{seen[0]}/sacct", "--judge", "1", "--rules", "learned"])
    assert done.exit_code == 2 and "--rules learned are for forecasts" in done.output


@pytest.mark.slow
def test_the_error_of_limits_that_no_rule_has_is_told(site, tmp_path):
    """The same forecast, where the jobs kept by the cap wait for a reason that no rule has."""
    done = call(printed(site, 5.0 * DAY, tmp_path, "AssocGrpGRES"), "-q", "--shadow", f"{tmp_path}/log")
    assert " waiting jobs are held back by limits that are not modeled (AssocGrpGRES " in done.stdout
    log = ShadowLog(tmp_path / "log")
    log.learn({str(row + 1): EPOCH + start for row, start in enumerate(site.start.tolist())}, EPOCH + 8 * DAY)
    one = log.forecasts[0]
    error = np.abs(one.table[:, 7] - one.actual)
    kept = np.array([name == "AssocGrpGRES" for name in one.limits])
    assert 0.0 < error[kept].sum() / error.sum() == pytest.approx(log.error_by_limit()["AssocGrpGRES"])
    assert "; AssocGrpGRES " in log.lines()[-1]


def test_groups_are_widened_by_their_own_errors():
    told = np.tile(np.array([0.8, 0.9, 1.0, 1.1, 1.2]) * 3600.0, (80, 1))
    actual = np.concatenate([np.full(40, 3600.0), np.full(40, 20_000.0)])
    wide = widening([Past(0.0, told, actual, groups=["a"] * 40 + ["b"] * 40)], 0.0)
    assert wide.moved(told[0], DAY, "a")[4] < 3700.0 and wide.moved(told[0], DAY, "b")[4] == 20_000.0
    assert wide.moved(told[0], DAY, "c")[4] == 20_000.0  # of all


@pytest.mark.slow
def test_forecasts_under_learned_rules_are_as_good_as_under_the_true_ones(site, tmp_path, capsys):
    """The small form of `python -m benchmarks.twin_sites`."""
    instants = [(4.0 + 0.3 * number) * DAY for number in range(OPEN + 4)]
    errors = {}
    for rules in ("learned", "true", "none"):
        done = list(forecasts(site, instants, 4, rules, folder=tmp_path / rules))[OPEN:]
        told, actual = (np.concatenate([getattr(one, name) for one in done]) for name in ("told", "actual"))
        errors[rules] = np.abs(told[:, 2] - actual).mean()
        assert row_of(rules, done).startswith(rules)
    assert errors["learned"] <= 1.25 * errors["true"] and errors["learned"] < errors["none"]
