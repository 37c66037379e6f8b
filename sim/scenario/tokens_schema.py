"""`tokens:`, how long the requests to a language model are."""

from __future__ import annotations

from sim.scenario.fields import Model
from sim.workload.distributions import NumberDistribution


class Tokens(Model):
    """Tokens of the prompt and of the answer, drawn, rounded, and at least one each."""

    prompt: NumberDistribution
    """Tokens of the prompt, a number or a distribution."""
    output: NumberDistribution
    """Tokens of the answer, a number or a distribution."""
