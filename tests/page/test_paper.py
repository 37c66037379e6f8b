"""`hetsim report --paper`: what the page shows, as LaTeX prints it, with the works that were used and a lock."""

from __future__ import annotations

import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from tiers import spread

from hetsim.cli import main
from hetsim.page.elements import Cell
from hetsim.page.latex import Latex, escape
from hetsim.page.paper import bibliography, used_in
from hetsim.results.stored_files import digests, unsealed

HOSTILE = r"50 % of $x_1$ & \input{/etc/passwd} ~^ #1 { | -- '' Ж"
MIX: dict[str, Any] = {
    "name": HOSTILE,
    "seed": 2,
    "cluster": {"nodes": [{"count": 2, "cpus": 4, "gpus": {"type": "g_\\evil$", "count": 2}}]},
    "workload": [
        {"name": "[1ex] \\write18{rm}", "count": 12, "arrivals": {"process": "poisson", "rate": "0.2/s"}, "gpus": 2,
         "gpu_time": {"distribution": "exponential", "mean": "6 s"}},
        {"name": "small", "count": 20, "arrivals": {"process": "poisson", "rate": "1/s"}, "user": "50 % & _",
         "gpu_time": {"distribution": "exponential", "mean": "1 s"}},
    ],
    "policy": "fcfs",
}  # fmt: skip
CALLS = {
    "comparison": ["compare", "--policy", "fcfs", "--policy", "sjf + best_fit", "--replications", "3"],
    "sweep": ["sweep", "--over", "cluster.nodes.0.count=1,2", "--over", "policy=fcfs,sjf", "--replications", "2",
              "--workers", "1"],
    "run": ["run"],
    "replications": ["run", "--replications", "2"],
}  # fmt: skip


def called(*words: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def papered(folder: Path, *more: str | Path) -> Path:
    """The folder of the paper."""
    made = called("report", folder, "--paper", "--style", "ieee", *more)
    assert made.exit_code == 0, made.output
    return folder / "paper"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes what each verb writes, once."""
    top = tmp_path_factory.mktemp("results")
    (top / "mix.yaml").write_text(yaml.safe_dump(MIX))

    def folder(kind: str) -> Path:
        if not (top / kind).exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("hetsim.results.panels.attempt", lambda name, draw: None)
                made = called(*CALLS[kind], top / "mix.yaml", "--out", top / kind, "-q")
            assert made.exit_code == 0, made.output
        return top / kind

    return folder


# Texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("50 % & a_b #1 $x$", r"50 \% \& a\_b \#1 \$x\$"),
        (r"\input{x}~^", r"\textbackslash{}input\{x\}\textasciitilde{}\textasciicircum{}"),
        ("8.1 ± 0.2 min × 3", r"8.1 $\pm$ 0.2 min $\times$ 3"),
        ("-3 ± 1, policy - other, --seed", r"$-$3 $\pm$ 1, policy $-$ other, -{}-seed"),
        ("[x] *", "{[}x{]} {*}"),
        ("ρ µs Mounié Ж\x07", r"$\rho$ \textmu{}s Mounié U+0416\textbackslash{}x07"),
        ("it''s,, ---", "it'{}'s,{}, -{}-{}-"),
    ],
)
def test_nothing_in_a_text_is_a_command(text: str, printed: str):
    assert escape(text) == printed


def test_a_table_has_rules_bold_figures_and_stars(tmp_path: Path):
    floats = Latex(tmp_path, "acm", "a & b")
    rows = [["sjf", Cell("1 ± 2 s ◂", 1.0)], ["[a]", Cell("3 ± 1 s *", 3.0)]]
    assert floats.table(["policy", "wait_mean"], rows) == "table-1"
    text = (tmp_path / "table-1.tex").read_text()
    assert r"\begin{tabular}{lr}" in text and r"\caption{a \& b.}" in text
    lines = text.splitlines()
    start = lines.index(r"\toprule")
    assert lines[start : start + 6] == [
        r"\toprule", r"policy & wait\_mean \\", r"\midrule", r"sjf & \textbf{1 $\pm$ 2 s} \\",
        r"{[}a{]} & 3 $\pm$ 1 s\rlap{$^*$} \\", r"\bottomrule",
    ]  # fmt: skip
    assert floats.table(["policy"], []) == "" and floats.names == ["table-1"]


def test_long_tables_say_how_many_rows_are_left_out(tmp_path: Path):
    Latex(tmp_path, "ieee", "all").table(["n"], [[str(number)] for number in range(1234)])
    text = (tmp_path / "table-1.tex").read_text()
    assert "all; the first 40 of 1,234 rows." in text and text.count(r"\\") == 41


# References -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "fields"),
    [
        ("scheduler tiresias", ["author = {Gittins}", "title = {{Bandit Processes and Dynamic Allocation Indices}}"]),
        ("scheduler unicep", ["author = {Tang and Lan and Desai and Buettner}", "howpublished = {Cluster}",
                              "title = {{Fault-Aware, Utility-Based Job Scheduling on Blue Gene/P Systems}}"]),
        ("scheduler f1", ["author = {Carastan-Santos and de Camargo}", "year = {2017}"]),
        ("scheduler semi_static", ["title = {{Hawk: Hybrid Datacenter Scheduling}}", "howpublished = {USENIX ATC}"]),
        ("scheduler hierarchical", ["author = {Narayanan and Santhanam and Kazhamiaka and Phanishayee and Zaharia}",
                                    "howpublished = {OSDI}"]),
        ("admission naor", ["title = {{The Regulation of Queue Size by Levying Tolls}}",
                            "howpublished = {Econometrica 37}"]),
        ("admission predicted_wait", ["title = {{Single Server Queue with Uniformly Bounded Virtual Waiting Time}}",
                                      "howpublished = {Journal of Applied Probability 5}", "year = {1968}"]),
        ("traces swf", ["author = {Feitelson and Tsafrir and Krakov}", "year = {2014}"]),
        ("model engine", ["author = {NVIDIA}"]),
    ],
)  # fmt: skip
def test_works_are_those_that_docstrings_name(use: str, fields: list[str]):
    """By hand, of sentences that name works in different ways."""
    text, keys = bibliography([use])
    assert keys[use] and all(f"@misc{{{key}," in text for key in keys[use])
    assert all(f"  {field},\n" in text for field in fields), text


def test_a_work_stands_once_however_it_is_cited():
    """Tiresias, Gavel and Themis are cited by their titles in some docstrings, by their names alone in others."""
    names = ("isolated", "themis", "max_min_fairness", "las_intervals", "pollux")
    text, _ = bibliography([f"scheduler {name}" for name in names])
    titles = re.findall(r"title = \{\{(.*)\}\}", text)
    assert len({title.partition(":")[0] for title in titles}) == len(titles) and not {"Gavel", "Themis"} & {*titles}
    assert "author = {Pruhs and van Stee and Uthaisombut}" in bibliography(["scheduler convex_energy"])[0]


def test_a_missing_reference_is_a_comment():
    text, keys = bibliography(["scheduler replay", "scheduler of_another_package", "arrivals poisson"])
    assert keys == {"scheduler replay": [], "scheduler of_another_package": [], "arrivals poisson": []}
    assert text.splitlines() == [
        "% scheduler replay: none; the plan is the user's", "% scheduler of_another_package: no reference is known",
        "% arrivals poisson: no reference is stated",
    ]  # fmt: skip


def test_uses_are_found_inside_others():
    scenario = {
        "policy": {"scheduler": {"name": "rollout", "base": "sjf"}, "admission": "learned", "routing": "round_robin"},
        "cluster": {"trace": {"format": "swf_header"}},
        "workload": [{"trace": {"format": "swf"}, "training": {"model": "x"}}, {"arrivals": {"process": "mmpp"}},
                     {"pipeline": {"training": True}, "name": "fcfs"}],
    }  # fmt: skip
    assert list(used_in(scenario)) == [
        "scheduler rollout", "scheduler sjf", "admission learned", "routing round_robin", "clusters swf_header",
        "traces swf", "model training", "arrivals mmpp",
    ]  # fmt: skip


# The command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--style", "ieee"], "--style needs --paper; --page HTML writes a page"),
        (["--out", "x"], "--out needs --paper; --page HTML writes a page"),
        (["--paper"], "--paper needs --style ieee, acm or neurips"),
        (["--paper", "--style", "ieee", "--watch"], "--paper needs --style ieee, acm or neurips, and excludes --page"),
        (["--paper", "--style", "nature"], "'nature' is not one of 'ieee', 'acm', 'neurips'"),
        (["--paper", "--style", "acm"], "is not a run directory"),
    ],
)
def test_what_cannot_be_is_a_sentence(tmp_path: Path, words: list[str], said: str):
    found = called("report", tmp_path, *words)
    assert found.exit_code and said in found.output and "Traceback" not in found.output
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("kind", spread(list(CALLS), 2))
def test_a_folder_for_each_kind(results: Any, kind: str):
    """All is written once, its lock says from what, and a second time gives the same bytes."""
    folder = results(kind)
    paper = papered(folder)
    names = sorted(path.name for path in paper.iterdir())
    assert {"main.tex", "methods.tex", "refs.bib", "lock.json", "figure-1.pdf", "table-1.tex"} <= {*names}
    lock = unsealed(paper / "lock.json")
    assert lock["command"] == f"hetsim report {folder} --paper --style ieee"
    assert lock["results"].startswith(f"hetsim {CALLS[kind][0]} {folder}/") and "--seed 2" in lock["results"]
    assert lock["read"] == digests(folder, lock["read"]) and {*lock["files"], "lock.json"} == {*names}
    inputs = re.findall(r"\\input\{(.*?)\}", (paper / "main.tex").read_text())
    assert inputs == ["methods", *(name for name in inputs if name[:5] in ("table", "figur"))] and len(inputs) > 2
    assert {f"{name}.tex" for name in inputs} | {"main.tex"} == {name for name in names if name.endswith(".tex")}
    first = {name: (paper / name).read_bytes() for name in names}
    (paper / "main.aux").write_text("")  # LaTeX's own
    papered(folder)
    assert {path.name: path.read_bytes() for path in paper.iterdir()} == first


@pytest.mark.nightly
@pytest.mark.parametrize("verb", ["run", "compare", "sweep"])
def test_methods_say_when_runs_and_counting_begin_and_end(tmp_path: Path, verb: str):
    """The stopping rule and the warm-up, of every kind of outcome."""
    tasks = [{"arrivals": {"process": "poisson", "rate": "0.2/s"}, "count": 30, "cpu_time": "2 s"}]
    until = {"precision": "90 %", "metric": "response_mean", "max": 10}
    mix = {"name": "mix", "cluster": {"nodes": [{"cpus": 1}]}, "workload": tasks, "warmup": "7 s"}
    mix["replications"] = until
    (tmp_path / "mix.yaml").write_text(yaml.safe_dump(mix))
    more = {"run": ["--replications", "3"], "compare": ["--policy", "fcfs", "--policy", "sjf"],
            "sweep": ["--over", "workload.0.count=20,30"]}[verb]  # fmt: skip
    made = called(verb, tmp_path / "mix.yaml", *more, "--out", tmp_path / "out", "-q")
    assert made.exit_code == 0, made.output
    text = (papered(tmp_path / "out") / "methods.tex").read_text()
    assert "in the warm-up (7 s) are not counted" in text and "There is no warm-up" not in text
    said = "was chosen beforehand: 3." if verb == "run" else "were added up to a precision ("
    assert said in text and ("precision" in text) == (verb != "run"), text


@pytest.mark.slow
def test_the_tables_of_a_comparison_are_those_of_the_page(results: Any):
    paper = papered(results("comparison"))
    from hetsim.experiment.directory import load_any

    found: Any = load_any(results("comparison"))
    rows = [line for line in (paper / "table-1.tex").read_text().splitlines() if line.endswith(r" \\")]
    assert len(rows) == 1 + len(found.table)
    for at, row in enumerate(rows[1:]):
        cells = [re.sub(r"\\textbf\{(.*)\}|\\rlap.*", r"\1", cell).strip() for cell in row[:-3].split(" & ")]
        assert cells[1:] == [escape(found.cells(name)[at].removesuffix(" ◂")) for name in found.metrics]
    methods = (paper / "methods.tex").read_text()
    assert "3 replications" in methods and "Holm" in methods and "paired $t$ tests" in methods and "seed 2" in methods
    assert "one run" not in methods and r"sjf~\cite{conway1967theoryscheduling}" in methods
    for path in paper.glob("*.tex"):
        if path.name != "main.tex":
            assert r"\input{/etc" not in path.read_text() and r"\write18{rm}" not in path.read_text()


@pytest.mark.slow
def test_pictures_have_truetype_letters_and_the_width_of_a_column(results: Any):
    paper = papered(results("comparison"))
    widths = set()
    for path in sorted(paper.glob("*.pdf")):
        data = path.read_bytes()
        parts = [data]
        for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", data, re.DOTALL):
            try:
                parts.append(zlib.decompress(stream))
            except zlib.error:
                parts.append(stream)
        assert not any(b"/Type3" in part for part in parts) and b"/FontFile2" in data and b"CreationDate" not in data
        if shutil.which("pdffonts"):
            fonts = subprocess.run(["pdffonts", path], capture_output=True, text=True, check=True, timeout=60).stdout
            assert "TrueType" in fonts and "Type 3" not in fonts
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", data)
        assert box is not None
        widths.add(round(float(box[1]) * 72.27 / 72))
    assert widths <= {252, 516} and 252 in widths


@pytest.mark.slow
def test_a_folder_with_other_or_changed_files_stays(results: Any, tmp_path: Path):
    folder, out = results("run"), tmp_path / "out"
    papered(folder, "--out", out)
    for name, text in (("mine.txt", "mine"), ("methods.tex", "my text")):
        before = (out / name).read_bytes() if (out / name).exists() else None
        (out / name).write_text(text)
        found = called("report", folder, "--paper", "--style", "ieee", "--out", out)
        assert found.exit_code and f'such as "{name}"; it was not changed' in found.output
        assert (out / name).read_text() == text
        (out / name).unlink() if before is None else (out / name).write_bytes(before)
    papered(folder, "--out", out)
    assert not [path for path in tmp_path.iterdir() if path != out]


@pytest.mark.slow
def test_damaged_results_leave_nothing(results: Any, tmp_path: Path):
    folder = tmp_path / "damaged"
    shutil.copytree(results("run"), folder, ignore=shutil.ignore_patterns("paper"))
    (folder / "summary.json").write_text("{}")
    found = called("report", folder, "--paper", "--style", "acm")
    assert found.exit_code and "summary.json" in found.output and "Traceback" not in found.output
    assert not (folder / "paper").exists()


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here (Debian: texlive-latex-recommended)")
@pytest.mark.parametrize("style", ["ieee", "acm", "neurips"])
@pytest.mark.parametrize("kind", ["shipped", "hostile", "run", "sweep"])
def test_latex_sets_it(results: Any, tmp_path: Path, kind: str, style: str):
    """A shipped example and hostile names: no error, no undefined reference, no Type 3."""
    folder = tmp_path / "results"
    if kind == "shipped":
        calls = ["--policy", "fcfs", "--policy", "sjf", "--replications", "5", "--out", folder, "-q"]
        assert called("compare", "first-steps", *calls).exit_code == 0
    else:
        shutil.copytree(results("comparison" if kind == "hostile" else kind), folder)
    made = called("report", folder, "--paper", "--style", style)
    assert made.exit_code == 0, made.output
    calls = [["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "main.tex"], ["bibtex", "main"]]
    for words in (calls[0], calls[1], calls[0], calls[0]):
        done = subprocess.run(words, cwd=folder / "paper", capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    log = (folder / "paper" / "main.log").read_text(errors="replace")
    assert "undefined" not in log.replace("Font shape", "") and "Missing character" not in log
    assert "Warning" not in (folder / "paper" / "main.blg").read_text()
    if shutil.which("pdffonts"):
        main_pdf = folder / "paper" / "main.pdf"
        fonts = subprocess.run(["pdffonts", main_pdf], capture_output=True, text=True, check=True, timeout=60).stdout
        assert "TrueType" in fonts and "Type 3" not in fonts


def test_the_best_may_be_shown_to_differ_too(tmp_path: Path):
    """Both marks of a cell become bold type and a star; neither is printed as it stands."""
    floats = Latex(tmp_path, "ieee", "subject")
    floats.table(["policy", "wait"], [["sjf", Cell("1.6 s ◂ *", 1.6)], ["fcfs", Cell("2.6 s *", 2.6)]])
    text = (tmp_path / "table-1.tex").read_text()
    assert r"\textbf{1.6 s}\rlap{$^*$}" in text and r"2.6 s\rlap{$^*$}" in text and "U+25C2" not in text


def test_letters_that_latex_has_are_letters():
    assert escape("Žofie Łukasz Erdős œ") == "Žofie Łukasz Erdős œ"
    assert escape("Ħŉ") == "U+0126U+0149" and escape("“a”") == r"\textquotedblleft{}a\textquotedblright{}"


def test_a_font_that_is_not_installed_is_not_asked_for(monkeypatch: pytest.MonkeyPatch):
    from matplotlib import rcParams

    from hetsim.plots import draw

    monkeypatch.setattr(draw, "get_font_names", lambda: ["DejaVu Sans", "cmr10"])
    with draw.on_paper(3.3, 7.0):
        assert rcParams["font.family"] == ["DejaVu Sans"]
