"""Time-series predictors, selected by name in a scenario: `ewma`, or with parameters `{name: ewma, memory: 10 min}`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, ValidationError, create_model

from policies.prediction.autoregressive import Autoregressive
from policies.prediction.contract import Predictor
from policies.prediction.ewma import Ewma
from policies.prediction.holt_winters import HoltWinters
from policies.prediction.last_value import LastValue
from sim.errors import suggestion

PREDICTORS: dict[str, type[Predictor]] = {
    "ar": Autoregressive,
    "ewma": Ewma,
    "holt_winters": HoltWinters,
    "last_value": LastValue,
}


@dataclass(frozen=True)
class Chosen:
    """A predictor with its parameters; `make` gives a fresh one, as there is one for each series."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> Predictor:
        return PREDICTORS[self.name](**self.parameters)


def chosen(value: str | Mapping[str, Any] | Chosen) -> Chosen:
    """Check a choice; ValueError with a sentence for its author."""
    if isinstance(value, Chosen):
        return value
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ValueError("expected the name of a predictor, or a mapping with its name")
    name = given["name"]
    if name not in PREDICTORS:
        listed = suggestion(name, PREDICTORS) or f"; there are {', '.join(PREDICTORS)}"
        raise ValueError(f'unknown predictor "{name}"{listed}')
    parameters = inspect.signature(PREDICTORS[name], eval_str=True).parameters
    rest = {key: part for key, part in given.items() if key != "name"}
    for key in rest:
        if key not in parameters:
            listed = suggestion(key, parameters) or f"; its parameters are {', '.join(parameters) or 'none'}"
            raise ValueError(f'predictor "{name}" has no parameter "{key}"{listed}')
    fields: dict[str, Any] = {key: (part.annotation, part.default) for key, part in parameters.items()}
    model = create_model(name, __config__=ConfigDict(allow_inf_nan=False), **fields)
    try:
        checked = model.model_validate(rest)
    except ValidationError as error:
        first = error.errors()[0]
        said = first["msg"].removeprefix("Value error, ")
        raise ValueError(f'predictor "{name}": {".".join(map(str, first["loc"]))}: {said}') from None
    found = Chosen(name, {key: getattr(checked, key) for key in rest})
    found.make()  # what its parameters must be to each other
    return found


ChosenPredictor = Annotated[Chosen, BeforeValidator(chosen)]
"""The annotation of a policy's parameter that names a predictor."""
