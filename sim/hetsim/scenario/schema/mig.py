"""`sharing: {kind: mig}`: the ways to cut one GPU into slices."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from hetsim.errors import KeyProblem, UnknownName
from hetsim.model.slices import PROFILES, Layout, Slice, arrangements, full_layouts
from hetsim.model.units import Bytes, Whole, is_number, shown
from hetsim.scenario.fields import Model, Short, unknown

Upper = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
Family = Annotated[Literal["A100-40", "A100-80", "H100-80"], Upper]


def _slice(value: Any) -> Any:
    if isinstance(value, str) or (is_number(value) and value > 0):
        return value
    raise ValueError(f"expected a share of the GPU or the name of a profile, not {shown(value)}")


class MigLayout(Model):
    """One way to cut a GPU; a list alone is its slices."""

    slices: Annotated[list[Annotated[float | str, BeforeValidator(_slice)]], Field(min_length=1)]
    """Shares of one GPU, or names of profiles: [0.5, 0.25, 0.25], [3g.20gb, 2g.10gb, 2g.10gb]."""
    memory: list[Annotated[Bytes, Field(gt=0)]] | None = None
    """Memory of each slice; in proportion to its share unless given."""
    positions: list[Whole] | None = None
    """Of profiles the first of the eight memory slices of each; all that NVIDIA allows unless given."""

    def cuts(self, family: Family | None) -> list[Layout]:
        """The layout, in each arrangement of its profiles; KeyProblem if there is none."""
        shapes, slices = PROFILES.get(family or "", {}), self.slices
        for key, values in (("memory", self.memory), ("positions", self.positions)):
            if values is not None and (key == "memory") == bool(family):
                raise KeyProblem(key, "profiles have their own memory, and shares no positions; leave this out")
            if values is not None and len(values) != len(slices):
                raise KeyProblem(key, f"{len(values)} values for {len(slices)} slices; give one for each")
        for one in slices:
            if family is None and isinstance(one, str):
                text = f"{one} is not a share; for profiles by name say of which GPU (profiles: {', '.join(PROFILES)})"
                raise KeyProblem("slices", text)
            if family is not None and one not in shapes:
                raise KeyProblem("slices", unknown(UnknownName(f"profile of an {family}", str(one), shapes)))
        if family is None:
            if sum(map(float, slices)) > 1 + 1e-6:
                text = f"the slices of a layout are shares of one GPU and sum to at most 1, not {slices}"
                raise KeyProblem("slices", text)
            return [tuple(map(Slice, map(float, slices), self.memory or [0] * len(slices)))]
        wanted = Counter(slices if self.positions is None else zip(slices, self.positions, strict=True))
        layouts = [
            layout for layout in arrangements(family) if wanted == Counter(
                one.profile if self.positions is None else (one.profile, one.position) for one in layout)
        ]  # fmt: skip
        if not layouts:
            starts = (f"{one} may begin at {', '.join(map(str, shapes[str(one)][2]))}" for one in dict.fromkeys(slices))
            text = f"these slices overlap, or begin where they may not ({'; '.join(starts)})"
            raise KeyProblem("slices" if self.positions is None else "positions", text)
        return layouts


Cutting = Annotated[MigLayout, Short(lambda v: {"slices": v} if isinstance(v, list) else v, {"type": "array"})]


def cuts_of(layouts: list[MigLayout] | None, family: Family | None, memory: int | None = None) -> tuple[Layout, ...]:
    """All ways to cut a GPU with this memory; KeyProblem of `sharing`."""
    every: list[Layout] = [] if layouts else list(full_layouts(family)) if family else [(Slice(1.0),)]
    for number, layout in enumerate(layouts or [None]):
        try:
            every += [] if layout is None else layout.cuts(family)
            total = max(sum(one.bytes_of(memory) for one in cut) for cut in every)
            if memory is not None and total > memory + 9:  # rounded
                text = f"the slices have {total / 1e9:g} GB in all, and the GPU has {memory / 1e9:g} GB"
                raise KeyProblem("memory" if layout and layout.memory else "slices", text)
        except KeyProblem as problem:
            inside = ("profiles",) if layout is None else ("layouts", number, problem.key)
            raise KeyProblem("sharing", str(problem), inside) from None
    return tuple(dict.fromkeys(every))
