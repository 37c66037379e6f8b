"""`--policy all`: every scheduler in one table, a refusal as a row with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hetsim import registry
from hetsim.errors import UsageError
from hetsim.experiment.policies import named_policies

SCENARIO = """
cluster: {nodes: [{cpus: 2, count: 2, gpus: {type: g, count: 2}}]}
workload:
  - {name: jobs, arrivals: {process: poisson, rate: 1/s}, count: 6, gpu_time: 1 s, cpu_time: 3 s}
  - {name: gangs, arrivals: {process: poisson, rate: 1/s}, count: 2, gpu_time: 1 s, gpus: 3, span: any}
policy: fcfs
"""


def test_all_stands_for_every_scheduler() -> None:
    assert list(named_policies("all")) == list(registry.policies("scheduler"))
    assert list(named_policies(["all", "sjf + queue_limit"]))[-1] == "sjf + queue_limit"
    with pytest.raises(UsageError, match="is given twice"):
        named_policies(["all", "sjf"])


@pytest.mark.slow
def test_every_scheduler_is_in_one_table(tmp_path: Path) -> None:
    """In a process of its own, where no test has registered any; planners of one lane a task refuse the gangs."""
    (tmp_path / "s.yaml").write_text(SCENARIO)
    command = "from hetsim.cli import main; main()"
    arguments = ["compare", str(tmp_path / "s.yaml"), "--policy", "all", "--json", "-q"]
    done = subprocess.run([sys.executable, "-c", command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = {*found["policies"], *found["refused"]}
    assert {"fcfs", "graham", "lst", "learned", "heft"} <= names and len(names) >= 90
    assert "graham" in found["policies"] and "plans tasks of one core or one whole GPU" in found["refused"]["lst"]
