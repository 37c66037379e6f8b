"""What users write is checked by their type checkers: README's and the guide's Python, against an installed wheel.

mypy runs with `--strict`.  basedpyright runs in its mode `strict`, where all that is not an opinion on style is an
error; its default mode `recommended` has the same errors, and warns of `Any` in other people's packages, such as the
members of a data frame.  Of matplotlib's stubs two methods are partly untyped, in code of any user: `THEIRS`.

The blocks of a page share a namespace, so they are one file, in which lines are where they stand in the page.  Blocks
that the tests do not run are left out, since they need packages that are not here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest

PAGES = [pages.TOP / "README.md", *sorted((pages.TOP / "docs").rglob("*.md"))]
WRONG = 'import hetsim as hs\n\nhs.run("first-steps").column("wait_mean")\n'
"""Another file of the user, with one error: of replications."""
THEIRS = re.compile(r'Type of "(savefig|set_title)" is partially unknown')


def write_program(page: Path, folder: Path) -> None:
    """The Python blocks of a page as one file, and each that the reader saves as a file of its own."""
    lines: list[str] = []
    for block in pages.blocks(page):
        if block.language != "python" or block.shown_only:
            continue
        if block.name and "run it" not in block.above:
            assert not (folder / block.name).exists(), f"two pages have a file {block.name}"
            (folder / block.name).write_text(block.text, encoding="utf-8")
            continue
        lines += [""] * (block.line - len(lines))
        for line in block.text.splitlines():
            repeated = line.startswith(("import ", "from ")) and line in lines
            lines.append("" if repeated else line)
    if lines:
        name = "_".join(page.relative_to(pages.TOP).with_suffix("").parts).replace("-", "_")
        (folder / f"{name}.py").write_text("\n".join(lines) + "\n", encoding="utf-8")


def install_wheel(folder: Path) -> Path:
    """Python of a new environment: the wheel of this checkout, over the packages that are here."""
    source, env = folder / "source", folder / "env"
    for name in (".ci", "sim", "policies", "scenarios"):
        shutil.copytree(pages.TOP / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(pages.TOP / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    venv.create(env, with_pip=False)
    python = next(path for path in (env / "bin" / "python", env / "Scripts" / "python.exe") if path.exists())
    found = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip())
    subprocess.run([*pip, "install", "--no-deps", "--target", packages, *folder.glob("*.whl")], check=True)
    here = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "here.pth").write_text("\n".join(here) + "\n")
    shown = subprocess.run([python, "-c", "import hetsim; print(hetsim.__file__)"], check=True, capture_output=True,
                           text=True, cwd=folder)  # fmt: skip
    assert Path(shown.stdout.strip()).is_relative_to(packages)
    return python


Checkers = dict[str, subprocess.Popen[str]]


@pytest.fixture(scope="module")
def checkers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkers]:
    """Both checkers, at work on the pages, where PYTHONPATH names no checkout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH", raising=False)
        yield from _checkers(tmp_path_factory)


def _checkers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkers]:
    folder = tmp_path_factory.mktemp("user")
    python = install_wheel(folder)
    program = folder / "pages"
    program.mkdir()
    for page in PAGES:
        write_program(page, program)
    (program / "wrong.py").write_text(WRONG)
    (program / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    cache = ["--config-file=", "--cache-dir", str(folder / "cache")]
    commands = {
        "mypy": ["mypy", "--strict", *cache, "--python-executable", str(python), "--no-error-summary", "."],
        "basedpyright": ["basedpyright", "--outputjson", "--pythonpath", str(python), "."],
    }
    running = {
        name: subprocess.Popen([sys.executable, "-m", *command], cwd=program, stdout=subprocess.PIPE, text=True)
        for name, command in commands.items()
    }
    yield running
    for process in running.values():
        process.kill()
        process.wait()


@pytest.mark.slow
def test_mypy_strict_finds_no_error(checkers: Checkers):
    output, _ = checkers["mypy"].communicate(timeout=300)
    errors = [line for line in output.splitlines() if ": error: " in line]
    (wrong,) = [error for error in errors if error.startswith("wrong.py:3:")]
    errors.remove(wrong)
    assert not errors, "\n".join(errors)


@pytest.mark.slow
def test_basedpyright_strict_finds_no_error(checkers: Checkers):
    output, _ = checkers["basedpyright"].communicate(timeout=300)
    found = json.loads(output)
    assert found["summary"]["filesAnalyzed"] > 15
    errors = [
        f"{Path(one['file']).name}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in found["generalDiagnostics"]
        if one["severity"] == "error" and not THEIRS.search(one["message"])
    ]
    wrong = [error for error in errors if error.startswith("wrong.py:3:")]
    assert any('Cannot access attribute "column"' in error for error in wrong)
    errors = [error for error in errors if error not in wrong]
    assert not errors, "\n".join(errors)
