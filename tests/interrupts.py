"""Processes of tests that are ended by signals."""

from __future__ import annotations

import signal


def heeds_interrupts() -> None:
    """In a child: what was started in the background of a shell ignores interrupts, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
