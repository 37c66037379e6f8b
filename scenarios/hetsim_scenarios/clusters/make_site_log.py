"""Writes site-log.csv: five days of jobs as a site's own accounting prints them.

Nine days of jobs are simulated on eight nodes of four GPUs under EASY backfilling, as the site ran them: the user ben
may hold eight GPUs, and three nodes are down for 30 hours from the sixth day on.  Of that the log has the days from the
third to the seventh, so that jobs run at its beginning which it does not know.  Times are those of Berlin, limits and
sizes as Slurm writes them; twelve jobs were canceled before they started.

    python make_site_log.py > site-log.csv
"""

import sys
import tempfile
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

import hetsim as hs

HOUR, DAY = 3600.0, 86400.0
USERS = {"ana": 0.26, "ben": 0.13, "cho": 0.16, "dev": 0.12, "eva": 0.11, "fay": 0.10, "gus": 0.07, "hal": 0.05}
LIMITS = (1, 2, 4, 8, 12, 24, 48)
ZONE = ZoneInfo("Europe/Berlin")
BEGIN = datetime(2024, 3, 4, tzinfo=ZONE).timestamp() - 2 * DAY


def jobs(random: np.random.Generator) -> pd.DataFrame:
    """Submissions with a daily rhythm, of short jobs and of long ones; ben sends arrays of them."""
    rows = []
    time = 0.0
    while time < 9 * DAY:
        rhythm = 1.0 + 0.8 * np.sin((time / HOUR % 24 - 9) / 24 * 2 * np.pi)
        time += random.exponential(HOUR / (4.3 * rhythm))
        user = str(random.choice(list(USERS), p=list(USERS.values())))
        short = random.random() < 0.45
        sizes, weights = ([0, 1, 2], [0.25, 0.6, 0.15]) if short else ([1, 2, 4, 8], [0.5, 0.2, 0.2, 0.1])
        gpus = int(random.choice(sizes, p=weights))
        low, middle, high = (60, 20 * 60, 2 * HOUR) if short else (300, 3 * HOUR, 20 * HOUR)
        took = float(np.clip(random.lognormal(np.log(middle), 1.0), low, high))
        count = int(random.integers(3, 9)) if user == "ben" and not short and random.random() < 0.35 else 1
        for place in range(count):
            own = took * float(random.lognormal(0, 0.2)) if count > 1 else took
            wanted = own * random.uniform(1, 3)
            limit = HOUR * next((hours for hours in LIMITS if hours * HOUR >= wanted), LIMITS[-1])
            rows.append((time + 2 * place, user, "short" if short else "batch", gpus, own, limit))
    table = pd.DataFrame(rows, columns=["arrival", "user", "class", "gpus", "took", "time_limit"])
    table.insert(0, "id", np.arange(1, len(table) + 1))
    return table


def simulated(table: pd.DataFrame) -> pd.DataFrame:
    """When each of them started and ended."""
    tasks = table.drop(columns="took").assign(cpus=np.maximum(8, 8 * table["gpus"]))
    on_gpu = table["gpus"] > 0
    for name, here in (("gpu_time", on_gpu), ("cpu_time", ~on_gpu)):
        tasks[name] = table["took"].where(here, np.inf)
        tasks[f"{name}_estimate"] = table["time_limit"].where(here, np.inf)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.csv"
        tasks.to_csv(path, index=False)
        entry = {
            "trace": {"format": "tasks", "path": str(path)},
            "span": "any",
            "partition": {"column": "user", "names": {"ben": "ben"}, "others": "others"},
        }
        window = {"nodes": ["n5", "n6", "n7"], "from": "120 h", "for": "30 h", "drain": False}
        result = hs.run(
            {
                "cluster": {"nodes": {"name": "n", "count": 8, "cpus": 64, "gpus": {"type": "a100", "count": 4}}},
                "site": {"partitions": {"ben": {"nodes": "*", "max_gpus": 8}, "others": {"nodes": "*"}}},
                "faults": [{"maintenance": window}],
                "workload": entry,
                "policy": "easy_backfill",
            }
        )
    found = result.tasks[["id", "start", "finish", "status", "preemptions"]].merge(tasks, on="id")
    undisturbed = (found["status"] == "completed") & (found["preemptions"] == 0)
    return found[undisturbed & found["arrival"].between(2 * DAY, 7 * DAY)].sort_values("id")


def main() -> None:
    random = np.random.default_rng(11)
    tasks = simulated(jobs(random))
    never = set(random.choice(tasks["id"].to_numpy(), 12, replace=False).tolist())
    states = random.choice(["COMPLETED", "FAILED", "TIMEOUT"], size=len(tasks), p=[0.86, 0.10, 0.04])
    rows = []
    columns = zip(tasks.rename(columns={"class": "queue"}).itertuples(), states, strict=True)
    for task, state in columns:
        ran = task.id not in never
        rows.append({
            "job": task.id, "owner": task.user, "queue": task.queue,
            "submitted": clock(task.arrival), "started": clock(task.start) if ran else "",
            "runtime_s": round(task.finish - task.start) if ran else "", "limit": written(task.time_limit),
            "num_gpus": task.gpus, "cores": task.cpus, "mem": f"{4 * task.cpus}G",
            "state": state if ran else "CANCELLED",
        })  # fmt: skip
    pd.DataFrame(rows).to_csv(sys.stdout, index=False)


def clock(seconds: float) -> str:
    return datetime.fromtimestamp(round(BEGIN + seconds), ZONE).strftime("%d.%m.%Y %H:%M:%S")


def written(limit: float) -> str:
    days, rest = divmod(limit, DAY)
    return f"{days:.0f}-{rest // HOUR:02.0f}:00:00" if days else f"{rest // HOUR:02.0f}:00:00"


if __name__ == "__main__":
    main()
