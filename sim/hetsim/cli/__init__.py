"""The command line, `hetsim`: one file per verb.

Expensive imports are inside the commands, so that `hetsim --help` answers at once.
"""

from hetsim.cli.program import hetsim
from hetsim.cli.program import hetsim as main

__all__ = ["hetsim", "main"]
