"""The `site:` and `faults:` parts: partitions, rules, time limits; failures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from hetsim.errors import KeyProblem
from hetsim.model.cluster import Partition
from hetsim.model.faults import FaultProcess, Maintenance
from hetsim.model.files import record_input
from hetsim.model.units import Name, Seconds
from hetsim.scenario.fields import Mirror, Model, Names, Short, SomeNames, keys_of
from hetsim.workload.distributions import TimeDistribution


@keys_of(Partition, users=Names | None, accounts=Names | None)
class PartitionSpec(Mirror):
    """Rules of a partition; its nodes are listed here, or name it in `partitions`."""

    nodes: Names | None = None
    """Names of nodes, with ranges as in `gpu[01-08]` and patterns as in `gpu*`."""

    def made(self, **more: Any) -> Partition:
        return super().made(**{"name": "", **more})


class SiteSpec(Model):
    """Partitions of the site, and rules for all jobs."""

    at_limit: Literal["overrun", "kill"] = "overrun"
    """At their time limit, tasks continue (overrun) or are killed (kill)."""
    grace: Seconds = 0.0
    """Time from the time limit of a task to its kill (at_limit: kill)."""
    partitions: dict[Name, Annotated[PartitionSpec, Short(lambda v: {} if v is None else v, {"type": "null"})]] = Field(
        default={}
    )
    """Partitions by name, with their rules."""

    def _check_keys(self) -> None:
        if self.grace and self.at_limit != "kill":
            raise KeyProblem("grace", "grace needs at_limit: kill; give that, or leave grace out")
        defaults = [name for name, rules in self.partitions.items() if rules.default]
        if len(defaults) > 1:
            raise KeyProblem("partitions", f"at most one partition may be the default; got {' and '.join(defaults)}")


@keys_of(Maintenance)
class MaintenanceSpec(Mirror):
    """A planned time window in which nodes are down."""

    FIRST: ClassVar = ("nodes",)

    nodes: SomeNames
    """Names of the nodes that go down, with ranges n[0-3] or patterns n*."""


@keys_of(FaultProcess)
class Fault(Mirror):
    """One source of faults: random (`on`), a `maintenance`, or a `file`.

    When a node fails, each other node of its rack fails at the same time with probability `together`.
    """

    FIRST: ClassVar = ("name", "on", "every", "repair", "slow", "for", "together")

    on: Names | None = None
    """Targets of faults: gpu, node, link, uplink, a type of device, or names of devices, nodes or links (r0/uplink)."""
    every: TimeDistribution | None = None
    """Time from the end of one fault of a device to its next fault, a quantity or a distribution."""
    repair: TimeDistribution | None = None
    """Time from a failure to its repair, a distribution. Required if `on` is given without `slow`."""
    lasting: TimeDistribution | None = Field(None, alias="for")
    """Duration of a slowdown, a distribution."""
    maintenance: MaintenanceSpec | None = None
    """A planned time window in which nodes are down."""
    file: str | None = None
    """CSV file, relative to the scenario: time (s), device, event (down, up, slow), factor (1 ends a slowdown)."""

    @field_validator("file")
    @classmethod
    def _there(cls, value: str | None, info: ValidationInfo) -> str | None:
        base = (info.context or {}).get("base", ".")
        if value is not None and not (Path(base) / value).is_file():
            raise ValueError(f'the file "{value}" does not exist')
        if value is not None:
            record_input(Path(base) / value, "file", value)
        return value

    def _check_keys(self) -> None:
        kinds = [key for key in ("on", "maintenance", "file") if getattr(self, key) is not None]
        if len(kinds) != 1:
            raise ValueError("a fault needs exactly one of the keys on (random faults), maintenance and file")
        if kinds[0] != "on":
            random = {"every": self.every, "repair": self.repair, "slow": self.factor, "for": self.lasting}
            for key, value in random.items():
                if value is not None:
                    raise KeyProblem(key, f"the key is for random faults, not for a {kinds[0]}")
            return
        if self.every is None or self.every.mean == 0:
            raise KeyProblem("every", "must be a distribution of the time between two faults, above 0")
        length = self.lasting if self.factor is not None else self.repair
        if length is None:
            raise KeyProblem("for" if self.factor else "repair", "must be a distribution of the duration of a fault")
        if self.factor is not None and self.factor < 1:
            raise KeyProblem("slow", f"slow must be at least 1, the factor on run times; got {self.factor:g}")
        if self.together and any(where != "node" for where in self.on or ()):
            raise KeyProblem("together", "together: rack needs on: node")
