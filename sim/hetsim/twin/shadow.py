"""The shadow log: forecasts kept in a folder, and their errors.

One file per forecast, named by its instant and written whole, so that runs at the same time do not disturb each other
and the same forecast gives the same bytes.  A forecast counts as soon as all of its horizon has passed; a job that
still waits then started at the horizon or later, and one that no longer exists is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hetsim.errors import Problem, ScenarioError
from hetsim.model.files import write_whole
from hetsim.report import terminal
from hetsim.results.stored_files import read_json
from hetsim.twin.forecast import TwinForecast
from hetsim.twin.report import moment
from hetsim.twin.rules import CAPS, Rules, Weights, is_modeled
from hetsim.twin.widening import SHARES, Past

MAX_ROWS = 20
"""Forecasts of the table, the latest."""


@dataclass
class Kept:
    """A forecast of the log.

    table: by job the quantiles as drawn, those told, and the start by time limits; at most the horizon.
    actual: by job the start that came, at most the horizon; NaN if unknown.
    """

    now: float
    horizon: float
    ids: list[str]
    groups: list[str]
    limits: list[str]
    table: np.ndarray
    rules: Rules
    actual: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def rows(self) -> np.ndarray:
        """Jobs whose start is known."""
        return np.flatnonzero(np.isfinite(self.actual))


class ShadowLog:
    """The forecasts of a folder, by their instants; ScenarioError if one is damaged.

    folder: None keeps nothing.
    """

    def __init__(self, folder: Path | None):
        self.folder = folder
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ScenarioError(Problem("is not a folder; --shadow keeps forecasts in one", file=str(folder)))
        files = [] if folder is None else sorted(folder.glob("forecast-*.json"))
        self.forecasts = sorted(map(_read, files), key=lambda one: one.now)

    def completed(self, rules: Rules, now: float) -> Rules:
        """The rules, where they have none those of the latest earlier forecast."""
        for one in reversed([one for one in self.forecasts if one.now < now]):
            missing = one.rules.caps.keys() - rules.caps.keys()
            begins = [f"QOS {qos}:" for qos in missing] + ["weights of priority:"] * (rules.weights is None)
            texts = [text if ", as of " in text else f"{text}, as of {moment(0.0, one.now)}"
                     for text in one.rules.evidence if any(begin in text for begin in begins)]  # fmt: skip
            names = [CAPS[key] for qos in missing for key in one.rules.caps[qos]]
            limits = {name: count for name, count in rules.limits.items()
                      if not any(re.fullmatch(pattern, name) for pattern in names)}  # fmt: skip
            rules = replace(rules, limits=limits, caps={**one.rules.caps, **rules.caps},
                            weights=rules.weights or one.rules.weights, cycle=rules.cycle or one.rules.cycle,
                            evidence=[*rules.evidence, *texts])  # fmt: skip
        return rules

    def learn(self, starts: Mapping[str, float], now: float) -> None:
        """Take in the starts of jobs by now; inf: it still waits."""
        for one in self.forecasts:
            begun = [starts.get(name, np.nan) - one.now for name in one.ids]
            complete = one.now + one.horizon <= now
            one.actual = np.clip(begun, 0.0, one.horizon) if complete else np.full(len(one.ids), np.nan)

    @property
    def judged(self) -> list[Kept]:
        """Forecasts of which it is known what came."""
        return [one for one in self.forecasts if len(one.rows)]

    def pasts(self, horizon: float) -> list[Past]:
        """Those of a horizon, for the widening of intervals."""
        return [Past(one.now + horizon, one.table[one.rows, : len(SHARES)], one.actual[one.rows],
                     groups=[one.groups[row] for row in one.rows])
                for one in self.judged if one.horizon == horizon]  # fmt: skip

    def keep(self, told: TwinForecast, now: float) -> None:
        """Write a forecast, whole or not at all; one of the same instant is replaced."""
        if self.folder is None:
            return
        jobs, rules = range(len(told.jobs)), told.rules
        table = [[*told.drawn(job, SHARES), *told.quantiles(job, SHARES), float(told.by_limits[job])] for job in jobs]
        document = {
            "now": now, "horizon": told.horizon, "ids": [job.id for job in told.jobs],
            "groups": [told.group(job) for job in jobs], "rules": asdict(rules),
            "limits": ["" if is_modeled(job, rules.caps) or job.reason not in rules.limits else job.reason
                       for job in told.jobs],
            "table": np.minimum(np.array(table), told.horizon).round(3).tolist(),
        }  # fmt: skip
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"forecast-{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}.json"
        text = json.dumps(document, sort_keys=True) + "\n"
        write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))

    def error_by_limit(self) -> dict[str, float]:
        """The share of the error that is of jobs kept by each limit that no rule has."""
        errors: dict[str, float] = {}
        for one in self.judged:
            for row in one.rows:
                error = float(abs(one.table[row, MEDIAN] - one.actual[row]))
                errors[one.limits[row]] = errors.get(one.limits[row], 0.0) + error
        total = sum(errors.values())
        return {name: amount / total for name, amount in sorted(errors.items()) if name and total}

    def lines(self) -> list[str]:
        """The errors as a table, and the share of jobs kept by limits that no rule has."""
        if self.folder is None:
            return []
        done = self.judged
        head = f"shadow log: of {len(done):,} of {len(self.forecasts):,} earlier forecasts it is known what came"
        if not done:
            return ["", head]
        rows = [["forecast of", "starts", "inside 50 %", "inside 90 %", "width", "error, mean", "by time limits"]]
        rows += [[moment(0.0, one.now), *_cells([one])] for one in done[-MAX_ROWS:]]
        rows += [[f"all {len(done):,}", *_cells(done)]] if len(done) > 1 else []
        limits = self.error_by_limit()
        text = f"of the error {100 * sum(limits.values()):.0f} % is of jobs kept by limits that no rule has"
        text += "".join(f"; {name} {100 * share:.0f} %" for name, share in limits.items())
        return ["", head, "", *terminal.table(rows, right=range(1, 7)), "", text]


MEDIAN = len(SHARES) + SHARES.index(0.5)


def _cells(done: list[Kept]) -> list[str]:
    table, actual = (np.concatenate([one[rows] for one, rows in pairs]) for pairs in
                     ([(one.table, one.rows) for one in done], [(one.actual, one.rows) for one in done]))  # fmt: skip
    low, first, half, third, high, limit = table[:, len(SHARES) :].T
    shares = [100 * ((a <= actual) & (actual <= b)).mean() for a, b in ((first, third), (low, high))]
    hours = [(high - low).mean(), np.abs(half - actual).mean(), np.abs(limit - actual).mean()]
    return [f"{len(actual):,}", *(f"{share:.0f} %" for share in shares), *(f"{one / 3600:.1f} h" for one in hours)]


def _read(path: Path) -> Kept:
    """A forecast of the log."""
    try:
        document = read_json(path)
        weights = document["rules"]["weights"]
        document["rules"]["weights"] = None if weights is None else Weights(**weights)
        document["table"] = np.array(document["table"], dtype=float).reshape(len(document["ids"]), 2 * len(SHARES) + 1)
        one = Kept(**{**document, "rules": Rules(**document["rules"])})
        if not len(one.ids) == len(one.groups) == len(one.limits) or not np.isfinite([one.now, *one.table.flat]).all():
            raise ValueError
        return one
    except OSError as error:
        raise ScenarioError(Problem(f"cannot be read: {error.strerror}", file=str(path))) from None
    except (ValueError, KeyError, TypeError):
        text = "is not a forecast of a shadow log, or it is damaged; delete it or keep the log in another folder"
        raise ScenarioError(Problem(text, file=str(path))) from None
