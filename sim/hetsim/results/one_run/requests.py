"""Requests with stages as rows of the table of tasks, each counted once.

A stage is a task of its own in the engine; in results a request is what was sent.  Of its row

- `ready` and `start` are those of its first stage, `finish` is when its last one ended; it has completed when all its
  stages have, else its status and reason are those of the stage that ended it;
- `wait` is the time for which it was ready and had not started, in all its stages together, and known once the last
  of them has started; `upload`, `compute`, `download` and `overhead` are sums over the stages, so that
  response = (ready - arrival) + wait + upload + compute + download + overhead, as of any task;
- several items of a request are in different stages at the same time, and such sums would be longer than the request:
  `wait` is then that of its first start, and all the time from there to its end is `compute`;
- `slowdown` divides by the time that the plan of its stages takes alone, transfers between them included;
- `device_type`, `device` and `node` join those of its stages by `+`, each once, in the order of the stages;
- `preemptions`, `migrations`, `energy_j` and `cost` are sums.
"""

from typing import Any

import numpy as np
import pandas as pd

from hetsim.model.record import COMPLETED, MOVES, NOT_ARRIVED, STOPS, UNFINISHED, Record
from hetsim.results.declared import COST, ENERGY
from hetsim.results.one_run.launches import categorical
from hetsim.results.one_run.rows import TableRows

SUMS = ("upload", "compute", "download", "overhead", STOPS, MOVES, ENERGY, COST)


def request_rows(record: Record, frame: pd.DataFrame, bounded: str, bound: float) -> pd.DataFrame:
    """The task table from a table of stages; `bounded` is the slowdown column."""
    staged = record.input.tasks.staged
    assert staged is not None
    rows = TableRows(record)
    position = np.cumsum(record.status != NOT_ARRIVED) - 1
    first = position if rows.chosen is None else position[rows.chosen]
    deciding = position[rows.deciding]
    stage_rows = frame.iloc[first].reset_index(drop=True)
    of_stages = rows(staged.stage) >= 0
    stage_rows["id"] = np.where(of_stages, rows(staged.id), stage_rows["id"].to_numpy(dtype=object))
    for name in ("status", "reason"):
        stage_rows[name] = frame[name].iloc[deciding].array
    status = rows.record.status[rows.deciding]
    completed = status == COMPLETED

    def put(name: str, values: np.ndarray) -> None:
        """Give the requests with stages their values of a column; other tasks keep theirs."""
        old = stage_rows[name].to_numpy()
        stage_rows[name] = np.where(of_stages, values, old).astype(old.dtype)

    start, finish = rows.minimum(record.start), record.finish[rows.deciding]
    put("start", start)
    put("finish", finish)
    together = rows.streaming
    wait = np.add.reduceat(frame["wait"].to_numpy()[position[rows.members]], rows.begin) if rows.count else start
    put("wait", np.where(together, start - stage_rows["ready"].to_numpy(), wait))
    for name in SUMS:
        if name in frame:
            totals = np.zeros(len(record.status), frame[name].to_numpy().dtype)
            totals[record.status != NOT_ARRIVED] = frame[name].to_numpy()
            put(name, rows.total(totals))
    span = np.nan_to_num(np.where(status == UNFINISHED, record.end, finish) - start)
    for name, values in (
        ("upload", np.zeros(rows.count)), ("compute", span), ("download", np.zeros(rows.count)),
        ("overhead", np.where(completed, 0.0, np.nan)),
    ):  # fmt: skip
        put(name, np.where(together, values, stage_rows[name].to_numpy()))
    _ratios(stage_rows, put, rows(staged.alone), completed=completed, bounded=bounded, bound=bound)
    _placed(stage_rows, frame, rows, position=position, of_stages=of_stages)
    met = completed & (finish <= stage_rows["deadline"].to_numpy())
    given = stage_rows["met_deadline"].array
    stage_rows["met_deadline"] = pd.arrays.BooleanArray(
        np.where(of_stages, met, given.to_numpy(dtype=bool, na_value=False)), np.asarray(given.isna())
    )
    return stage_rows


def _ratios(
    found: pd.DataFrame, put: Any, alone: np.ndarray, completed: np.ndarray, bounded: str, bound: float
) -> None:  # fmt: skip
    """Response, and what it is in units of the time alone."""
    response = np.where(completed, found["finish"].to_numpy() - found["arrival"].to_numpy(), np.nan)
    put("response", response)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowdown = response / alone
        slowdown[(response == 0) & (alone == 0)] = 1.0
        put("slowdown", slowdown)
        put(bounded, np.maximum(response / np.maximum(alone, bound), 1.0))


def _placed(
    found: pd.DataFrame, frame: pd.DataFrame, rows: TableRows, position: np.ndarray, of_stages: np.ndarray
) -> None:
    """Where the stages of each request ran."""
    batch = found["batch"].array
    found["batch"] = pd.arrays.IntegerArray(
        np.where(of_stages, 0, batch.to_numpy(dtype=np.int32, na_value=0)).astype(np.int32),
        np.asarray(batch.isna()) | of_stages,
    )
    rack_of = {node.name: node.spec.rack for node in rows.record.input.cluster.nodes}
    for name in ("device_type", "device", "node"):
        column = frame[name].cat
        codes, texts = _joined(column.codes.to_numpy()[position[rows.members]], list(column.categories), rows)
        found[name] = categorical(codes, texts)
        if name == "node" and "hosts" in found:
            nodes = [text.split("+") for text in texts]
            hosts = np.array([*map(len, nodes), 0], np.int32)
            racks = np.array([*(len({rack_of[n] for n in on} - {None}) for on in nodes), 0], np.int32)
            for spread, numbers in (("hosts", hosts), ("racks", racks)):
                if spread in found:
                    found[spread] = np.where(of_stages, numbers[codes], found[spread].to_numpy()).astype(np.int32)


def _joined(codes: np.ndarray, names: list[str], rows: TableRows) -> tuple[np.ndarray, list[str]]:
    """Codes and texts of the joined names of each row's tasks; -1 of none."""
    texts: dict[str, int] = {}
    code_of_row = np.full(rows.count, -1, np.int32)
    for size in np.unique(rows.size).tolist():
        mine = np.flatnonzero(rows.size == size)
        each = codes[rows.begin[mine][:, np.newaxis] + np.arange(size)]
        kinds, kind = np.unique(each, axis=0, return_inverse=True)
        joined = ["+".join(dict.fromkeys(names[code] for code in one if code >= 0)) for one in kinds.tolist()]
        numbers = np.array([texts.setdefault(text, len(texts)) if text else -1 for text in joined], np.int32)
        code_of_row[mine] = numbers[kind.reshape(-1)]
    return code_of_row, list(texts)
