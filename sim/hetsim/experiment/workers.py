"""Workers: this process, processes of this machine, or a Dask cluster.

All code uses the interface of `concurrent.futures.Executor`.  A `GivenPool` wraps an executor and adds what that
interface lacks: the number of jobs that keeps it busy, recovery after a worker has died, and how to close it.
"""

import logging
import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait
from typing import Any

from hetsim import registry
from hetsim.errors import RunError, UsageError
from hetsim.experiment.identity import differences, fingerprint

GUARD = 'A script that uses workers must have its code under `if __name__ == "__main__":`.'

PATIENCE = 60.0  # Seconds within which a worker of a cluster must answer.

STARTS = 4  # Number of consecutive pools whose workers all die before their first job; then the study fails.

ROSTER = 5.0  # Seconds after which the workers of a cluster are counted again, since their number may change.


# Modules that are imported once, with their imports, for all workers.
TAKEN_BY_RUNS = [
    "hetsim.experiment.run", "hetsim.scenario.building.run_input", "hetsim.engine.simulation",
    "hetsim.results.many_runs.replications",
]  # fmt: skip


class _Processes(ProcessPoolExecutor):
    """A pool that defers Ctrl-C and termination signals while it starts a process."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future:
        try:
            with signals_held():
                return super().submit(function, *arguments, **named)
        except (OSError, EOFError) as error:
            # Before Python 3.12 a pool that breaks may close the pipes of a process being started.  The server then
            # ends too, and refuses connections for as long as that takes.
            if isinstance(error, (ConnectionError, EOFError)):
                from multiprocessing import forkserver

                forkserver._forkserver._stop()  # type: ignore[attr-defined]  # returns at its end; a pool starts another
            elif not getattr(self, "_broken", False):
                raise
            raise BrokenProcessPool("a worker process died while another was starting") from error


@contextmanager
def signals_held() -> Iterator[None]:
    """Defer interrupt and termination signals until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    before = {number: signal.signal(number, lambda *given: came.append(given))
              for number in (signal.SIGINT, signal.SIGTERM)}  # fmt: skip
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0][0])


def process_pool(workers: int, initializer: Callable[..., None], *arguments: Any) -> ProcessPoolExecutor:
    """Start a pool of local worker processes that share no state with the caller.

    On Linux the workers are forked from a server that has imported what a run needs and does nothing else: a worker
    starts in milliseconds, and imported libraries are in memory once.  On other platforms, where forking is not safe
    for all libraries, each worker starts separately.
    """
    if sys.platform != "linux":
        return _Processes(workers, mp_context=get_context("spawn"), initializer=initializer, initargs=arguments)
    from multiprocessing import forkserver, resource_tracker

    context = get_context("forkserver")
    context.set_forkserver_preload(TAKEN_BY_RUNS)
    resource_tracker.ensure_running()  # first, since starting it lets interrupts through again
    with interrupts_held():  # for the server, and so for what it forks
        forkserver.ensure_running()
    return _Processes(workers, mp_context=context, initializer=initializer, initargs=arguments)


def close_pool(pool: ProcessPoolExecutor, *, at_once: bool) -> None:
    """End a pool's processes; `at_once` does not wait for running jobs."""
    if at_once:
        for process in list((getattr(pool, "_processes", None) or {}).values()):
            process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


def as_worker() -> None:
    """Set this process up as a worker: ignore interrupts, exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (parent := parent_process()) is not None:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Defer Ctrl-C for a block; processes started in it never receive it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def packed(setup: Any) -> bytes:
    """Pickle the setup and the registered policies; UsageError if that fails."""
    try:
        return pickle.dumps((registry.to_send(), setup))
    except (pickle.PicklingError, AttributeError, TypeError) as problem:
        raise UsageError(
            f"the policy cannot be sent to worker processes ({problem}); put it into a module, or use one worker"
        ) from None


def unpacked(sent: bytes) -> Any:
    """Unpickle a worker's setup, and register the policies that were sent with it."""
    registered, setup = pickle.loads(sent)
    registry.receive(registered)
    return setup


class GivenPool:
    """A pool around the caller's executor, which stays open."""

    elsewhere = True  # its workers may have other code or libraries than this process

    unwanted = False  # some running jobs are not needed any more

    def __init__(self, executor: Executor, workers: int):
        self.executor, self.workers = executor, workers

    @property
    def room(self) -> int:
        """Number of submitted jobs that keeps every worker busy."""
        return 2 * self.workers + 2

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        return self.executor.submit(function, *arguments)

    def renew(self) -> None:
        """Replace an executor that a worker's death broke."""
        raise RunError("the executor is broken: one of its workers died")

    def close(self, *, at_once: bool) -> None:
        """Close the pool after its jobs are done, or (`at_once`) drop them."""


class Processes(GivenPool):
    """Worker processes of this machine; if one dies, all are started again."""

    elsewhere = False

    def __init__(self, workers: int):
        super().__init__(process_pool(workers, as_worker), workers)
        self._greeting: Future | None = None
        self._failed = 0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        try:
            with interrupts_held():
                if self._greeting is None:
                    self._greeting = self.executor.submit(int)  # a worker that fails here will never do a job
                return self.executor.submit(function, *arguments)
        except RuntimeError as error:
            if isinstance(error, BrokenExecutor):
                raise
            # In a worker that reads the script which started it, or anything else.
            raise (UsageError(GUARD) if "bootstrapping" in str(error) else error) from None

    def renew(self) -> None:
        greeting, self._greeting = self._greeting, None
        self._failed += 1
        if greeting is not None and greeting.done() and greeting.exception() is None:
            self._failed = 0  # a worker did something before one died
        elif any(process.exitcode == 1 for process in self._processes):  # it could not import what started it
            raise RunError(f"no worker process could be started. {GUARD}")
        elif self._failed == STARTS:
            raise RunError(
                f"worker processes died while they were starting, {STARTS} times in a row (out of memory, or killed by "
                "the system): use fewer workers"
            )
        close_pool(self._pool, at_once=True)
        self.executor = process_pool(self.workers, as_worker)

    @property
    def _processes(self) -> list[Any]:
        return list((getattr(self._pool, "_processes", None) or {}).values())

    @property
    def _pool(self) -> ProcessPoolExecutor:
        assert isinstance(self.executor, ProcessPoolExecutor)
        return self.executor

    def close(self, *, at_once: bool) -> None:
        close_pool(self._pool, at_once=at_once)


class DaskCluster(GivenPool):
    """The workers of a Dask cluster, which reassigns the jobs of workers that die."""

    def __init__(self, address: str, greet: Callable[[], Any], expected: Any):
        """`greet` is called on a worker first, and must return `expected`."""
        self.address = address
        self.client = _client(address)
        self._log = logging.getLogger("distributed.client")
        self._level = self._log.level
        self._log.setLevel(logging.CRITICAL)  # a scheduler that is gone is told in a sentence, not by tracebacks
        try:
            super().__init__(self.client.get_executor(pure=False), 1)
            self._counted = -ROSTER
            self._greet(greet, expected)
        except BaseException:
            self.client.close()
            self._log.setLevel(self._level)
            raise

    def _greet(self, greet: Callable[[], Any], expected: Any) -> None:
        try:
            greeting = self.executor.submit(greet).result(PATIENCE)
        except TimeoutError:
            raise UsageError(
                f"the Dask scheduler at {self.address} has no worker that answers within {PATIENCE:g} s; start some: "
                f"dask worker {self.address} --nthreads 1"
            ) from None
        except Exception as error:
            raise UsageError(
                f"the workers at {self.address} cannot run hetsim ({type(error).__name__}: {error}); "
                "install the same version as here"
            ) from None
        if greeting != expected:
            raise UsageError(
                f"the workers at {self.address} differ from this machine: {differences(expected, greeting)}"
            )

    @property
    def room(self) -> int:
        if time.monotonic() - self._counted > ROSTER:
            with suppress(Exception):  # a scheduler that is gone is told by its jobs
                self.workers = max(1, sum(self.client.ncores().values()))
            self._counted = time.monotonic()
        return 2 * self.workers + 2

    def renew(self) -> None:
        raise RunError(f"the connection to the Dask scheduler at {self.address} is lost")

    def close(self, *, at_once: bool) -> None:
        with suppress(Exception):
            self.executor.shutdown(wait=False)  # also forgets the jobs under way
        with suppress(Exception):
            self.client.close(timeout=2)
        self._log.setLevel(self._level)


class Workers:
    """The place where runs execute: this process, others, an executor or Dask."""

    def __init__(self, workers: int | None = 1, dask: str | None = None, executor: Executor | None = None):
        """Run on `workers` processes (None: one per core), a Dask address or an executor."""
        here = dask is None and executor is None
        self.workers, self.dask, self.executor = workers or (cores() if here else 1), dask, executor
        self.pool: GivenPool | None = None

    @property
    def remote(self) -> bool:
        """Return True if every run executes on a worker, even if there is only one run."""
        return self.dask is not None or self.executor is not None

    def open(self, runs: int, likely: int = 0) -> bool:
        """Start workers for max(`runs`, `likely`) runs; False: this process makes them."""
        if self.pool is None and runs:
            if self.executor is not None:
                self.pool = GivenPool(self.executor, self.workers if self.workers > 1 else cores())
            elif self.dask is not None:
                self.pool = DaskCluster(self.dask, fingerprint, fingerprint())
            elif self.workers > 1 and runs > 1:
                self.pool = Processes(min(self.workers, max(runs, likely)))
        return self.pool is not None and runs > 0

    def close(self, *, at_once: bool) -> None:
        if self.pool is not None:
            self.pool.close(at_once=at_once or self.pool.unwanted)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError('running on a Dask cluster needs Dask: pip install "hetsim[distributed]"') from None
    if not re.fullmatch(r"(\w+://)?[^\s/]+:\d+/?", address):
        raise UsageError(f'"{address}" is not the address of a Dask scheduler, such as tcp://HOST:8786')
    try:
        return Client(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(
            f"no Dask scheduler answers at {address} ({said}); start one with `dask scheduler`, and give the address "
            "that it prints"
        ) from None
    except ValueError as error:
        raise UsageError(f'"{address}" is not the address of a Dask scheduler: {error}') from None
