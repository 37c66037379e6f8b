"""`hetsim twin`: forecasts a live cluster for the next hours."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetsim.cli import console
from hetsim.cli.options import FILE, PAGE, SET, TELLING, Whole
from hetsim.errors import Problem, ScenarioError, UsageError
from hetsim.traces.command import read
from hetsim.traces.node_lists import read_nodes

if TYPE_CHECKING:
    from hetsim.twin.rules import Rules, Weights
    from hetsim.twin.shadow import ShadowLog
    from hetsim.twin.widening import Past
    from hetsim.workload.logs.history import JobHistory
    from hetsim.workload.readers.snapshot import Snapshot, SnapshotJob

EARLIER_SAMPLES = 20  # samples per earlier snapshot: few, since other errors are larger
# colors of what-if rows: jobs that start later (bad), and earlier (good)
VERDICTS = {"never fits|(?<=  )[+](?!0.0 )[0-9.]+ h$": "bad", "(?<=  )-(?!0.0 )[0-9.]+ h$": "good"}
Ruled = tuple[str, "Rules"]  # a policy, and the rules under which it decides
MANIFESTS = (".yaml", ".yml", ".json")  # suffixes of files among the values of --job
LOCAL = "1970-01-02"  # origin of the times of a log with dates, so that they are on the snapshot's clock


@click.command(short_help="Forecast a live cluster: job starts, free nodes, effects of changes.")
@click.option("--squeue", type=FILE, metavar="FILE", help="Output of squeue; see below for its format.")
@click.option("--nodes", metavar="FILE", help="Output of scontrol show node (or FORMAT:FILE, hetsim list clusters).")
@click.option("--kueue", type=FILE, metavar="FILE",
              help="Kueue's objects, printed by kubectl like the --nodes; replaces --squeue and --history.")
@click.option("--fair-sharing", is_flag=True, help="With --kueue: its Configuration enables fair sharing.")
@click.option("--history", metavar="FILE",
              help="Output of sacct --parsable2 (or FORMAT:FILE, hetsim list traces; or a mapping, YAML).")
@click.option("--now", metavar="DATE", help="Time of the snapshot. Default: the latest time in it.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True, max=24 * 31), default=24.0, show_default=True,
              help="Horizon of the forecast in hours.")
@click.option("--samples", type=Whole(min=2, max=100_000), default=100, show_default=True, metavar="N")
@click.option("--seed", type=Whole(min=0), default=0, show_default=True)
@click.option("--look-back", type=Whole(min=0, max=1000), default=8, show_default=True, metavar="N",
              help="Number of earlier snapshots whose errors widen the intervals; 0: samples only.")
@click.option("--policy", metavar="NAME", show_default="easy_backfill, or slurm_multifactor with the rules",
              help="The cluster's policy; parameters as in '{name: sjf, discipline: skip}'. "
              "identified: inferred from the history (hetsim trace identify).")
@click.option("--rules", type=click.Choice(["learned", "none"]), show_default="learned",
              help="learned: infer caps, priority weights and cycle from squeue (REASON, PRIORITY) and the history.")
@click.option("--shadow", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Store the forecast in FOLDER, and print the errors of earlier forecasts in it.")
@SET
@click.option("--site", type=FILE, metavar="YAML",
              help="A file with site: (limits of partitions, quotas, ...) and, without --policy, policy:, "
              "such as hetsim trace convert makes from a slurm.conf.")
@click.option("--what-if", "changes", multiple=True, metavar="KEY.PATH=VALUE",
              help="Also forecast a change: a value of the scenario (policy=sjf, site...) or without=NODES (n[1-4]).")
@click.option("--job", "only", multiple=True, metavar="ID",
              help="Print only this job (repeatable); with --kueue also FILE.yaml, a manifest that is not submitted.")
@click.option("--judge", type=Whole(min=1, max=1000), metavar="N",
              help="Instead: stop the history at N instants, predict starts from these without rules, and compare "
              "with the record.")
@click.option("--page", type=PAGE, metavar="HTML", help="Write a page with a picture to HTML.")
@click.option("--force", is_flag=True, help="Replace HTML if it exists.")
@TELLING
def twin(
    squeue: Path | None, nodes: str | None, kueue: Path | None, fair_sharing: bool, history: str | None,
    now: str | None, hours: float, samples: int, seed: int, look_back: int, policy: str | None, rules: str | None,
    shadow: Path | None, overrides: tuple[str, ...], site: Path | None, changes: tuple[str, ...], only: tuple[str, ...],
    judge: int | None, page: Path | None, force: bool, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Forecast a live cluster: starts of jobs, free nodes, what-if questions.

    \b
    squeue --all --format="%i|%P|%u|%a|%q|%T|%V|%S|%l|%C|%b|%m|%D|%N|%r|%Q" > squeue.txt
    scontrol show node > nodes.txt
    sacct --allusers --parsable2 --starttime=now-30days --state=CD,F,TO,CA,OOM,NF > sacct.txt \\
          --format=JobID,User,Account,Partition,Submit,Start,End,State,Timelimit,ReqTRES,AllocTRES,NodeList,QOS
    hetsim twin --squeue squeue.txt --nodes nodes.txt --history sacct.txt --page forecast.html

    Run times and arrivals are drawn from the history, by user and class; jobs are scheduled by --policy with their time
    limits, as on the cluster.  The errors of the models on the history itself are printed with the forecast; --judge
    prints the errors of predicted starts.  For Kubernetes with Kueue:

    \b
    kubectl get clusterqueues,cohorts,resourceflavors,localqueues,workloads,topologies -A -o json > k.json
    kubectl get nodes -o json > n.json
    hetsim twin --kueue k.json --nodes n.json --what-if clusterqueues.team-a.nominalQuota.gpu=64
    """
    from hetsim.twin.shadow import ShadowLog

    console.check_replaceable(page, force)
    if kueue is not None:
        if nodes is None or any((squeue, history, policy, site, judge, shadow, overrides, rules)):
            text = "--nodes, --now, --hours, --samples, --seed, --job, --what-if, --page and --fair-sharing"
            raise click.UsageError(f"--kueue needs --nodes, and allows only {text}")
        _kueue(kueue, nodes, now, fair_sharing, hours=hours, samples=samples, seed=seed, changes=changes, only=only,
               page=page, as_json=as_json, quiet=quiet)  # fmt: skip
        return
    if history is None:
        raise click.UsageError("a forecast needs --history or --kueue")
    if judge is None and (squeue is None or nodes is None):
        raise click.UsageError("a forecast needs --squeue and --nodes; --judge N judges forecasts on the history")
    past = ShadowLog(shadow)
    log, table, shift = _history(history)
    more, source = _site(site), "--policy "
    if (configured := more.pop("policy", None)) is not None and policy is None:
        policy, source = configured if isinstance(configured, str) else json.dumps(configured), "--site "
    under = f"{policy or 'of the site'}, rules {rules or 'learned'}"
    if policy == "identified":
        policy = _identified(table, history, quiet)
    if judge is not None:
        if page is not None or changes or only or now is not None or squeue is not None or shadow or rules == "learned":
            text = "--squeue, --now, --job, --what-if, --shadow, --page and --rules learned are for forecasts"
            raise click.UsageError(f"--judge uses only the history; {text}")
        _judge(log, table, nodes, more=more, instants=judge, horizon=hours * 3600, samples=samples, seed=seed,
               policy=policy or "easy_backfill", overrides=overrides, as_json=as_json, quiet=quiet)  # fmt: skip
        return
    assert squeue is not None and nodes is not None
    listed, snapshot = _snapshot(squeue, nodes)
    instant = snapshot.latest if now is None else _instant(now)  # the latest time that stands in it
    _waiting(only, snapshot.jobs, instant, squeue)
    now_known = {job.id: job.start if job.runs else math.inf for job in snapshot.jobs}
    recorded = zip(table.id, (table.extra["recorded_start"] + shift).tolist(), strict=True)  # on the snapshot's clock
    past.learn({**{str(name): start for name, start in recorded if start == start}, **now_known}, instant)
    site_rules = _site_rules(policy, rules, snapshot.jobs, now=instant, log=log, earlier=past.weights(instant))
    policy = policy or (None if site_rules else "easy_backfill")
    base, remarks = _ruled(policy, site_rules, snapshot.jobs, source)
    kept, other, altered = _changed(listed, changes, base[0])
    changed, texts = (base, []) if other == base[0] else _ruled(other, site_rules, snapshot.jobs, "policy=")
    facts = _Known(snapshot.jobs, instant, log, more=more, hours=hours, overrides=overrides, seed=seed,
                   source=str(squeue))  # fmt: skip
    widened, before = facts.widened(listed, base, look_back, quiet=quiet, shadow=past.pasts(hours * 3600, under))
    made = [facts.forecast(listed, base, samples)]
    if changes:
        made.append(facts.forecast(kept, changed, samples, altered))
    for one in made:
        one.widening = widened
    notes = [*snapshot.notes, *made[0].notes, *before, *(() if base[1].evidence else remarks), *table.notes]
    notes += [f"what if: {note}" for one in made[1:] for note in (*texts, *one.notes) if note not in made[0].notes]
    past.keep(made[0], instant, under)
    _report(made, facts, changes, only=only, notes=notes, page=page, as_json=as_json, quiet=quiet, past=past)


def _kueue(
    path: Path, nodes: str, now: str | None, fair_sharing: bool, hours: float, samples: int, seed: int,
    changes: tuple[str, ...], only: tuple[str, ...], page: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    from hetsim.twin.kueue import KueueCluster
    from hetsim.twin.shadow import ShadowLog

    files = [_there(Path(one)) for one in dict.fromkeys(only) if Path(one).suffix in MANIFESTS]
    instant = None if now is None else _instant(now)
    cluster = KueueCluster(_there(path), _there(Path(nodes)), instant, fair_sharing, manifests=files)
    only = tuple(one for one in only if Path(one).suffix not in MANIFESTS)
    _waiting(only, cluster.jobs, cluster.now, path)
    only += tuple(job.id for job in cluster.unsubmitted)
    facts = _Known(cluster.jobs, cluster.now, cluster.history, more={}, hours=hours, overrides=(), seed=seed)
    policies = [cluster.policy, cluster.changed(changes)][: 1 + bool(changes)]
    made = [cluster.forecast(policy, hours, samples, seed) for policy in policies]
    notes = [*cluster.objects.notes, *made[0].notes, "intervals cover only the randomness of run times and arrivals"]
    _report(made, facts, changes, only=only, notes=notes, page=page, as_json=as_json, quiet=quiet,
            past=ShadowLog(None), beside=cluster)  # fmt: skip


def _waiting(only: tuple[str, ...], jobs: list[SnapshotJob], instant: float, path: Path) -> None:
    """Check that the jobs `only` wait, and that no running job starts after `instant`."""
    if unknown := [name for name in only if name not in {job.id for job in jobs if not job.runs}]:
        raise UsageError(f"--job must be the id of a waiting job of {path}; got {unknown[0]}")
    if late := sum(job.runs and job.start > instant for job in jobs):
        raise UsageError(f"--now must be the time of the snapshot, but it is before the start of {late:,} running jobs")


def _snapshot(squeue: Path, nodes: str) -> tuple[list[dict[str, Any]], Snapshot]:
    from hetsim.workload.readers import snapshot

    listed = _nodes(nodes)
    jobs = snapshot.read(_there(squeue), {str(node.get("name", "")): node.get("partitions", []) for node in listed})
    return _in_use(listed, _nodes(nodes, down=False), jobs.jobs), jobs


def _report(
    made: list[Any], known: _Known, changes: tuple[str, ...], only: tuple[str, ...], notes: list[str],
    page: Path | None, as_json: bool, quiet: bool, past: ShadowLog, beside: Any = None,
) -> None:  # fmt: skip
    from hetsim.twin import report as report
    from hetsim.twin.page import write_twin
    from hetsim.workload.logs.history import forecast_errors

    plain, other, changed = made[0], made[1] if changes else None, ", ".join(changes)
    errors = forecast_errors(known.log, known.hours * 3600)
    if page is not None:
        write_twin(page, plain, known.now, errors=errors, other=other, changed=changed, notes=notes,
                   tables=beside.tables() if beside else {})  # fmt: skip
    if as_json:
        more = {} if past.folder is None else {"shadow": past.mapping()}
        more |= {"queues": beside.queues(), "causes": beside.causes()} if beside else {}
        console.as_json(report.mapping(plain, known.now, errors, other=other, changed=changed) | more)
    else:
        console.lines(report.lines(plain, known.now, errors, other=other, changed=changed, only=only), VERDICTS)
        console.lines(["", *beside.lines(only)] if beside else past.lines())
    console.notes(notes, quiet)
    if page is not None:
        console.note(f"page: {page}", quiet)


@dataclass(frozen=True)
class _Known:
    """The common input of all forecasts of one snapshot: jobs, history, scenario keys."""

    jobs: list[SnapshotJob]
    now: float
    log: JobHistory
    more: dict[str, Any]
    hours: float
    overrides: tuple[str, ...]
    seed: int
    source: str = ""

    def forecast(self, listed: list[dict[str, Any]], policy: Ruled, samples: int, altered: Sequence[str] = ()) -> Any:
        from hetsim.twin.forecast import SnapshotCluster, Twin

        overrides = (*self.overrides, *altered)
        cluster, horizon = SnapshotCluster(listed, self.more, self.source), self.hours * 3600
        try:
            model = Twin(self.jobs, self.now, self.log, cluster=cluster, horizon=horizon, policy=_policy(policy[0]),
                         overrides=overrides, rules=policy[1])  # fmt: skip
        except ScenarioError as error:
            named = {f"--set {text.partition('=')[0]}": f"--what-if {text.partition('=')[0]}" for text in altered}
            raise ScenarioError([replace(p, file=named.get(p.file or "", p.file)) for p in error.problems]) from None
        return model.forecast(samples, self.seed)

    def widened(
        self, listed: list[dict[str, Any]], policy: Ruled, count: int, quiet: bool, shadow: list[Past]
    ) -> tuple[Any, list[str]]:
        """Return the `Widening` of forecast intervals (from past errors), and notes.

        None in place of a `Widening` if `count` is 0 or too few starts are known.  shadow: forecasts stored by earlier
        calls; if their starts do not suffice, forecasts of `count` earlier snapshots are made and judged.
        """
        from hetsim.twin.forecast import SnapshotCluster
        from hetsim.twin.judge import earlier_instants, look_back
        from hetsim.twin.widening import ENOUGH_STARTS, widening

        if not count:
            return None, []
        if (wider := widening(shadow, self.now)) is not None:
            return wider, []
        instants = earlier_instants(float(self.log.submit[0]), self.now, self.hours * 3600, count)
        cluster, horizon = SnapshotCluster(listed, self.more), self.hours * 3600
        pasts = look_back(self.log, cluster, instants, horizon=horizon, samples=EARLIER_SAMPLES,
                          policy=_policy(policy[0]), seed=self.seed, progress=lambda text: console.note(text, quiet),
                          overrides=self.overrides, rules=policy[1])  # fmt: skip
        if (wider := widening(pasts, self.now)) is not None:
            return wider, []
        starts = sum(len(past.actual) for past in pasts)
        evidence = f"earlier snapshots have {starts} known starts {self.hours:g} h ahead"
        text = f"but errors need {ENOUGH_STARTS} or more (use a longer log, or fewer --hours)"
        return None, [f"intervals cover only run times and arrivals: {evidence}, {text}"]


def _policy(text: str) -> Any:
    from hetsim.experiment.policies import named_policy

    return named_policy(text)[1]


def _there(path: Path) -> Path:
    if not path.is_file():
        raise UsageError(f"the file {path} does not exist")
    return path


def _split(text: str, default: str) -> tuple[str, str]:
    form, sign, file = text.partition(":")
    return (form, file) if sign and re.fullmatch(r"\w+", form) and not Path(text).exists() else (default, text)


def _history(given: str) -> tuple[JobHistory, Any, float]:
    """Return the log's jobs, its task table, and the offset (s) added to its times."""
    from hetsim.workload.logs.history import history_of

    form, file = _split(given, "slurm")
    _there(Path(file))
    if Path(file).suffix in (".yaml", ".yml"):  # a scenario, or a mapping of columns
        table = read(file, None, ())
        return history_of(table, file), table, 0.0
    options = (f"since={LOCAL}", "node_counts=true") if form == "slurm" else ()
    table = read(file, form, options)
    table.notes = [note for note in table.notes if "time 0 is" not in note]
    past = history_of(table, file)
    shift = _instant(LOCAL) if form == "slurm" else 0.0
    past.submit, past.start = past.submit + shift, past.start + shift
    return past, table, shift


def _identified(table: Any, source: str, quiet: bool) -> str:
    from hetsim.traces.identify import explained, policy_of
    from hetsim.workload.logs.identified import identify

    if (identified := identify(table)) is None:
        text = "does not show how the cluster schedules, since almost no job waited; give --policy"
        raise ScenarioError(Problem(text, file=source))
    best = next(one for one in identified.rules if one.rule.order != "class")  # whose partitions a forecast lacks
    console.note(explained(best, identified), quiet)
    return json.dumps(policy_of(best, identified))


def _site_rules(
    policy: str | None, rules: str | None, jobs: list[SnapshotJob], now: float, log: JobHistory,
    earlier: Weights | None = None,
) -> Rules:  # fmt: skip
    """Learn the site's rules; drop a backfill cycle that easy_backfill would ignore."""
    from hetsim.twin.rules import Rules, learned

    site = Rules() if rules == "none" else learned(jobs, now, log, earlier)
    if policy is None and site.cycle and not (site.caps or site.weights):
        text = "cycle of backfilling not used: without learned caps or weights the policy is easy_backfill"
        site = replace(site, cycle=None, evidence=[*site.evidence[:-1], f"{text} ({site.evidence[-1]})"])
    return site


def _ruled(policy: str | None, site: Rules, jobs: list[SnapshotJob], source: str) -> tuple[Ruled, list[str]]:
    from hetsim.twin.rules import Rules, tiers_of, with_policy

    scheduler = None if policy is None else _policy(policy)
    ruled = with_policy(scheduler, site) if site else None
    if ruled is None:
        own = replace(Rules() if site else site, given=tiers_of(scheduler)).for_jobs(jobs)
        return (str(policy), own), [f"{source}{policy} has no parameters for rules of the site"] if site else []
    texts = [text.replace("--policy", source.strip()) for text in ruled[1].evidence if text not in site.evidence]
    return (json.dumps(ruled[0]), ruled[1].for_jobs(jobs)), texts


def _nodes(given: str, down: bool = True) -> list[dict[str, Any]]:
    form, file = _split(given, "slurm_nodes")
    return read_nodes(file, form, ("down=true",) if form == "slurm_nodes" and down else ())


def _in_use(listed: list[dict[str, Any]], up: list[dict[str, Any]], jobs: list[SnapshotJob]) -> list[dict[str, Any]]:
    taking = {str(node.get("name", "")) for node in up}
    holding = {name for job in jobs for name in job.nodes}
    nodes = []
    for node in listed:
        name = str(node.get("name", ""))
        if name in taking:
            nodes.append(node)
        elif name in holding:
            nodes.append({**{key: value for key, value in node.items() if key != "partitions"},
                          "partitions": ["draining"]})  # fmt: skip
    return nodes


def _site(path: Path | None) -> dict[str, Any]:
    from hetsim.scenario.file import document

    if path is None:
        return {}
    data = document.read(_there(path)).data
    if not isinstance(data, dict) or "site" not in data:
        raise ScenarioError(Problem("must have the key site (docs/sites.md)", file=str(path)))
    return {key: data[key] for key in ("site", "policy") if key in data}


def _instant(text: str) -> float:
    from hetsim.workload.rows.job_log import seconds_of

    try:
        return seconds_of(text)
    except (ValueError, OverflowError):
        raise UsageError(f'--now must be a date such as 2026-06-09T18:41:01; got "{text}"') from None


def _changed(
    listed: list[dict[str, Any]], changes: tuple[str, ...], policy: str
) -> tuple[list[dict[str, Any]], str, list[str]]:
    from hetsim.workload.node_lists import hosts

    kept, altered = listed, []
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise UsageError(f'--what-if must be KEY=VALUE; got "{change}"')
        if key == "without":
            if not (gone := hosts(value)):
                raise UsageError("--what-if without= must have at least one node, such as n[1-4],n7")
            unknown = [name for name in gone if name not in {str(node.get("name", "")) for node in listed}]
            if unknown:
                raise UsageError(f"--what-if without: the cluster has no node {unknown[0]}")
            kept = [node for node in kept if str(node.get("name", "")) not in gone]
            if not kept:
                raise UsageError("--what-if without: no node is left")
        elif key == "policy":
            policy = value
        else:
            altered.append(change)
    return kept, policy, altered


def _judge(
    log: JobHistory, table: Any, nodes: str | None, more: dict[str, Any], instants: int, horizon: float, samples: int,
    policy: str, seed: int, overrides: tuple[str, ...], as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    from hetsim.traces.from_log import inferred_nodes
    from hetsim.twin import report as report
    from hetsim.twin.forecast import SnapshotCluster
    from hetsim.twin.judge import first_instant, judge, with_limits

    listed = inferred_nodes(table) if nodes is None else _nodes(nodes)
    log, cluster = with_limits(log, SnapshotCluster(listed, more), table, first_instant(log, horizon))
    judged = judge(log, cluster, instants, horizon=horizon, samples=samples, policy=_policy(policy), seed=seed,
                   progress=lambda text: console.note(text, quiet), overrides=overrides)  # fmt: skip
    console.result(as_json, lambda: {
        "jobs": len(judged.actual), "instants": judged.instants, "horizon": judged.horizon,
        "beyond_horizon": float(judged.beyond.mean()), "methods": judged.table()},
                   lambda: report.judged_lines(judged))  # fmt: skip
