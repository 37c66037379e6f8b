"""The exceptions of hetsim.

Each class has the exit code with which the command line ends.  Each message is a sentence for the user: what is wrong,
where, and what to do.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MAX_PROBLEMS = 20  # maximum number of problems of a file that are listed; the others are counted


class HetsimError(Exception):
    """Base of all errors that hetsim reports; the command line ends with `exit_code`."""

    exit_code = 1


class UsageError(HetsimError):
    """The command or function was called incorrectly."""

    exit_code = 2


class NothingMeets(HetsimError):
    """A search found no candidate that meets the target, deadline or memory limit."""

    exit_code = 4


class DamagedFile(UsageError):
    """A file that hetsim wrote is incomplete, or was changed afterwards."""

    def __init__(self, path: object, reason: str):
        self.path, self.reason = path, reason
        super().__init__(f"{path} is damaged: {' '.join(reason.split())}; nothing of it was used")

    def __reduce__(self) -> tuple:
        return type(self), (self.path, self.reason)


@dataclass(frozen=True)
class Problem:
    """One problem of an input, with its position.

    `key` is a dotted path (`workload.0.arrivals.rate`); line and column count from 1 and are None if the input is not a
    text file.
    """

    message: str
    key: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return ": ".join(part for part in (place, self.key, self.message) if part)


class ScenarioError(HetsimError):
    """A scenario, trace or task table is invalid: lists every problem found."""

    exit_code = 3

    def __init__(self, problems: Problem | str | Iterable[Problem | str]):
        if isinstance(problems, Problem | str):
            problems = [problems]
        self.problems = [p if isinstance(p, Problem) else Problem(p) for p in problems]
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple:
        return type(self), (self.problems,)


def file_error(path: Any, message: str, line: int | None = None, column: int | None = None) -> ScenarioError:
    """Return a ScenarioError with one problem of a file."""
    return ScenarioError(Problem(message, file=str(path), line=line, column=column))


def refusal(message: str, key: str = "policy.scheduler") -> ScenarioError:
    """Return a ScenarioError with one problem at a scenario key."""
    return ScenarioError(Problem(message, key=key))


def line_of(error: BaseException) -> str:
    """Return the innermost line of an exception: `file.py:12`."""
    line, trace = "", error.__traceback__
    while trace is not None:
        line = f"{trace.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


class UnknownName(HetsimError):
    """A name is not in a registry; the message suggests similar names."""

    exit_code = 3

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = ""):
        self.kind, self.name, self.known, self.hint = kind, name, sorted(known), hint
        super().__init__(f'unknown {kind} "{name}"{suggestion(name, self.known)}{hint}')

    def __reduce__(self) -> tuple:
        return type(self), (self.kind, self.name, self.known, self.hint)


class RunError(HetsimError):
    """A run could not continue; `time` is the simulated time at which it stopped.

    `result`: the Result with the tables up to that time; None if there are no tables.
    """

    time: float | None = None
    result: Any = None


class PolicyError(RunError):
    """A policy raised an error, decided something illegal, stalls or loops."""


class InvariantError(RunError):
    """The simulator is in an impossible state: a defect of hetsim; please report it."""


class DamageWarning(UserWarning):
    """Files of finished runs or of a study were damaged, and were recreated."""


class UnknownInputs(UserWarning):
    """Warning: a run has inputs that are not known, so its results are not reused."""


class PictureWarning(UserWarning):
    """A picture is missing or lacks characters; the tables behind it are complete."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean "x"?' for a similar name, else the empty string."""
    names = {one.lower(): one for one in known if one != name}
    near = difflib.get_close_matches(str(name).lower(), names, n=1, cutoff=0.6)
    return f'; did you mean "{names[near[0]]}"?' if near else ""


def suggested_key(name: str, known: Iterable[str]) -> str:
    """Return a hint for an unknown key: a similar key, or `list.0` for `list[0]`."""
    key, bracket, entry = name.partition("[")
    names = list(known)
    if bracket and key in names:
        return f'; write an entry of a list after a dot: "{key}.{entry.rstrip("]")}"'
    return suggestion(name, names)


def several(given: Any, name: str, what: str) -> Iterable[Any]:
    """Return `given` if it is iterable, but not str or bytes; else raise UsageError."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise UsageError(f"{name} must be {what}; got {given!r}")
    return given


def visible(text: str) -> str:
    """Escape the characters of a text that a terminal would interpret or reorder."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def visible_lines(text: str) -> str:
    """Escape the characters of each line that a terminal would interpret or reorder."""
    return "\n".join(map(visible, text.split("\n")))


class KeyProblem(ValueError):
    """A wrong value of a key, found by the check of the mapping that contains the key.

    `inside`: the key or path of keys below `key` at which the problem is reported; None: at `key` itself.  If the
    mapping is a short form without `key`, `inside` is below the mapping.  `problems`: problems in a file that `key`
    names, reported at their lines there.
    """

    def __init__(self, key: str, message: str, inside: Any = None, problems: Sequence[Problem] = ()):
        self.key = key
        self.inside = inside
        self.problems = problems
        super().__init__(message)
