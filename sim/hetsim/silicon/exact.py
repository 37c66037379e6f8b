"""Complete kernel tables, if the package aiconfigurator-core is installed."""

import json
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.build import package_data

SOURCE: dict[str, Any] = json.loads(package_data(__file__, "tables.json"))


@cache
def installed() -> Path | None:
    """Return the folder of the complete kernel tables; None if they are not installed."""
    try:
        package = metadata.distribution(SOURCE["package"])
    except metadata.PackageNotFoundError:
        return None
    folder = Path(str(package.locate_file("aiconfigurator_core/systems/data")))
    return folder if package.version == SOURCE["version"] else None


def measured(
    gpu: str, engine: str, kernel: str, number_format: str, shape: tuple[int, ...], version: str
) -> tuple[list[np.ndarray], np.ndarray] | None:
    """Return the coordinates at which a kernel was measured, and the seconds.

    The coordinates are one array per axis.  None if the tables are not installed, or do not contain the kernel.
    """
    columns = next((names for start, names in SOURCE["tables"].items() if kernel.startswith(start)), None)
    if (data := installed()) is None or columns is None:
        return None
    system = gpu if (data / gpu).is_dir() else f"{gpu.partition('-')[0]}_sxm"
    folder = data / system / columns[0] / ("nccl" if columns[1] == "nccl" else engine) / version
    if not (file := folder / f"{columns[1]}_perf.parquet").is_file():
        return None
    frame = rows(file)
    formats, sizes, names = (text.split() for text in columns[2:5])
    named = [name for name, one in SOURCE["architectures"].items() if tuple(one) == shape]
    given = (*number_format.split("/")[: len(formats)], *(named or shape))
    wanted: dict[str, Any] = dict(zip((*formats, *sizes), given, strict=True))
    wanted |= dict(*columns[5:])
    if kernel.startswith(("nccl_", "mla_gen_")):
        wanted["op_name"] = kernel.removeprefix("nccl_")
    for column, value in wanted.items():
        frame = frame[frame[column] == value]
    best = frame[(frame[names] > 0).all(axis=1)].groupby(names)["latency"].min()
    return [best.index.get_level_values(name).to_numpy() for name in names], best.to_numpy() / 1000


@lru_cache(maxsize=4)
def rows(file: Path) -> Any:
    """Return the supported rows of a kernel table; adds columns such as `context`."""
    import pandas as pd

    frame = pd.read_parquet(file)
    for column, value in SOURCE["used"].items():
        frame = frame[frame[column] == value] if column in frame else frame
    frame = frame.assign(context=frame.get("step", 0) + 1)
    if (keys := frame.get("num_key_value_heads")) is not None:
        frame = frame.assign(share=frame["num_heads"] // keys, window_size=frame.get("window_size", 0))
        frame = frame[frame["num_heads"] % keys == 0]
    return frame
