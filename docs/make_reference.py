"""Write docs/reference: pages made from what the program itself knows, so that they cannot say something else.

    python docs/make_reference.py            writes the pages
    python docs/make_reference.py --check    exit code 1 if a page is not what would be written now

scenario: the JSON Schema of scenario files.  policies, traces: the registries and the texts at the head of each file.
results: the metrics and the columns of the tables.  commands: the command line's own help.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from sim import registry
from sim.cli.listing import parameters, summary
from sim.cli.program import VERBS

FOLDER = Path(__file__).parent / "reference"


def pages() -> dict[str, str]:
    """Name of each page and its text."""
    made = {
        "scenario": scenario_page, "policies": policies_page, "results": results_page, "commands": commands_page,
        "traces": traces_page,
    }  # fmt: skip
    return {f"{name}.md": "\n".join(make()).rstrip() + "\n" for name, make in made.items()}


# ---------------------------------------------------------------------------------------------------------- markdown


def prose(text: str) -> str:
    """A docstring's text as one line of Markdown: nothing in it is taken for a tag or for emphasis by accident."""
    line = " ".join(text.split())
    parts = re.split(r"(`[^`]*`)", line)
    for number in range(0, len(parts), 2):
        plain = parts[number].replace("<", "&lt;").replace(" * ", " \\* ")
        parts[number] = re.sub(r"(?<=\w)\*(?=\W)(?!\*)|(?<!\w)_(?=\w)|(?<=\w)_(?!\w)", r"\\\g<0>", plain)
    return "".join(parts)


def table(*heads: str) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "| " + " | ".join("---" for _ in heads) + " |"


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def code(text: Any) -> str:
    return f"`{text}`" if str(text) else ""


def generated(what: str) -> list[str]:
    return ["", f"This page is made from {what} by `docs/make_reference.py`.", ""]


# ---------------------------------------------------------------------------------------------------------- scenario

NAMES = {
    "sim__scenario__cluster_schema__Network": "Network of a node",
    "sim__scenario__service_schema__Network": "Network of a service",
    "sim__scenario__service_schema__Cache": "Cache of results",
    "sim__scenario__llm_schema__Cache": "Cache of keys and values",
    "Entry": "Workload entry",
}
"""Headings of models whose own name says too little."""


def scenario_page() -> Iterator[str]:
    """All keys of a scenario file, from the whole to its parts."""
    from sim.scenario.schema import json_schema

    schema = json_schema()
    parts = {name: part for name, part in schema["$defs"].items() if part.get("properties")}
    order: dict[str, None] = {}
    for name in _reachable(schema, schema["$defs"]):
        if name in parts:
            order.setdefault(_title(name))
    by_title = {_title(name): parts[name] for name in reversed(list(parts))}
    yield "# Scenario files"
    yield from generated("the JSON Schema that `hetsim schema` prints")
    yield "A scenario is one YAML file. A value with a dimension has a unit (`5 min`, `2 GB`, `40/h`, `250 W`, `5%`);"
    yield "unknown keys are errors with a suggestion. Where a list may stand, a single mapping is a list of one."
    yield "Keys in **bold** are needed. A *distribution* is a bare quantity, which is constant, or a mapping with"
    yield "`distribution`, of one of the kinds below."
    yield ""
    yield "## The whole file"
    yield ""
    yield from _keys(schema)
    for title in order:
        part = by_title[title]
        yield f"\n## {title}\n"
        if part.get("description"):
            yield from (prose(text) + "\n" for text in part["description"].split("\n\n"))
        yield from _keys(part)


def _reachable(part: Any, defs: Mapping[str, Any], seen: dict[str, None] | None = None) -> dict[str, None]:
    """Names of the definitions that a part of the schema refers to, depth first, in the order of its keys."""
    seen = {} if seen is None else seen
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref" and (name := value.rpartition("/")[2]) not in seen:
                seen[name] = None
                _reachable(defs[name], defs, seen)
            elif key not in ("$defs", "discriminator", "$ref"):
                _reachable(value, defs, seen)
    elif isinstance(part, list):
        for value in part:
            _reachable(value, defs, seen)
    return seen


def _title(name: str) -> str:
    """`LognormalSeconds` and its sisters for bytes and numbers are one: Lognormal distribution."""
    if name in NAMES:
        return NAMES[name]
    plain = re.sub(r"_Annotated.*", "", name)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", plain)
    words = words[0] + words[1:].lower()
    if plain != name and plain != "Branch":
        return f"{words} distribution"
    return f"{_ARRIVALS[plain]} arrivals" if plain in _ARRIVALS else words


_ARRIVALS = {reference.rpartition(":")[2]: name for name, reference in registry.table("arrivals").items()}


def _keys(part: dict[str, Any]) -> Iterator[str]:
    required = part.get("required", ())
    yield from table("key", "value", "default", "meaning")
    keys = dict(part["properties"])
    if "patternProperties" in part:
        (typed,) = part["patternProperties"].values()
        keys = {key: value for name, one in keys.items() for key, value in _with_typed(name, one, typed)}
    for key, one in keys.items():
        name = f"**{code(key)}**" if key in required else code(key)
        yield row(name, _value(one), _default(one), prose(one["description"]))


def _with_typed(name: str, one: Any, typed: Any) -> list[tuple[str, Any]]:
    return [(name, one), ("gpu_time.TYPE", typed)] if name == "gpu_time" else [(name, one)]


def _default(one: dict[str, Any]) -> str:
    value = one.get("default")
    if isinstance(value, bool):
        return code(str(value).lower())
    return code(value) if isinstance(value, int | float | str) and str(value) and "const" not in one else ""


def _value(one: dict[str, Any]) -> str:
    """What may stand there, in few words, with links to parts that have keys of their own."""
    found = list(dict.fromkeys(_kinds(one)))
    found = [f"{kind} or a list" if f"list of {kind}" in found else kind for kind in found
             if kind.removeprefix("list of ") == kind or kind.removeprefix("list of ") not in found]  # fmt: skip
    if "*distribution*" in found:
        found = [kind for kind in found if not kind.endswith(" distribution")]
    return " or ".join(found)


def _kinds(one: dict[str, Any]) -> Iterator[str]:
    if "$ref" in one:
        title = _title(one["$ref"].rpartition("/")[2])
        if title.endswith(" distribution"):
            yield "*distribution*"
        elif title.endswith(" arrivals"):
            yield "*arrival process*"
        else:
            yield f"[{title[0].lower() + title[1:]}](#{_anchor(title)})"
        return
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in one:
            for each in one[choice]:
                yield from _kinds(each)
            return
    if "enum" in one or "const" in one:
        values = one.get("enum") or [one["const"]]
        shown = [value for value in values if value is not None and value != 0]
        yield from (code(str(value).lower() if isinstance(value, bool) else value) for value in shown)
    elif one.get("type") == "array":
        items = one.get("items") or (one.get("prefixItems") or [{}])[0]
        inner = list(dict.fromkeys(_kinds(items)))
        yield "list of " + (" or ".join(inner) if inner else "values")
    elif one.get("type") == "object":
        values = one.get("additionalProperties")
        inner = list(dict.fromkeys(_kinds(values))) if isinstance(values, dict) and values else []
        yield "mapping to " + " or ".join(inner) if inner else "mapping"
    elif one.get("examples"):
        yield " or ".join(code(example) for example in one["examples"])
    else:
        kind = one.get("type")
        kinds = kind if isinstance(kind, list) else [kind]
        words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
        yield from (words[kind] for kind in kinds if kind in words)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w]+", "-", title.lower())


# ---------------------------------------------------------------------------------------------------------- policies

KINDS = {
    "scheduler": "Schedulers", "placement": "Placements", "admission": "Admission", "batching": "Batching",
    "routing": "Routing",
}  # fmt: skip
LABEL = re.compile(
    r"(?:^|(?<=[.;:)] )|(?<=\n))(References?|Weakness(?:es)?|Cost(?: of all)?|Proven|Limits):", re.MULTILINE
)
PROMISE = re.compile(
    r"^Ratio |[Nn]o (constant )?ratio|^Proven:|[Nn]othing is proven|(times|twice) the (least|optim|fewest)|"
    r"times its optimum|same bound|at most \d/\d|competitive|^No guarantee|[Ll]east mean wait among|"
    r"optimal mean response|is optimal|never above that|[Ll]ongest queue falls|has the least greatest|"
    r"Never more energy|[Ll]east makespan of all|envy|starts after the shadow|never later than|"
    r"no planned task starts later|makespan is at most"
)
"""Sentences that say what is proven of a policy, or that nothing is."""
OF_PROOFS = (
    "Weakness", "Cost", "So ", "A type ", "Let ", "Decides", "Long and medium", "What makes", "W ≤", "The cheapest",
    "A job may", "The program", "YES", "The least T", "A small task",
)  # fmt: skip
"""Beginnings of sentences that are part of a proof, or of no promise."""


def policies_page() -> Iterator[str]:
    """Every registered policy: first one line each, then what stands at its head."""
    yield "# Policies"
    yield from generated("the registry and the text at the head of each policy's file")
    yield "`hetsim list policies` prints names, first sentences and parameters, those of installed packages included."
    yield "*Guarantee* is what is proven, with its conditions; where it is empty, nothing is stated. Under"
    yield "`policy:` a parameter stands beside the name: `policy: {scheduler: {name: sjf, discipline: skip}}`."
    shipped = importlib.import_module("policies").CATALOGUE
    for kind, heading in KINDS.items():
        yield f"\n## {heading}\n"
        yield from table("name", "what it is", "guarantee", "reference")
        for name in sorted(shipped[kind]):
            item = registry.policy(kind, name)
            promise = " ".join(guarantee(head(item)))
            source = reference(head(item))
            yield row(f"[`{name}`](#{kind}-{name})", prose(summary(item)), prose(promise), prose(source))
        for name in sorted(shipped[kind]):
            yield from _policy(kind, name)


def _policy(kind: str, name: str) -> Iterator[str]:
    item = registry.policy(kind, name)
    given = parameters(kind, item)
    yield f'\n<h3 id="{kind}-{name}">{name}</h3>\n'
    for paragraph in labelled(head(item), given):
        yield paragraph + "\n"
    if given:
        says = said_of_parameters(item if inspect.isclass(item) or kind != "scheduler" else _lists(), given)
        yield from table("parameter", "default", "meaning")
        for key, default in given.items():
            yield row(code(key), "needed" if default is None else code(default), prose(says.get(key, "see above")))
        yield ""
    yield f"In `{inspect.getmodule(item).__name__.replace('.', '/')}.py`."  # type: ignore[union-attr]


def _lists() -> Any:
    from sim.policy.lists import ListScheduler

    return ListScheduler


def head(item: Any) -> str:
    """The text at the head of a policy's file; where several share a file, their own and what holds for all."""
    module = inspect.getmodule(item)
    of_all = inspect.cleandoc(module.__doc__ or "")  # type: ignore[union-attr]
    own = inspect.cleandoc(item.__doc__ or "")
    if re.search(r"Reference", of_all) or not re.search(r"Reference", own):
        return of_all
    shared = "" if "Cost:" in own else cost_of_all(inspect.getmodule(item), of_all)
    return f"{own}\n\n{shared}" if shared else own


def cost_of_all(module: Any, of_all: str) -> str:
    """What a file of several policies says of the cost of all; orders that stand elsewhere have that of the list."""
    if module.__name__ == "sim.policy.lists":
        of_all = inspect.cleandoc(importlib.import_module("policies.orders").__doc__ or "")
    found = re.search(r"Cost(?: of all)?:.*?(?=\n\n|\Z)", of_all, re.DOTALL)
    return found[0].replace("Cost of all:", "Cost:") if found else ""


def labelled(text: str, names: Mapping[str, Any]) -> Iterator[str]:
    """Paragraphs of a head; what is labelled (Reference, Weakness, Cost) begins a paragraph of its own.

    Lines about parameters, which are in a table of their own, are left out.
    """
    line_of_one = rf"(?m)^({'|'.join(map(re.escape, names)) or '(?!)'}): .*(?:\n {{4,}}.*)*"
    for block in re.sub(line_of_one, "", text).split("\n\n"):
        line = " ".join(block.split())
        places = [match.start() for match in LABEL.finditer(line)]
        for start, end in zip([0, *places], [*places, len(line)], strict=True):
            part = line[start:end].strip()
            if part:
                yield LABEL.sub(lambda found: f"**{found[1]}:**", prose(part), count=1)


def sentences(text: str) -> Iterator[str]:
    for block in text.split("\n\n"):
        yield from re.split(r"(?<=[.])\s+(?=[A-ZΑ-Ω`\"*])", " ".join(block.split()))


def guarantee(text: str) -> list[str]:
    """The sentences of a head that say what is proven, at most three; of a reference what it says of that."""
    found = []
    for one in sentences(text):
        if one.startswith(OF_PROOFS):
            continue
        if re.match("References?:", one):
            said = re.search(r"\(\d{4}[^)]*\)[^:.,;]*[:.,;] (.*)", one) or re.search(r"\d{4}\)[:.,;] (.*)", one)
            one = said[1] if said else ""
        if PROMISE.search(one):
            found.append(one[0].upper() + one[1:])
    return found[:3]


def reference(text: str) -> str:
    """The first work that a head refers to, up to its year; empty where it names none."""
    line = " ".join(text.split())
    found = re.search(r"References?: (.*?\d{4}[^()]*\)|[^.]*)", line)
    return found[1] if found else ""


def said_of_parameters(item: Any, names: Mapping[str, Any]) -> dict[str, str]:
    """What docstrings say of parameters, in lines `name: what it is`."""
    texts = [inspect.getdoc(one) or "" for one in (item.__mro__ if inspect.isclass(item) else [item])]
    module = inspect.getmodule(item)
    texts.append(inspect.cleandoc((module.__doc__ if module else "") or ""))
    texts.append(inspect.getdoc(_lists()) or "")
    found: dict[str, str] = {}
    several = rf"[.;?] +(?=(?:{'|'.join(map(re.escape, names))}): )"
    for text in texts:
        text = re.sub(several, "\n", text)  # several on a line
        for match in re.finditer(r"(?m)^(\w+(?:, \w+)*)(?::|  +) *(.*(?:\n {4,}.*)*)", text):
            for name in re.split(r", ", match[1]):
                if name in names:
                    found.setdefault(name, " ".join(match[2].split()))
    return found


# ----------------------------------------------------------------------------------------------------------- results

UNITS: list[tuple[str, str]] = [
    (r"bounded_slowdown|bsld|slowdown|rho_(max|mean|p95)|_ratio|jain", "ratio"),
    (r"_fraction|attainment|utilisation|allocation|fragmentation|_share$", "share"),
    (r"energy", "J"), (r"^cost", "money"), (r"^gpu_seconds", "GPU s"),
    (r"throughput|goodput|output_rate", "1/s"),
    (r"queue_length|jobs_in_system|^(tasks|completed|rejected|expired|failed|unfinished)$", "tasks"),
    (r"preemptions|migrations", "count"),
    (r"response|wait|makespan|ttft|tpot", "s"),
]  # fmt: skip
"""Unit by the name of a metric; the first pattern that is found counts."""

TASKS = {
    "id": "id of the trace, or the number of the task from 0",
    "class": "class of the workload", "user": "user, empty where there is none",
    "arrival": "time of arrival", "ready": "arrival, or the last predecessor's finish",
    "start": "start of its first stage; missing if it never started",
    "finish": "end of its last stage, or when it was rejected, expired or failed",
    "wait": "start − ready", "response": "finish − arrival, of completed tasks",
    "slowdown": "response / time alone in the fastest mode, transfers included",
    "bounded_slowdown_10s": "max(1, response / max(time alone, 10 s)); the bound is part of the name",
    "device_type": "type of device it ran on last", "device": "first of its devices", "node": "its node",
    "batch": "number of the launch it was part of", "upload": "seconds of uploading", "compute": "seconds of computing",
    "download": "seconds of downloading",
    "held": "response − the time before start − upload − compute − download: queues between stages, suspension, "
            "saving, restoring, lost work",
    "status": "completed, rejected, expired, failed or unfinished", "reason": "why, where it did not complete",
    "preemptions": "stops", "migrations": "moves to other devices or modes",
    "deadline": "absolute deadline; missing where there is none",
    "met_deadline": "completed in time; missing where there is no deadline",
    "energy_j": "joules above idle of its work that counted",
    "cost": "price × share held × time, where the cluster has prices",
    "ttft": "time from arrival to the first token, of requests to language models",
    "tpot": "time per further token", "prompt_tokens": "tokens of the prompt", "output_tokens": "tokens of the answer",
}  # fmt: skip
LAUNCHES = {
    "launch": "number of the launch", "task": "row of its first task in `tasks`", "members": "tasks in it",
    "mode": "mode in which it ran", "device_type": "type of device", "device": "its devices, joined by +",
    "node": "its nodes, joined by +", "decided": "when the policy started it",
    "start": "when its first stage began", "upload_start": "begin of the upload", "upload_end": "end of the upload",
    "compute_start": "begin of computing", "compute_end": "end of computing",
    "download_start": "begin of the download", "end": "when it let go of its devices",
    "outcome": "completed, stopped, lost, failed or running", "busy": "device-seconds computed",
    "lost": "the part of them that did not count", "energy_j": "joules above idle",
    "fill": "tasks in it / most tasks that a launch of this mode may have",
}  # fmt: skip
DEVICES = {
    "device": "name of the device; the cores of a node are one", "type": "its type", "kind": "cpu, gpu or another",
    "node": "its node", "count": "cores, or 1", "busy": "seconds × share in which it computed",
    "allocated": "seconds × share held by launches", "up": "seconds up", "asleep": "seconds asleep",
    "utilisation": "busy / up", "allocation": "allocated / up", "uploading": "seconds of its upload engine",
    "downloading": "seconds of its download engine", "launches": "launches that used it",
    "energy_j": "joules in all", "energy_tasks_j": "of them for work that counted",
    "energy_wasted_j": "for work that was lost", "energy_idle_j": "idle", "energy_sleep_j": "asleep",
    "cost": "price × time up or asleep", "cost_held": "price × share held × time",
}  # fmt: skip
TIMELINE = {
    "time": "from this time on", "waiting": "tasks ready and not running", "running": "tasks in launches",
    "busy_cores": "cores that compute", "busy_gpus": "GPUs that compute, by share",
    "allocated_gpus": "GPUs held, by share", "uploading": "uploads under way", "downloading": "downloads under way",
}  # fmt: skip
TABLES = {"tasks": TASKS, "launches": LAUNCHES, "devices": DEVICES, "timeline": TIMELINE}
ROWS = {"tasks": "task that arrived", "launches": "launch", "devices": "device", "timeline": "change"}


def results_page() -> Iterator[str]:
    """Metrics and columns."""
    from sim.results import metric_sets
    from sim.results.metrics import HIGHER_IS_BETTER, LAZY, NO_DIRECTION, metrics

    yield "# Results"
    yield from generated("the registry of metrics and the tables of a run")
    yield "Times are seconds, sizes bytes, energy joules. A summary covers the tasks that arrive in the window from"
    yield "`warmup` to `horizon`, and device time in it; the tables hold everything. How to read them:"
    yield "[results in pandas](../how-to/results.md); what intervals mean: [statistics](../statistics.md)."
    yield "\n## Metrics\n"
    yield "Those marked *s* are part of every summary; the others are computed where they apply, and when asked for by"
    yield "name (`--metric`). *Better* says which way a comparison names a winner; – for those that have no winner."
    yield ""
    yield from table("metric", "unit", "better", "", "meaning")
    for name, metric in metrics().items():
        better = "–" if name in NO_DIRECTION else "more" if name in HIGHER_IS_BETTER else "less"
        text = inspect.getdoc(metric) or ""
        yield row(code(name), unit(name), better, "" if name in LAZY else "s", prose(text))
    yield "\n## Sets of metrics\n"
    for name in metric_sets.SETS:
        if name != "all":
            yield f"- `{name}`: " + ", ".join(code(one) for one in metric_sets.expanded([name])) + "."
    yield "- `all`: every metric."
    for name, columns in TABLES.items():
        yield f"\n## result.{name}\n"
        yield f"One row a {ROWS[name]}.\n"
        yield from table("column", "meaning")
        yield from (row(code(column), prose(meaning)) for column, meaning in columns.items())
    yield "\nOther columns of `tasks` are those that its trace brought along. The table of a sweep is described in"
    yield "[sweeps](../sweeps.md#the-table)."


def unit(metric: str) -> str:
    """The unit of a metric; KeyError for a name that no pattern knows."""
    for pattern, found in UNITS:
        if re.search(pattern, metric):
            return found
    raise KeyError(metric)


# ---------------------------------------------------------------------------------------------------------- commands


def commands_page() -> Iterator[str]:
    """Every verb with its options, as `--help` has them."""
    yield "# Commands"
    yield from generated("the help texts of the commands")
    yield "Data go to stdout, progress and notes to stderr. Exit codes: 0 done, 1 the run failed, 2 wrong usage,"
    yield "3 invalid scenario, 130 interrupted. `NO_COLOR` is respected."
    for verb, reference in VERBS.items():
        yield from _command(f"hetsim {verb}", registry.load_object(reference), 2)


def _command(name: str, command: click.Command, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f"\n{'#' * level} {name}\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"`{name} {usage}`\n"
    help_text = inspect.cleandoc((command.help or "").replace("\b\n", ""))
    yield from (prose(text) + "\n" for text in help_text.split("\n\n"))
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield from table("option", "meaning")
        for one in options:
            value = "" if one.is_flag or one.count else f" {one.make_metavar(context)}"
            names = ", ".join([*one.opts, *one.secondary_opts])
            yield row(code(names + value), prose(one.help or ""))
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            assert found is not None
            yield from _command(f"{name} {inner}", found, level + 1)


# ------------------------------------------------------------------------------------------------------------ traces


def traces_page() -> Iterator[str]:
    """Readers of traces and node lists, arrival processes."""
    yield "# Traces, node lists, arrivals"
    yield from generated("the registries of trace readers, node lists and arrival processes")
    yield "How to use traces, what each reader leaves out, and what was checked: [traces](../traces.md), for requests"
    yield "[calibrate](../calibrate.md#requests-from-a-trace). A reader of your own:"
    yield "[own trace reader](../how-to/own-trace-reader.md)."
    for kind, heading, label in (
        ("traces", "Trace formats", "trace"), ("clusters", "Formats of node lists", "nodes"),
    ):  # fmt: skip
        yield f"\n## {heading}\n"
        for name, reference in registry.table(kind).items():
            if reference.startswith("sim."):
                yield from _reader(name, registry.load_object(reference), label)
    yield "\n## Arrival processes\n"
    yield "All keys are in [scenario files](scenario.md#poisson-arrivals).\n"
    yield from table("process", "what it is", "keys")
    for name, reference in registry.table("arrivals").items():
        if reference.startswith("sim."):
            item = registry.load_object(reference)
            yield row(code(name), prose(summary(item)), ", ".join(code(key) for key in parameters("arrivals", item)))


def _reader(name: str, item: Callable[..., Any], label: str) -> Iterator[str]:
    yield f"\n### {name}\n"
    text = inspect.cleandoc(item.__doc__ or "")
    yield from (prose(block) + "\n" for block in text.split("\n\n"))
    given = parameters(label, item)
    module = inspect.cleandoc(inspect.getmodule(item).__doc__ or "")  # type: ignore[union-attr]
    for block in module.split("\n\n")[1:]:
        if not block.startswith("    "):
            yield prose(block) + "\n"
    yield "Keys: " + ", ".join(code(key if default is None else f"{key}: {default}") if default != "" else code(key)
                               for key, default in given.items()) + "."  # fmt: skip


def main(arguments: list[str]) -> int:
    stale = []
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in arguments:
        print(f"{', '.join(stale)}: not what docs/make_reference.py writes now; run it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
