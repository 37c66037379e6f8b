"""The verbs as a whole: their names and headings, where their results go, and the color of verdicts."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pages
import pytest
from click.testing import CliRunner, Result

from hetsim.cli import console, main, options
from hetsim.cli.program import HEADINGS, VERBS, WITHIN
from hetsim.scenario.file.shipped import shipped

HELP = {
    "Start": ["new", "list", "run", "validate"],
    "Examine": ["explain", "diff", "theory"],
    "Decide": ["compare", "sweep", "merge", "tune", "size", "plan", "twin"],
    "Bring your own": ["trace", "calibrate", "train", "schema"],
    "Publish": ["report", "gallery"],
}
"""All verbs.  What else can be done is an option of one of them, or a command of it."""


def call(*arguments: str, color: bool = False) -> Result:
    return CliRunner().invoke(main, list(arguments), prog_name="hetsim", color=color)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its full name."""
    context = click.Context(main)
    todo = [(verb, main.get_command(context, verb)) for verb in VERBS]
    while todo:
        name, command = todo.pop(0)
        assert command is not None
        yield name, command
        todo += [(f"{name} {below}", one) for below, one in getattr(command, "commands", {}).items()]


# Names ----------------------------------------------------------------------------------------------------------


def test_the_help_lists_all_verbs_under_their_headings() -> None:
    found: dict[str, list[str]] = {}
    for line in call("--help").stdout.splitlines():
        heading, verb = re.match(r"([A-Z][a-z ]+):$", line), re.match(r"  ([a-z]+)  ", line)
        if heading:
            found[heading[1]] = []
        elif verb and found:
            found[next(reversed(found))].append(verb[1])
    found.pop("Options", None)
    assert found == HELP
    assert list(VERBS) == [verb for verbs in HELP.values() for verb in verbs]
    assert list(HEADINGS.values()) == list(HELP)


@pytest.mark.parametrize(("words", "meant"), [
    (["partition", "x"], "hetsim plan partition"),
    (["plan-training", "x"], "hetsim plan training"),
    (["cluster", "convert", "x"], "hetsim trace convert"),
    (["inspect", "x"], "hetsim trace inspect"),
    (["comapre", "x"], "hetsim compare"),
    (["trace", "insepct", "x"], "hetsim trace inspect"),
])  # fmt: skip
def test_a_name_that_is_none_says_which_was_meant(words: list[str], meant: str) -> None:
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert f'did you mean "{meant}"?' in done.stderr


def test_what_is_proposed_for_other_names_exists() -> None:
    assert set(WITHIN.values()) <= {name for name, _ in commands()}
    assert not set(WITHIN) & set(VERBS)


def test_scenarios_with_the_name_of_a_command_are_planned_behind_two_signs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call("plan", "partition")
    assert (done.exit_code, "`hetsim plan -- partition`" in done.stderr) == (2, True)
    assert 'unknown scenario "partition"' in call("plan", "--", "partition").stderr
    monkeypatch.chdir(tmp_path)
    source = next(one.path for one in shipped() if one.name == "cholesky-plan")
    text = source.read_text().replace("path: ", f"path: {source.parent}/").replace("plan: ", f"plan: {source.parent}/")
    Path("training").write_text(text)
    assert "steps" in call("plan", "--", "training").stdout
    assert not {"partition", "training"} & {one.name for one in shipped()}


def test_the_options_of_plan_come_before_or_after_its_scenario() -> None:
    assert call("plan", "--json", "cholesky-plan").stdout == call("plan", "cholesky-plan", "--json").stdout
    assert call("plan", "cholesky-plan", "--json").exit_code == 0


# Where results go -----------------------------------------------------------------------------------------------


def test_out_is_a_folder_in_every_command() -> None:
    found = {name: one.type for name, command in commands() for one in command.params if "--out" in one.opts}
    assert len(found) >= 6
    assert all(isinstance(kind, options.Folder) for kind in found.values()), found


def test_single_files_have_the_same_option_in_every_command() -> None:
    """One name, one kind of file; and whatever is written is either this or a folder."""
    kinds: dict[str, set[str]] = {}
    for _, command in commands():
        for one in command.params:
            if isinstance(one.type, options.OutputFile):
                kinds.setdefault(one.opts[0], set()).add(one.type.what)
    assert {name: kinds[name] for name in kinds if name != "--file"} == {
        "--page": {"a page"}, "--picture": {"a picture"}, "--scenario": {"a scenario"}, "--mapping": {"a scenario"},
        "--table": {"a table"}, "--perfetto": {"a timeline"},
    }  # fmt: skip


@pytest.mark.parametrize(("words", "said"), [
    (["run", "first-steps", "--out", "x.html"], "`hetsim report FOLDER --page x.html`"),
    (["compare", "first-steps", "--out", "x.html"], "`hetsim report FOLDER --page x.html`"),
    (["run", "first-steps", "--out", "x.json.gz"], "--perfetto x.json.gz"),
    (["run", "first-steps", "--out", "there"], "must be a folder; got"),
    (["sweep", "mm16", "--out", "x.csv"], "must be a folder; got"),
    (["sweep", "mm16", "--cache", "there"], "must be a folder; got"),
    (["merge", "a", "--into", "there"], "must be a folder; got"),
    (["run", "first-steps", "--perfetto", "folder"], "got folder, a folder"),
    (["run", "first-steps", "--perfetto", "x.html"], "Invalid value for '--perfetto': a timeline must be a file name"),
    (["report", "folder", "--page", "folder"], "got folder, a folder"),
    (["report", "folder", "--page", "x.png"], "Invalid value for '--page': a page must be a file name ending"),
    (["report", "folder", "--page", "no/x.html"], 'the folder "no" does not exist'),
    (["report", "folder", "--out", "x.html"], "a page is written by --page x.html"),
    (["twin", "--history", "x", "--out", "x.html"], "use --page HTML"),
    (["plan", "cholesky-plan", "--out", "x.csv"], "use --table CSV"),
    (["plan", "training", "x", "--out", "x.png"], "use --picture PNG"),
    (["trace", "map", "x", "--out", "x.yaml"], "use --mapping YAML"),
    (["trace", "validate", "x", "--out", "x.yaml"], "use --scenario YAML, --page HTML"),
    (["run", "first-steps", "--trace-out", "x.json"], "use --out DIR, --perfetto JSON"),
    (["run", "first-steps", "--save", "x"], "use --out DIR, --perfetto JSON"),
    (["schema", "--out", "x.json"], "use --file JSON"),
    (["trace", "convert", "jobs.csv", "x.yaml"], "TARGET must end in .csv or .parquet, since a trace is "
                                                 "written as a table"),
    (["trace", "convert", "jobs.csv"], "TARGET must end in .csv or .parquet, since a trace is written as a table"),
    (["trace", "convert", "nodes.txt", "x.csv"], "a scenario must be a file name ending in .yaml or"),
])  # fmt: skip
def test_a_path_of_the_wrong_kind_names_the_right_option(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").write_text("mine")
    Path("folder").mkdir()
    Path("nodes.txt").write_text("NodeName=n1 CPUTot=8 RealMemory=1000 State=IDLE\n")
    Path("jobs.csv").write_text("id,arrival,cpu_time\na,0,1\n")
    before = sorted(tmp_path.rglob("*"))
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert said in " ".join(done.stderr.split())
    assert sorted(tmp_path.rglob("*")) == before
    assert Path("there").read_text() == "mine"


def test_a_folder_that_is_there_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "old.html"
    folder.mkdir()
    assert options.FOLDER.convert(str(folder), None, None) == folder
    assert options.FOLDER.convert("runs/v1.5", None, None) == Path("runs/v1.5")


def test_lists_of_nodes_and_logs_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nodes.txt").write_text("NodeName=n1 CPUTot=8 RealMemory=1000 State=IDLE\n")
    Path("jobs.csv").write_text("id,arrival,cpu_time\na,0,1\n")
    printed = call("trace", "convert", "nodes.txt")
    assert printed.exit_code == 0 and printed.stdout.startswith("cluster:")
    assert call("trace", "convert", "nodes.txt", "c.yaml", "--format", "slurm_nodes").exit_code == 0
    assert Path("c.yaml").read_text().strip() == printed.stdout.strip()
    assert call("trace", "convert", "nodes.txt", "c.yaml").exit_code == 2  # --force replaces it
    assert call("trace", "convert", "nodes.txt", "c.yaml", "--force").exit_code == 0
    assert call("trace", "convert", "jobs.csv", "t.csv").exit_code == 0
    assert Path("t.csv").read_text().startswith("id,arrival")


# Colors ---------------------------------------------------------------------------------------------------------

VALIDATE = ["validate", "first-steps"]


@pytest.mark.parametrize(("words", "colored"), [
    (["theory", "mm16", "--predict-only"], [("the prediction is exact", "good"), ("holds", "good")]),
    (["theory", "overload", "--predict-only"], [("matches no exact model", "bad"), ("FAILS", "bad")]),
    (VALIDATE, [("valid", "good")]),
    (["validate", "nowhere"], [("1 problem", "bad")]),
    (["gallery", "braun", "--recorded"], [("12 of 12 figures are within the tolerance", "good")]),
    (["compare", "first-steps", "--policy", "fcfs", "--policy", "cpop", "-q"], [("refuses", "bad")]),
])  # fmt: skip
def test_verdicts_have_color(words: list[str], colored: list[tuple[str, str]]) -> None:
    text = call(*words, color=True).output
    assert [one for one in colored if console.verdict(*one) not in text] == []
    plain = call(*words).output
    assert "\x1b" not in plain
    assert click.unstyle(text) == plain


@pytest.mark.parametrize(("text", "module", "shown"), [
    ("sjf   24 ± 9 min ◂   4.4 ± 3.9 h", "cli.compare", [("24 ± 9 min ◂", "best")]),
    ("14   2.20 ± 0.97 s   40   missed", "search.command", [("missed", "bad")]),
    ("8   1.2 s   10   40   met ◂", "search.command", [("met ◂", "best")]),
    ("8   1.2 s   10   40   missed (never fits)", "search.command", [("missed", "bad")]),
    ("n, m   paper   1   2   +1   outside", "gallery.command", [("outside", "bad")]),
    ("11 of 12 figures are within the tolerance", "gallery.command",
     [("11 of 12 figures are within the tolerance", "bad")]),
    ("job   ana   12:00   14:00   +2.0 h", "twin.command", [("+2.0 h", "bad")]),
    ("job   ana   12:00   11:00   -1.0 h", "twin.command", [("-1.0 h", "good")]),
    ("job   ana   12:00   12:00   +0.0 h", "twin.command", []),
    ("wait mean   1 s   2 ± 1 s   not covered", "queueing.command", [("not covered", "bad")]),
    ("near    the run is 30 or more relaxation times", "queueing.command", [("near", "unsure")]),
])  # fmt: skip
def test_what_is_colored_of_a_line(
    text: str, module: str, shown: list[tuple[str, str]], capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    import importlib

    monkeypatch.setattr(click, "echo", print)
    console.lines([text], importlib.import_module(f"hetsim.{module}").VERDICTS)
    expected = text
    for verdict in shown:
        expected = expected.replace(verdict[0], console.verdict(*verdict))
    assert capsys.readouterr().out == expected + "\n"


def on_a_terminal(*words: str, **environment: str) -> str:
    """What a command writes to a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": pages.SOURCES, **environment}
    code = "from hetsim.cli import main; main(prog_name='hetsim')"
    subprocess.run([sys.executable, "-c", code, *words], stdout=theirs, stderr=subprocess.DEVNULL, env=env, check=True)
    os.close(theirs)
    text = os.read(ours, 100_000).decode()
    os.close(ours)
    return text


@pytest.mark.quick(0)
def test_color_is_for_terminals_and_heeds_no_color() -> None:
    assert console.verdict("valid", "good") in on_a_terminal(*VALIDATE, NO_COLOR="")
    assert "\x1b" not in on_a_terminal(*VALIDATE, NO_COLOR="1")


def test_names_from_a_file_cannot_color_anything(capsys: pytest.CaptureFixture[str]) -> None:
    console.lines(["\x1b[32mvalid\x1b[0m"], {"valid": "good"})
    assert "\x1b" not in capsys.readouterr().out
