"""What a folder of finished runs has, for tests."""

from pathlib import Path

from hetsim.experiment.store import _runs_of, _StoredFiles
from hetsim.experiment.work import RunOutcome


def stored_runs(folder: Path) -> dict[str, RunOutcome]:
    """All finished runs in a cache or a sweep's directory, by digest."""
    return dict(_StoredFiles(_runs_of(folder), []).all())
