"""Replicas of a language model: how many, on which devices, and for what."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from hetsim.model.service import Autoscaling
from hetsim.model.units import Count, Name, Share
from hetsim.scenario.fields import Model
from hetsim.scenario.generated import Keys
from hetsim.scenario.schema.cluster import NamedPeak
from hetsim.scenario.schema.steps import StepTime

Autoscale = Annotated[Autoscaling, Keys(Autoscaling, "Autoscale")]


class Disaggregated(Model):
    """Replicas that only prefill, and replicas that decode."""

    prefill: Count
    """Replicas that only read prompts."""
    decode: Count
    """Replicas that only decode."""
    prefill_on: Name | None = None
    """Type of device of those that read prompts, one of also_on; device unless given."""
    decode_on: Name | None = None
    """Type of device of those that decode, one of also_on; device unless given."""


class AlsoOn(Model):
    """Replicas on another type of device, and the differences there."""

    device: Name
    """Type of device."""
    replicas: Annotated[int, Field(ge=0)] | None = None
    """How many replicas at the start, 1 unless given; 0: only such as come in place of others."""
    gpus: Count | None = None
    """Devices of one node that each replica is on, as many as elsewhere unless given."""
    step: StepTime | None = None
    """Time of a step on that number of devices; estimated from model and gpu where the service's is."""
    gpu: NamedPeak | None = None
    """Figures of the GPU for the estimate."""
    tensor_parallel: Count | None = None
    """GPUs of one node over which each replica is divided, for the estimate; in place of gpus."""
    memory_share: Share | None = None
    """Share of the devices' memory that model, keys and values may fill, as elsewhere unless given."""
