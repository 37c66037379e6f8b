"""`hetsim calibrate --from` for language models: step profiles, request logs."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hetsim.calibrate import request_log, step_profile, tables
from hetsim.cli import console
from hetsim.errors import ScenarioError
from hetsim.experiment.directory import folder_name
from hetsim.model.files import write_text, write_whole
from hetsim.report import terminal
from hetsim.scenario.file.document import dump
from hetsim.workload.mapped.picked_columns import PickedColumns
from hetsim.workload.mapped.propose import form_of
from hetsim.workload.mapped.rows import rows_of

if TYPE_CHECKING:
    from hetsim.calibrate.server_log import Figure, Fitted, Server
    from hetsim.calibrate.shapes import Shaped


def kind_of(path: Path) -> str | None:
    """Return the kind of a file: `steps`, `log`, `summary`, `perf`, or None (a table)."""
    if path.suffix == ".json":
        return "summary"
    try:
        names = rows_of(path, form_of(path)).names
    except ScenarioError:
        return None
    columns = PickedColumns.bare(list(names))
    for kind, needed in (("log", request_log.NEEDED), ("steps", step_profile.NEEDED)):
        if all(any(one in columns for one in wanted) for wanted in needed):
            return kind
    return "perf" if tables.PERF in names else None


def steps(
    path: Path, unit: str | None, where: dict[str, str], shape: str | None, target: Path, as_json: bool, quiet: bool
) -> None:  # fmt: skip
    """Fit a step profile (`step_profile`); write it and print cross-validated errors."""
    fitted = step_profile.fit(str(path), step_profile.read(path, unit, where), shape)
    stages = {"prefill": fitted.prefill, "decode": fitted.decode}
    report(fitted.what, stages, step_profile.profile(fitted), remarks=fitted.remarks, target=target, as_json=as_json,
           quiet=quiet)  # fmt: skip


def report(
    what: str, stages: "dict[str, Shaped]", profile: dict[str, Any], remarks: list[str], target: Path, as_json: bool,
    quiet: bool,
) -> None:  # fmt: skip
    """Print the errors of all curves fitted to each stage's times; write the profile."""
    errors = {
        name: {
            "chosen": one.chosen, "worst_deviation": one.off,
            "shapes": {j.shape: {"error": j.error, "worst": j.worst, "worst_size": j.worst_size} for j in one.judged},
        }
        for name, one in stages.items()
    }  # fmt: skip
    console.result(as_json, lambda: {"profile": profile, "cross_validation": errors},
                   lambda: _judged_lines(what, stages))  # fmt: skip
    console.warnings(remarks, quiet)
    write_profile(target, profile, quiet)


def logs(
    paths: list[Path], unit: str | None, where: dict[str, str], scenario: Path | None, target: Path,
    profile: Path | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Fit a server to request logs or summaries; write its profile, print its errors.

    profile: a file with the service; it is compared with the requests, and nothing is fitted or written.
    """
    from hetsim.calibrate import server_log
    from hetsim.calibrate.server_log import service_of
    from hetsim.silicon import engines

    servers = _servers(paths, unit, where, scenario=scenario, profile=profile)
    count = sum(len(one.log) for one in servers)
    if profile is not None:
        figures = server_log.verified(servers)
        console.result(as_json, lambda: {"profile": str(profile), "figures": _by_name(figures)},
                       lambda: [str(profile), "", *_table(f"all {count:,} requests", figures)])  # fmt: skip
        return
    fitted = server_log.fit(servers, tell=lambda text: console.note(text, quiet))
    what = ", ".join(map(str, paths))
    service = service_of(servers[0].path)
    if (engine := service.pop("engine", None)) is not None:  # whose place the fitted steps take
        service = {**engines.defaults(engine), **service}
    given = dict(service.get("step") or {})
    step = _shown(fitted.step)
    if "roofline" in step:
        old = given.get("roofline")
        step = {**given, **step, "roofline": {**(old if isinstance(old, dict) else {}), **step["roofline"]}}
    elif "decode" not in step:
        step = {**given, **step}
    interval = {"interval": fitted.interval} if fitted.interval else {}
    made = {
        "service": {**service, "step": step, "front_end": _value("front_end", fitted.front_end), **interval},
        "measured": {"from": what, "held_back": fitted.held_back,
                     "errors": {figure.name: round(figure.error, 4) for figure in fitted.figures}},
    }  # fmt: skip
    console.result(as_json, lambda: {
        "profile": made, "held_back": fitted.held_back, "figures": _by_name(fitted.figures),
    }, lambda: _held_back(what, count, fitted))  # fmt: skip
    write_profile(target, made, quiet)


def _servers(
    paths: Sequence[Path], unit: str | None, where: dict[str, str], scenario: Path | None, profile: Path | None = None
) -> "list[Server]":
    """Return the server with each log or summary; UsageError if models differ."""
    from hetsim.calibrate.server_log import Server
    from hetsim.calibrate.summaries import SummaryServer

    if scenario is None:
        raise click.UsageError("logs and summaries need --server YAML: a scenario with its model, GPUs and batching")
    if len({path.resolve() for path in paths}) < len(paths):
        raise click.UsageError(f"each log or summary counts as a run; give it once: {', '.join(map(str, paths))}")
    summaries = {path for path in paths if kind_of(path) == "summary"}
    if summaries and (unit is not None or where):
        raise click.UsageError("--unit and --where are for tables; a summary of a load generator has its own units")
    servers = [
        SummaryServer(scenario, path, profile) if path in summaries else
        Server(scenario, request_log.read(path, unit, where), service=profile) for path in paths
    ]  # fmt: skip
    models = {one.log.model: one.log.path for one in servers if one.log.model}
    if len(models) > 1:
        (name, first), (other, second), *_ = models.items()
        text = f"{first} has requests to {name}, and {second} to {other}"
        raise click.UsageError(f"{text}; logs that are fitted together are of one server: fit each model alone")
    return servers


def _by_name(figures: "list[Figure]") -> dict[str, dict[str, float]]:
    return {one.name: {"measured": one.measured, "simulated": one.simulated} for one in figures}


def _table(judged: str, figures: "list[Figure]") -> list[str]:
    rows = [[one.name, f"{one.measured:.4g} s", f"{one.simulated:.4g} s", f"{one.error:+.1%}"] for one in figures]
    return terminal.table([[judged, "measured", "simulated", "error"], *rows], right=range(1, 4))


def observe(
    paths: tuple[Path, ...], unit: str | None, where: dict[str, str], scenario: Path | None, target: Path,
    as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Narrow an engine's error interval with logs or summaries; write a profile."""
    from hetsim.calibrate import server_log
    from hetsim.calibrate.server_log import service_of

    servers = _servers(paths, unit, where, scenario=scenario)
    (prior, posterior), what = server_log.observed(servers), ", ".join(map(str, paths))
    before, after = ([round(one.low, 6), round(one.high, 6)] for one in (prior, posterior))
    service = {**service_of(servers[0].path), **({} if posterior is prior else {"interval": after})}
    profile = {"service": service, "measured": {"from": what, "interval_before": before}}
    console.result(as_json, lambda: profile, lambda: [f"before: steps take, {prior}", f"after:  {posterior}"])
    if posterior is prior:
        console.warnings([f"the interval is unchanged: {what} has fewer than 10 answers of several tokens"], quiet)
    if not before[0] <= after[1] or not after[0] <= before[1]:
        text = f"the intervals before and after {what} do not overlap"
        console.warnings([f"{text}; does {scenario} describe its server?"], quiet)
    write_profile(target, profile, quiet)


def _value(name: str, value: float) -> Any:
    if name in ("memory", "compute"):
        return round(value, 4)
    return f"{1e6 * value:.6g} us" if value < 1e-3 else f"{1e3 * value:.6g} ms"


def _shown(step: dict[Any, Any]) -> dict[Any, Any]:
    shown = {
        name: _shown(value) if isinstance(value, dict) else value if isinstance(value, bool) else _value(name, value)
        for name, value in step.items()
    }
    if "decode" in step:
        shown["fixed"] = _value("fixed", step["fixed"] * (1 - 1e-5))
    return shown


def _held_back(what: str, requests: int, found: "Fitted") -> list[str]:
    import yaml

    judged = f"last {found.held_back:,} of {requests:,} requests" if found.held_back else f"all {requests:,} requests"
    constant = _value("front_end", found.front_end)
    step = yaml.safe_dump(_shown(found.step), default_flow_style=True, sort_keys=False, width=10_000).strip()
    fitted_step = f"step: {step}, front_end: {constant}"
    tried = f"{found.trials} trials; mean error on the requests fitted {found.fitted_error:.1%}"
    if found.interval:
        tried += "; 90 %: steps take at least {:.3f}, at most {:.3f} times as long".format(*found.interval)
    return [what, "", *_table(judged, found.figures), "", fitted_step, tried]


def _judged_lines(what: str, stages: "dict[str, Shaped]") -> list[str]:
    rows = [["stage", "shape", "error on sizes left out", "worst", "at", ""]]
    for name, one in stages.items():
        for judged in one.judged:
            chosen = f"chosen; off by up to {one.off:.1%}" if judged.shape == one.chosen else ""
            errors = [f"{judged.error:.1%} ± {judged.standard_error:.1%}", f"{judged.worst:.1%}"]
            rows.append([name, judged.shape, *errors, f"{judged.worst_size:,}", chosen])
        if not one.judged:
            rows.append([name, one.chosen, "–", "–", "–", "chosen; too few sizes to leave one out"])
    return [what, "", *terminal.table(rows, right=range(2, 5))]


def profile_path(folder: Path, name: str, kind: str, force: bool) -> Path:
    """Return a profile's path; UsageError if the file exists and `force` is not set."""
    target = folder / f"{folder_name(name)}.{kind}.yaml"
    console.check_replaceable(target, force)
    return target


def write_profile(target: Path, profile: dict[str, Any], quiet: bool) -> None:
    """Write a profile atomically, and print its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, partial(write_text, text=dump(profile)))
    console.note(f"profile: {target}", quiet)
