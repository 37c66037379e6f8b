"""The commands `hetsim size` and `hetsim tune`: cheapest cluster, best parameters."""

from pathlib import Path
from typing import Any, Unpack

import click

from hetsim.cli import console, options
from hetsim.cli.options import SCENARIO, TELLING, Share, Whole, study_options
from hetsim.cli.sweep import over_given
from hetsim.errors import NothingMeets, UsageError
from hetsim.experiment.options import SearchKeywords
from hetsim.report import terminal
from hetsim.results.declared import DEFAULT_METRIC

MARK = "decision.json"
MAX_ROWS = 60
VERDICTS = {"met ◂$": "best", "(?<=  )met$": "good", "(?<=  )missed(?= [(]|$)": "bad",
            "(?<=  )open(?= [(]|$)": "unsure"}  # fmt: skip


@click.command(short_help="Find the smallest or cheapest cluster that meets targets.")
@SCENARIO
@click.option("--target", "targets", required=True, multiple=True, metavar="TEXT",
              help="A target, such as 'response_p99 < 200 ms' (repeatable; all must be met).")  # fmt: skip
@click.option("--over", required=True, multiple=True, metavar="KEY.PATH[=VALUES]",
              help="The whole number to find: cluster.nodes.0.count; or with values, 1..16 or 2,4,8, one of several "
              "(repeatable: all combinations).")  # fmt: skip
@click.option("--from", "least", type=Whole(min=1), metavar="N",
              help="The smallest size tried.  [default: 1, or where queues of services stay short]")  # fmt: skip
@click.option("--to", "most", type=Whole(min=1), metavar="N",
              help="The largest size tried; by default sizes double until one meets the target, to 4096.")  # fmt: skip
@click.option("--minimize", metavar="WHAT",
              help="What to minimize: price (of the cluster for an hour), total (of the numbers), or a metric "
              "such as cost.  [default: price where there are prices, else total]")  # fmt: skip
@click.option("--confidence", type=Share(), default="95%", show_default=True, metavar="SHARE",
              help="Probability that all verdicts are right.")  # fmt: skip
@click.option("--delta", type=Share(), default="1%", show_default=True, metavar="SHARE",
              help="With --minimize METRIC: the difference that is worth no further replication.")  # fmt: skip
@click.option("--policy", "policies", multiple=True, metavar="NAME",
              help="Instead of the scenario's whole policy; several are a dimension of the search.")  # fmt: skip
@click.option("--out", type=options.FOLDER, metavar="DIR",
              help="Write candidates.csv, decision.json and picture.png there (of combinations).")  # fmt: skip
@study_options(
    SearchKeywords,
    replications={
        "type": Whole(min=2, max=10_000), "default": 10, "show_default": True,
        "help": "Replications of each size; a third if these decide, four times as many if the verdict stays open.",
    },
)  # fmt: skip
@TELLING
def size(
    scenario: str, targets: tuple[str, ...], over: tuple[str, ...], least: int | None, most: int | None,
    minimize: str | None, confidence: float, delta: float, policies: tuple[str, ...], out: Path | None,
    replications: int, as_json: bool, quiet: bool, **options: Unpack[SearchKeywords],
) -> None:  # fmt: skip
    """Find the smallest cluster, or the cheapest combination, that meets targets.

    If one key is given without values (a whole number, such as the number of nodes), its smallest value that meets the
    target is found by bisection, which assumes that more is never worse. With several keys, policies or targets, or
    with values, the cheapest combination that meets all targets is found; each one is tested, without any assumption.

    Targets apply to the estimate from all replications, not to single ones. A size at which some task can never fit
    misses the target, and the reason is stated. Exit code 4 if no candidate is shown to meet all targets.
    """
    from hetsim.search.size import size as search

    keys: Any = _over(over, least, most)
    tell = None if quiet else _tell
    with console.searching(console.of_cache(options["cache"]), as_json, quiet) as options["progress"]:
        sizing = search(scenario, targets, keys, least=least, most=most, minimize=minimize, confidence=confidence,
                        delta=delta, policy=policies[0] if len(policies) == 1 else None,
                        policies=policies if len(policies) > 1 else None, replications=replications, tell=tell,
                        **options)  # fmt: skip
    texts = _decision_lines if hasattr(sizing, "candidates") else _lines
    console.result(as_json, sizing.to_json, lambda: texts(sizing), VERDICTS)
    if out is not None:
        _write(sizing, out, quiet)
    if not sizing.met:  # what was tried is printed all the same
        click.get_current_context().exit(NothingMeets.exit_code)


def _over(texts: tuple[str, ...], least: int | None, most: int | None) -> Any:
    plain = [text for text in texts if "=" not in text]
    if len(texts) == 1 and plain:
        return texts[0]
    values: dict[str, Any] = over_given(tuple(text for text in texts if "=" in text)) or {}
    given = {text: range(least or 1, most + 1) if most is not None else None for text in plain}
    return {text.partition("=")[0]: (values | given)[text.partition("=")[0]] for text in texts}


def _tell(one: Any) -> None:
    label = one.label if hasattr(one, "label") else str(one.size)
    trial = getattr(one, "trial", one)
    console.note(f"{label}: {trial.verdict}, n = {trial.replications}")


def _write(found: Any, out: Path, quiet: bool) -> None:
    from hetsim.results.one_run.store import write_csv, write_directory
    from hetsim.results.panels import write_picture
    from hetsim.results.stored_files import sealed

    if not hasattr(found, "candidates"):
        raise UsageError("--out needs combinations: give values (--over KEY=1..16), or several targets or policies")

    def write(folder: Path) -> None:
        write_csv(found.table, folder / "candidates.csv", index=False)
        (folder / MARK).write_text(sealed(found.to_json(), 1), encoding="utf-8")

    target = write_directory(out, write, mark=MARK)
    with console.own_warnings(quiet):
        write_picture(found.plot, target / "picture.png")
    console.note(f"tables and picture: {target}", quiet)


def _decision_lines(found: Any) -> list[str]:
    rows = found.shown()
    lines = terminal.table(rows[: MAX_ROWS + 1], right=range(len(rows[0]) - 1))
    if len(rows) > MAX_ROWS + 1:
        lines.append(f"... {len(rows) - 1 - MAX_ROWS:,} more (--out DIR keeps them, --json prints them)")
    return [*lines, "", *terminal.paragraphs(found.sentences)]


def _lines(found: Any) -> list[str]:
    units = terminal.units_of(found.target.metric)
    texts = [terminal.several([trial.mean], units, [trial.half])[0] for trial in found.trials]  # each in its own unit
    rows = [[found.key, terminal.metric_name(found.target.metric), "replications", found.target.text]]
    for trial, text in zip(found.trials, texts, strict=True):
        rows.append([str(trial.size), text, str(trial.replications), trial.verdict])
    return [*terminal.table(rows, right=(0, 1, 2)), "", *terminal.paragraphs(found.sentences)]


@click.command(short_help="Find the best parameters of a policy.")
@SCENARIO
@click.option("--policy", metavar="NAME", help="Instead of the scenario's whole policy: sjf, or fcfs+codel.")
@click.option("--over", multiple=True, required=True, metavar="PARAMETER=VALUES",
              help="A parameter and what to try: 8,16,32 or a range: '10 s..10 min log' (repeatable).")  # fmt: skip
@click.option("--metric", default=DEFAULT_METRIC, show_default=True, metavar="NAME", help="Metric to optimize.")
@click.option("--sample", type=click.Choice(["grid", "random", "latin_hypercube", "sobol"]),
              help="All combinations, or --n settings drawn.  [default: grid of lists, sobol of ranges]")  # fmt: skip
@click.option("--n", type=Whole(min=1, max=100_000), metavar="N", help="Number of sampled settings.  [default: 27]")
@click.option("--sample-seed", type=Whole(min=0), default=0, show_default=True, help="Seed of the sample.")
@click.option("--first", type=Whole(min=2, max=100_000), default=3, show_default=True, metavar="N",
              help="Replications of every setting before any is eliminated.")  # fmt: skip
@click.option("--final", type=Whole(min=3, max=100_000), default=20, show_default=True, metavar="N",
              help="Replications for the winner's interval, none of them used for the choice.")  # fmt: skip
@study_options(SearchKeywords)
@TELLING
def tune(scenario: str, over: tuple[str, ...], as_json: bool, quiet: bool, **options: Any) -> None:
    """Find the best parameters of a policy by successive halving.

    Settings are dropped as replications show that they are worse.

    All settings use the same replications. The winner's value comes from further replications, which had no part in the
    choice, and is compared with the present setting.
    """
    from hetsim.search.tune import tune as search

    with console.searching(console.of_cache(options["cache"]), as_json, quiet, cases=True) as options["progress"]:
        tuning = search(scenario, over=over_given(over) or {}, **options)
    console.warnings(tuning.warnings, quiet)
    console.result(as_json, tuning.to_json, lambda: _settings_lines(tuning))


def _settings_lines(found: Any) -> list[str]:
    from hetsim.scenario.file.document import dump

    shown = found.shown()
    rows = [[str(title) for title in shown.columns]]
    rows += [[str(cell) for cell in row] for row in shown.itertuples(index=False)]
    lines = terminal.table(rows, right=range(len(rows[0]) - 1, len(rows[0])))
    if len(found.settings) > len(shown):
        lines.append(f"... {len(found.settings) - len(shown):,} more settings, eliminated earlier")
    policy = dump({"policy": dict(found.policy)}).splitlines()
    return [*lines, "", *terminal.paragraphs(found.sentences), "", *policy]
