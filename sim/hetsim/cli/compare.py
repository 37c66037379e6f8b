"""`hetsim compare`: policies that meet the same load."""

from pathlib import Path
from typing import Any, Unpack

import click

from hetsim.cli import console
from hetsim.cli.options import BY, FOLDER, RUNNING, SCENARIO, Share
from hetsim.cli.run import default_directory
from hetsim.errors import UsageError, suggestion
from hetsim.experiment.options import StudyKeywords, StudyOptions
from hetsim.registry import policies as known

USUAL = ("fcfs", "fcfs_skip", "sjf")
"""Compared with the scenario's own policy where none are named."""

USUAL_GROUPS = ("class", "gpus", "user")

VERDICTS = {
    "[^ ]+( ± [^ ]+)?( [^ ]+)? ◂": "best", "(?<=  )refuses(?=: )": "bad", "no significant difference": "unsure",
}  # fmt: skip


@click.command(short_help="Compare policies that meet the same load.")
@SCENARIO
@click.option("--policy", "policies", multiple=True, metavar="NAME",
              help="A policy to compare, such as sjf or sjf+predicted_wait (repeatable); all: every one.")  # fmt: skip
@click.option("--metric", "--metrics", "metrics", multiple=True, metavar="NAME",
              help="A metric to compare, or a set of them: usual, cluster, all (repeatable).")  # fmt: skip
@BY
@click.option("--baseline", metavar="NAME", help="Compare every policy with this one only.")
@click.option("--best", metavar="METRIC", help="Select the best policy by a metric with a stated probability: makes as "
              "many replications as that takes (--replications: those of the first stage).")  # fmt: skip
@click.option("--probability", type=Share(), metavar="SHARE",
              help="With --best: that of having selected the best.  [default: 95%]")  # fmt: skip
@click.option("--delta", type=Share(), metavar="SHARE",
              help="With --best: the difference, as a share of the mean, that is worth no further replication.  "
              "[default: 1%]")  # fmt: skip
@click.option("--out", type=FOLDER, metavar="DIR",
              help="Write the comparison, and tables and a picture of every policy, there.")  # fmt: skip
@RUNNING
def compare(
    scenario: str, policies: tuple[str, ...], metrics: tuple[str, ...], by: tuple[str, ...], baseline: str | None,
    best: str | None, probability: float | None, delta: float | None, out: Path | None, as_json: bool, quiet: bool,
    **options: Unpack[StudyKeywords],
) -> None:  # fmt: skip
    """Compare policies under common random numbers, and say which is better.

    Without --policy these are the values of the scenario's sweep over `policy`, if it has one, else its own
    policy and fcfs, fcfs_skip and sjf. One run of each says nothing about chance: use --replications.
    A policy that refuses the scenario is a row with its reason.
    Nothing is written unless --out is given; a run that fails keeps its tables as `hetsim run` does.
    """
    from hetsim.experiment.compare import asked_for
    from hetsim.experiment.compare import compare as evaluate
    from hetsim.experiment.directory import PICTURE, check_target, comparison_json, save_comparison
    from hetsim.experiment.policies import named_policies, named_policy
    from hetsim.results.one_run.groups import checked
    from hetsim.scenario.scenario import load

    if best is None and (probability is not None or delta is not None):
        raise UsageError("--probability and --delta belong to a selection: add --best METRIC")
    checked(by)
    StudyOptions(audit=options["audit"])  # so that loading the scenario is watched too
    chosen: Any = named_policies(policies)
    loaded = load(scenario, options["overrides"] if chosen else ())
    chosen = chosen or _default_policies(loaded.raw)
    if baseline is not None:
        baseline, _ = named_policy(baseline)
    _check_names((*metrics, *([best] if best else [])), baseline, chosen)
    if out is not None:
        check_target(out)
    groups = by if out is None else USUAL_GROUPS  # what is written has all of them
    folder = default_directory(loaded, options["seed"])
    with console.making(out, folder, options["cache"], to_json=as_json, quiet=quiet, cases=True) as options["progress"]:
        comparison = evaluate(
            loaded, chosen, metrics=metrics or None, baseline=baseline, best=best, probability=probability or 0.95,
            delta=delta or 0.01, by=groups, **options,
        )  # fmt: skip
    runs: Any = comparison.runs
    comparison.asked = asked_for(
        metrics, by, best, probability=probability, delta=delta, replications=options["replications"]
    )
    from hetsim.report.groups import groups_lines
    from hetsim.report.overview import common_remarks, comparison_headline, comparison_lines, comparison_remarks
    from hetsim.results.many_runs.groups import tables_of_groups
    from hetsim.results.one_run.metrics import by_name

    tables = tables_of_groups(runs, groups)
    if as_json:
        console.as_json(comparison_json(comparison, runs, {name: tables[name] for name in by if name in tables}))
    else:
        lines = [comparison_headline(runs), "", *comparison_lines(comparison), *common_remarks(runs)]
        own = by_name(metrics)
        console.lines([*lines, *groups_lines(tables, by, own, comparison=comparison, only=own)], VERDICTS)
    console.warnings(comparison_remarks(runs), quiet)
    if out is not None:
        with console.own_warnings(quiet):
            folder = save_comparison(comparison, runs, out, groups=tables)
        console.note(f"{'tables and pictures' if (folder / PICTURE).is_file() else 'tables'}: {folder}", quiet)


def _default_policies(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the policies to compare by default: the sweep's, or the usual ones."""
    from hetsim.experiment.policies import named_policies

    sweep = raw.get("sweep")
    for key in ("policy", "policy.scheduler", "policy.scheduler.name"):
        values = sweep.get(key) if isinstance(sweep, dict) else None
        if isinstance(values, list) and len(values) > 1:
            return named_policies(values)
    own = named_policies([raw["policy"]])
    return own | {name: name for name in USUAL if name not in own and name in known("scheduler")}


def _check_names(metrics: tuple[str, ...], baseline: str | None, policies: dict[str, Any]) -> None:
    from hetsim.results.one_run.metrics import check

    for name in metrics:
        check(name)
    if baseline is not None and baseline not in policies:
        near = suggestion(baseline, policies) or f"; compared are {', '.join(policies)}"
        raise UsageError(f'--baseline "{baseline}" is not compared{near}')
