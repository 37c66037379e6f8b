"""`hetsim report DIR --paper --style ieee`: what a paper needs of the results in a directory, for LaTeX.

    figure-N.tex, figure-N.pdf   the pictures of the page at the width of a column, as floats
    table-N.tex                  its tables, as floats
    methods.tex                  version, seeds, replications, intervals, tests, what was fitted
    refs.bib                     the works that policies, models and readers of traces name
    main.tex                     all of it in one document of the class `article`
    lock.json                    versions, digests of the results and inputs, and the commands that make them again

The folder is written whole or not at all.  One that holds other files, or a changed one of these, is refused.
Same results, same bytes, on the same versions of the packages.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from shlex import quote

from hetsim.errors import DamagedFile, UsageError
from hetsim.experiment.policies import named_policy, written
from hetsim.model.files import write_text
from hetsim.page import of_comparison, of_run, of_sweep
from hetsim.page.common import command, sentence_case
from hetsim.page.latex import STYLES, Latex, Style, code, escape, lines_of
from hetsim.page.references import MODELS, Use, bibliography, used_in
from hetsim.report.overview import Figures, comparison_headline, comparison_remarks, first_of, headline, remarks
from hetsim.results.many_runs.compare import COMPARISON, Comparison
from hetsim.results.many_runs.replications import Replications
from hetsim.results.many_runs.sweep import MARK as SWEPT
from hetsim.results.many_runs.sweep import SCENARIO, Sweep
from hetsim.results.one_run.result import Result
from hetsim.results.one_run.store import MARK, write_directory
from hetsim.results.stored_files import digests, parse_yaml, sealed, unsealed, verify

LOCK = "lock.json"
FOLDER = "paper"
"""The folder inside that of the results, unless another is given."""
MADE_BY_LATEX = "main."
"""How the names of files begin that LaTeX writes next to main.tex."""
ONE_RUN = "Each figure is of one run, which says nothing about chance, so there are no intervals."
OF_MEANS = (
    "Values after ± are half-widths of 95 % confidence intervals by Student's t distribution over independent "
    "replications. Means over tasks are ratios of expectations: over all tasks of all replications."
)
PAIRED = (
    "Replication r of every policy has the same arrivals, sizes and faults (common random numbers). Policies are "
    "compared by paired t tests of their differences; intervals and p values of differences are corrected by Holm's "
    "procedure over {family}, at {level:g} %."
)
Outcome = Result | Replications | Comparison | Sweep


def write_paper(outcome: Outcome, source: Path, target: Path, style: str, command_line: str) -> Path:
    """Write the folder for a paper.

    Parameters: outcome: what `source` holds; target: the folder; style: a key of `STYLES`; command_line: the command
        that makes it again.
    Returns: the folder.
    Raises: UsageError: it exists and holds other or changed files, or it cannot be written.
    """
    _check(target)

    def write(folder: Path) -> None:
        floats = Latex(folder, STYLES[style])
        again, said, headlines = _draw(outcome, str(source), floats)
        about = unsealed(source / next(name for name in (SWEPT, MARK) if (source / name).is_file()))
        versions = about["versions"]
        bib, keys = bibliography(_uses(outcome, source), _own_entry(versions["hetsim"]))
        text = _methods(outcome, headlines, versions, keys=keys, said=said)
        write_text(folder / "methods.tex", text + "\n\\paragraph{Again.}\n" + "\n\n".join(map(code, again[:1])) + "\n")
        write_text(folder / "refs.bib", bib)
        write_text(folder / "main.tex", _main(floats, STYLES[style]))
        if any(again[1:]):
            write_text(folder / "points.csv", again[1])
        marks = sorted(path.relative_to(source).as_posix() for name in (SWEPT, COMPARISON, MARK)
                       for path in source.rglob(name) if target not in path.parents)  # fmt: skip
        lock = {
            "command": command_line, "results": again[0], "style": style, "versions": versions,
            "inputs": about.get("inputs") or _inputs(outcome), "read": digests(source, marks),
            "files": digests(folder, sorted(path.name for path in folder.iterdir())),
        }  # fmt: skip
        write_text(folder / LOCK, sealed(lock, 1))

    return write_directory(target, write, mark=LOCK)


def _check(target: Path) -> None:
    """Raise UsageError if the folder holds what was not written here, or was changed."""
    if not target.is_dir() or not any(target.iterdir()):
        if target.exists() and not target.is_dir():
            raise UsageError(f"{target} is a file: --out names a folder")
        return
    try:
        files = unsealed(target / LOCK)["files"]
        own = {name for name in files if verify(target / name, files[name])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DamagedFile) as error:
        lacks = f"it has no {LOCK}" if not (target / LOCK).is_file() else str(error)
        raise UsageError(
            f"{target} holds other or changed files ({lacks}); it was not touched: name another folder with --out"
        ) from None
    others = [path.name for path in sorted(target.iterdir())
              if path.name not in {*own, LOCK} and not path.name.startswith(MADE_BY_LATEX)]  # fmt: skip
    if others:
        raise UsageError(f'{target} holds other files ("{others[0]}"); it was not touched: name another with --out')


def _draw(outcome: Outcome, folder: str, floats: Latex) -> tuple[tuple[str, ...], list[str], str]:
    """Write the floats; how to make the results again, what is to be said of them, and one line."""
    from hetsim import plots  # matplotlib is large

    if isinstance(outcome, Comparison):
        of_comparison.compared(outcome, floats)
        floats.picture(lambda: plots.comparison(outcome), "metrics by policy", "Bars are confidence intervals.")
        of_comparison.compared_pictures(outcome, floats)
        of_comparison.differences(outcome, floats)
        said = comparison_remarks(outcome.runs) + [f"{name} refuses: {why}" for name, why in outcome.refused.items()]
        return (of_comparison.again(outcome, folder),), said + outcome.plan_notes, comparison_headline(outcome.runs)
    if isinstance(outcome, Sweep):
        of_sweep.swept_table(outcome, floats)
        of_sweep.swept_pictures(outcome, floats)
        of_sweep.differences(outcome, of_sweep.findings_of(outcome), floats)
        failed = [f"point {row.point} under {row.policy} failed: {row.error}" for row in outcome.failed.itertuples()]
        return of_sweep.again(outcome, folder)[:2], outcome.remarks + failed, outcome.title
    of_run.summary(outcome, Figures(outcome), floats)
    floats.picture(lambda: plots.default(outcome), "the run over time")
    of_run.pictures(first_of(outcome), floats)
    many = outcome if isinstance(outcome, Replications) else None
    again = command(first_of(outcome), folder, "run", len(many) if many else 1)
    return (again,), remarks(outcome) + (many.remarks if many else []), headline(outcome)


def _runs(outcome: Outcome) -> list[Result]:
    """The runs that are kept, the first of each policy."""
    if isinstance(outcome, Sweep):
        return []
    return list(map(first_of, outcome.runs.values())) if isinstance(outcome, Comparison) else [first_of(outcome)]


def _inputs(outcome: Outcome) -> dict[str, str]:
    return dict(sorted(chain.from_iterable(run.inputs.items() for run in _runs(outcome))))


def _uses(outcome: Outcome, source: Path) -> Iterable[Use]:
    """All policies, arrivals, readers and models of the scenarios."""
    texts = [run.scenario for run in _runs(outcome) if run.scenario is not None]
    if isinstance(outcome, Sweep):
        file = source / SCENARIO
        texts += [file.read_text(encoding="utf-8")] if file.is_file() else []
        labels = [written(str(label)) for label in dict.fromkeys(outcome.table["policy"])]
        swept = {"policy": [named_policy(label)[1] for label in labels if label is not None]}
        scenarios = [*({key: value for key, value in parse_yaml(str(file), text).items() if key != "policy"}
                       for text in texts), swept]  # fmt: skip
    else:
        scenarios = [parse_yaml(str(source), text) for text in texts]
    return chain.from_iterable(map(used_in, scenarios))


def _methods(
    outcome: Outcome, about: str, versions: dict[str, str], *, keys: dict[Use, list[str]], said: list[str]
) -> str:
    """The text of `methods.tex`."""
    packages = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("hetsim", "code"))

    def cited(some: Iterable[Use]) -> str:
        names = [escape(name) + (rf"~\cite{{{','.join(keys[kind, name])}}}" if keys[kind, name] else "")
                 for kind, name in some]  # fmt: skip
        return ", ".join(names)

    policies = [use for use in keys if use[0] not in ("arrivals", "traces", "clusters", "model")]
    others = [use for use in keys if use not in policies]
    fitted = [MODELS[name][1] for kind, name in keys if kind == "model"]
    fitted += ["the learned policy"] * any(name == "learned" for _, name in policies)
    fits = f"Fitted to data: {'; '.join(fitted)}." if fitted else (
        "The scenario names no fitted model (engine, training, profile or learned policy); all its figures are inputs."
    )  # fmt: skip
    version = escape(f"hetsim {versions['hetsim']}")
    loads = f"Load and models: {cited(others)}." if others else ""
    parts = {
        "Simulation": rf"Made with {version}~\cite{{hetsim}} ({escape(packages)}). {escape(sentence_case(about))}.",
        "Policies and models": f"Policies: {cited(policies)}. {loads}",
        "Statistics": escape(" ".join(_statistics(outcome))),
        "Fitted": escape(fits),
    }
    text = "".join(f"\\paragraph{{{title}.}}\n{body}\n\n" for title, body in parts.items())
    return text + (f"\\paragraph{{Remarks.}}\n{lines_of(said)}" if said else "")


def _statistics(outcome: Outcome) -> Iterable[str]:
    """How intervals and tests were made."""
    if isinstance(outcome, Sweep):
        many = outcome.table["replications"].max() > 1
        compared, family, level = outcome.table["policy"].nunique() > 1, "the pairs of all points, by metric", 95.0
        if not isinstance(outcome.replications, int):
            rule = ", ".join(f"{key} {value}" for key, value in outcome.replications.items())
            yield f"Replications were added up to a precision ({rule})."
    elif isinstance(outcome, Comparison):
        many, compared, level = not outcome.single and not outcome.identical, True, 100 * outcome.confidence
        family = "the pairs of a metric"
        if "best" in outcome.asked:
            yield "Replications went to the policies by a selection of the best, so that they have different numbers."
    else:
        many, compared, family, level = isinstance(outcome, Replications) and not outcome.identical, False, "", 95.0
    yield OF_MEANS if many else ONE_RUN
    if many and compared:
        yield PAIRED.format(family=family, level=level)
    warmups = [run.warmup for run in _runs(outcome) if run.warmup > 0]
    if warmups:
        yield f"Tasks that arrived in the warm-up ({max(warmups):g} s) are not counted."


def _own_entry(version: str) -> str:
    """The entry of hetsim."""
    title = "hetsim: a discrete-event simulator of heterogeneous {CPU}+{GPU} clusters"
    return f"@misc{{hetsim,\n  title = {{{title}}},\n  note = {{Version {escape(version)}}},\n}}\n\n"


def _main(floats: Latex, style: Style) -> str:
    """A document of the class `article` with all parts, at the widths of the style."""
    columns = "twocolumn" if style.gap else "onecolumn"
    parts = "\n".join(rf"\input{{{name}}}" for name in floats.files)
    return rf"""\documentclass[10pt,{columns}]{{article}}
\usepackage[T1]{{fontenc}}
\usepackage{{textcomp}}
\usepackage{{mathptmx}}
\usepackage[scaled=0.9]{{helvet}}
\usepackage{{courier}}
\usepackage{{booktabs}}
\usepackage{{graphicx}}
\usepackage[letterpaper,textwidth={style.text}pt,textheight=9in,columnsep={style.gap}pt]{{geometry}}
\begin{{document}}
\section*{{Methods}}
\input{{methods}}
\section*{{Results}}
{parts}
\nocite{{*}}
\bibliographystyle{{plain}}
\bibliography{{refs}}
\end{{document}}
"""


def command_of(directory: Path, style: str, out: Path | None) -> str:
    """The command that writes the folder again."""
    more = "" if out is None else f" --out {quote(str(out))}"
    return f"hetsim report {quote(str(directory))} --paper --style {style}{more}"
