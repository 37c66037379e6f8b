"""The benchmarks run and print; how fast anything is, no test says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def benchmark(*arguments: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "benchmarks.engine", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)


def test_figures_come_with_their_targets():
    done = benchmark("--quick", "--only", "throughput")
    assert done.returncode == 0, done.stderr
    assert "tasks per bare event" in done.stdout
    assert "≥ 0.10" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("simpy", "bare SimPy, 100,000 pending"),
        ("growth", "60,000 / 20,000 tasks"),
        ("width", "10,000 / 100 GPUs"),
        ("memory", "peak memory"),
        ("peers", "the three agree within their intervals"),
        ("cli", "hetsim --help"),
        ("storm", "preemptions"),
    ],
)
def test_every_other_figure_runs(name: str, line: str):
    done = benchmark("--quick", "--only", name)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout


def test_unknown_figures_are_refused():
    done = benchmark("--only", "nonsense")
    assert done.returncode == 2
    assert "there are simpy, throughput" in done.stderr
