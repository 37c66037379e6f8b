"""Who is told how far a loop is: a function, or a bar; on a terminal as text, in a notebook as a line written anew."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from sim.results.wording import seconds

Progress = Callable[[float], None]
"""Told the share of all work that is done, 0 to 1."""

EVERY = 0.5
"""Seconds between two updates of a notebook."""
PATIENCE = 2.0
"""Seconds before a bar appears on a terminal: shorter runs need none."""


class NotebookBar:
    """`42 % done, 12 s passed, about 17 s left`, in an output that is replaced."""

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
        """What it says after so many seconds."""
        left = f", about {seconds(float(f'{passed * (1 - share) / share:.2g}'))} left" if 0 < share < 1 else ""
        return f"{100 * share:.0f} % done, {seconds(float(f'{passed:.2g}'))} passed{left}"

    def close(self, done: bool) -> None:
        passed = seconds(float(f"{time.monotonic() - self.began:.2g}"))
        self.handle.update({"text/plain": f"done in {passed}" if done else f"stopped after {passed}"}, raw=True)


class TerminalBar:
    """A bar on stderr, from the third second on; a function of the share done."""

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


class Told:
    """Whoever is to be told of progress: a function, or with True a bar where somebody looks."""

    def __init__(self, progress: Progress | bool | None):
        self.bar: Any = None
        self.progress = progress if callable(progress) else None
        if progress is True:
            self.bar = NotebookBar() if in_notebook() else TerminalBar() if sys.stderr.isatty() else None
            self.progress = self.bar

    def __enter__(self) -> Progress | None:
        return self.progress

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bar is not None:
            self.bar.close(kind is None)


def in_notebook() -> bool:
    """Does an IPython kernel show what is displayed?"""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")
