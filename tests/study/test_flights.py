"""Runs on workers that are made up: whatever order they end in, and whichever die, a study has the same outcomes."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from types import SimpleNamespace
from typing import Any

import pytest

from hetsim.errors import RunError
from hetsim.experiment import study as module
from hetsim.experiment.progress import Meter
from hetsim.experiment.study import LOST, Case, Replicates, Study
from hetsim.experiment.work import RunOutcome
from hetsim.experiment.workers import GivenPool, Workers, close_pool


class Ended(Executor):
    """Workers of which one ends whenever the study waits; some give back fewer outcomes than they were sent."""

    def __init__(self, seed: int, killer: tuple[int, int] | None = None):
        self.random, self.killer = random.Random(seed), killer
        self.pending: list[tuple[Future, Any]] = []
        self.sent: list[list[tuple[int, int]]] = []

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future:
        future: Future = Future()
        self.pending.append((future, given[1]))
        self.sent.append([(job.scenario, job.replication) for job in given[1]])
        return future

    def end_one(self) -> None:
        future, jobs = self.pending.pop(self.random.randrange(len(self.pending)))
        if self.killer in [(job.scenario, job.replication) for job in jobs]:
            for one in [future, *(one for one, _ in self.pending)]:
                one.set_exception(BrokenExecutor())
            self.pending.clear()
        elif len(jobs) > 1 and self.random.random() < 0.2:
            future.set_exception(ValueError("the worker is gone"))
        else:
            count = self.random.randint(1, len(jobs))
            future.set_result(
                [RunOutcome({"jain": float(100 * job.scenario + job.replication)}) for job in jobs[:count]]
            )

    def wait(self, tasks: dict[Future, Any], **_: Any) -> tuple[set[Future], set[Future]]:
        if not any(one.done() for one in tasks):
            self.end_one()
        done = {one for one in tasks if one.done()}
        return done, set(tasks) - done


class Pool(GivenPool):
    elsewhere = False
    renewed = 0

    def renew(self) -> None:
        self.renewed += 1


def flown(seed: int, monkeypatch: pytest.MonkeyPatch, killer: tuple[int, int] | None = None, workers: int = 3) -> Any:
    """Five cases with a number of replications each; the third asks for more, one by one, and has three made ahead."""
    executor = Ended(seed, killer)
    monkeypatch.setattr(module, "wait", executor.wait)
    monkeypatch.setattr(module, "packed", lambda setup: b"")
    scenarios: Any = [
        SimpleNamespace(policies=SimpleNamespace(label=f"p{n}"), model=SimpleNamespace(seed=1)) for n in range(5)
    ]
    setup: Any = SimpleNamespace(scenarios=scenarios, metrics=(), keep=(), check=False, audit=False)
    goals = [3, 1, 2, 30, 4]
    told: list[str] = []
    meter = Meter(None, sum(goals))
    meter.tell_case = told.append
    study = Study(setup, Workers(executor=executor), meter=meter)
    study.workers.pool = Pool(executor, workers)
    looked: list[tuple[float, ...]] = []

    def rule(series: Replicates) -> None:
        looked.append(tuple(one.values["jain"] for one in series.taken if one.values))
        if len(series.taken) == series.goal < 9:
            study.more(series, series.goal + 1, series.goal + 4)

    series = [Replicates(Case(one, digest=f"d{n}"), goals[n], rule=rule if n == 2 else None)
              for n, one in enumerate(scenarios)]  # fmt: skip
    study.make(iter(series))
    return study, series, executor, told, looked


@pytest.mark.parametrize("seed", range(20))
def test_outcomes_do_not_depend_on_the_order_in_which_runs_end(seed: int, monkeypatch: pytest.MonkeyPatch):
    study, series, executor, told, looked = flown(seed, monkeypatch, workers=1 + seed % 4)
    counts = [3, 1, 9, 30, 4]
    for number, (one, count) in enumerate(zip(series, counts, strict=True)):
        assert [outcome.values["jain"] for outcome in one.taken] == [100.0 * number + n for n in range(count)]
        assert one.done and one.most == count
    assert looked == [tuple(200.0 + n for n in range(count)) for count in range(1, 10)]
    assert told == [f"p{n}: n = {count}" for n, count in enumerate(counts)]
    assert (study.meter.done, study.meter.runs, study.meter.share(), study.found) == (47, 47, 1.0, 0)
    sizes = [len(jobs) for jobs in executor.sent]
    assert sizes[0] == 1 and max(sizes) > 1  # more as long as they are quick
    assert {job for jobs in executor.sent for job in jobs} >= {
        (n, one) for n, count in enumerate(counts) for one in range(count)
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_kills_its_workers_is_the_only_one_that_fails(seed: int, monkeypatch: pytest.MonkeyPatch):
    killer = [(3, 11), (0, 0), (4, 3), (3, 29)][seed % 4]
    study, series, executor, told, _ = flown(seed, monkeypatch, killer)
    for number, one in enumerate(series):
        for replication, outcome in enumerate(one.taken):
            if (number, replication) == killer:
                assert (outcome.values, outcome.error, outcome.lasting) == (None, LOST, False)
            else:
                assert outcome.values is not None and outcome.values["jain"] == 100.0 * number + replication
        assert one.failed == (number == killer[0])
    assert [len(one.taken) for one in series] == [3, 1, 9, 30, 4] and study.workers.pool.renewed >= 2
    assert told[killer[0]] == f"p{killer[0]}: {LOST}" and len(told) == 5
    assert executor.sent.count([killer]) >= 1  # at last it was tried alone


def test_pools_that_are_opened_and_closed():
    executor = Ended(1)
    assert (
        not Workers(1).open(5)
        and not Workers(4).open(1)
        and not Workers(4).open(0)
        and not Workers(executor=executor).open(0)
    )
    given = Workers(3, executor=executor)
    assert (
        given.open(1) and given.pool is not None and given.pool.workers == 3 and given.pool.room == 8 and given.remote
    )
    two = Workers(2, executor=executor)
    assert two.open(1) and two.pool is not None and two.pool.workers == 2
    assert not given.open(0) and given.open(2) and not Workers(4).remote and Workers(dask="a").remote
    assert Workers(executor=executor).workers == 1 and Workers(None).workers >= 1 and Workers(5).workers == 5
    with pytest.raises(RunError, match="the executor is broken: one of its workers died"):
        given.pool.renew()
    given.close(at_once=False)
    calls: list[Any] = []
    process = SimpleNamespace(terminate=lambda: calls.append("terminate"))
    pool: Any = SimpleNamespace(_processes={1: process}, shutdown=lambda **how: calls.append(how))
    close_pool(pool, at_once=False)
    close_pool(pool, at_once=True)
    ended = {"wait": True, "cancel_futures": True}
    assert calls == [ended, "terminate", ended]
