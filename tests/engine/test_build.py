"""What `pip install .` makes: pure Python without a compiler, compiled on request, and never a stale mixture."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

from hetsim.scenario.scenario import load

ROOT = Path(__file__).parents[2]
LOADED = "import hetsim; print(hetsim.__build__)"


def install(source: Path, target: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`pip install .` of a folder into another one, without the network and with no program on PATH."""
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--quiet",
               "--no-cache-dir", "--target", str(target), str(source)]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, env=clean(PATH="/nowhere", **environment))


def clean(**more: str) -> dict[str, str]:
    """This environment without what names the checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "HETSIM_COMPILE")}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}


def loaded(folder: Path, code: str = LOADED) -> subprocess.CompletedProcess[str]:
    """What Python prints that finds hetsim in a folder."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean(PYTHONPATH=str(folder)), cwd=folder
    )


def listing(folder: Path) -> set[str]:
    skipped = (".git", "__pycache__", "_cache", ".hypothesis")
    return {str(path) for path in folder.rglob("*") if not any(one in str(path) for one in skipped)}


@pytest.mark.slow
def test_pip_installs_pure_python_without_a_compiler_and_builds_nothing_into_the_checkout(tmp_path):
    before = listing(ROOT)
    done = install(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    assert listing(ROOT) == before
    assert not list((tmp_path / "site").rglob("*.so"))
    assert loaded(tmp_path / "site").stdout == "interpreted\n"
    code = "from hetsim.experiment.identity import fingerprint; print(fingerprint()['code'])"
    sources = os.pathsep.join(str(ROOT / name) for name in ("sim", "policies", "scenarios"))
    here = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean(PYTHONPATH=sources))
    assert loaded(tmp_path / "site", code).stdout == here.stdout != ""


# What is compiled, and when it is refused --------------------------------------------------------------------------


@pytest.fixture
def backend() -> ModuleType:
    spec = importlib.util.spec_from_file_location("backend", ROOT / ".ci" / "backend.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def half_compiled(folder: Path, carried: str) -> Path:
    """A package of one module that states that it was compiled."""
    package = folder / "hetsim"
    (package / "model").mkdir(parents=True)
    for name in ("__init__.py", "build.py", "model/task.py"):
        shutil.copy2(ROOT / "sim" / "hetsim" / name, package / name)
    (package / "_compiled.py").write_text(carried)
    return package


@pytest.mark.slow
def test_what_was_edited_after_it_was_compiled_is_refused(tmp_path):
    digest = hashlib.sha256((ROOT / "sim" / "hetsim" / "model" / "task.py").read_bytes()).hexdigest()
    package = half_compiled(tmp_path, f"SOURCES = {{'model/task.py': '{digest}'}}")
    assert loaded(tmp_path).stdout == "compiled\n"
    with (package / 'model/task.py').open("a") as stream:
        stream.write("# one more line\n")
    refused = loaded(tmp_path)
    assert refused.returncode == 1
    assert "ImportError" in refused.stderr
    assert f"{package / 'model/task.py'} has changed since hetsim was compiled" in refused.stderr
    assert "pip install ." in refused.stderr
    (package / 'model/task.py').unlink()
    assert "has changed since hetsim was compiled, so other code would run; install" in loaded(tmp_path).stderr


def test_without_its_library_compiled_code_does_not_pass_for_source(tmp_path):
    half_compiled(tmp_path, "import hetsim__mypyc")
    assert "No module named 'hetsim__mypyc'" in loaded(tmp_path).stderr


@pytest.mark.slow
def test_modules_are_compiled_on_request_only(backend, monkeypatch, tmp_path):
    """Asking what is needed writes nothing, as setuptools does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HETSIM_COMPILE", raising=False)
    assert backend.get_requires_for_build_wheel() == []
    monkeypatch.setenv("HETSIM_COMPILE", "0")
    assert backend.get_requires_for_build_wheel() == []
    monkeypatch.setenv("HETSIM_COMPILE", "1")
    assert backend.get_requires_for_build_wheel() == [backend.MYPY]
    with pytest.raises(SystemExit, match="editable"):
        backend.build_editable("anywhere")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_marks_for_the_compiler_leave_every_line_where_it_is(backend):
    """What is compiled is what the tests run: but for marks on blank lines, and their import, it is the same.

    The import stands on the blank line behind the docstring, or behind that of a deferral.
    """
    for path in backend.hot_modules():
        source = (ROOT / path).read_text()
        marked = backend.marked(source)
        classes = [node for node in ast.parse(source).body
                   if isinstance(node, ast.ClassDef) and "NamedTuple" not in map(ast.unparse, node.bases)]  # fmt: skip
        assert marked.count("@mypyc_attr(") == len(classes), path
        new = zip(source.split("\n"), marked.split("\n"), strict=True)
        changed = [(one, other) for one, other in new if one != other]
        before = {source.split("\n")[(ast.parse(source).body[0].end_lineno or 1) - 1]}
        assert {one for one, _ in changed} <= {"", "from __future__ import annotations", *before}, path
        assert all("mypyc_attr" in other or other.endswith("; MYPY = False") for _, other in changed), path


def test_constants_are_final_and_fields_of_decisions_have_any_type(backend):
    """Each on its own line; what is no number stays as it is."""
    source = 'A, _B = range(2)\nC = -1 << 4  # why\nN, I = math.nan, math.inf\nT = (1, 2)\nF, G = 1, H\n'
    assert backend.final(source) == (
        "A: Final = 0; _B: Final = 1\nC: Final = -1 << 4  # why\nN: Final = math.nan; I: Final = math.inf\n"
        "T = (1, 2)\nF, G = 1, H\n"
    )
    typed = "class Ü:\n    a: int | None = None\n    def f(self, b: list[int], *, c: 'Ü' = 1) -> int: return b\n"
    assert backend.without_types(typed) == (
        "class Ü:\n    a: Any = None\n    def f(self, b: Any, *, c: Any = 1) -> int: return b\n"
    )
    assert backend.hot_modules()["sim/hetsim/policy/decisions.py"] is False
    frozen = "@dataclass(frozen=True)\n@dataclass(frozen=True, eq=False)\n@dataclass(slots=True, frozen=True)\n"
    assert backend.thawed(frozen) == "@dataclass(unsafe_hash=True)\n@dataclass(eq=False)\n" + (
        "@dataclass(slots=True, unsafe_hash=True)\n")


def test_modes_of_a_log_have_the_types_that_compiled_code_checks():
    """A comparison of NumPy's strings is NumPy's own kind of bool."""
    shapes = load("backfilling").build(None, 0).tasks.shapes
    assert {type(mode.span_any) for shape in shapes for mode in shape.modes} == {bool}


@pytest.mark.slow
def test_a_source_distribution_can_be_built_from(tmp_path):
    command = [sys.executable, "-c", "import backend; print(backend.build_sdist('" + str(tmp_path) + "'))"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=clean(PYTHONPATH=str(ROOT / ".ci")))
    assert done.returncode == 0, done.stderr
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {".ci/backend.py", ".ci/hot_modules.txt", "pyproject.toml", "sim/hetsim/py.typed"} <= names
