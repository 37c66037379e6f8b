"""The `site:` part of a scenario: partitions and their rules, and what happens at a time limit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sim.model.units import Seconds
from sim.scenario.fields import Count, Flag, KeyProblem, Model, Name, Positive, Short, Whole


def _names(value: Any) -> Any:
    return [value] if isinstance(value, str | int) else value


Names = Annotated[list[Name], Short(_names, {"type": "string"})]


class PartitionSpec(Model):
    """Rules of one partition; its nodes are named here, or name it themselves (`cluster.nodes.N.partitions`)."""

    nodes: Names | None = None
    """Names of nodes, with ranges as in `gpu[01-08]` and patterns as in `gpu*`."""
    default: Flag = False
    """Is it the one of tasks that name none? false unless given."""
    default_time: Seconds | None = None
    """Time limit of tasks that ask for none; max_time unless given."""
    max_time: Seconds | None = None
    """Longest time limit that may be asked for; no limit unless given."""
    tier: Whole = 0
    """Higher ones go first under slurm_multifactor, 0 unless given."""
    max_gpus: Positive | None = None
    """GPUs that its running tasks may hold at once, fractions included; no limit unless given."""
    max_cpus: Positive | None = None
    """Cores that its running tasks may hold at once; no limit unless given."""
    max_nodes: Count | None = None
    """Nodes on which its tasks may run at once; no limit unless given."""
    users: Names | None = None
    """Users who may use it; all unless given."""
    accounts: Names | None = None
    """Accounts that may use it; all unless given."""

    @model_validator(mode="after")
    def _times(self) -> PartitionSpec:
        if self.max_time is not None and self.default_time is not None and self.default_time > self.max_time:
            text = f"{self.default_time:g} s is more than the max_time of {self.max_time:g} s"
            raise KeyProblem("default_time", text)
        for key in ("default_time", "max_time"):
            if getattr(self, key) == 0:
                raise KeyProblem(key, "a time limit is above 0; leave it out where there is none")
        return self


class SiteSpec(Model):
    """How the site is run.

    at_limit: tasks at their time limit are killed, or may overrun it.  grace: how long after the limit they are.
    """

    at_limit: Literal["overrun", "kill"] = "overrun"
    """overrun (default): tasks may go on beyond their time limit; kill: they are ended there."""
    grace: Seconds = 0.0
    """Time after the limit at which they are killed, 0 unless given."""
    partitions: dict[Name, Annotated[PartitionSpec, Short(lambda v: {} if v is None else v, {"type": "null"})]] = Field(
        default={}
    )
    """Partitions by name, with their rules."""

    @model_validator(mode="after")
    def _whole(self) -> SiteSpec:
        if self.grace and self.at_limit != "kill":
            raise KeyProblem("grace", "no job is killed here; give at_limit: kill, or leave it out")
        defaults = [name for name, rules in self.partitions.items() if rules.default]
        if len(defaults) > 1:
            raise KeyProblem("partitions", f"{' and '.join(defaults)} are both the default; there is one at most")
        return self
