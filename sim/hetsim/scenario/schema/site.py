"""The `site:` part of a scenario: partitions, their rules, and time limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.errors import KeyProblem
from hetsim.model.cluster import Partition
from hetsim.model.units import Name, Seconds
from hetsim.scenario.fields import Mirror, Model, Names, Short, keys_of


@keys_of(Partition, users=Names | None, accounts=Names | None)
class PartitionSpec(Mirror):
    """Rules of one partition; it lists its nodes, or they name it."""

    nodes: Names | None = None
    """Names of nodes, with ranges as in `gpu[01-08]` and patterns as in `gpu*`."""

    def made(self, **more: Any) -> Partition:
        """The partition with these rules."""
        return super().made(**{"name": "", **more})


class SiteSpec(Model):
    """How the site is run: partitions and rules for all jobs.

    at_limit: tasks at their time limit are killed, or may overrun it.  grace: how long after the limit they are.
    """

    at_limit: Literal["overrun", "kill"] = "overrun"
    """overrun: tasks may go on beyond their time limit; kill: they are ended there."""
    grace: Seconds = 0.0
    """Time after the limit at which they are killed."""
    partitions: dict[Name, Annotated[PartitionSpec, Short(lambda v: {} if v is None else v, {"type": "null"})]] = Field(
        default={}
    )
    """Partitions by name, with their rules."""

    def _check_keys(self) -> None:
        if self.grace and self.at_limit != "kill":
            raise KeyProblem("grace", "no job is killed here; give at_limit: kill, or leave it out")
        defaults = [name for name, rules in self.partitions.items() if rules.default]
        if len(defaults) > 1:
            raise KeyProblem("partitions", f"{' and '.join(defaults)} are both the default; there is one at most")
