"""Real Slurm next to `slurm_multifactor`: the same jobs, start by start.  Run by `pytest --slurm` alone (20 minutes).

Slurm's own daemons run on this machine as four invented nodes of eight cores (Debian: apt-get install slurmctld slurmd
slurm-client; 22.05 was tried).  Jobs sleep.  The simulator has what the log of the controller says, when they came and
how long they took, and the policy that `hetsim trace convert` makes of the slurm.conf.
"""

from __future__ import annotations

import getpass
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetsim as hs
from hetsim.workload.readers.slurm_conf import site_and_policy

DAEMONS = ("slurmctld", "slurmd", "sbatch", "squeue")
JOBS, RATE, MEAN, SEED, CYCLE, PORT = 300, 0.25, 32.0, 3, 30.0, 17300
"""Jobs of 3 s to 170 s on one to eight cores: a load of 0.75."""
CONF = """ClusterName=trial
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
SlurmdParameters=config_overrides
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=30,bf_resolution=1,bf_max_job_test=500,default_queue_depth=500,sched_interval=30
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightJobSize=1000
PriorityMaxAge=0-1
PriorityCalcPeriod=1
OverTimeLimit=5
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=8 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """The daemons, and the environment for Slurm's commands."""
    names = {"host": socket.gethostname(), "user": getpass.getuser(), "port": PORT, "first": PORT + 1, "last": PORT + 4}
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(folder=folder, **names))
    for name in ("state", *(f"spool-n{number}" for number in range(1, 5))):
        (folder / name).mkdir()
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    commands = [["slurmctld", "-D", "-f", str(conf)]]
    commands += [["slurmd", "-D", "-N", f"n{number}", "-f", str(conf)] for number in range(1, 5)]
    started: list[subprocess.Popen[bytes]] = []
    with (folder / "out.txt").open("wb") as output:
        try:
            for command in commands:
                started.append(subprocess.Popen(command, env=environment, stdout=output, stderr=output,
                                                start_new_session=True))  # fmt: skip
                time.sleep(3 * (len(started) == 1))
            for _ in range(60):
                shown = subprocess.run(["sinfo", "-h", "-o", "%T %D"], env=environment, capture_output=True, text=True)
                if shown.stdout.split()[:2] == ["idle", "4"]:
                    break
                time.sleep(1)
            else:
                pytest.fail(f"the nodes are {shown.stdout or shown.stderr}: see {folder}/ctld.log")
            yield environment
        finally:
            for process in reversed(started):
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)


def submitted(folder: Path, environment: dict[str, str]) -> dict[int, tuple[int, int]]:
    """Cores and limit in minutes of each job, once all have ended."""
    drawn, began, at, jobs = random.Random(SEED), time.time(), 0.0, dict[int, tuple[int, int]]()
    for _ in range(JOBS):
        at += drawn.expovariate(RATE)
        cores, length = drawn.choice([1, 1, 2, 2, 4, 8]), max(3.0, min(170.0, drawn.expovariate(1 / MEAN)))
        limit = max(1, int(-(-length * drawn.uniform(1, 3) // 60)))
        time.sleep(max(0.0, began + at - time.time()))
        words = ["sbatch", "--parsable", "-N1", "-n1", f"-c{cores}", "-t", str(limit), "-o", "/dev/null",
                 "--wrap", f"sleep {length:.2f}"]  # fmt: skip
        done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=folder, check=True)
        jobs[int(done.stdout.split(";")[0])] = cores, limit
    while subprocess.run(["squeue", "-h"], env=environment, capture_output=True, text=True, check=True).stdout.strip():
        time.sleep(2)
    return jobs


def logged(folder: Path) -> dict[str, dict[int, float]]:
    """When jobs came, started (in the main pass or by backfilling) and ended, as the controller logs it."""
    times: dict[str, dict[int, float]] = {"submit": {}, "main": {}, "backfill": {}, "end": {}}
    signs = {"submit": "_slurm_rpc_submit_batch_job", "main": "sched: Allocate", "backfill": "_start_job: Started",
             "end": "WEXITSTATUS"}  # fmt: skip
    for line in (folder / "ctld.log").read_text().splitlines():
        stamp, job = re.match(r"\[([^\]]+)\]", line), re.search(r"JobId=(\d+)", line)
        for name, sign in signs.items():
            if stamp and job and sign in line:
                times[name][int(job[1])] = datetime.fromisoformat(stamp[1]).timestamp()
    return times


@pytest.mark.nightly
def test_starts_are_those_of_slurm_within_a_cycle_of_backfilling(request: Any, tmp_path: Path) -> None:
    if not request.config.getoption("--slurm"):
        pytest.skip("real Slurm runs for twenty minutes: ask for it by --slurm")
    if missing := [name for name in DAEMONS if shutil.which(name) is None]:
        pytest.skip(f"no {missing[0]} here (Debian: apt-get install slurmctld slurmd slurm-client)")
    with slurm(tmp_path) as environment:
        jobs = submitted(tmp_path, environment)
    times = logged(tmp_path)
    begun = times["main"] | times["backfill"]
    assert begun.keys() == times["end"].keys() == jobs.keys()
    phase = float(np.median([at % CYCLE for at in times["backfill"].values()]))
    first = times["submit"][min(jobs)]
    origin = first - (first - phase) % CYCLE  # cycles are multiples of time 0 in the simulator
    lines = ["id,arrival,gpus,gpu_time,gpu_time_estimate"]
    for job, (cores, limit) in jobs.items():
        length = times["end"][job] - begun[job]
        lines.append(f"{job},{times['submit'][job] - origin:.3f},{cores},{length:.3f},{max(60 * limit, length):.3f}")
    (tmp_path / "jobs.csv").write_text("\n".join(lines) + "\n")
    parts, _ = site_and_policy(str(tmp_path / "slurm.conf"))
    # Its size factor is the mean of the part of the nodes, here always a quarter, and that of the cores.
    policy = {**parts["policy"]["scheduler"], "size": 500, "placement": "first_fit"}
    nodes = [{"count": 4, "cpus": 8, "gpus": {"type": "core", "count": 8}}]
    found = hs.run({"name": "slurm", "cluster": {"nodes": nodes}, "policy": {"scheduler": policy},
                    "workload": {"trace": {"format": "tasks", "path": str(tmp_path / "jobs.csv")}}})  # fmt: skip
    start = dict(zip(found.tasks["id"].astype(int), found.tasks["start"], strict=True))
    off = {job: start[job] - (begun[job] - origin) for job in jobs}
    late = {job: by for job, by in off.items() if abs(by) > CYCLE}
    print(f"{len(jobs)} jobs: {1 - len(late) / len(jobs):.1%} start within {CYCLE:g} s of Slurm's start; mean wait "
          f"{np.mean([begun[job] - times['submit'][job] for job in jobs]):.1f} s in Slurm, "
          f"{found.tasks['wait'].mean():.1f} s here")  # fmt: skip
    for job, by in late.items():  # the main pass comes up to a second late there, and what it takes is gone for others
        pass_ = "backfill" if job in times["backfill"] else "main"
        print(f"  job {job}, {jobs[job][0]} cores: {by:+.0f} s; Slurm's {pass_} pass started it")
    assert len(late) <= 0.05 * len(jobs)
