"""Predict what was measured on an H100: batches under load, and decode steps.

    python -m benchmarks.h100

Nothing is fitted to what is predicted.  A scenario has the median times of batches of 1, 8 and 64, and of the link to
the host the rate of the largest copy and the time of the smallest; arrivals are those of the measurement.
docs/background/measured-gpu.md has the figures, tests/measured the measurements, benchmarks/h100_measure.py the way
they were made.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hetsim as hs
from hetsim.workload.costs.architectures import MODELS
from hetsim.workload.costs.roofline import DEVICES, Efficiency, roofline_steps

MEASURED = Path(__file__).parents[1] / "tests" / "measured"
SIZES = (1, 8, 64)
"""The batch sizes whose times a scenario is given; the other 61 are held out."""
FIGURES = ("mean_ms", "p50_ms", "p90_ms", "p99_ms", "batch", "throughput")


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(MEASURED / f"h100_{name}.csv.gz")


def runs() -> list[dict[str, Any]]:
    """The runs of the batch server, in order."""
    frame = pd.read_csv(MEASURED / "h100_server.csv", dtype={"load": str})
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]


def ramp(streams: int) -> pd.DataFrame:
    """Requests, latency and batch size by second of arrival, as measured in the ramp."""
    frame = pd.read_csv(MEASURED / "h100_ramp.csv")
    return frame[frame["streams"] == streams]


def arrivals(run: dict[str, Any]) -> np.ndarray:
    """Seconds at which the requests of a run arrived."""
    random = np.random.default_rng(run["seed"])
    rate, seconds = run["rate"], run["seconds"]
    times = np.sort(np.round(random.random(random.poisson(rate * seconds)) * seconds, 6))
    if run["load"] == "ramp":
        wanted = np.interp(times, [0, 0.4 * seconds, 0.6 * seconds, seconds], [200, rate, rate, 200])
        times = times[random.random(len(times)) * rate < wanted]
    return times


@cache
def compute(executor: str) -> dict[int, str]:
    """Median times of the batches that a scenario is given."""
    name = f"frames {executor}"
    rows = table("batches").query(f"attempt == 1 and stage == 'compute' and model == '{name}'")
    medians = rows.groupby("size")["event_us"].median()
    return {n: f"{medians[n]:.1f} us" for n in SIZES}


@cache
def link() -> dict[str, str]:
    """Rates of the largest pinned copy, and the time of the smallest as latency."""
    medians = table("copies").query("memory == 'pinned'").groupby(["direction", "bytes"])["event_us"].median()
    rates = {way: f"{2**30 / medians[way, 2**30] / 1e3:.2f} GB/s" for way in ("up", "down")}
    return {"upload": rates["up"], "download": rates["down"], "latency": f"{medians['up', 4096]:.0f} us"}


def document(run: dict[str, Any], trace: Path) -> dict[str, Any]:
    """The scenario of a run, whose arrivals are in a file."""
    streams = int(run["streams"])
    batching = "serial_greedy" if streams == 1 else {"name": "size_or_timeout", "batch_timeout": 0}
    return {
        "name": "frames",
        "cluster": {"nodes": {"gpus": {"type": "h100", "count": 1, "streams": streams}, "pcie": link()}},
        "workload": [{
            "name": "frames",
            "trace": {"format": "requests", "path": str(trace)},
            "bytes_in": "6220800 B",
            "bytes_out": "2000 B",
            "service": {"compute": compute(run["executor"]), "max_batch": 64},
        }],
        "policy": {"batching": batching},
    }  # fmt: skip


def simulated(run: dict[str, Any]) -> hs.Result:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "arrivals.csv"
        trace.write_text("arrival\n" + "\n".join(f"{value:.6f}" for value in arrivals(run)))
        return hs.run(document(run, trace))


def predicted(run: dict[str, Any]) -> dict[str, float]:
    """The figures of a run, simulated."""
    result = simulated(run)
    tasks = result.tasks
    response = tasks["response"].to_numpy(float)
    arrival = tasks["arrival"].to_numpy(float)
    figures = [response.mean(), *np.quantile(response, [0.5, 0.9, 0.99])]
    values = [*(1e3 * one for one in figures), len(tasks) / len(result.launches)]
    return dict(zip(FIGURES, [*values, len(tasks) / ((arrival + response).max() - arrival[0])], strict=True))


def decode_steps() -> pd.DataFrame:
    """Measured and predicted seconds of decode steps replayed as CUDA graphs."""
    rows = table("decode").query("what == 'decode graph'").groupby(["batch", "tokens"])["event_us"].median()
    steps = roofline_steps(MODELS["llama-3-8b"], DEVICES["h100"], 1, Efficiency())
    frame = (rows / 1e6).rename("measured").reset_index()
    settings = zip(frame["batch"], frame["tokens"], strict=True)
    frame["predicted"] = [steps.seconds_for(0, n, n * context) for n, context in settings]
    frame["error"] = frame["predicted"] / frame["measured"] - 1
    return frame


def prefill_steps() -> pd.DataFrame:
    """Measured and predicted seconds of steps that read one prompt."""
    rows = table("decode").query("what == 'prefill eager'").groupby("tokens")["event_us"].median()
    steps = roofline_steps(MODELS["llama-3-8b"], DEVICES["h100"], 1, Efficiency())
    frame = (rows / 1e6).rename("measured").reset_index()
    frame["predicted"] = [steps.seconds_for(n, 0, 0, n * (n + 1) // 2) for n in frame["tokens"]]
    frame["error"] = frame["predicted"] / frame["measured"] - 1
    return frame


def percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "− ").replace("+", "+ ")


def rows() -> Iterator[str]:
    """The table of docs/background/measured-gpu.md: the first time that each run was made."""
    for run in runs():
        if run["attempt"] == 1:
            yield row(run, predicted(run))


def row(run: dict[str, Any], here: dict[str, float]) -> str:
    """A run as it was measured and simulated."""
    kind = "serial" if run["streams"] == 1 else "asynchronous"
    rate = f"to {run['rate']:,}/s" if run["load"] == "ramp" else f"{run['rate']:,}/s"
    means = (f"{values['mean_ms']:,.2f} ms" for values in (run, here))
    cells = [run["executor"], kind, run["load"], rate, *means, *(percent(here[key] / run[key] - 1) for key in FIGURES)]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    print(link(), compute("graph"), compute("eager"))
    for line in rows():
        print(line, flush=True)
    print(decode_steps().to_string(), prefill_steps().to_string(), sep="\n")


if __name__ == "__main__":
    main()
