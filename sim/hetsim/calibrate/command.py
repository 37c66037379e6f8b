"""`hetsim calibrate`: measure a device, and check the profile under load."""

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hetsim.calibrate.nccl import nccl
from hetsim.cli import console
from hetsim.cli.options import FILE, FOLDER, JSON, PATH, QUIET
from hetsim.cli.program import Verbs
from hetsim.errors import Problem, ScenarioError, UsageError
from hetsim.report import terminal

if TYPE_CHECKING:
    from hetsim.calibrate.measure import MeasuredDevice, MeasuredStages
    from hetsim.calibrate.verify import VerifiedRow

DEFAULT_BATCHES = "1,2,4,8,16,32,64"
MAX_BATCH = 1_000_000
OBSERVED = ("observe", "scenario", "unit", "rows", "out", "name", "force", "as_json", "quiet")  # options of --observe
LOADS = (0.3, 0.7)  # shares of the profile's capacity at which --verify drives the device, without --rate


@click.group(cls=Verbs, invoke_without_command=True, subcommand_metavar="[COMMAND]",
             short_help="Measure this machine's device and write profiles for scenarios.")  # fmt: skip
@click.option("--model", metavar="MODULE:FACTORY",
              help="A function without arguments that returns a PyTorch module or a device.")  # fmt: skip
@click.option("--from", "tables", multiple=True, metavar="[SIZE=]FILE",
              help="Use files measured elsewhere (repeatable) instead of measuring.")  # fmt: skip
@click.option("--batch", metavar="COLUMN", help="With --from: column of batch sizes.  [default: by its name]")
@click.option("--time", "time_", metavar="COLUMN", help="With --from: column of times.  [default: by its name]")
@click.option("--unit", metavar="UNIT", help="With --from, --observe: unit of times whose column names none.")
@click.option("--where", "rows", multiple=True, metavar="COLUMN=VALUE",
              help="With --from, --observe: rows to use (repeatable).")  # fmt: skip
@click.option("--samples", is_flag=True, help="With --from: rows of the same size are samples; use their mean.")
@click.option("--as", "shape", type=click.Choice(["line", "broken-line", "powers", "table"]),
              help="With --from: the shape of the times; replaces the choice by cross-validation.")  # fmt: skip
@click.option("--server", "scenario", type=FILE, metavar="YAML",
              help="With --from, --observe: a scenario of the server whose requests were measured.")  # fmt: skip
@click.option("--observe", multiple=True, type=FILE, metavar="LOG",
              help="Narrow the interval of the engine of --server with a log or summary (repeatable).")  # fmt: skip
@click.option("--batches", default=DEFAULT_BATCHES, show_default=True, metavar="N,N,...",
              help="Batch sizes to measure.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(3, 10_000), default=15, show_default=True,
              help="Measurements per batch size.")  # fmt: skip
@click.option("--device", "where", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True,
              help="Device that a PyTorch module runs on.")  # fmt: skip
@click.option("--out", type=FOLDER, default=Path("."), metavar="DIR",
              help="Folder for the profiles.  [default: the current one]")  # fmt: skip
@click.option("--name", metavar="NAME",
              help="Name of the profiles: NAME.service.yaml, NAME.link.yaml.  [default: the factory's]")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace profiles that exist.")
@click.option("--verify", "profile", type=PATH, metavar="PROFILE",
              help="Compare a profile with requests sent to the device, or with logs (--from).")  # fmt: skip
@click.option("--rate", "rates", multiple=True, type=click.FloatRange(0, min_open=True),
              help="Requests per second with --verify (repeatable).  [default: 30 % and 70 % of the capacity]")
@click.option("--seconds", type=click.FloatRange(0, 3600, min_open=True), default=5.0, show_default=True,
              help="Duration of each rate with --verify.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of arrivals with --verify.")
@JSON
@QUIET
@click.pass_context
def calibrate(
    context: click.Context,
    model: str | None, tables: tuple[str, ...], batch: str | None, time_: str | None, unit: str | None,
    rows: tuple[str, ...], samples: bool, shape: str | None, scenario: Path | None, observe: tuple[Path, ...],
    batches: str, repeats: int, where: str, out: Path, name: str | None, force: bool, profile: Path | None,
    rates: tuple[float, ...], seconds: float, seed: int, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Measure uploads, computing and downloads of batches on this machine.

    Fits the linear model per_item · n + fixed to each stage and writes a service profile and a link profile, which
    scenarios include: service: {profile: NAME.service.yaml}, pcie: {profile: NAME.link.yaml}.

    With --from FILE nothing is measured: a line, a line with a break and a table are fitted to the times in the file,
    compared by cross-validation, and the best is written as a service profile. For language models FILE is a profile of
    steps (columns prompt_size, batch_size, token_size, prompt_time, token_time), a log of requests (arrival,
    prompt_tokens, output_tokens, ttft or first_token, latency or end), or the JSON summary of vLLM's benchmark,
    GenAI-Perf or inference-perf. Logs and summaries need the server as a scenario (--server); several of them are
    fitted together.

    `hetsim calibrate nccl FILE` turns output of nccl-tests into the curve of a link.
    """
    given = [one for one in context.params if context.get_parameter_source(one) is ParameterSource.COMMANDLINE]
    if context.invoked_subcommand is not None:
        if given:
            raise click.UsageError(f"options must follow {context.invoked_subcommand}, not precede it")
        return
    from hetsim.model.units import TIME

    if (model is not None) + bool(tables) + bool(observe) != 1:
        raise click.UsageError("give one of --model (measure here), --from (times measured elsewhere) and --observe")
    if unit is not None and unit not in TIME:
        raise click.UsageError(f"--unit must be one of {', '.join(TIME)}; got {unit}")
    if observe:
        from hetsim.calibrate import llm_command

        if unused := [one.opts[0] for one in context.command.params if one.name in given and one.name not in OBSERVED]:
            raise click.UsageError(f"{unused[0]} has no effect with --observe; leave it out")
        target = llm_command.profile_path(out, name or observe[0].stem, "service", force)
        llm_command.observe(observe, unit, _picked(rows), scenario, target=target, as_json=as_json, quiet=quiet)
        return
    if model is None:
        _from_tables(tables, batch, time_, unit=unit, rows=rows, samples=samples, shape=shape, scenario=scenario,
                     out=out, name=name, force=force, profile=profile, as_json=as_json, quiet=quiet)  # fmt: skip
        return
    from hetsim.calibrate.llm_command import profile_path

    sizes = _sizes(batches)
    if profile is not None:
        service, checked = _profile(profile)
        _verify(load_device(model, where), profile, service, service=checked, rates=list(rates), seconds=seconds,
                seed=seed, as_json=as_json, quiet=quiet)  # fmt: skip
        return
    name = name or model.partition(":")[2]
    targets = [profile_path(out, name, kind, force) for kind in ("service", "link")]
    _measure(load_device(model, where), sizes, repeats, targets=targets, as_json=as_json, quiet=quiet)


calibrate.add_command(nccl)


def _from_tables(
    tables: tuple[str, ...], batch: str | None, time: str | None, unit: str | None, rows: tuple[str, ...],
    samples: bool, shape: str | None, scenario: Path | None, out: Path, name: str | None, force: bool,
    profile: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    from hetsim.calibrate import llm_command as language
    from hetsim.calibrate import tables as read
    from hetsim.calibrate.measure import from_elsewhere
    from hetsim.calibrate.shapes import shaped

    files = [_sized(text) for text in tables]
    target = language.profile_path(out, name or files[0][1].stem, "service", force or profile is not None)
    wanted = None if shape is None else shape.replace("-", " ")
    kind = language.kind_of(files[0][1])
    if kind in ("log", "steps", "summary"):
        if any(size is not None or language.kind_of(path) != kind for size, path in files) or (
            kind == "steps" and len(files) > 1
        ):
            raise click.UsageError("--from must name either one profile of steps, or logs, or summaries of one server")
        if shape is not None and kind != "steps":
            raise click.UsageError("--as is for measured steps; leave it out with logs and summaries of requests")
        if kind != "steps":
            language.logs([path for _, path in files], unit, _picked(rows), scenario=scenario, target=target,
                          profile=profile, as_json=as_json, quiet=quiet)  # fmt: skip
            return
    if profile is not None:
        raise click.UsageError("--verify with --from compares a profile with logs or summaries of requests")
    if scenario is not None:
        text = "--server is for logs and summaries of requests of language models"
        raise click.UsageError(f"{text}; {files[0][1]} is neither: it lacks their columns")
    if kind == "steps":
        language.steps(files[0][1], unit, _picked(rows), shape=wanted, target=target, as_json=as_json, quiet=quiet)
        return
    if shape == "powers":
        raise click.UsageError("--as powers is for the steps of language models; leave it out")
    if kind == "perf":
        elsewhere = read.perf_analyzer(files)
    elif len(files) > 1 or files[0][0] is not None:
        raise click.UsageError("--from SIZE=FILE and several --from are for files of perf_analyzer; give one table")
    else:
        elsewhere = read.table(files[0][1], batch, time, unit=unit, where=_picked(rows), samples=samples)
    stages = {stage: shaped(tuple(times), tuple(times.values()), wanted) for stage, times in elsewhere.stages.items()}
    made = from_elsewhere(elsewhere.what, stages)
    few = ", ".join(name for name, one in stages.items() if not one.judged)
    unjudged = [f"{few}: three or more sizes are needed to validate the fit by leaving one out"] if few else []
    remarks = [*elsewhere.remarks, *unjudged, *_falling(elsewhere.stages)]
    language.report(elsewhere.what, stages, made, remarks=remarks, target=target, as_json=as_json, quiet=quiet)


def _sized(text: str) -> tuple[int | None, Path]:
    size, sign, rest = text.partition("=")
    number = int(size) if sign and size.isdecimal() and int(size) > 0 else None
    path = Path(rest if number is not None else text)
    if not path.is_file():
        raise ScenarioError(Problem("the file does not exist", file=str(path)))
    return number, path


def _picked(rows: tuple[str, ...]) -> dict[str, str]:
    wanted_values = {}
    for text in rows:
        column, sign, value = text.partition("=")
        if not sign or not column:
            raise click.UsageError(f'--where must be COLUMN=VALUE; got "{text}"')
        wanted_values[column] = value
    return wanted_values


def _falling(stages: dict[str, dict[int, float]]) -> list[str]:
    from hetsim.model.batch_times import StageTable
    from hetsim.scenario.schema.batch_tables import remarks

    tables = {name: StageTable(tuple(times), tuple(times.values())) for name, times in stages.items()}
    return [text for name, table in tables.items() for text in remarks(table, name, False)]


def _sizes(text: str) -> list[int]:
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.UsageError(f'--batches must be whole numbers such as {DEFAULT_BATCHES}; got "{text}"') from None
    if any(not 1 <= size <= MAX_BATCH for size in sizes):
        raise click.UsageError(f"--batches must be sizes from 1 to {MAX_BATCH:,}; got {text}")
    if any(b <= a for a, b in zip(sizes, sizes[1:], strict=False)):
        raise click.UsageError(f"--batches must be strictly increasing; got {text}")
    if len(sizes) < 2:
        raise click.UsageError(f"--batches must be two or more sizes, to separate the fixed cost; got {text}")
    return sizes


def _measure(
    device: "MeasuredDevice", sizes: list[int], repeats: int, targets: list[Path], as_json: bool, quiet: bool
) -> None:
    from hetsim.calibrate.llm_command import write_profile
    from hetsim.calibrate.measure import link_profile, measure, service_profile

    stages = measure(device, sizes, repeats, tell=lambda text: console.note(text, quiet))
    profiles = [service_profile(stages), link_profile(stages)]
    console.result(as_json, lambda: {"service": profiles[0], "link": profiles[1]}, lambda: _table(stages))
    console.warnings(stages.remarks, quiet)
    for target, profile in zip(targets, profiles, strict=True):
        if profile is not None:
            write_profile(target, profile, quiet)


def _table(found: "MeasuredStages") -> list[str]:
    rows = [["stage (ms)", *map(str, found.batches), "per item", "fixed", "worst fit"]]
    for name, line in found.lines.items():
        medians = [f"{1e3 * value:.4g}" for value in found.medians[name]]
        rows.append([name, *medians, f"{1e3 * line.per_item:.4g}", f"{1e3 * line.fixed:.4g}", f"{line.worst:.1%}"])
    if found.overlapped:
        rows.append(["two streams", *(f"{1e3 * value:.4g}" for value in found.overlapped), "", "", ""])
    return [found.device.name, "", *terminal.table(rows, right=range(1, len(rows[0])))]


def _profile(path: Path) -> tuple[dict[str, Any], Any]:
    from pydantic import ValidationError

    from hetsim.scenario.file import document
    from hetsim.scenario.file.problems import translate
    from hetsim.scenario.schema.service import ServiceSpec

    read = document.read(path, "a profile")
    service = read.data.get("service")
    if not isinstance(service, dict) or "compute" not in service:
        text = "has no section `service:` with `compute`; compare a language model with --verify PROFILE --from LOG"
        raise ScenarioError(Problem(text, file=str(path)))
    try:
        return read.data, ServiceSpec.model_validate(service)
    except ValidationError as error:
        raise ScenarioError(translate(error, read, ServiceSpec, ("service",))) from None


def _verify(
    device: "MeasuredDevice", path: Path, data: dict[str, Any], service: Any, rates: list[float], seconds: float,
    seed: int, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    from hetsim.calibrate.verify import ServiceProfile, verify

    about = data.get("measured")
    name = about.get("device") if isinstance(about, dict) else None
    if name is not None and name != device.name:
        console.warnings([f"{path} was measured on {name}, but the device here is {device.name}"], quiet)
    if (service.device == "cpu") != (device.kind == "cpu"):
        device_type = service.device or "gpu"
        raise click.UsageError(f"{path} is a profile of a {device_type}, but the model runs on a {device.kind}")
    profile = ServiceProfile.from_service(service)
    wanted = rates or [share * profile.capacity for share in LOADS]
    rows = verify(device, data["service"], profile, rates=wanted, seconds=seconds, seed=seed,
                  tell=lambda text: console.note(text, quiet))  # fmt: skip
    console.result(as_json, lambda: [
        {"policy": row.policy, "rate": row.rate, "requests": len(row.measured), "error": row.error}
        | {name: {"measured": there, "simulated": here} for name, there, here in row.figures()}
        for row in rows
    ], lambda: _compared(device, rows))  # fmt: skip


def _compared(device: "MeasuredDevice", rows: "list[VerifiedRow]") -> list[str]:
    table = [["policy", "rate", "", "mean ms", "p50 ms", "p99 ms", "requests/s"]]
    for row in rows:
        figures = row.figures()
        for what, values in (("measured", [one[1] for one in figures]), ("simulated", [one[2] for one in figures])):
            cells = [f"{1e3 * value:.4g}" for value in values[:3]] + [f"{values[3]:.4g}"]
            table.append([row.policy, f"{row.rate:.4g}/s", what, *cells])
        errors = [f"{one[2] / one[1] - 1:+.1%}" for one in figures]
        table.append(["", "", "difference", *errors])
    return [device.name, "", *terminal.table(table, right=range(3, 7))]


FORM = "package.module:factory, such as hetsim.calibrate.example:network"


def load_device(reference: str, where: str = "auto") -> "MeasuredDevice":
    """Return the device made by `MODULE:FACTORY`; a PyTorch module runs on `where`."""
    from hetsim.calibrate.measure import MeasuredDevice

    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute.isidentifier():
        raise UsageError(f'--model must be {FORM}; got "{reference}"')
    try:
        device = _factory(module_name, attribute)()
    except Exception as error:
        raise UsageError(f"--model {reference} failed: {type(error).__name__}: {error}") from error
    if (torch := sys.modules.get("torch")) is not None and isinstance(device, torch.nn.Module):
        from hetsim.calibrate.torch_device import device_of

        try:
            return device_of(device, where)
        except Exception as error:
            raise UsageError(f"--model {reference}: {type(error).__name__}: {error}") from error
    if isinstance(device, MeasuredDevice):
        return device
    what = "a PyTorch module, or an object with upload, compute and download (hetsim.calibrate.measure.MeasuredDevice)"
    raise UsageError(f"--model {reference} must return {what}; got a {type(device).__name__}")


def _factory(module_name: str, attribute: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does: a module next to one's scenario can be named
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise UsageError("measuring a PyTorch module needs PyTorch: pip install 'hetsim[calibrate]'") from None
        raise UsageError(f'--model: there is no module "{error.name}"; --model must be {FORM}') from None
    except Exception as error:
        raise UsageError(f"--model: {module_name} cannot be imported: {type(error).__name__}: {error}") from error
    made = getattr(module, attribute, None)
    if not callable(made):
        what = "is not a function" if hasattr(module, attribute) else "does not exist"
        raise UsageError(f"--model: {attribute} {what} in {module_name}; --model must be {FORM}")
    return made
