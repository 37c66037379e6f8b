"""`hetsim report DIR`: a run, a comparison or a sweep as one HTML page.

The page has the figures in words, the tables, the pictures, the scenario, and the command that reproduces it.  The same
directory gives the same bytes, with the same versions of the packages.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from hetsim.errors import UsageError

if TYPE_CHECKING:  # the command line reads this file
    from hetsim.results.many_runs.compare import Comparison
    from hetsim.results.many_runs.replications import Replications
    from hetsim.results.many_runs.sweep import Sweep
    from hetsim.results.one_run.result import Result

NAME = "report.html"


def write_report(outcome: "Result | Replications | Comparison | Sweep", path: str | Path, *, folder: str = "") -> Path:
    """Write the page atomically; `folder`: name of the results in the commands shown."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"the page must be a file, such as report.html; got {target}, a folder")
    from hetsim.page.elements import write_page

    write_page(target, report(outcome, folder))
    return target


def report(outcome: "Result | Replications | Comparison | Sweep", folder: str = "") -> str:
    """Return the page as text; `folder`: the results' directory, for commands on it."""
    from hetsim.page import elements, of_comparison, of_run, of_sweep
    from hetsim.results.many_runs.compare import Comparison
    from hetsim.results.many_runs.sweep import Sweep

    if isinstance(outcome, Comparison):
        return elements.page(*of_comparison.of_comparison(outcome, folder))
    if isinstance(outcome, Sweep):
        return elements.page(*of_sweep.of_sweep(outcome, folder))
    return elements.page(*of_run.of_run(outcome, folder))
