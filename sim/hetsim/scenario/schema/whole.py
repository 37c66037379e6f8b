"""A whole scenario file as a model, for `hetsim validate` and `hetsim schema`."""

from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, PlainValidator, ValidationError, WithJsonSchema, field_validator

from hetsim.errors import KeyProblem, Problem, UnknownName
from hetsim.model.units import MAX_SECONDS, TIME, Count, Fraction, Name, Seconds, Seed, forbid, parse, shown
from hetsim.registry import POLICY_PARTS
from hetsim.scenario.fields import MAPPING, VALUE, VALUE_OR_MAPPING, Model, OneOrMany, Short
from hetsim.scenario.file.document import Document
from hetsim.scenario.file.problems import translate
from hetsim.scenario.schema.cluster import ClusterSpec
from hetsim.scenario.schema.policy import DEFAULT_SCHEDULER, DecisionsSpec
from hetsim.scenario.schema.site import Fault, SiteSpec
from hetsim.scenario.schema.sweep import is_range, read_range
from hetsim.scenario.schema.workload import DataItem, WorkloadEntry

MAX_REPLICATIONS = 100_000  # More are a mistake: intervals shrink with the square root of their number.


MIN_FOR_PRECISION = 10  # Replications before a precision is accepted: with fewer, intervals can be narrow by chance.


def _warmup(value: Any) -> float | str:
    try:
        return "auto" if value == "auto" else parse(value, TIME, "5 s", most=MAX_SECONDS)
    except ValueError as error:
        raise ValueError(f"{error}; or auto, which finds it from replications") from None


Warmup = Annotated[
    float | str,
    PlainValidator(_warmup),
    WithJsonSchema({"anyOf": [{"type": "string", "examples": ["5 s", "auto"]}, {"const": 0}]}),
]


_Inside = Annotated[
    Fraction, forbid(lambda share: not 0 < share < 1, "must be a share above 0 and below 1, such as 5%; got {:g}")
]
_NO_HORIZON = "must be above 0; leave it out to run until everything is done"


class Precision(Model):
    """Replicate until the confidence interval is within ± `precision` of the mean."""

    precision: _Inside
    """Half-width of the interval to reach, as a share of the mean, such as 5%."""
    metric: Name
    """Metric whose confidence interval must reach `precision`, such as response_mean."""
    max: Annotated[Count, Field(ge=MIN_FOR_PRECISION, le=MAX_REPLICATIONS)] = 200
    """Maximum number of replications."""
    confidence: _Inside = 0.95
    """Confidence level of the interval."""

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        from hetsim.results.one_run.metrics import metric

        try:
            metric(value)
        except UnknownName as error:
            raise ValueError(str(error)) from None
        return value


_Runs = Annotated[Count, Field(le=MAX_REPLICATIONS), VALUE]
Replications = Annotated[_Runs | Annotated[Precision, MAPPING], VALUE_OR_MAPPING]

_DEFS = "#/$defs/"
_NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_POLICY_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {part: {"anyOf": [{"type": "string"}, _NAMED]} for part in POLICY_PARTS}},
    ]
}


class ScenarioModel(Model):
    """One scenario: a cluster, a workload and a policy."""

    USED: ClassVar = {"policy": DEFAULT_SCHEDULER}

    name: Name = "scenario"
    """Name of the scenario in tables, pictures and directories."""
    description: str = ""
    """A description in words; lists and reports show it."""
    seed: Seed = 0
    """Seed of all random streams; the same seed gives the same tables to the last bit."""
    horizon: "Annotated[Seconds, forbid(lambda end: end == 0, _NO_HORIZON)] | None" = None
    """Time at which the run ends, warm-up included. Default: when no task waits, runs or will arrive."""
    warmup: Warmup = 0.0
    """Tasks that arrive before this time are not measured; auto finds the time by MSER-5."""
    replications: Replications = 1
    """Number of independent runs, or a precision to reach."""
    cluster: ClusterSpec
    """The machines, their links, power and prices."""
    site: SiteSpec = SiteSpec()
    """Rules of the site: partitions, and what happens at a time limit."""
    workload: Annotated[list[WorkloadEntry], OneOrMany, Field(min_length=1)]
    """The streams of tasks and requests, independent of each other."""
    data: Annotated[list[DataItem], OneOrMany] = []
    """Named data items that exist before the run, for tasks to read."""
    faults: Annotated[list[Fault], OneOrMany] = []
    """Faults: random failures, slowdowns, maintenance, files of events. Default: none."""
    policy: "Annotated[Any, Field(json_schema_extra=lambda schema: schema.update(_POLICY_SCHEMA))]" = None
    """A scheduler's name; or a mapping. Keys scheduler, placement, admission, batching, routing: each a name or a
    mapping of name and parameters. Key decisions: the time that decisions take.
    """
    sweep: "Annotated[dict[str, Any], Short(lambda v: {} if v is None else v, {'type': 'null'})]" = {}
    """Values to try by key: a list, or a range with low and high; `hetsim sweep` runs all combinations."""

    @field_validator("sweep")
    @classmethod
    def _lists(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key, values in value.items():
            if is_range(values):
                try:
                    read_range(values)
                except ValueError as error:
                    raise KeyProblem(key, str(error)) from None
            elif not isinstance(values, list) or not values:
                what = "an empty one" if values == [] else shown(values)
                raise KeyProblem(key, f"must be a list of the values to try; got {what}")
        return value

    def _check_keys(self) -> None:
        if self.horizon is not None and not isinstance(self.warmup, str) and self.warmup >= self.horizon:
            raise KeyProblem(
                "warmup", f"must be below the horizon of {self.horizon:g} s, which includes it; got {self.warmup:g} s"
            )


def check(document: Document, base: Path) -> tuple[ScenarioModel | None, list[Problem]]:
    """Validate a document; return its model, or None and all problems."""
    try:
        return ScenarioModel.model_validate(document.data, context={"base": str(base)}), []
    except ValidationError as error:
        return None, translate(error, document, ScenarioModel)


def json_schema() -> dict[str, Any]:
    model = ScenarioModel.model_json_schema(by_alias=True, mode="validation")
    # Policies are checked apart, and so is the time that they take.
    model["$defs"]["DecisionsSpec"] = DecisionsSpec.model_json_schema()
    named = model["properties"]["policy"] = deepcopy(model["properties"]["policy"])
    named["anyOf"][1]["properties"]["decisions"] = {"$ref": f"{_DEFS}DecisionsSpec"}
    schema = _with_titles(model)
    for definition in [schema, *schema.get("$defs", {}).values()]:
        properties = definition.get("properties", {})
        if "gpu_time.*" in properties:
            typed = properties.pop("gpu_time.*")  # One field here, a family of keys (gpu_time.v100, ...) in the file.
            one = {**typed["additionalProperties"], "description": typed["description"]}
            definition["patternProperties"] = {"^gpu_time\\..+": one}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "hetsim scenario", **{
        key: value for key, value in schema.items() if key != "title"
    }}  # fmt: skip


def _with_titles(schema: dict[str, Any]) -> dict[str, Any]:
    names = {name: titled.get("title", name) for name, titled in schema.get("$defs", {}).items()}
    twice = {title for title in names.values() if list(names.values()).count(title) > 1}
    names = {name: name if title in twice else title for name, title in names.items()}

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: renamed(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [renamed(inner) for inner in value]
        if isinstance(value, str) and value.startswith(_DEFS):
            return _DEFS + names[value.removeprefix(_DEFS)]
        return value

    titled: dict[str, Any] = renamed({key: value for key, value in schema.items() if key != "$defs"})
    titled["$defs"] = {names[name]: renamed(value) for name, value in schema["$defs"].items()}
    return titled
