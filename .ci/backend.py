"""The build backend: setuptools, in a copy of the checkout, so that nothing is built into it.

`pip install .` makes a wheel of Python source.  `HETSIM_COMPILE=1 pip install .` compiles the modules listed in
`hot_modules.txt` with mypyc besides, and needs a C compiler.  The source is the same and stands beside them; they carry
the digests of the files that they were made from, which `import hetsim` compares (`hetsim/__init__.py`).
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setuptools import build_meta

HERE = Path(__file__).parent
BUILT = ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", ".ci", "sim", "policies", "scenarios")
MYPY = "mypy>=2.4"
SETUP = "import sys; sys.path.insert(0, '.ci'); import backend; backend.compiled_setup()\n"
TYPES = """[mypy]
mypy_path = sim:policies:scenarios
check_untyped_defs = true
follow_imports = silent
ignore_missing_imports = true
[mypy-numpy.*,pandas.*,scipy.*,pyarrow.*,simpy.*,pydantic.*,matplotlib.*]
follow_imports = skip
"""
"""Libraries are not looked at: what is compiled is the same whether they are installed or not."""


def wanted() -> bool:
    return os.environ.get("HETSIM_COMPILE", "0") not in ("", "0")


@contextmanager
def copy_of_checkout() -> Iterator[None]:
    """Work in a copy of what is built."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="hetsim-build-") as folder:
        for name in BUILT:
            source = Path(name)
            if source.is_dir():
                shutil.copytree(source, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                shutil.copy2(source, folder)
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(here)


def _in_copy(hook: Callable[..., str]) -> Callable[..., str]:
    def run(directory: str, *arguments: Any, **named: Any) -> str:
        target = os.path.abspath(directory)
        with copy_of_checkout():
            return hook(target, *arguments, **named)

    return run


build_sdist = _in_copy(build_meta.build_sdist)
prepare_metadata_for_build_wheel = _in_copy(build_meta.prepare_metadata_for_build_wheel)
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable


def build_wheel(directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    target = os.path.abspath(directory)
    metadata = metadata_directory and os.path.abspath(metadata_directory)
    with copy_of_checkout():
        if wanted():
            Path("setup.py").write_text(SETUP)
        return build_meta.build_wheel(target, config_settings, metadata)


def build_editable(directory: str, config_settings: Any = None, metadata_directory: Any = None) -> str:
    if wanted():
        sys.exit("HETSIM_COMPILE: an editable install runs the files of the checkout; pip install . compiles a copy")
    return build_meta.build_editable(directory, config_settings, metadata_directory)


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Those of setuptools are none without a setup.py, and asking it writes hetsim.egg-info into the checkout."""
    return [MYPY] if wanted() else []


# Compiling -------------------------------------------------------------------------------------------------------


READ = ("sim/hetsim/model/demand.py", "sim/hetsim/model/device_type.py", "sim/hetsim/model/record.py")
"""Not compiled, but what is compiled reads their constants."""


def hot_modules() -> dict[str, bool]:
    """Paths of the modules to compile, and whether their annotations count (`untyped` behind the path: they do not)."""
    lines = (HERE / "hot_modules.txt").read_text().split("\n")
    return {line.split()[0]: not line.endswith(" untyped") for line in lines if line and not line.startswith("#")}


def without_types(source: str) -> str:
    """The source with `Any` for each annotation: compiled code does not check such fields and arguments."""
    lines = source.encode().split(b"\n")
    nodes = [part for part in ast.walk(ast.parse(source)) if isinstance(part, (ast.AnnAssign, ast.arg))]
    marks = [part.annotation for part in nodes if part.annotation is not None]
    for mark in sorted(marks, key=lambda mark: (mark.lineno, mark.col_offset), reverse=True):
        assert mark.lineno == mark.end_lineno, f"line {mark.lineno}: an annotation of several lines"
        line = lines[mark.lineno - 1]
        lines[mark.lineno - 1] = line[: mark.col_offset] + b"Any" + line[mark.end_col_offset :]
    return b"\n".join(lines).decode()


CONSTANTS = re.compile(r"^(_?[A-Z][A-Z0-9_]*(?:, _?[A-Z][A-Z0-9_]*)*) = ([-\w.,<() ]+?)(?=  #|$)", re.MULTILINE)


def final(source: str) -> str:
    """The source with `Final` at its constant numbers, so that compiled code has them in place of a look-up.

    `A, B = 1, 2` and `A, B = range(2)` become one statement a name, on the same line.
    """

    def one_by_one(match: re.Match[str]) -> str:
        names = match[1].split(", ")
        if match[2].startswith("range("):
            values = list(map(str, range(len(names))))
        else:
            values = match[2].split(", ")
        number = re.compile(r"-?[\d_]+(\.\d+)?(e-?\d+)?( << \d+)?|math\.(inf|nan)")
        if len(names) != len(values) or not all(map(number.fullmatch, values)):
            return match[0]
        return "; ".join(f"{name}: Final = {value}" for name, value in zip(names, values, strict=True))

    return CONSTANTS.sub(one_by_one, source)


def thawed(source: str) -> str:
    """The source whose frozen dataclasses can be written to: copies and pickles set the fields of compiled ones."""
    return re.sub(r"(?m)^(@dataclass\([^\n]*)frozen=True(, )?([^\n]*\))$", lambda m: m[1] + (
        m[3] if "eq=False" in m[0] else f"unsafe_hash=True{m[2] or ''}{m[3]}"), source)  # fmt: skip


def marked(source: str) -> str:
    """The source with mypyc's mark on its classes that `__new__` makes an object without `__init__`, as Python's does:
    forks copy objects so, and users subclass policies.  (`serializable` alone loses calls of `__init__` from Python.)

    Marks stand on blank lines, so that lines keep their numbers; nothing is imported for them when the module runs.
    """
    mark = "@mypyc_attr(allow_interpreted_subclasses=True)"
    classes = re.compile(r"\n\n((?:@[^\n]*\n)*class (?!\w+\(NamedTuple\)))")
    source = classes.sub(rf"\n{mark}\n\1", source)
    lines = source.split("\n")
    last = ast.parse(source).body[0].end_lineno or 1  # of the docstring; a future import comes before all else
    last += 2 * (lines[last + 1] == "from __future__ import annotations")
    imports = "if MYPY: from mypy_extensions import mypyc_attr; from typing import Final"
    lines[last - 1 : last + 1] = [lines[last - 1] + "; MYPY = False", imports]
    return "\n".join(lines)


def extensions() -> list[Any]:
    """The extension modules of the copy that this runs in, in C."""
    from mypyc.build import mypycify

    Path("mypy.ini").write_text(TYPES)
    paths = hot_modules()
    sources = {path: Path(path).read_bytes() for path in (*paths, *READ)}
    for path, source in sources.items():
        text = thawed(final(source.decode())) if path in paths else final(source.decode())
        Path(path).write_text(marked(text if paths.get(path, True) else without_types(text)))
    carried = Path("sim/hetsim", "_compiled.py")
    digests = {path.removeprefix("sim/hetsim/"): hashlib.sha256(sources[path]).hexdigest() for path in paths}
    carried.write_text(f"SOURCES: dict[str, str] = {digests!r}\n")
    options = ["--config-file", "mypy.ini"]
    found = mypycify([*options, *paths, str(carried)], opt_level="2", multi_file=True, group_name="hetsim")
    for extension in found:
        extension.extra_compile_args += ["-ffp-contract=off"]  # no fused operations: the same bits on any processor
    carried.unlink()
    for path, source in sources.items():
        Path(path).write_bytes(source)
    return list(found)


def compiled_setup() -> None:
    """What setup.py of the copy does."""
    from setuptools import setup
    from setuptools.command.build_ext import build_ext

    class SideBySide(build_ext):
        """Compiles the files of an extension on all processors."""

        def build_extension(self, ext: Any) -> None:
            one_by_one = type(self.compiler).compile

            def compile(sources: list[str], *arguments: Any, **named: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    each = pool.map(lambda source: one_by_one(self.compiler, [source], *arguments, **named), sources)
                    return [made for part in each for made in part]

            self.compiler.compile = compile
            super().build_extension(ext)

    setup(ext_modules=extensions(), cmdclass={"build_ext": SideBySide})
