"""Mutation testing: do the quick tests notice a change of the code?  `python -m benchmarks.mutants ROOT`.

    python -m benchmarks.mutants sim/hetsim/results --sample 80 --seed 3
    python -m benchmarks.mutants sim/hetsim/theory/*.py --tests tests/theory --sample 120 --seed 2

One operator, constant or statement is changed at a time.  A sample of all such mutants of the files (ROOT: files, or
folders with all in them) is drawn by `--seed`.  The tests (`--tests`, all by default) are collected once.  A forked
process runs them and notes how long each takes and which lines of the files it reaches (`--reach FILE` keeps this for
later runs; what has changed since is measured again).  Then each mutant has a forked process of its own, in which every
function of the file gets the changed code and the tests that reach the line run until one fails: those of a test file
named like the changed file first, then the quickest.  Tests slower than `--longest` are left out, and a mutant survives
if no test fails within `--seconds` of processor time.  A test that fails in such a process without any change is no
witness.  Processes that a test starts run the unchanged code, unless they are forked.

Changed are comparisons, arithmetic and Boolean operators, numbers (± 1), conditions, arguments, `min` and `max` and
their like, return values and whole statements; not messages, annotations, decorators, assertions (the `strict` of `zip`
among them) and default arguments, which the reference pages hold.  Mutants that survive are printed.  Those in
`equivalent_mutants.txt` change nothing that can be seen from outside (a number of iterations that is never reached, a
first guess of a root); they are counted apart.  The raw score is the share killed
of all, the score the share killed of the others.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import hashlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import hypothesis
import pytest

EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
NAMES = {"min": "max", "any": "all", "floor": "ceil", "minimum": "maximum", "argmin": "argmax"}
NAMES |= {value: key for key, value in NAMES.items()}
ASKING = ("isinstance", "hasattr", "getattr")
EVERYWHERE = (0, 10**9)
PRELOADED = ("scipy.special", "scipy.optimize", "scipy.stats", "scipy.linalg", "scipy.sparse.linalg", "pandas")

# Mutants --------------------------------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """`where`: function, source line and column, which identify it whatever stands above."""

    file: str
    where: str
    what: str
    lines: tuple[int, int]
    node: int
    edit: int

    @property
    def key(self) -> str:
        return f"{self.file} | {self.where} | {self.what}"

    def tree(self) -> ast.Module:
        changed = ast.parse(Path(self.file).read_text(encoding="utf-8"))
        node = list(places(changed))[self.node][0]
        _, attribute, value = list(edits(node))[self.edit]
        if attribute:
            setattr(node, attribute, value)
        else:  # the node becomes another one
            kept = {name: getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
            value = copy.copy(value)
            node.__class__, node.__dict__ = value.__class__, value.__dict__ | kept
        return ast.fix_missing_locations(changed)


def mutants(file: str) -> Iterator[Mutant]:
    text = Path(file).read_text(encoding="utf-8")
    lines = text.splitlines()
    for number, (node, statement, function) in enumerate(places(ast.parse(text))):
        for edit, (what, _, _) in enumerate(edits(node)):
            where = f"{function}: {lines[node.lineno - 1].strip()} @{node.col_offset}"
            last = node.end_lineno if hasattr(statement, "body") else statement.end_lineno
            span = (statement.lineno, last or node.lineno) if function else EVERYWHERE
            yield Mutant(file, where, what, span, number, edit)


def places(tree: ast.Module) -> Iterator[tuple[Any, Any, str]]:
    """What may be changed, with its statement and function."""
    for node in tree.body:
        yield from _top(node, "")


def _top(node: ast.stmt, inside: str) -> Iterator[tuple[Any, Any, str]]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        name = f"{inside}.{node.name}" if inside else node.name
        for one in node.body:
            yield from _top(one, name) if isinstance(node, ast.ClassDef) else _within(one, one, name)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        yield from _within(node.value, node, inside if inside.islower() else "")


def _within(node: ast.AST, statement: ast.AST, function: str) -> Iterator[tuple[Any, Any, str]]:
    if isinstance(node, ast.FunctionDef):
        for one in node.body:
            yield from _within(one, one, f"{function}.{node.name}")
        return
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if text or isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return
    statement = node if isinstance(node, ast.stmt) else statement
    yield node, statement, function
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            strict = isinstance(child, ast.keyword) and child.arg == "strict"  # of zip: as good as an assert
            if isinstance(child, ast.AST) and name != "annotation" and not strict:
                yield from _within(child, statement, function)


Edit = tuple[str, str, Any]
"""What is said of it, the attribute of the node (or none: the node itself) and the value it gets."""


def edits(node: Any) -> Iterator[Edit]:
    kind = type(node).__name__
    yield from _EDITS.get(kind, lambda _: ())(node)
    if kind in ("If", "While", "IfExp"):
        yield "condition negated", "test", ast.UnaryOp(ast.Not(), node.test)
    if kind in ("Expr", "Raise", "Break", "Continue", "AugAssign"):
        yield f"{kind.lower()} dropped", "", ast.Pass()


def _comparison(node: ast.Compare) -> Iterator[Edit]:
    for i, operator in enumerate(node.ops):
        for other in COMPARISONS[type(operator)]:
            changed = [*node.ops[:i], other(), *node.ops[i + 1 :]]
            yield f"{type(operator).__name__} -> {other.__name__} ({i})", "ops", changed


def _operator(node: ast.BinOp | ast.AugAssign | ast.BoolOp) -> Iterator[Edit]:
    sides = [side for name in ("left", "right") if (side := getattr(node, name, None))]
    text = any(isinstance(s, ast.JoinedStr) or isinstance(getattr(s, "value", None), str) for s in sides)
    other = OPERATORS.get(type(node.op))
    if other and not text:
        yield f"{type(node.op).__name__} -> {other.__name__}", "op", other()


def _constant(node: ast.Constant) -> Iterator[Edit]:
    if isinstance(node.value, bool):
        yield f"{node.value} -> {not node.value}", "value", not node.value
    elif isinstance(node.value, int | float):
        for value in (node.value + 1, node.value - 1):
            if value != node.value:
                yield f"{node.value} -> {value}", "value", value


def _unary(node: ast.UnaryOp) -> Iterator[Edit]:
    if not isinstance(node.operand, ast.Constant):
        yield f"{type(node.op).__name__} dropped", "", node.operand


def _name(node: ast.Name | ast.Attribute) -> Iterator[Edit]:
    attribute = "id" if isinstance(node, ast.Name) else "attr"
    name = getattr(node, attribute)
    if name in NAMES and isinstance(node.ctx, ast.Load):
        yield f"{name} -> {NAMES[name]}", attribute, NAMES[name]


def _call(node: ast.Call) -> Iterator[Edit]:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if len(node.args) >= 2 and not isinstance(node.args[1], ast.Starred) and name not in (*NAMES, *ASKING):
        yield f"arguments of {name} swapped", "args", [node.args[1], node.args[0], *node.args[2:]]


def _assignment(node: ast.Assign) -> Iterator[Edit]:
    if not all(isinstance(target, ast.Name | ast.Tuple) for target in node.targets):
        yield "assign dropped", "", ast.Pass()


def _return(node: ast.Return) -> Iterator[Edit]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield "return None", "value", ast.Constant(None)


_EDITS: dict[str, Any] = {
    "Compare": _comparison, "BinOp": _operator, "AugAssign": _operator, "BoolOp": _operator, "Constant": _constant,
    "UnaryOp": _unary, "Name": _name, "Attribute": _name, "Call": _call, "Assign": _assignment, "Return": _return,
}  # fmt: skip

# Putting one in -------------------------------------------------------------------------------------------------------


def install(mutant: Mutant, functions: list[FunctionType]) -> bool:
    """Give the functions of its file the changed code, or a constant its value; False if nothing came of it."""
    path = str(Path(mutant.file).resolve())
    tree = mutant.tree()
    forget(functions)
    if mutant.lines == EVERYWHERE:
        return _constants(path, tree)
    old = _named(compile(Path(path).read_text(encoding="utf-8"), path, "exec", dont_inherit=True))
    new = _named(compile(tree, path, "exec", dont_inherit=True))
    changed = {code: new[key] for key, code in old.items() if key in new and new[key] != code}
    found = [function for function in functions if function.__code__ in changed]
    for function in found:
        function.__code__ = changed[function.__code__]
    return bool(found)


def module_of(file: str) -> str:
    """The name by which tests import a file: a second copy under another name would declare its metrics twice."""
    return ".".join(Path(file).with_suffix("").parts[1:]).removesuffix(".__init__")


def forget(functions: list[FunctionType]) -> None:
    """Empty the caches of functions: what was remembered before hides a line that is not reached, or was changed."""
    for function in functions:
        wrapper = getattr(sys.modules.get(function.__module__), function.__name__, None)
        if hasattr(wrapper, "cache_clear"):
            wrapper.cache_clear()


def _named(code: CodeType) -> dict[tuple[str, int, int], CodeType]:
    """All code objects by name, line and number on that line."""
    found: dict[tuple[str, int, int], CodeType] = {}
    todo = [code]
    while todo:
        one = todo.pop(0)
        number = sum(key[:2] == (one.co_qualname, one.co_firstlineno) for key in found)
        found[one.co_qualname, one.co_firstlineno, number] = one
        todo += [inner for inner in one.co_consts if isinstance(inner, CodeType)]
    return found


def _constants(path: str, tree: ast.Module) -> bool:
    """Set the constants of a module and its classes as the tree says, and of a module wherever they were imported."""
    modules = [one for one in list(sys.modules.values()) if isinstance(one, ModuleType)]
    module = next(one for one in modules if getattr(one, "__file__", None) == path)
    bodies: list[tuple[Any, list[ast.stmt]]] = [(module, tree.body)]
    bodies += [(getattr(module, node.name), node.body) for node in tree.body if isinstance(node, ast.ClassDef)]
    for owner, body in bodies:
        for node in body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                name, value = node.targets[0].id, node.value.value  # type: ignore[attr-defined]
                before = getattr(owner, name)
                if before != value:
                    for one in [owner, *(modules if owner is module else [])]:
                        if getattr(one, "__dict__", {}).get(name) is before:
                            setattr(one, name, value)
                    return True
    return False


# Trying them ----------------------------------------------------------------------------------------------------------

Row = tuple[float, dict[str, int]]
"""Of a test: its seconds, and by file the lines that it reaches, as bits of a number."""


def digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class Reach:
    """What each test reaches; kept in a file, from which only what did not change since is taken."""

    def __init__(self, path: Path | None, sources: list[str]):
        """sources: files to trace; those of the file are traced as well, so that it stays complete."""
        stored = json.loads(path.read_text(encoding="utf-8")) if path and path.exists() else {}
        names = dict.fromkeys([*sources, *(name for name in stored.get("sources", ()) if Path(name).exists())])
        self.path, self.sources = path, {file: digest(file) for file in names}
        self.rows: dict[str, Row] = {}
        self.tests: dict[str, str] = {}
        if stored:
            for test, (seconds, lines) in stored["rows"].items():
                same = all(self.sources.get(file) == stored["sources"][file] for file in lines)
                if same and stored["tests"][self.file(test)] == self.digest_of(test):
                    self.rows[test] = seconds, {file: int(bits, 16) for file, bits in lines.items()}

    @staticmethod
    def file(test: str) -> str:
        return test.partition("::")[0]

    def digest_of(self, test: str) -> str:
        file = self.file(test)
        if file not in self.tests:
            self.tests[file] = digest(file) if Path(file).exists() else ""
        return self.tests[file]

    def add(self, rows: dict[str, Row]) -> None:
        self.rows |= rows
        if self.path:
            for test in self.rows:
                self.digest_of(test)
            shown = {test: (seconds, {file: hex(bits) for file, bits in lines.items()})
                     for test, (seconds, lines) in self.rows.items()}  # fmt: skip
            text = json.dumps({"sources": self.sources, "tests": self.tests, "rows": shown})
            self.path.write_text(text, encoding="utf-8")

    def tests_of(self, mutant: Mutant, limit: float) -> list[tuple[float, str]]:
        """Tests that reach the lines of a mutant: those of a test file of its name first, then the quickest."""
        low, high = mutant.lines
        window = -1 if mutant.lines == EVERYWHERE else ((1 << (high - low + 1)) - 1) << low
        name = Path(mutant.file).stem
        chosen = [
            (name not in Path(self.file(test)).stem, seconds, test)
            for test, (seconds, lines) in self.rows.items()
            if seconds <= limit and lines.get(mutant.file, 0) & window
        ]
        return [(seconds, test) for _, seconds, test in sorted(chosen)]


class MutationRun:
    """A pytest plugin in whose loop mutants are tried."""

    def __init__(self, options: argparse.Namespace, out: Any):
        self.options, self.out = options, out
        self.failed = False
        self.items: list[pytest.Item] = []
        self.sound: dict[str, bool] = {}
        self.witness = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        reach = Reach(self.options.reach, self.options.files)
        self.items, self.files = session.items, {str(Path(file).resolve()): file for file in reach.sources}
        for name in [*PRELOADED, *(module_of(file) for file in reach.sources)]:
            __import__(name)
        gc.unfreeze()  # else what conftest.py froze is not found
        functions = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
        self.functions = {path: [f for f in functions if f.__code__.co_filename == path] for path in self.files}
        gc.collect()
        gc.freeze()
        self.numbers = {item.nodeid: number for number, item in enumerate(self.items)}
        new = [item.nodeid for item in self.items if item.nodeid not in reach.rows]
        measured = json.loads(self.forked(self.reach, new)[1])
        reach.add({test: (row[0], {file: int(bits, 16) for file, bits in row[1].items()})
                   for test, row in measured.items()})  # fmt: skip
        reach.rows = {test: row for test, row in reach.rows.items() if test in self.numbers}
        listed = set(EQUIVALENT.read_text(encoding="utf-8").splitlines())
        every = [one for file in self.options.files for one in mutants(file)]
        if self.options.again:
            wanted = set(self.options.again.read_text(encoding="utf-8").splitlines())
            every = [one for one in every if one.key in wanted]
        size = min(self.options.sample or len(every), len(every))
        chosen = sorted(random.Random(self.options.seed).sample(every, size))
        self.say(f"{len(every)} mutants, {len(chosen)} are tried")
        counts: dict[str, Counter[str]] = {file: Counter() for file in self.options.files}
        for one in chosen:
            verdict = "equivalent" if one.key in listed else self.judge(one, reach)
            counts[one.file][verdict] += 1
            if verdict == "survived":
                self.say(one.key)
            elif self.options.verbose:
                self.say(f"[{verdict}{self.witness}] {one.key}")
        for name, found in [*(counts.items() if len(counts) > 1 else ()), ("all", sum(counts.values(), Counter()))]:
            others = max(1, found["killed"] + found["survived"])
            raw, score = found["killed"] / max(1, others + found["equivalent"]), found["killed"] / others
            listed_counts = ", ".join(f"{count} {what}" for what, count in sorted(found.items()))
            self.say(f"{name}: {listed_counts}: raw score {raw:.1%}, score {score:.1%}")
        return True

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def forked(self, work: Any, *arguments: Any) -> tuple[int, str]:
        """Status and text of what a child gives; -1 where it was ended for taking too long."""
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            try:
                status, text = work(*arguments)
            except BaseException as error:
                status, text = 1, repr(error)
            with os.fdopen(write, "w") as pipe:
                pipe.write(text)
            os._exit(status)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        status = os.waitpid(child, 0)[1]
        return (-1 if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), text

    def passes(self, number: int) -> bool:
        item = self.items[number]
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed

    def reach(self, tests: list[str]) -> tuple[int, str]:
        """Run tests: which lines of the files does each one reach, and how long does it take?"""
        found: dict[str, tuple[float, dict[str, str]]] = {}
        for count, test in enumerate(tests, start=1):
            lines: dict[str, set[int]] = {path: set() for path in self.files}

            def trace(frame: Any, event: str, argument: Any, lines: dict[str, set[int]] = lines) -> Any:
                if frame.f_code.co_filename not in lines:
                    return None
                lines[frame.f_code.co_filename].add(frame.f_lineno)
                return trace  # noqa: B023

            for functions in self.functions.values():
                forget(functions)
            begun = time.process_time()
            sys.settrace(trace)
            passed = self.passes(self.numbers[test])
            sys.settrace(None)
            seconds = time.process_time() - begun
            if not passed:
                self.say(f"fails without a change: {test}")
            else:
                reached = {self.files[path]: hex(sum(1 << line for line in at)) for path, at in lines.items() if at}
                found[test] = seconds, reached
            if count % 500 == 0:
                self.say(f"{count} of {len(tests)} tests are traced")
        return 0, json.dumps(found)

    def judge(self, mutant: Mutant, reach: Reach) -> str:
        self.witness = ""
        chosen = [(seconds, test) for seconds, test in reach.tests_of(mutant, self.options.longest)
                  if self.sound.get(test, True)]  # fmt: skip
        status, test = self.forked(self.attempt, mutant, chosen)
        if status == 1 and test in self.numbers and test not in self.sound:
            self.sound[test] = self.forked(self.attempt, None, [(10.0, test)])[0] == 0
            if not self.sound[test]:
                self.say(f"fails in a process of its own without a change: {test}")
                return self.judge(mutant, reach)
        self.witness = f" by {test}" if status == 1 else ""
        return {0: "survived", 3: "unchanged"}.get(status, "killed")

    def attempt(self, mutant: Mutant | None, tests: list[tuple[float, str]]) -> tuple[int, str]:
        """Each test gets some times as long as it took with tracing: a mutant may well loop for ever."""
        for one in (signal.SIGVTALRM, signal.SIGALRM):
            signal.signal(one, signal.SIG_DFL)
        try:
            if mutant and not install(mutant, self.functions[str(Path(mutant.file).resolve())]):
                return 3, ""
        except ValueError:  # a closure has another number of variables
            return 3, ""
        begun = time.process_time()
        for seconds, test in tests:
            limit = max(2.0, 4 * seconds)
            signal.setitimer(signal.ITIMER_VIRTUAL, limit)
            signal.alarm(int(10 * limit))
            if not self.passes(self.numbers[test]):
                return 1, test
            if time.process_time() - begun > self.options.seconds:
                break
        return 0, ""


def source_files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py")) if root.is_dir() else [root]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="+", metavar="ROOT", help="files, or folders of files, that are changed")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files or folders of tests; all if left out")
    parser.add_argument("--sample", type=int, default=0, help="mutants tried of all files together; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--again", type=Path, help="a file with survivors, as printed: only these are tried")
    parser.add_argument("--longest", type=float, default=0.3, help="seconds; slower tests are left out")
    parser.add_argument("--seconds", type=float, default=60, help="of processor time that a mutant may take")
    parser.add_argument("--reach", type=Path, help="a file that keeps, for later runs, what each test reaches")
    parser.add_argument("--verbose", action="store_true", help="print every mutant, and the test that notices it")
    options = parser.parse_args()
    options.files = [str(file) for root in options.roots for file in source_files(Path(root))]
    if options.reach:
        options.reach = options.reach.resolve()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # forks do not go with threads
    hypothesis.settings.register_profile("mutants", database=None, derandomize=True)  # the same examples for each
    hypothesis.settings.load_profile("mutants")
    run = MutationRun(options, out)
    plain = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=", "-m", "not slow", "--every-case"]
    marks = ["-W", "ignore::pytest.PytestUnknownMarkWarning"]  # of xdist
    pytest.main([*options.tests, *plain, *marks], plugins=[run])
    if not run.items:
        sys.exit("pytest could not collect these tests; it says why by itself")


if __name__ == "__main__":
    main()
