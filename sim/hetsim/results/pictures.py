"""Pictures of results: one that fails is a warning and loses nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hetsim import registry
from hetsim.errors import PictureWarning
from hetsim.model.files import write_whole

if TYPE_CHECKING:
    from hetsim.results.panels import Picture

PLOTS = "hetsim.plots"
"""A package above this one: loaded by name when a picture is asked for, so that other programs need no matplotlib."""


def drawn(name: str, results: Any, **options: Any) -> Picture:
    """Draw the picture of this name in `hetsim.plots`."""
    return registry.load_object(f"{PLOTS}:{name}")(results, **options)


def attempt(name: str, draw: Callable[[], Any]) -> str | None:
    """Draw a picture; on failure warn by PictureWarning and return its message."""
    try:
        draw()
    except Exception as error:  # matplotlib, fonts, a full disk: tables without a picture are better than none
        said = " ".join(str(error).split()) or "no message"
        reason = isinstance(error, OSError) and error.strerror
        message = f"the picture {name} could not be drawn: {reason or f'{type(error).__name__}: {said}'}"
        warnings.warn(message, PictureWarning, stacklevel=2)
        return message
    return None


def write_picture(draw: Callable[[], Any], path: Path) -> bool:
    """Write a picture to a file; return whether it was drawn."""

    return attempt(str(path), lambda: write_whole(path, lambda file: draw().save(file))) is None
