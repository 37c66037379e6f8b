"""`hetsim validate`, `hetsim schema`: check scenarios, and list their keys."""

import json
from pathlib import Path
from typing import Any

import click

from hetsim.cli import console
from hetsim.cli.options import QUIET, SCHEMA, SET, VERBOSITY, study_options
from hetsim.errors import Problem, ScenarioError, UnknownName
from hetsim.experiment.options import StudyOptions
from hetsim.model.files import write_text, write_whole

VALID = {"(?<=: )valid(?=;)": "good"}


@click.command(short_help="Check scenarios without running them.")
@click.argument("scenarios", nargs=-1, required=True, metavar="FILE|NAME...")
@click.option("--policy", metavar="NAME", help="Replaces the scenario's whole policy.")
@SET
@study_options(external={})
@click.option("--conformance", is_flag=True, help="Also test the scheduler's conformance on small systems.")
@QUIET
@VERBOSITY
def validate(
    scenarios: tuple[str, ...], policy: str | None, overrides: tuple[str, ...], external: str | None,
    conformance: bool, quiet: bool,
) -> None:  # fmt: skip
    """Check scenarios and the files they name, without running them.

    The command does everything that a run does before its clock starts (traces are read, static policies make their
    plans), so that a valid scenario is not rejected by a run. Every problem is listed with its file, line and column.
    """
    from hetsim.experiment.run import prepare, rehearse

    program = StudyOptions(external=external).program
    problems: list[Problem] = []
    for name in scenarios:
        try:
            scenario = prepare(name, policy, overrides, program)
            run = rehearse(scenario)
        except ScenarioError as error:
            problems += error.problems
        except UnknownName as error:
            problems.append(Problem(str(error)))
        else:
            if not quiet:
                number = run.tasks.request_count if run.calls is None else int((run.calls.number == 0).sum())
                tasks = f"{number:,} task{'s' if number != 1 else ''}"
                console.lines([f"{name}: valid; {run.cluster.describe()}, {tasks}, {scenario.policies.label}"], VALID)
            console.notes((f"{name}: {remark}" for remark in scenario.notes), quiet)
            problems += _breaches(name, scenario) if conformance else []
    if problems:
        raise ScenarioError(problems)


def _breaches(name: str, scenario: Any) -> list[Problem]:
    from hetsim.scenario.building.run_input import make_policy
    from hetsim.testing.conformance import all_systems, examine

    spec, all_found = scenario.policies.scheduler, []
    for system in all_systems():
        all_found += examine(lambda _: make_policy(spec, scenario, []), system, may_reject=True)
    return [Problem(f"{name}: {' '.join(str(breach).split())}") for breach in all_found]


@click.command(short_help="Print the JSON Schema of scenario files.")
@click.option("--file", type=SCHEMA, metavar="JSON", help="Write the schema to this file instead.")
@VERBOSITY
def schema(file: Path | None) -> None:
    """Print the JSON Schema of scenario files, or write it to a file.

    Editors use it to complete and check while you type.  Scenarios begin with a line that names the file:

        # yaml-language-server: $schema=hetsim.schema.json

    `hetsim schema --file hetsim.schema.json` writes the file next to a scenario of your own.
    """
    from hetsim.scenario.schema.whole import json_schema

    if file is None:
        console.as_json(json_schema())
        return
    text = json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"
    write_whole(file, lambda path: write_text(path, text))
    console.note(f"schema: {file}")
