"""`hetsim report DIR --paper --style ieee`: the results in a directory, for LaTeX.

The folder has the tables and pictures of the page, methods, references, a document with all of them, and a lock file of
their sources.  It is written atomically, with the same bytes for the same results and versions.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hetsim import plots, registry
from hetsim.build import package_data
from hetsim.errors import DamagedFile, UsageError
from hetsim.experiment.policies import named_policy, written
from hetsim.model.files import write_text
from hetsim.page import of_comparison, of_run, of_sweep
from hetsim.page.common import command, sentence_case
from hetsim.page.latex import Latex, escape
from hetsim.report import overview
from hetsim.results.formatting import listed
from hetsim.results.many_runs.compare import COMPARISON, Comparison
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.sweep import MARK as SWEPT
from hetsim.results.many_runs.sweep import SCENARIO, Sweep
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.store import MARK, write_directory
from hetsim.results.stored_files import digests, parse_yaml, sealed, unsealed

LOCK = "lock.json"
# Keys of scenarios whose model has fitted constants, and which constants
MODELS = {
    "engine": "constants of the serving engine (to measured servers)",
    "training": "the share of peak in training steps (to published steps on A100)",
    "profile": "times of a profile (to measurements)",
}
NOT_FITTED = "The scenario names no fitted model (engine, training, profile or learned policy); its figures are inputs"
# suffixes of the files that LaTeX makes of main.tex
BY_LATEX = "aux bbl blg dvi fdb_latexmk fls lof log lot out pdf ps synctex.gz toc"
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, DamagedFile)
Outcome = Result | Replications | Comparison | Sweep


def write_paper(outcome: Outcome, source: Path, target: Path, *, style: str, again: str) -> Path:
    """Write the folder `target` about the results in `source`.

    again: the command that repeats the results.
    UsageError: the folder contains other or changed files, or cannot be written.
    """
    _check(target)

    def write(folder: Path) -> None:
        mark, runs = unsealed(source / (SWEPT if isinstance(outcome, Sweep) else MARK)), _runs(outcome)
        floats = Latex(folder, style, _subject(outcome))
        results, points, remarks = _draw(outcome, str(source), floats)
        scenarios = _scenarios(outcome, source, runs)
        entries, keys = bibliography(use for scenario in scenarios for use in used_in(scenario))
        flags = _statistics(outcome, runs, scenarios[0] if scenarios else {})
        versions = {name: escape(version) for name, version in mark["versions"].items() if name != "code"}
        column, page = floats.widths
        filled = {
            "columns": "twocolumn" if page > column else "onecolumn", "text": str(page),
            "floats": "\n".join(rf"\input{{{name}}}" for name in floats.names), "subject": escape(floats.subject),
            "packages": ", ".join(f"{name} {text}" for name, text in versions.items() if name != "hetsim"),
            "cited": ", ".join(escape(name.partition(" ")[2]) + (rf"~\cite{{{','.join(works)}}}" if works else "")
                               for name, works in keys.items()),
            "fitted": escape(sentence_case("; ".join(_fitted(keys))) or NOT_FITTED), "again": escape(results),
            "remarks": escape("; ".join(remarks) or "none"), "entries": entries, **versions, **flags,
        }  # fmt: skip
        if not keys:
            filled["cited"] = filled["fitted"] = "Unknown: the results have no scenario"
        for name in ("main.tex", "methods.tex", "refs.bib"):
            template = re.sub(r"(?m)^(\w+)%(.*\n)", lambda match: match[2] * bool(flags[match[1]]), _file(name))
            write_text(folder / name, re.sub(r"@(\w+)@", lambda match: filled[match[1]], template))
        if points:
            write_text(folder / "points.csv", points)
        marks = [path.relative_to(source).as_posix() for name in (SWEPT, COMPARISON, MARK)
                 for path in source.rglob(name) if target not in path.parents]  # fmt: skip
        lock = {
            "command": again, "results": results, "style": style, "versions": mark["versions"],
            "inputs": mark.get("inputs") or {name: digest for run in runs for name, digest in run.inputs.items()},
            "read": digests(source, sorted(marks)), "files": digests(folder, sorted(os.listdir(folder))),
        }  # fmt: skip
        write_text(folder / LOCK, sealed(lock, 1))

    return write_directory(target, write, mark=LOCK)


def _check(target: Path) -> None:
    others = set(os.listdir(target)) if target.is_dir() else set()
    with suppress(*UNREADABLE):
        files = unsealed(target / LOCK)["files"] if others else {}
        same = {name for name in others & set(files) if digests(target, [name])[name] == files[name]}
        made = {f"main.{ending}" for ending in BY_LATEX.split()}
        others -= same | {LOCK} | (made - set(files))
    if others:
        said = f'{target} has other or changed files, such as "{min(others)}"; it was not changed'
        raise UsageError(f"{said}: name another folder with --out")


def _subject(outcome: Outcome) -> str:
    if isinstance(outcome, Comparison):
        return overview.comparison_headline(outcome.runs)
    return outcome.title if isinstance(outcome, Sweep) else overview.headline(outcome)


def _draw(outcome: Outcome, folder: str, floats: Latex) -> tuple[str, str, list[str]]:
    """Write tables and pictures to `floats`; return rerun command, points, remarks."""
    if isinstance(outcome, Comparison):
        of_comparison.compared(outcome, floats)
        floats.picture(lambda: plots.comparison(outcome), "metrics by policy")
        of_comparison.compared_pictures(outcome, floats)
        of_comparison.differences(outcome, floats)
        refused = [f"{name} refuses: {why}" for name, why in outcome.refused.items()]
        remarks = overview.comparison_remarks(outcome.runs) + refused + outcome.plan_notes
        return of_comparison.again(outcome, folder), "", remarks
    if isinstance(outcome, Sweep):
        of_sweep.swept_table(outcome, floats)
        of_sweep.swept_pictures(outcome, floats)
        of_sweep.differences(outcome, of_sweep.findings_of(outcome), floats)
        failed = [f"point {row.point} under {row.policy} failed: {row.error}" for row in outcome.failed.itertuples()]
        return *of_sweep.again(outcome, folder)[:2], outcome.remarks + failed
    first, number = overview.first_of(outcome), len(outcome) if isinstance(outcome, Replications) else 1
    of_run.summary(outcome, overview.Figures(outcome), floats)
    floats.picture(lambda: plots.default(outcome), "the run over time")
    of_run.pictures(first, floats)
    return command(first, folder, "run", number), "", overview.remarks(outcome) + getattr(outcome, "remarks", [])


def _runs(outcome: Outcome) -> list[Result]:
    if isinstance(outcome, Sweep):
        return []
    return [overview.first_of(run) for run in (outcome.runs.values() if isinstance(outcome, Comparison) else [outcome])]


def _scenarios(outcome: Outcome, source: Path, runs: list[Result]) -> list[Any]:
    """Return the scenarios of the results, from which the works to cite are found."""
    scenarios: list[Any] = [parse_yaml(run.name, run.scenario) for run in runs if run.scenario is not None]
    if isinstance(outcome, Sweep):
        texts = [written(str(label)) for label in outcome.table["policy"].unique()]
        policies = [named_policy(text)[1] for text in texts if text is not None]
        text = (source / SCENARIO).read_text(encoding="utf-8")
        varied = [{key.rpartition(".")[2]: outcome.table[key].tolist()} for key in outcome.keys]
        scenarios = [{**parse_yaml(outcome.name, text), "policy": policies}, *varied]
    return scenarios


def used_in(scenario: Any, key: str = "", in_policy: bool = False) -> Iterator[str]:
    """Yield policies, arrivals, readers, models named in `scenario`, value of `key`."""
    if isinstance(scenario, Mapping):
        for inner, value in scenario.items():
            yield from [f"model {inner}"] if inner in MODELS and not isinstance(value, bool) else []
            is_policy = in_policy or inner == "policy" or inner in registry.POLICY_KINDS
            yield from used_in(value, key if inner == "name" else str(inner), is_policy)
    elif isinstance(scenario, list):
        for value in scenario:
            yield from used_in(value, key, in_policy)
    elif isinstance(scenario, str):
        kinds = ("arrivals",) if key == "process" else ("traces", "clusters") if key == "format" else ()
        yield from (f"{kind} {scenario}" for kind in kinds if scenario in registry.table(kind))
        policies = [kind for kind in registry.POLICY_KINDS if in_policy and scenario in registry.policies(kind)]
        yield from (f"{kind} {scenario}" for kind in ([key] if key in policies else policies[:1]))


def bibliography(uses: Iterable[str]) -> tuple[str, dict[str, list[str]]]:
    """Return BibTeX entries for uses (policies, readers), and citation keys by use."""
    keys: dict[str, list[str]] = {use: [] for use in uses}
    entries, missing = "", dict.fromkeys(keys, "no reference is known")
    for block in _file("works.bib").split("\n\n"):
        about, _, entry = block.removeprefix("% ").partition("\n")
        names, _, why = about.partition(": ")
        ours = [name for name in names.split(", ") if name in keys]
        for name in ours:
            keys[name] += re.findall(r"^@misc\{(\w+)", entry)
            missing[name] = why
        entries += f"% {', '.join(ours)}\n{entry}\n\n" if ours and entry else ""
    return entries + "".join(f"% {use}: {why}\n" for use, why in missing.items() if why), keys


def _file(name: str) -> str:
    return package_data(__file__, name).decode()


def _fitted(uses: Iterable[str]) -> Iterator[str]:
    for kind, name in (use.split(" ", 1) for use in uses):
        if kind == "model" or name == "learned":
            yield MODELS[name] if kind == "model" else f"the learned policy ({kind})"


def _statistics(outcome: Outcome, runs: list[Result], scenario: Mapping[str, Any]) -> dict[str, str]:
    same, family, selected = isinstance(outcome, Replications | Comparison) and outcome.identical, "", ""
    asked: Any
    those: list[Any]
    cuts: Iterable[Any]
    if isinstance(outcome, Sweep):
        many, asked = outcome.table["replications"].max() > 1, outcome.replications
        family = "all points, by metric" if outcome.table["policy"].nunique() > 1 else ""
        cuts = outcome.table["warmup_cut"].dropna().map("{:g} s".format) if "warmup_cut" in outcome.table else []
        warmups = [*cuts, *(outcome.points["warmup"] if "warmup" in outcome.keys else [scenario.get("warmup", 0)])]
    else:
        those = list(outcome.runs.values()) if isinstance(outcome, Comparison) else [outcome]
        those = [one for one in those if isinstance(one, Replications)]
        is_rule = any("precision" in text for one in those for text in one.remarks + one.warnings)
        many, asked = bool(those), scenario.get("replications") if is_rule else max(map(len, those), default=1)
        warmups = [f"{run.warmup:g} s" for run in runs if run.warmup > 0]
    if isinstance(outcome, Comparison):
        many, family, selected = not outcome.single, "a metric", "best" * ("best" in outcome.asked)
    many, rule = many and not same, str(asked).strip("{}").replace("'", "") if isinstance(asked, Mapping) else ""
    warmup = listed(list(dict.fromkeys(str(one) for one in warmups if one not in (0, "auto"))))
    return {"single": "" if many or same else "one", "same": "same" * same, "many": "many" * many,
            "paired": family * many, "rule": escape(rule) * many, "fixed": f"{asked:,}" if many and not rule else "",
            "selected": selected, "warmup": escape(warmup), "everything": "" if warmup else "all"}  # fmt: skip
