"""Valid settings of agents; `hetsim.train` checks them before it trains."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Several = Annotated[int, Field(ge=2, le=10_000_000)]
Layers = Annotated[tuple[Annotated[int, Field(ge=1, le=4096)], ...], Field(max_length=8)]
"""Sizes of the hidden layers; none: the score is linear."""
