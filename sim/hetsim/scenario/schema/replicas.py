"""Keys of replicas: how many, on which devices, routing and scaling."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from hetsim.errors import KeyProblem
from hetsim.model.service import Autoscaling
from hetsim.model.units import Count, Name
from hetsim.scenario.fields import Keys, Model

PolicyName = Annotated[Any, Field(json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}]})]


class ReplicasOn(Model):
    """Replicas on another type of device."""

    USED: ClassVar = {"replicas": 1}

    device: Name
    """Type of device."""
    replicas: Annotated[int, Field(ge=0)] | None = None
    """How many replicas at the start; with 0 only such as come in place of others."""
    gpus: Count | None = None
    """Devices of one node that each replica is on, as many as elsewhere unless given."""


class Replicas(Model):
    """Keys of a service with replicas."""

    device: Name = "gpu"
    """Type or kind of device of the replicas."""
    gpus: Count = 1
    """Devices of one node that each replica is on."""
    replicas: Count | None = None
    """How many replicas."""
    autoscale: Annotated[Autoscaling, Keys(Autoscaling, "Autoscale")] | None = None
    """Adds and gives up replicas with the load."""
    routing: PolicyName = None
    """A policy of which replica serves a request, for this service: a name, or name and parameters."""

    def one_count(self, *others: str) -> None:
        """Raise KeyProblem where several keys say how many replicas there are."""
        for other in others:
            if self.replicas is not None and getattr(self, other) is not None:
                raise KeyProblem("replicas", f"{other} says how many replicas there are; give one of the two")
