"""What plans are worth when estimates are wrong: `python -m benchmarks.robustness [--quick] [--only kernels,graph]`.

Two shipped scenarios, `wrong-estimates` (independent kernels) and `wrong-estimates-graph` (a Cholesky graph with
transfers), are run with a lognormal error of the estimates of mean 1.  A planner's plan is followed to the end, or
`plan_and_repair` begins with it and mends it.  All meet the same loads and the same errors.
A cell is the mean makespan over that of all policies' best with exact estimates, with the half-width of its 95 %
confidence interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import hetsim as hs
from benchmarks.measure import Row, chosen, parser_of, print_table

INDEPENDENT = (
    "dual_approximation", "lst", "greedy_dual", "balanced_makespan", "linear_program", "heft", "mct", "min_min",
    "max_min", "sufferage", "clb2c", "graham",
)  # fmt: skip
GRAPHS = ("heft", "peft", "cpop", "hlp", "linear_program", "mct", "graham")
CASES = {"kernels": ("wrong-estimates", INDEPENDENT, ("heteroprio",)),
         "graph": ("wrong-estimates-graph", GRAPHS, ("dmda", "dmdas"))}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """How much work the table takes."""

    replications: int = 20
    errors: tuple[float, ...] = (0.1, 0.3, 1.0)
    planners: int | None = None


QUICK = Sizes(2, (0.3,), 2)


@dataclass(frozen=True)
class Cell:
    """A mean makespan and the half-width of its interval."""

    mean: float
    half: float

    def over(self, unit: float) -> str:
        """The mean alone where all loads are the same."""
        spread = f" ± {self.half / unit:.2f}" if self.half > 0 else ""
        return f"{self.mean / unit:.2f}{spread}"


def cell(scenario: str, policy: Any, error: float, replications: int) -> Cell:
    """Of one policy under one error."""
    known: Any = {"distribution": "lognormal", "cv": error} if error else 1
    overrides = {"workload.0.estimates.error": known, "replications": replications}
    row = hs.replicate(scenario, policy=policy, overrides=overrides).summary.loc["makespan"]
    return Cell(float(row["mean"]), float(row["ci_high"] - row["ci_low"]) / 2)


def case(name: str, sizes: Sizes) -> Iterator[Row | str]:
    """The lines of one scenario: each planner alone and repaired, then the rules that do not plan."""
    scenario, planners, rules = CASES[name]
    planners = planners[: sizes.planners]
    of = partial(cell, scenario, replications=sizes.replications)
    exact = {policy: of(policy, 0.0) for policy in (*planners, *rules)}
    unit = min(one.mean for one in exact.values())
    heads = [f"{error:g}{how}" for error in sizes.errors for how in ("", " repaired")]
    yield f"{scenario}: makespan over {unit:.4g} s, by the coefficient of variation of the error"
    yield line(("policy", "exact", *heads))
    for policy in planners:
        repaired = {"name": "plan_and_repair", "planner": policy}
        cells = [of(way, error).over(unit) for error in sizes.errors for way in (policy, repaired)]
        yield line((f"`{policy}`", exact[policy].over(unit), *cells))
    for policy in rules:
        cells = [text for error in sizes.errors for text in (of(policy, error).over(unit), "–")]
        yield line((f"`{policy}`, no plan", exact[policy].over(unit), *cells))


def line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("robustness", __doc__, CASES)
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    figures: dict[str, Callable[[], Iterator[Row | str]]] = {name: partial(case, name, sizes) for name in CASES}
    print_table(figures, chosen(parser, figures, options.only), options.quick)


if __name__ == "__main__":
    main()
