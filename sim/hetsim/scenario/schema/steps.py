"""`step:` of a language model: linear times, measured tables, or a roofline."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationError, ValidationInfo, WithJsonSchema

from hetsim.errors import KeyProblem, UnknownName
from hetsim.model.batch_times import StageTable
from hetsim.model.demand import StageTime
from hetsim.model.step_times import LinearSteps, RooflineSteps
from hetsim.model.units import SIZE, Share, parse, shown
from hetsim.registry import load_object
from hetsim.scenario.fields import Mirror, Short, keys_of, unknown
from hetsim.scenario.file import model_files
from hetsim.scenario.file.problems import sentence
from hetsim.scenario.schema.batch_tables import INLINE, short
from hetsim.scenario.schema.service import StageSpec
from hetsim.workload.costs import architectures
from hetsim.workload.costs.architectures import Architecture
from hetsim.workload.costs.roofline import Efficiency, Peak, roofline_steps

# Functions of `hetsim.silicon` that provide measured times of a named engine.
ENGINES = {
    "named": "hetsim.silicon.engines:engine_of", "steps": "hetsim.silicon.engines:steps_of",
    "defaults": "hetsim.silicon.engines:defaults", "interval": "hetsim.silicon.engines:interval",
    "measured": "hetsim.silicon.engines:Interval",
}  # fmt: skip
STAGE = Short(lambda value: value if isinstance(value, str) else short(value), INLINE)


@keys_of(Efficiency, memory=Share, compute=Share, attention=Share, link=Share)
class Roofline(Mirror):
    """Shares of the GPU's peak rates that a language model reaches."""


@keys_of(LinearSteps)
class StepTime(Mirror):
    """Seconds of a step of a language model, in one of three forms.

    Linear: `fixed`, plus a time for each decoding sequence, for each prompt token read, and for each context token of
    the decoding sequences.  Separate: times of decode-only and prefill-only steps (`decode`, `prefill`).  Roofline:
    times from limits of the hardware (`roofline`).
    """

    decode: Annotated[StageSpec, STAGE] | None = None
    """Time of a decode-only step by its number of sequences: {fixed, per_item}, or measured times."""
    prefill: Annotated[StageSpec, STAGE] | None = None
    """Time of a prefill-only step by its prompt tokens: {fixed, per_item}, or measured times."""
    roofline: "Annotated[Roofline, Short(lambda v: {} if v is True else v, {'const': True})] | None" = None
    """Step times computed from model and GPU: true, or the shares of the peaks that are reached."""

    def _check_keys(self) -> None:
        if self.roofline is not None:
            for key in ("per_sequence", "per_prompt_token", "per_context_token", "decode", "prefill"):
                if key in self.model_fields_set:
                    raise KeyProblem(key, "a roofline defines this time; give one of the two")
        for name, line in (("decode", "per_sequence"), ("prefill", "per_prompt_token")):
            stage: StageSpec | None = getattr(self, name)
            if stage is None:
                continue
            if line in self.model_fields_set:
                raise KeyProblem(name, f"{name} and {line} exclude each other: {name} gives the time of the step")
            if (table := stage.measured) is not None:
                for key in ("fixed", "per_item"):
                    if key in stage.model_fields_set:
                        raise KeyProblem(name, f"a table and {key} exclude each other: the table gives the whole time")
                if table.spread:
                    raise KeyProblem(name, "step times cannot be random; give one time for each number")
            shortest = stage.fixed + stage.per_item if table is None else min(table.seconds)
            if not shortest:
                raise KeyProblem(name, "a step must take time; give fixed or per_item, or times by number")
            if self.fixed > shortest:
                raise KeyProblem("fixed", f"fixed must not exceed any time of {name}")

    def times(self, figures: tuple[Architecture, Peak, int] | None) -> LinearSteps | RooflineSteps:
        """Return the step times; `figures` of model and GPU are required for a roofline."""
        if self.roofline is not None:
            assert figures is not None
            return roofline_steps(*figures, self.roofline.made(fixed=self.fixed))
        stages = {name: self._stage(getattr(self, name)) for name in ("decode", "prefill")}
        return self.made(**stages)

    def _stage(self, stage: StageSpec | None) -> StageTable | StageTime | None:
        if stage is None:
            return None
        if stage.measured is None:
            return StageTime(stage.fixed, stage.per_item)
        return stage.measured.above(self.fixed)


def _named(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, Architecture):
        return value
    if isinstance(value, dict):
        changes = dict(value)
        name, file = changes.pop("name", None), changes.pop("config", None)
        if name is not None and file is not None:
            raise ValueError(f"name and config exclude each other; give one of the two (name is {shown(name)})")
        figures = {} if name is None else _architecture(name).model_dump(exclude_none=True)
        if file is not None:
            named = changes.get("number_format")
            apart = isinstance(named, str) or (isinstance(named, dict) and "weights" in named)
            figures = model_files.architecture((info.context or {}).get("base", "."), file, formats=not apart)
        if isinstance(changes.get("number_format"), dict):
            changes["number_format"] = {**figures.get("number_format", {}), **changes["number_format"]}
        try:
            return Architecture.model_validate({**figures, **changes})
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            message = ": ".join(part for part in (file, where, sentence(first, Architecture)) if part)
            raise ValueError(message) from None
    if isinstance(value, str) and value in architectures.MODELS:
        return _architecture(value)
    try:
        return int(parse(value, SIZE, "2 GB"))
    except ValueError:
        if isinstance(value, str) and value[:1].isalpha():
            return _architecture(value)
        raise


def _architecture(name: Any) -> Architecture:
    if not isinstance(name, str):
        raise ValueError("name must be the name of a model, such as llama-2-70b")
    try:
        return architectures.model(name)
    except UnknownName as error:
        raise ValueError(f"{unknown(error)} (or give bytes of weights, as 14 GB, or {{config: FILE}})") from None


# Bytes of weights, or an architecture: by name, by its figures, or by name with changes.
Weights = Annotated[
    int | Architecture,
    BeforeValidator(_named),
    WithJsonSchema({"anyOf": [
        {"type": "string", "examples": ["14 GB", "llama-2-70b"]}, {"const": 0},
        {"type": "object",
         "properties": {"name": {"enum": sorted(architectures.MODELS)}, "config": {"type": "string"}}},
    ]}),
]  # fmt: skip


def of_engine(what: str) -> Any:
    return load_object(ENGINES[what])


# An engine and its version, such as vllm-0.15.
EngineName = Annotated[str, AfterValidator(lambda value: of_engine("named")(value) and value)]


def figures_missing(gpu: Peak, devices: int) -> str | None:
    """Return the name of an unknown GPU figure that step times require, or None."""
    if gpu.matrix_flops is None:
        return "the peak of the GPU's matrix units is unknown (matrix_flops)"
    if devices > 1 and gpu.link is None:
        return "the GPU's bandwidth to other GPUs is unknown (link)"
    return None
