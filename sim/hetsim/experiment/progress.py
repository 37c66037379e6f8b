"""Progress of a study, reported to a function or shown as a bar."""

import math
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hetsim.errors import UsageError
from hetsim.results.formatting import seconds

if TYPE_CHECKING:
    from hetsim.engine.simulation import Simulation

Progress = Callable[[float], None]  # Called with the finished share of all work, 0 to 1.

POLL = 0.2  # Seconds between two reports of progress.

EVERY = 0.5  # Seconds between two updates of a notebook.
PATIENCE = 2.0  # Seconds before a bar appears on a terminal; shorter studies show none.


class NotebookBar:
    """A progress line in a notebook's output, which is updated in place."""

    def __init__(self) -> None:
        from IPython.display import display

        self.began = self.told = time.monotonic()
        self.handle: Any = display({"text/plain": ""}, raw=True, display_id=True)

    def __call__(self, share: float) -> None:
        now = time.monotonic()
        if now - self.told < EVERY:
            return
        self.told = now
        self.handle.update({"text/plain": self.text(share, now - self.began)}, raw=True)

    @staticmethod
    def text(share: float, passed: float) -> str:
        remaining = f", about {seconds(float(f'{passed * (1 - share) / share:.2g}'))} left" if 0 < share < 1 else ""
        return f"{100 * share:.0f} % done, {seconds(float(f'{passed:.2g}'))} passed{remaining}"

    def close(self, done: bool) -> None:
        passed = seconds(float(f"{time.monotonic() - self.began:.2g}"))
        self.handle.update({"text/plain": f"done in {passed}" if done else f"stopped after {passed}"}, raw=True)


class TerminalBar:
    """A progress bar on stderr, which appears after `PATIENCE` seconds."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.bar: Any = None

    def __call__(self, share: float) -> None:
        if self.bar is None:
            if time.monotonic() - self.begin < PATIENCE:
                return
            from tqdm import tqdm

            form = "{percentage:3.0f} % |{bar}| {elapsed}, {remaining} left"
            # miniters=0: every report is drawn.  A terminal that gives its size as 0 is taken for one of 80 × 24.
            wide, high = shutil.get_terminal_size()
            self.bar = tqdm(
                total=1.0, file=sys.stderr, leave=False, bar_format=form, mininterval=0, miniters=0,
                ncols=wide, nrows=high,
            )  # fmt: skip
            self.bar.start_t -= time.monotonic() - self.begin
        self.bar.update(share - self.bar.n)

    def close(self, done: bool = True) -> None:
        if self.bar is not None:
            self.bar.close()


@contextmanager
def reporting(progress: Progress | bool | None) -> Iterator[Progress | None]:
    """Yield the function that receives progress; `progress=True`: a bar, if possible."""
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise UsageError(f"progress must be True, or a function of the share done; got {progress!r}")
    bar = None
    if progress is True:
        bar = NotebookBar() if in_notebook() else TerminalBar() if sys.stderr.isatty() else None
    done = False
    try:
        yield progress if callable(progress) else bar
        done = True
    finally:
        if bar is not None:
            bar.close(done)


class Meter:
    """The progress of a study; a thread reports it to a function or a bar."""

    def __init__(self, progress: Progress | bool | None, runs: int = 0):
        self._bar = reporting(progress)
        self.progress: Progress | None = None
        # called when a case has all its replications, in the order of the cases
        self.tell_case: Callable[[str], None] | None = getattr(progress, "case", None)
        self.runs, self.done, self.ahead = runs, 0, 0
        self._told = 0.0
        self.simulation: Simulation | None = None  # the run that is made in this process
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, runs: int) -> None:
        """Add `runs` to the number of expected runs; a negative number reduces it."""
        self.runs += runs

    def finished(self) -> None:
        self.done += 1

    def share(self) -> float:
        """Finished share of all runs, including probable further runs; never decreases."""
        all_runs = max(self.runs, 1) + max(self.ahead, 0)
        self._told = max(self._told, min(1.0, (self.done + run_share(self.simulation)) / all_runs))
        return self._told

    def _report(self) -> None:
        assert self.progress is not None
        while not self._stop.wait(POLL):
            self.progress(self.share())

    def __enter__(self) -> "Meter":
        self.progress = self._bar.__enter__()
        if self.progress is not None:
            self._thread = threading.Thread(target=self._report, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            if kind is None and self.progress is not None:  # also of work that was done before the first report
                self.progress(self.share())
        self._bar.__exit__(kind, error, at)


def run_share(simulation: "Simulation | None") -> float:
    """Progress of a run, 0 to 1: by finished tasks or by time, whichever is higher."""
    if simulation is None:
        return 0.0
    ended = simulation.state.ended / max(len(simulation.input.tasks), 1)
    horizon = simulation.input.horizon
    return ended if math.isinf(horizon) else max(ended, simulation.view.now / horizon)


def in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
