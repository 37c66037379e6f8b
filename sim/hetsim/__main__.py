"""The command `hetsim`; its version is printed without loading Click."""

import sys
from contextlib import suppress

from hetsim import __build__, __version__


def main() -> None:
    """Run the command given by the arguments of the process."""
    if sys.argv[1:] == ["--version"]:
        with suppress(BrokenPipeError):  # as Click ends a command whose output is closed
            return print(f"hetsim, version {__version__} ({__build__})", flush=True)
    from hetsim.cli import main as command

    return command()


if __name__ == "__main__":
    main()
