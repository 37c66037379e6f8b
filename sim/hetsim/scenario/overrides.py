"""`--set key.path=value`: change one value of a scenario before it is validated.

The parts of a path are keys, indexes of lists, or the `name:` (or `class:`) of an item of a list.  Keys and names may
contain dots: the longest match is used.  The last key may be new; the schema decides if it is allowed.
"""

from typing import Any

from hetsim.errors import Problem, ScenarioError, UsageError, suggestion
from hetsim.scenario.file import document as documents
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.schema.policy import long_form


def parse_assignment(text: str) -> tuple[str, Any]:
    """Parse `key.path=value` into (path, value); UsageError if it is invalid."""
    path, sign, value = text.partition("=")
    if not sign or not all(part.strip() for part in path.split(".")):
        raise UsageError(f'--set must be key.path=value; got "{text}"')
    try:
        return path.strip(), documents.parse_value(value.strip())
    except ScenarioError as error:
        raise UsageError(f"--set {text}: the value {error.problems[0].message}") from None


def apply(document: Document, assignments: list[tuple[str, Any]]) -> None:
    """Change the document's data in place; ScenarioError lists all invalid paths.

    The policy is expanded to its long form before and after, so that both `policy=sjf` and `policy.scheduler.name=sjf`
    work on every scenario.
    """
    _long_policy(document)
    problems = []
    for text, value in assignments:
        source = f"--set {text}"
        if f"{text}.".startswith("policy.placement."):
            _forget_placement(document)
        try:
            path = _set(document.data, text, value)
            for inner in [p for p in document.set_by if p[: len(path)] == path]:
                del document.set_by[inner]
            document.set_by[path] = source
            if path == ("policy", "placement"):  # moves to where the long form has it
                document.set_by["policy", "scheduler", "placement"] = source
        except LookupError as error:
            problems.append(Problem(str(error.args[0]), "", file=source))
        if text == "policy" or text.startswith("policy."):
            _long_policy(document)
    if problems:
        raise ScenarioError(problems)


def _long_policy(document: Document) -> None:
    data = document.data
    data["policy"] = long_form(data.get("policy"))


def _forget_placement(document: Document) -> None:
    policy = document.data.get("policy")
    scheduler = policy.get("scheduler") if isinstance(policy, dict) else None
    if isinstance(scheduler, dict):
        scheduler.pop("placement", None)


def check_path(data: Any, text: str) -> None:
    """Raise LookupError with a message if no value can be assigned to the path."""
    _set(data, text, None, dry=True)


def value_at(data: Any, text: str) -> Any:
    """Return the value at a path (None if missing); LookupError for an invalid path."""
    for key in _set(data, text, None, dry=True):
        data = data.get(key) if isinstance(data, dict) else data[key]
    return data


def _set(data: Any, text: str, value: Any, dry: bool = False) -> Path_:
    """Set the value at a path; LookupError if the path is invalid; dry: only check."""
    parts = text.split(".")
    here: Any = data
    path: list[Any] = []
    while True:
        if isinstance(here, dict) and parts[0] == "0" and len(parts) > 1 and "0" not in here:
            parts = parts[1:]  # one entry may stand without the list around it
            continue
        if isinstance(here, dict):
            key, parts = _key(here, parts)
        elif isinstance(here, list):
            key, parts = _entry(here, parts, ".".join(map(str, path)))
        else:
            at = ".".join(map(str, path))
            raise LookupError(f"{at} is a single value ({here!r}) without keys")
        path.append(key)
        new = isinstance(here, dict) and here.get(key) is None
        if dry and (new or not parts):
            return tuple(path)
        if not parts:
            here[key] = value
            return tuple(path)
        if new:
            here[key] = {}
        here = here[key]


def _key(mapping: dict, parts: list[str]) -> tuple[Any, list[str]]:
    for length in range(len(parts), 1, -1):
        joined = ".".join(parts[:length])
        if joined in mapping:
            return joined, parts[length:]
    if parts[0] == "gpu_time" and len(parts) > 1 and not isinstance(mapping.get("gpu_time"), dict):
        return ".".join(parts[:2]), parts[2:]  # `gpu_time.v100` is one key
    return parts[0], parts[1:]


def _entry(entries: list, parts: list[str], at: str) -> tuple[Any, list[str]]:
    for length in range(len(parts), 0, -1):
        joined = ".".join(parts[:length])
        for label in ("name", "class", "type"):
            for index, entry in enumerate(entries):
                if isinstance(entry, dict) and str(entry.get(label)) == joined:
                    return index, parts[length:]
    if parts[0].isdigit() and int(parts[0]) < len(entries):
        return int(parts[0]), parts[1:]
    names = [str(e[k]) for e in entries if isinstance(e, dict) for k in ("name", "class", "type") if k in e]
    count = "1 entry" if len(entries) == 1 else f"{len(entries)} entries, counted from 0"
    listed = f": {', '.join(names)}" if names else ""
    near = suggestion(parts[0], names) or f" (it has {count}{listed})"
    raise LookupError(f'{at} has no entry "{parts[0]}"{near}')
