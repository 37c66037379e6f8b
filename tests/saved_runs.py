"""Small runs that together hold every class and every file that a saved run can, and what is known of them.

`tests/data/saved_runs_0.tar.xz` has them as hetsim saved them when it named classes by their modules (version 0).

    python tests/saved_runs.py FILE     saves them with the hetsim that is imported, with its metrics and explanations
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import hetsim as hs
from hetsim.results.one_run.metrics import metrics
from hetsim.scenario.scenario import load


def unpacked(archive: Path, folder: Path) -> Path:
    """The folder, with what a tar archive of this checkout holds."""
    with tarfile.open(archive) as opened:
        # The filter came with Python 3.11.4; without it newer versions warn.
        opened.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]
    return folder


FILES = {
    "requests.jsonl": "".join(
        f'{{"timestamp": {40 * k}, "input_length": {1030 + k}, "output_length": 5, "hash_ids": [0, 1, {2 + k % 2}]}}\n'
        for k in range(12)
    ),
    "jobs.csv": "name,time,application,num_replicas,batch_size\na,5,net,2,32\nb,65,net,1,16\n",
    "profiles/net/placements.csv":
        "placement,local_bsz,step_time,sync_time\n1,8,1.0,0.0\n1,16,1.8,0.0\n2,8,1.1,0.1\n"
        "2,16,1.9,0.1\n11,8,1.5,0.5\n11,16,2.3,0.5\n12,8,1.6,0.6\n12,16,2.4,0.6\n",
    "profiles/net/validation-16.csv":
        "progress,iteration,metric,grad_sqr,grad_var\n100,100,0,0.0,1.0\n200,200,0,1.0,2.0\n",
    "profiles/net/validation-32.csv":
        "progress,iteration,metric,grad_sqr,grad_var\n110,60,0,0.0,1.0\n220,125,0,1.0,2.0\n",
}  # fmt: skip
MODEL = {"kind": "llm", "step": {"fixed": "10 ms", "per_prompt_token": "20 us"}, "kv": {"per_token": "1 MB"}}
WRITTEN: dict[str, dict[str, Any]] = {
    "prefixes": {
        "cluster": {"nodes": {"gpus": {"type": "g", "count": 2, "memory": "9 GB"}}},
        "workload": {"name": "chat", "trace": {"format": "mooncake", "path": "requests.jsonl"},
                     "service": {**MODEL, "prefix_cache": True,
                                 "scale": {"name": "target_requests", "max": 2, "target": 3}}},
    },
    "curves": {
        "cluster": {"nodes": {"count": 2, "cpus": 0, "gpus": {"type": "g", "count": 2}}},
        "workload": {"name": "jobs", "span": "any",
                     "trace": {"format": "pollux", "path": "jobs.csv", "profiles": "profiles"}},
        "policy": "las_intervals",
    },
    "measured links": {
        "cluster": {"nodes": [{"count": 2, "cpus": 4, "rack": "r0", "gpus": {"type": "k20", "count": 2}, "name": "a",
                               "nvlink": {"curve": [["1 MB", "1 GB/s"], ["1 GB", "20 GB/s"]]},
                               "price": "1/h", "partitions": "small"}]},
        "site": {"partitions": {"small": {"max_gpus": 3, "users": ["ann"]}}},
        "workload": {"name": "gangs", "gpus": 3, "span": "any", "span_speeds": {"node": 1, "rack": 0.8, "cluster": 0.5},
                     "arrivals": {"process": "poisson", "rate": "1/s"}, "count": 12, "user": "ann",
                     "partition": "small", "gpu_time": {"distribution": "exponential", "mean": "1 s"},
                     "patience": "4 s"},
    },
    "scattered batches": {
        "cluster": {"nodes": {"cpus": 2, "gpus": {"type": "g", "count": 1}}},
        "workload": {"name": "web", "arrivals": {"process": "poisson", "rate": "100/s"}, "slo": "50 ms", "count": 40,
                     "service": {"compute": {1: ["5 ms", "6 ms", "10 ms"], 4: ["9 ms", "10 ms", "12 ms"]},
                                 "max_batch": 4}},
    },
}  # fmt: skip
SHIPPED: dict[str, dict[str, Any]] = {
    "fused-network": {}, "model-from-figures": {"horizon": "4 s"}, "splitwise": {"horizon": "2 s"},
    "popular-inputs": {"horizon": "60 ms"}, "oversubscribed-racks": {"horizon": "1 h"},
    "parallel-training": {"horizon": "2 h"}, "npu-and-gpu": {"workload.0.count": 6},
    "site-with-partitions": {"horizon": "1 h"}, "thinking-clients": {"horizon": "6 s"},
    "broken-and-late": {"horizon": "4 min"},
}  # fmt: skip


def scenarios(folder: Path) -> dict[str, Any]:
    """All of them by name, with their files in a folder."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    found: dict[str, Any] = {
        name: load(name, {"warmup": 0, "replications": 1, **changes}) for name, changes in SHIPPED.items()
    }
    for name, described in WRITTEN.items():
        (folder / f"{name}.json").write_text(json.dumps({"name": name, **described}))
        found[name] = load(str(folder / f"{name}.json"))
    return found


def known(result: Any) -> dict[str, Any]:
    """Every metric of a run, and why its first tasks and all groups waited; NaN as a text."""
    values = {name: result.metric(name) for name in metrics()}
    explained = {str(task): result.explain(task).to_dict("list") for task in result.tasks["id"][:3]}
    return json.loads(json.dumps(
        {"metrics": values, "explain": explained, "by class": result.explain(by="class").to_dict("list")},
        default=lambda value: value.item() if hasattr(value, "item") else str(value),
    ), parse_constant=str)  # fmt: skip


def main(target: str) -> None:
    with tempfile.TemporaryDirectory() as name, tarfile.open(target, "w:xz", preset=9) as archive:
        folder = Path(name)
        for label, scenario in scenarios(folder).items():
            result = hs.run(scenario)
            saved = result.save(folder / "saved" / label)
            (saved.parent / f"{label}.json").write_text(json.dumps(known(result)))
            print(f"{label}: {len(result.tasks)} tasks, {sum(p.stat().st_size for p in saved.rglob('*.*')):,} bytes")
        for path in sorted((folder / "saved").rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(path.relative_to(folder / "saved").as_posix())
                entry.size = path.stat().st_size
                archive.addfile(entry, io.BytesIO(path.read_bytes()))


if __name__ == "__main__":
    main(sys.argv[1])
