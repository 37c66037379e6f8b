"""Paths inside scenario files: relative to the file that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo, WithJsonSchema


def _existing(value: Any, info: ValidationInfo) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("expected a file name")
    path = Path(value)
    if not path.is_absolute():
        path = Path((info.context or {}).get("base", ".")) / path
    try:
        found = path.is_file()
    except OSError:  # a name that is too long, say
        found = False
    if not found:
        raise ValueError(f'no file "{value}" (looked for {path})')
    return path


ExistingFile = Annotated[Path, BeforeValidator(_existing), WithJsonSchema({"type": "string"})]
"""A file that exists; the validation context's `base` is the folder of the scenario file."""
