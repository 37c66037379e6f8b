"""Modules import downward only, as the contracts in pyproject.toml say."""

from __future__ import annotations

from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_rooms_of_the_engine_import_downward_only(capsys: pytest.CaptureFixture[str]) -> None:
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports  # takes long to import

    status = lint_imports(config_filename=str(TOP / "pyproject.toml"), no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
