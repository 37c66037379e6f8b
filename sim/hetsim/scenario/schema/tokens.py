"""`tokens:`, how long the requests to a language model are."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from hetsim.scenario.fields import Model
from hetsim.workload.distributions import Distribution, NumberDistribution


def _at_least_one(value: Distribution) -> Distribution:
    if value.mean < 1:
        raise ValueError(f"a request has at least one token of each; these are {value.mean:g} on average")
    return value


Amount = Annotated[NumberDistribution, AfterValidator(_at_least_one)]


class Tokens(Model):
    """Tokens of the prompt and of the answer, at least one of each."""

    prompt: Amount
    """Tokens of the prompt, a number or a distribution."""
    output: Amount
    """Tokens of the answer, a number or a distribution."""
