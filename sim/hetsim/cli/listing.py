"""`hetsim list`, `hetsim new`: list names for scenarios; create a scenario folder."""

import inspect
import math
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import click

from hetsim import registry
from hetsim.cli import console
from hetsim.cli.options import FOLDER, JSON, QUIET, VERBOSITY
from hetsim.registry import POLICY_KINDS, load_object
from hetsim.report.terminal import padded, table, width, wrapped

KINDS = {
    "log": "a log of jobs with columns of its own, and the cluster that it is replayed on",
    "serving": "a service that answers requests in batches, with a latency target",
    "language-model": "a server of a language model, from published figures",
    "graph": "kernels that wait for each other, on cores and a GPU",
    "policy": "a scheduling policy of your own in Python, with its test",
}
README = "README.md"


@click.command(short_help="Make a new scenario folder: a scenario, its files, and the next commands.")
@click.argument("folder", metavar="FOLDER", type=FOLDER)
@click.option("--kind", type=click.Choice(list(KINDS)), help="Contents of the folder; without it the kinds are listed.")
@QUIET
@VERBOSITY
def new(folder: Path, kind: str | None, quiet: bool) -> None:
    """Make a new scenario folder: a scenario, its files, and a README.

    FOLDER must be new or empty.
    """
    from hetsim.results.one_run.store import write_directory
    from hetsim.scenario.file.shipped import template

    if kind is None:
        listed = "\n".join(table([["  --kind " + name, text] for name, text in KINDS.items()]))
        raise click.UsageError(f"state which template to write to {folder}:\n{listed}")
    if folder.is_symlink() or (folder.is_dir() and any(folder.iterdir())):
        raise click.UsageError(f"{folder} must be an empty or new folder; nothing was written")
    files = template(kind)

    def write(target: Path) -> None:
        for file in files:
            shutil.copyfile(file, target / file.name)

    write_directory(folder, write, mark=README)
    console.lines([f"{folder / file.name}" for file in files])
    console.note(f"next: the commands in {folder / README}", quiet)


LISTS = ("policies", "scenarios", "metrics", "traces", "clusters", "arrivals", "models", "support")
SUPPORT = "hetsim.silicon.engines:support"  # measured steps of a model on a GPU, by engine
# displayed kind of the entries in a table of the registry
REGISTERED = {"traces": "trace", "clusters": "nodes", "arrivals": "arrivals"}


@click.command("list", short_help="List policies, scenarios, metrics, trace formats, models and GPUs, ...")
@click.argument("what", metavar="|".join(LISTS), type=click.Choice(LISTS))
@click.option("--kind", type=click.Choice(POLICY_KINDS), help="List only policies of this kind.")
@click.option("--model", metavar="NAME", help="With support: the language model, a name or {...} as in scenarios.")
@click.option("--gpu", metavar="NAME", help="With support: the GPU.")
@JSON
@VERBOSITY
def list_(what: str, kind: str | None, model: str | None, gpu: str | None, as_json: bool) -> None:
    """List the names that scenarios and commands take, with their parameters.

    `list support` prints how reliable step times of a model on a GPU are, by engine (service: {engine: ...}) and GPUs
    of a node: measured (on servers with this model and GPU), transferred (from other GPUs' servers, and kernels of this
    GPU) or guessed (no measured model of this family and size, number format or GPU), with the errors of measured
    servers.
    """
    if (what == "support") != (model is not None and gpu is not None) or (model is None) != (gpu is None):
        raise click.UsageError("support needs --model and --gpu (see `hetsim list models`); no other list has them")
    if kind is not None and what != "policies":
        raise click.UsageError(f"--kind is for policies only; got it with {what}")
    if what == "policies":
        kinds = POLICY_KINDS if kind is None else [kind]
        named = [(one, name) for one in kinds for name in registry.policies(one)]
        listed = [_row(one, name, partial(registry.policy, one, name)) for one, name in named]
    elif what == "support":
        listed = _support(_model(str(model)), str(gpu))
    elif what in REGISTERED:
        listed = [_row(REGISTERED[what], name, partial(registry.entry, what, name)) for name in registry.table(what)]
    else:
        listed = {"scenarios": _scenarios, "metrics": _metrics, "models": _models}[what]()
    if as_json:
        console.as_json(listed)
    elif not listed:
        console.note(f"there are no {what}" + (f" of kind {kind}" if kind else ""))
    else:
        console.lines(_text(listed))


def _model(text: str) -> Any:
    from pydantic import TypeAdapter, ValidationError

    from hetsim.scenario.file.document import parse_value
    from hetsim.scenario.schema.steps import Weights
    from hetsim.workload.costs.architectures import Architecture, model

    value = parse_value(text)
    if isinstance(value, str) and value[:1].isalpha():
        return model(value)
    try:
        read = TypeAdapter(Weights).validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise click.UsageError(f"--model {text}: {message}") from None
    if not isinstance(read, Architecture):
        raise click.UsageError(f"--model must be a name or {{config: config.json}}; got {text}, a number of bytes")
    return read


def _support(model: Any, gpu: str) -> list[dict[str, Any]]:
    from hetsim.scenario.schema.language_model import FILLED, OF_THE_REST
    from hetsim.workload.costs.roofline import device

    rows, memory = load_object(SUPPORT)(model, gpu), device(gpu).memory or math.inf
    for row in rows:  # of numbers of GPUs that double: only the smallest can need more than the default share
        share = model.bytes / (memory * row["gpus"][0])
        of_rest = row["name"].startswith(OF_THE_REST)
        if row["kind"] != "none" and not of_rest and share > next(iter(FILLED.values())):
            needed = f"{math.ceil(1000 * share) / 10:g}%"
            row["summary"] += f"; on {row['gpus'][0]} × {gpu} the weights need memory_share: {needed}"
    return list(rows)


def _scenarios() -> list[dict[str, Any]]:
    from hetsim.scenario.file.shipped import shipped

    return [{"name": one.name, "kind": one.theme, "summary": one.description} for one in shipped()]


def _metrics() -> list[dict[str, Any]]:
    from hetsim.results.formatting import unit_of
    from hetsim.results.one_run.metrics import metrics

    return [{"name": name, "kind": unit_of(name), "summary": summary(metric)} for name, metric in metrics().items()]


def _models() -> list[dict[str, Any]]:
    from hetsim.workload.costs.architectures import MODELS
    from hetsim.workload.costs.roofline import DEVICES

    rows = []
    for name, one in MODELS.items():
        sizes = f"{one.parameters / 1e9:.4g} billion weights, {one.bytes / 1e9:.4g} GB {one.number_format.of_weights}"
        if one.experts > 1:
            sizes += f", {one.active_parameters / 1e9:.4g} billion a token"
        text = f"{sizes}; {one.layers} layers; {one.bytes_per_token / 1e3:.4g} kB of keys and values a token"
        rows.append({"name": name, "kind": "model", "summary": text})
    for name, gpu in DEVICES.items():
        if gpu.matrix_flops is None:
            continue
        memory = "" if gpu.memory is None else f"{gpu.memory / 1e9:g} GB, "
        link = "" if gpu.link is None else f", {gpu.link / 1e9:g} GB/s to its neighbors"
        text = f"{memory}{gpu.bandwidth / 1e9:,.4g} GB/s, {gpu.matrix_flops / 1e12:,.4g} TFLOP/s in 16 bits{link}"
        rows.append({"name": name, "kind": "gpu", "summary": text})
    return rows


def _row(kind: str, name: str, load: Any) -> dict[str, Any]:
    try:
        item = load()
    except Exception as problem:  # another package's entry point may be broken: say so next to the name
        return {"name": name, "kind": kind, "summary": f"cannot be loaded: {problem}", "parameters": {}}
    return {"name": name, "kind": kind, "summary": summary(item), "parameters": parameters(kind, item)}


def summary(item: Any) -> str:
    """Return the first sentence of an item's own docstring; without one, its module's."""
    # `__doc__` itself: inspect.getdoc would give a base class's.
    text = item.__doc__ if isinstance(getattr(item, "__doc__", None), str) else None
    if not text or (inspect.isclass(item) and any(text == base.__doc__ for base in item.__mro__[1:])):
        module = inspect.getmodule(item)
        text = (module.__doc__ if module else None) or ""
    paragraph = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    end = paragraph.find(". ")
    return paragraph if end < 0 else paragraph[: end + 1]


def parameters(kind: str, item: Any) -> dict[str, Any]:
    """Return parameter -> default as text; None if the parameter is required."""
    if (fields := getattr(item, "model_fields", None)) is not None:
        return {
            info.alias or name: None if info.is_required() else _default(info.get_default(call_default_factory=True))
            for name, info in fields.items()
            if name != "process"
        }
    if kind in ("trace", "nodes"):
        parameters = dict(inspect.signature(item).parameters)
    elif kind == "scheduler" and not inspect.isclass(item):
        from hetsim.policy.lists import ListScheduler

        # An order key is scheduled by the list scheduler; the user may set its other parameters.
        parameters = {name: p for name, p in registry.parameters(ListScheduler).items() if name != "order"}
    else:
        parameters = registry.parameters(item)
    return {name: None if p.default is p.empty else _default(p.default) for name, p in parameters.items()}


def _default(value: Any) -> str:
    text = "" if value is None else str(value)
    return text.lower() if isinstance(value, bool) else text


_HEADINGS = {
    "scheduler": "schedulers", "placement": "placements", "admission": "admission policies",
    "batching": "batching policies", "routing": "routing policies", "scale": "scaling policies",
    "eviction": "eviction policies", "predictor": "predictors",
    "model": "language models (service: {kind: llm, model: NAME})", "gpu": "GPUs (service: {kind: llm, gpu: NAME})",
    "tasks": "numbers of tasks", "s": "times, in seconds", "share": "shares, from 0 to 1", "ratio": "ratios",
    "1/s": "rates, per second", "J": "energy, in joules", "money": "cost, in the money of the prices",
    "GPU s": "GPU time, in GPU-seconds", "count": "counts", "tokens": "numbers of tokens", "B": "memory, in bytes",
    "trace": "trace formats", "nodes": "formats of node lists", "arrivals": "arrival processes",
}  # fmt: skip


def _text(rows: list[dict[str, Any]]) -> list[str]:
    column = max(width(row["name"]) for row in rows)
    lines: list[str] = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        lines += [*([""] if lines else []), _HEADINGS.get(kind, kind)]
        for row in (row for row in rows if row["kind"] == kind):
            texts = wrapped(row["summary"], max(40, 106 - column)) or [""]
            if given := row.get("parameters"):
                texts += wrapped("parameters: " + ", ".join(_parameter(*pair) for pair in given.items()), 106 - column)
            names = [row["name"], *[""] * (len(texts) - 1)]
            lines += [f"  {padded(n, column, False)}  {text}".rstrip() for n, text in zip(names, texts, strict=True)]
    return lines


def _parameter(name: str, default: str | None) -> str:
    """Return a parameter as `list` shows it.

    `path`: it is required; `window=0.0`: it has this default; `[placement]`: it is optional.
    """
    return name if default is None else f"{name}={default}" if default else f"[{name}]"
