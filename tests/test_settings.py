"""What the settings of the project name is there: a name that matches nothing would switch a check off in silence."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pages
import pytest

PROJECT = tomllib.loads((pages.TOP / "pyproject.toml").read_text(encoding="utf-8"))
TOOLS = PROJECT["tool"]
PACKAGES = {"hetsim": "sim", "hetsim_policies": "policies", "hetsim_scenarios": "scenarios"}


def is_there(module: str) -> bool:
    """A module of the packages, of the tests or of the benchmarks."""
    top = module.partition(".")[0]
    folder = pages.TOP / PACKAGES.get(top, "." if top == "benchmarks" else "tests")
    place = folder / module.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_the_packages_are_where_setuptools_looks():
    setuptools = TOOLS["setuptools"]
    assert setuptools["package-dir"] == {name: f"{folder}/{name}" for name, folder in PACKAGES.items()}
    assert setuptools["packages"]["find"]["where"] == list(PACKAGES.values())
    for name, folder in PACKAGES.items():
        assert [path.name for path in (pages.TOP / folder).iterdir() if path.name != "__pycache__"] == [name]


@pytest.mark.parametrize("package", ["hetsim", "hetsim_policies", "hetsim_scenarios"])
def test_each_pattern_of_packaged_files_matches_one(package: str):
    for pattern in TOOLS["setuptools"]["package-data"][package]:
        assert next((pages.TOP / PACKAGES[package] / package).glob(pattern), None) is not None, pattern


def test_warnings_are_errors_in_modules_that_exist():
    pattern = next(one for one in TOOLS["pytest"]["ini_options"]["filterwarnings"] if one.startswith("error:::"))
    names = re.match(r"error:::\(([^()]+)\)", pattern)
    assert names
    named = set(names[1].split("|")) - {r"test_\w+"}
    assert {*PACKAGES, "benchmarks", "conftest"} <= named
    assert [name for name in named if not is_there(name)] == []


def test_the_linters_look_at_folders_that_exist():
    ruff = TOOLS["ruff"]
    assert ruff["src"] == [".", *PACKAGES.values()]
    assert sorted(ruff["lint"]["flake8-tidy-imports"]["banned-api"]) == sorted(PACKAGES.values())
    assert TOOLS["mypy"]["mypy_path"] == list(PACKAGES.values())
    named = [*TOOLS["mypy"]["packages"], *TOOLS["importlinter"]["root_packages"]]
    for contract in TOOLS["importlinter"]["contracts"]:
        for key in ("layers", "source_modules", "forbidden_modules", "ancestors", "containers"):
            entries = [part.strip() for entry in contract.get(key, ()) for part in entry.split("|")]
            inside = contract.get("containers", [""])[0] if key == "layers" else ""
            named += [f"{inside}.{entry}" if inside else entry for entry in entries]
    assert [name for name in named if not is_there(name)] == []
    for pattern in ruff["lint"]["per-file-ignores"]:
        assert next(pages.TOP.glob(pattern), None) is not None, pattern


def test_files_named_in_the_scripts_of_ci_exist():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (pages.TOP / ".ci").iterdir() if path.is_file())
    named = set(re.findall(r"(?<![\w/.*<-])(?:sim|policies|scenarios|tests|docs|benchmarks)/[\w./*-]+\w", text))
    assert len(named) > 40
    assert [name for name in sorted(named) if next(pages.TOP.glob(name), None) is None] == []


@pytest.mark.parametrize("name", ["sim", "policies", "scenarios"])
def test_the_source_folders_are_imported_nowhere(name: str):
    code = f"import {name}\n"
    command = [sys.executable, "-m", "ruff", "check", "--stdin-filename", "tests/test_x.py", "-"]
    done = subprocess.run(command, input=code, capture_output=True, text=True, cwd=pages.TOP, check=False)
    assert "TID251" in done.stdout, done.stdout + done.stderr


def test_of_another_checkout_nothing_is_tested(tmp_path: Path):
    """One chosen by PYTHONPATH, for instance."""
    (tmp_path / "hetsim").mkdir()
    (tmp_path / "hetsim" / "__init__.py").write_text("")
    command = [sys.executable, "-m", "pytest", "-n0", "-q", "tests/test_settings.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=pages.TOP, env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 4
    assert f"`import hetsim` gives {tmp_path / 'hetsim'}" in done.stdout + done.stderr


def test_types_of_the_installed_package_are_found():
    for package in ("hetsim", "hetsim_policies"):
        spec = find_spec(package)
        assert spec is not None and (Path(str(spec.origin)).parent / "py.typed").is_file()
