"""Do two checkouts print and write the same?  `python .ci/same_outputs.py OTHER [--only TEXT]`, from the root of one.

Runs the front doors on shipped scenarios with the sources of either checkout and compares exit codes, standard output
and the tables that the other writes, byte by byte.  What names hetsim's own code (run.json, sweep.json, the names of
finished runs) may differ.  Ends with 1 if anything else does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RATE = "workload.jobs.arrivals.rate"
TWO = ["--policy", "fcfs", "--policy", "sjf"]
LOAD = ["latency-against-load", "--over", f"{RATE}=24/h,36/h", *TWO]
BEST = ["latency-against-load", *TWO, "--best", "response_mean", "--delta", "20%"]
LIMIT = ["overload", "--policy", "{admission: {name: queue_limit, limit: 20}}", "--final", "4"]
SHORT = ["--set", "horizon=200 s", "--set", "warmup=50 s"]
GPUS = "cluster.nodes.0.gpus.count"
UNTIL = "replications={precision: 8%, metric: response_mean, max: 14}"
COMMANDS: list[list[str]] = [
    ["run", "first-steps"],
    ["run", "mm16", "--replications", "3", "--json"],
    ["run", "mm16", "--replications", "3", "--workers", "2"],
    ["run", "mm16", "--set", "warmup=auto", "--replications", "6"],
    ["run", "mm16", "--set", UNTIL, "--workers", "2"],
    ["run", "deep-learning-mix", "--replications", "2", "--by", "class", "--metric", "jain"],
    ["run", "mm16", "--plan-precision", "5%", "--json"],
    ["compare", "latency-against-load", "--replications", "3", "--by", "class"],
    ["compare", "latency-against-load", *TWO, "--replications", "6", "--set", "warmup=auto", "--workers", "2"],
    ["compare", *BEST],
    ["compare", *BEST, "--workers", "2"],
    ["sweep", *LOAD, "--replications", "2", "--workers", "1"],
    ["sweep", *LOAD, "--replications", "2", "--workers", "2", "--json"],
    ["sweep", *LOAD, "--set", UNTIL, "--workers", "2"],
    ["sweep", *LOAD, "--set", "warmup=auto", "--replications", "6"],
    ["tune", *LIMIT, "--over", "limit=2,8,32,128", "--workers", "1"],
    ["tune", *LIMIT, "--over", "limit=2..200 integer log", "--n", "4", "--json", "--workers", "2"],
    ["size", "mm16", *SHORT, "--target", "wait_mean < 1 s", "--over", GPUS, "--from", "14", "--to", "20", "--json"],
]  # fmt: skip
SOURCES = ("sim", "policies", "scenarios")
OUT = ("run", "compare", "sweep")
"""Commands that write a directory."""


def outcome(root: Path, command: list[str]) -> dict[str, str]:
    """Digests of what a command gives, by what they are of."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        plan = "--plan-precision" in command
        words = [*command, "--out", str(out)] if command[0] in OUT and not plan else command
        done = subprocess.run(
            [sys.executable, "-c", "from hetsim.cli import main; main()", *words], cwd=folder, capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(str(root / name) for name in SOURCES)}, check=False,
        )  # fmt: skip
        found = {"exit": str(done.returncode), "stdout": _digest(done.stdout)}
        for path in sorted(out.rglob("*")):
            if path.suffix in (".parquet", ".csv", ".yaml") or path.name in ("summary.json", "comparison.json"):
                found[str(path.relative_to(out))] = _digest(path.read_bytes())
        if done.returncode not in (0, 4):
            print(done.stderr.decode()[-2000:], file=sys.stderr)
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--only", default="", help="commands that have this text")
    given = parser.parse_args()
    wrong = 0
    for command in COMMANDS:
        text = " ".join(command)
        if given.only not in text:
            continue
        here, there = (outcome(root.resolve(), command) for root in (Path(), given.other))
        differ = [name for name in there if here.get(name) != there[name]]
        wrong += bool(differ)
        print(f"{'DIFFERENT' if differ else 'same'}: {text}" + (f": {', '.join(differ)}" if differ else ""), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
