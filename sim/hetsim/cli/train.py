"""`hetsim train`: learns a scheduling or an admission policy on a scenario."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from hetsim.cli import console
from hetsim.cli.compare import VERDICTS
from hetsim.cli.options import LEARNED, SCENARIO, TELLING, Whole, study_options
from hetsim.errors import ScenarioError
from hetsim.experiment.options import TrainingKeywords

if TYPE_CHECKING:
    import pandas as pd


@click.command(short_help="Learn a scheduling or an admission policy on a scenario.")
@SCENARIO
@click.option("--decides", type=click.Choice(["scheduling", "admission"]), default="scheduling", show_default=True,
              help="What to learn: which task starts on which device type, or which tasks are admitted.")  # fmt: skip
@click.option("--agent", default="dqn", show_default=True, metavar="dqn|reinforce|ppo",
              help="The agent that learns; ppo needs the extra `learning`.")  # fmt: skip
@click.option("--steps", type=Whole(min=1, max=100_000_000), default=50_000, show_default=True, metavar="N",
              help="Number of decisions to learn from.")  # fmt: skip
@click.option("--reward", metavar="NAME",
              help="Reward: response, slowdown, goodput, energy, value, or weights such as "
              "'{slowdown: 1, energy: 0.001}'.  [default: slowdown; for admission goodput, "
              "or value if no task has a deadline]")  # fmt: skip
@click.option("--window", type=Whole(min=1, max=1000), default=16, show_default=True, metavar="N",
              help="Number of waiting tasks that the agent observes, by arrival.")  # fmt: skip
@click.option("--setting", "settings", multiple=True, metavar="KEY=VALUE",
              help="A setting of the agent: rate=0.0005, hidden=[64, 64] (repeatable; docs/learning.md).")  # fmt: skip
@click.option("--file", type=LEARNED, metavar="NPZ",
              help="File of the policy; its learning curve is written next to it, as .png.  "
              "[default: SCENARIO-AGENT.npz, SCENARIO-admission-AGENT.npz]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace files that exist.")
@click.option("--baseline", "baselines", multiple=True, metavar="NAME",
              help="A policy to compare with; for admission, one that suits the scenario's scheduler (repeatable).  "
              "[default: fcfs, random, sjf; the admission policies that suit the scenario]")  # fmt: skip
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="A metric to compare (repeatable).")
@study_options(
    TrainingKeywords,
    seed={"type": Whole(min=0, max=999_999), "default": 0, "show_default": True,
          "help": "Seed of everything random in training."},
    replications={"help": "Runs of each policy in the comparison; replaces the scenario's number."},
)  # fmt: skip
@TELLING
def train(
    scenario: str, decides: str, agent: str, steps: int, reward: str | None, window: int, settings: tuple[str, ...],
    seed: int, file: Path | None, force: bool, baselines: tuple[str, ...],
    metrics: tuple[str, ...], replications: int | None, as_json: bool, quiet: bool, **options: Unpack[TrainingKeywords],
) -> None:  # fmt: skip
    """Learn a scheduling or an admission policy, and compare it with others.

    A scheduling policy decides which waiting task starts on which type of device; with --decides admission the policy
    decides which tasks are admitted, under the scenario's own scheduler.

    The scenario must have tasks that wait for a scheduler. The policy learns from its own random loads and is compared
    on the scenario's seed, which is not used for training.  A scenario runs the file under policy: {scheduler: {name:
    learned, path: FILE.npz}}, or {admission: {name: learned, path: FILE.npz}}.
    """
    from hetsim.experiment.directory import comparison_json, folder_name
    from hetsim.learning.training.train import check_writable, make_agent
    from hetsim.learning.training.train import train as learn
    from hetsim.results.one_run.metrics import metric
    from hetsim.results.panels import write_picture
    from hetsim.scenario.scenario import load

    chosen = _settings(settings)
    make_agent(agent, chosen)  # what is missing is said before anything is read or run
    loaded = load(scenario, options.pop("overrides"))
    for name in metrics:
        metric(name)
    part = "" if decides == "scheduling" else f"{decides}-"
    file = file or Path(f"{folder_name(loaded.name)}-{part}{agent}.npz")
    picture = file.with_suffix(".png")
    for target in (file, picture):  # before an hour of training rather than after it
        console.check_replaceable(target, force)
        check_writable(target)
    with console.progress(quiet) as options["progress"]:
        training = learn(
            loaded, agent, steps, decides=decides, seed=seed, window=window, reward=_reward(reward),
            baselines=baselines or None, settings=chosen, metrics=metrics, replications=replications, out=file,
            **options,
        )  # fmt: skip
    from hetsim.report.overview import common_remarks, comparison_headline, comparison_lines, comparison_remarks

    assert training.comparison is not None
    if as_json:
        console.as_json({
            "policy": str(file), "training": training.policy.training, "curve": training.curve.to_dict("list"),
            "validation": training.baselines, **comparison_json(training.comparison, training.runs),
            **({} if training.earned is None else {"earned": training.earned.to_dict("list")}),
        })  # fmt: skip
    else:
        about = training.policy.training
        said = f"{training.policy.agent}: {about['steps']:,} steps, the network after {about['kept_after']:,} is kept"
        lines = [comparison_headline(training.runs), "", *comparison_lines(training.comparison)]
        console.lines([said, *lines, *common_remarks(training.runs)], VERDICTS)
        if training.earned is not None:
            console.lines(["", *_earned(training.earned)])
    console.warnings(comparison_remarks(training.runs), quiet)
    with console.own_warnings(quiet):
        drawn = write_picture(training.plot, picture)
    console.note(f"policy: {file}{f', learning curve: {picture}' if drawn else ''}", quiet)


def _settings(texts: tuple[str, ...]) -> dict[str, Any]:
    from hetsim.scenario.file.document import parse_value

    values: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise click.UsageError(f'--setting must be key=value, such as rate=0.0005; got "{text}"')
        try:
            values[key.strip()] = parse_value(value)
        except ScenarioError as error:
            raise click.UsageError(f"--setting {text} {error.problems[0].message}") from None
    return values


def _reward(text: str | None) -> Any:
    if text is None or not text.lstrip().startswith("{"):
        return text
    from hetsim.scenario.file.document import parse_value

    try:
        return parse_value(text)
    except ScenarioError as error:
        raise click.UsageError(f"--reward {text} {error.problems[0].message}") from None


def _earned(earned: "pd.DataFrame") -> list[str]:
    from hetsim.results.statistics import student_interval

    width = max(map(len, earned.columns))
    lines = [f"{'reward per task':{width}}  mean         learned - other (paired, 95 %)"]
    mine = earned.iloc[:, 0]
    for label, values in earned.items():
        line = f"{label:{width}}  {values.mean():<11.4g}"
        if label != mine.name:
            interval = student_interval((mine - values).to_numpy(), 0.95)
            line += f"  {interval.mean:+.4g}" + (f" ± {interval.high - interval.mean:.2g}" if len(values) > 1 else "")
        lines.append(line.rstrip())
    return lines
