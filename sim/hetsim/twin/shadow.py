"""The shadow log: forecasts stored in a folder, and their errors.

There is one file per forecast, named by its instant and written atomically, so that simultaneous runs do not conflict
and equal forecasts are equal files.  A forecast is used when its whole horizon has passed.  A job that still waits then
counts as started at the horizon; a job canceled before its start is ignored.  Forecasts above `MAX_AGE` are ignored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter

from hetsim.errors import Problem, ScenarioError
from hetsim.model.files import write_whole
from hetsim.report import terminal
from hetsim.results.stored_files import parse_json, read_stored
from hetsim.twin.forecast import TwinForecast
from hetsim.twin.report import moment
from hetsim.twin.rules import Positive, Rules, Weights
from hetsim.twin.widening import SHARES, Past
from hetsim.workload.logs.history import DAY

WIDTH = 2 * len(SHARES) + 1
ROWS = TypeAdapter(list[list[float]], config=ConfigDict(strict=True, allow_inf_nan=False))
MAX_AGE = 30 * DAY  # seconds after which a forecast is ignored, for weights of priority and for errors
MAX_ROWS = 20  # number of latest forecasts in the table


class Kept(BaseModel):
    """A stored forecast of the log.

    policy: the policy simulated; only forecasts of one policy have similar errors.
    table: per job the bounds of the drawn and of the widened intervals, and the start if jobs run to their time limits.
    actual: per job the actual start; NaN if unknown.  Later starts count as the horizon in both tables.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    now: Annotated[float, Field(ge=-6e10, le=6e10)]  # years that a date has
    horizon: Positive
    policy: str
    ids: list[str]
    groups: list[str]
    limits: list[str]
    rules: Rules
    table: Annotated[np.ndarray, BeforeValidator(lambda rows: np.array(ROWS.validate_python(rows)).reshape(-1, WIDTH))]
    actual: np.ndarray = Field(default_factory=lambda: np.zeros(0))

    @property
    def rows(self) -> np.ndarray:
        """Indexes of the jobs whose actual start is known."""
        return np.flatnonzero(np.isfinite(self.actual))


class ShadowLog:
    """Forecasts stored in `folder` (None: not stored); ScenarioError if unusable."""

    def __init__(self, folder: Path | None):
        self.folder = folder
        place = next((one for one in (folder, *folder.parents) if one.exists()), folder) if folder else None
        if place is not None and not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
            raise ScenarioError(Problem("must be a folder that can be written (--shadow)", file=str(place)))
        files = [] if folder is None else sorted(folder.glob("forecast-*.json"))
        self.forecasts = sorted(map(_read, files), key=lambda one: one.now)

    def learn(self, starts: Mapping[str, float], now: float) -> None:
        """Add actual starts (inf: waiting) to finished forecasts that are not too old."""
        for one in self.forecasts:
            begun = [starts.get(name, np.nan) - one.now for name in one.ids]
            complete = one.now + one.horizon <= now <= one.now + MAX_AGE
            one.actual = np.clip(begun, 0.0, one.horizon) if complete else np.full(len(one.ids), np.nan)

    @property
    def judged(self) -> list[Kept]:
        """Stored forecasts for which actual starts are known."""
        return [one for one in self.forecasts if len(one.rows)]

    def pasts(self, horizon: float, policy: str = "") -> list[Past]:
        """Return this horizon's and policy's forecasts with known outcomes (for widening)."""
        return [Past(one.now + horizon, one.table[one.rows, : len(SHARES)], one.actual[one.rows],
                     groups=[one.groups[row] for row in one.rows])
                for one in self.judged if (one.horizon, one.policy) == (horizon, policy)]  # fmt: skip

    def weights(self, now: float) -> Weights | None:
        """Return the priority weights of the latest recent forecast that has any, or None."""
        earlier = (one.rules.weights for one in reversed(self.forecasts) if now - MAX_AGE <= one.now < now)
        return next((weights for weights in earlier if weights is not None), None)

    def keep(self, told: TwinForecast, now: float, policy: str = "") -> None:
        """Store a forecast; a stored forecast of the same instant is replaced."""
        if self.folder is None:
            return
        jobs, rules = range(len(told.jobs)), told.rules
        table = [[*told.ends(job), *told.quantiles(job, SHARES), float(told.by_limits[job])] for job in jobs]
        document = {"now": now, "horizon": told.horizon, "policy": policy, "ids": [job.id for job in told.jobs],
                    "groups": [told.group(job) for job in jobs], "rules": asdict(rules),
                    "limits": [job.reason if rules.is_beyond(job) else "" for job in told.jobs],
                    "table": np.minimum(np.array(table), told.horizon).round(3).tolist()}  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"forecast-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}.json"
        text = json.dumps(document, sort_keys=True) + "\n"
        write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))

    def error_by_limit(self) -> dict[str, float]:
        """Return the share of the total error from jobs blocked by each unmodeled limit."""
        pairs = [(one.limits[row], float(abs(one.table[row, MEDIAN] - one.actual[row])))
                 for one in self.judged for row in one.rows]  # fmt: skip
        total, names = sum(error for _, error in pairs), sorted({name for name, _ in pairs} - {""})
        return {name: sum(error for other, error in pairs if other == name) / total for name in names if total}

    def mapping(self) -> dict[str, Any]:
        """Return forecast errors (s) as plain values: a row per forecast, and all pooled."""
        done = self.judged
        rows = [{"now": f"{datetime.fromtimestamp(one.now, UTC):%Y-%m-%dT%H:%M:%S}", **_errors([one])} for one in done]
        return {"forecasts": len(self.forecasts), "rows": rows,
                "all": _errors(done) if done else None, "shadow_error_by_limit": self.error_by_limit()}  # fmt: skip

    def lines(self) -> list[str]:
        """Return text lines: past forecast errors, and the share due to unmodeled limits."""
        if self.folder is None:
            return []
        done = self.judged
        head = f"shadow log: the outcome is known for {len(done):,} of {len(self.forecasts):,} earlier forecasts"
        if not done:
            return ["", head]
        rows = [["forecast of", "starts", "inside 50 %", "inside 90 %", "width", "error, mean", "by time limits"]]
        rows += [[moment(0.0, one.now), *_cells([one])] for one in done[-MAX_ROWS:]]
        rows += [[f"all {len(done):,}", *_cells(done)]] if len(done) > 1 else []
        limits = self.error_by_limit()
        text = f"{100 * sum(limits.values()):.0f} % of the error is of jobs held back by limits that are not modeled"
        text += "".join(f"; {name} {100 * share:.0f} %" for name, share in limits.items())
        return ["", head, "", *terminal.table(rows, right=range(1, 7)), "", text]


MEDIAN = len(SHARES) + SHARES.index(0.5)


def _errors(done: list[Kept]) -> dict[str, Any]:
    table, actual = (np.concatenate([one[rows] for one, rows in pairs]) for pairs in
                     ([(one.table, one.rows) for one in done], [(one.actual, one.rows) for one in done]))  # fmt: skip
    low, first, half, third, high, limit = table[:, len(SHARES) :].T
    names = ("inside_50", "inside_90", "width", "error_mean", "error_by_time_limits")
    columns = [*((a <= actual) & (actual <= b) for a, b in ((first, third), (low, high))),
               high - low, np.abs(half - actual), np.abs(limit - actual)]  # fmt: skip
    return {"starts": len(actual)} | {name: float(one.mean()) for name, one in zip(names, columns, strict=True)}


def _cells(done: list[Kept]) -> list[str]:
    starts, first, second, *times = _errors(done).values()
    return [f"{starts:,}", f"{100 * first:.0f} %", f"{100 * second:.0f} %", *(f"{one / 3600:.1f} h" for one in times)]


def _read(path: Path) -> Kept:
    try:
        text = read_stored(path)
        parse_json(path, text)  # refuses what is too large or too deep
        one = Kept.model_validate_json(text)
        if not len(one.ids) == len(one.groups) == len(one.limits) == len(one.table):
            raise ValueError
        return one
    except OSError as error:
        raise ScenarioError(Problem(f"cannot be read: {error.strerror}", file=str(path))) from None
    except ValueError:
        damaged = "is not a forecast of a shadow log, or it is damaged; delete it or keep the log in another folder"
        raise ScenarioError(Problem(damaged, file=str(path))) from None
