"""The input of a run in its directory: cluster, tasks and modes as they were, so that no trace is ever read again.

    record/input.json       the objects: dataclasses of hetsim by name, each once; arrays by their number
    record/arrays.parquet   the arrays, a row each

Policies and what draws random numbers are left out: a run that is over needs neither.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
from pydantic import BaseModel

from sim.errors import DamagedFile
from sim.model.cluster import Cluster
from sim.model.files import naming, write_text
from sim.model.randomness import RandomTree
from sim.model.record import RunInput
from sim.model.tasks import Shape

OBJECTS, ARRAYS = "input.json", "arrays.parquet"
_LEFT_OUT = ("scheduler", "admission", "random", "closed", "batching", "iteration", "faults")


def save_input(run: RunInput, folder: Path) -> None:
    """Write the two files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = _Writer()
    fields = {f.name: getattr(run, f.name) for f in dataclasses.fields(run) if f.name not in _LEFT_OUT}
    random = (run.random.seed, run.random.replication, run.random.loads)
    text = json.dumps({"run": writer.encode(fields), "random": writer.encode(random)}, allow_nan=False)
    write_text(folder / OBJECTS, text + "\n")
    arrays = [np.ascontiguousarray(array) for array in writer.arrays]
    table = pa.table({
        "dtype": pa.array([array.dtype.str for array in arrays], pa.string()),
        "shape": pa.array([list(array.shape) for array in arrays], pa.list_(pa.int64())),
        "data": pa.array([array.tobytes() for array in arrays], pa.large_binary()),
    })  # fmt: skip
    with naming(folder / ARRAYS):
        pq.write_table(table, folder / ARRAYS, compression="zstd", use_dictionary=False)


def load_input(folder: Path) -> RunInput:
    """The input that was saved; DamagedFile where the files are not such."""
    import pyarrow.parquet as pq

    try:
        found = json.loads((folder / OBJECTS).read_text(encoding="utf-8"))
        rows = pq.read_table(folder / ARRAYS).to_pylist()
        arrays = [np.frombuffer(row["data"], np.dtype(row["dtype"])).reshape(row["shape"]).copy() for row in rows]
        reader = _Reader(arrays)
        seed, replication, loads = reader.decode(found["random"])
        return RunInput(scheduler=None, random=RandomTree(seed, replication, loads), **reader.decode(found["run"]))
    except (ValueError, KeyError, TypeError, LookupError, AttributeError, ImportError) as error:
        raise DamagedFile(folder / OBJECTS, f"it is no input of a run ({error})") from None


class _Writer:
    """Plain data from objects; what is there twice is written once."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._known: dict[int, int] = {}
        self._held: list[Any] = []  # so that no id is given twice

    def encode(self, value: Any) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.generic):
            return self.encode(value.item())
        if isinstance(value, float):
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, list):
            return [self.encode(one) for one in value]
        if isinstance(value, dict):
            return {"dict": [[self.encode(key), self.encode(one)] for key, one in value.items()]}
        if type(value) is tuple:
            return {"tuple": [self.encode(one) for one in value]}
        if id(value) in self._known:
            return {"same": self._known[id(value)]}
        number = self._known[id(value)] = len(self._held)
        self._held.append(value)
        return {"number": number, **self._object(value)}

    def _object(self, value: Any) -> dict[str, Any]:
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                return {"objects": [self.encode(one) for one in value.tolist()]}
            self.arrays.append(value)
            return {"array": len(self.arrays) - 1}
        if isinstance(value, Cluster):
            specs, index = [], 0
            while index < len(value.nodes):
                specs.append(value.nodes[index].spec)
                index += value.nodes[index].spec.count
            parts = {"partitions": self.encode(value.partitions), "fabric": self.encode(value.fabric)}
            return {"cluster": self.encode(specs), **parts}
        if isinstance(value, Shape):
            given = (value.modes, value.stopping, value.preemptible, value.index)
            return {"shape": [self.encode(one) for one in given]}
        kind = type(value)
        if kind.__module__.partition(".")[0] != "sim":
            raise TypeError(f"{kind.__qualname__} cannot be saved with a run")
        if isinstance(value, BaseModel):  # the peak of a device type
            names = list(kind.model_fields)
        else:
            names = getattr(kind, "_fields", None) or [field.name for field in dataclasses.fields(value)]
        fields = {name: self.encode(getattr(value, name)) for name in names}
        return {"class": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}


class _Reader:
    """The objects again."""

    def __init__(self, arrays: list[np.ndarray]):
        self.arrays = arrays
        self._known: dict[int, Any] = {}

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "float" in value:
            return float(value["float"])
        if "dict" in value:
            return {self.decode(key): self.decode(one) for key, one in value["dict"]}
        if "tuple" in value:
            return tuple(self.decode(one) for one in value["tuple"])
        if "same" in value:
            return self._known[value["same"]]
        found = self._known[value["number"]] = self._object(value)
        return found

    def _object(self, value: dict[str, Any]) -> Any:
        if "array" in value:
            return self.arrays[value["array"]]
        if "objects" in value:
            listed = [self.decode(one) for one in value["objects"]]
            array = np.empty(len(listed), dtype=object)
            array[:] = listed
            return array
        if "cluster" in value:
            cluster = Cluster(self.decode(value["cluster"]))
            cluster.partitions = self.decode(value["partitions"])
            cluster.fabric = self.decode(value["fabric"])
            return cluster
        if "shape" in value:
            modes, stopping, preemptible, index = (self.decode(one) for one in value["shape"])
            shape = Shape(modes, stopping, preemptible)
            shape.index = index
            return shape
        module, _, name = value["class"].partition(":")
        if module.partition(".")[0] != "sim":
            raise TypeError(f"{value['class']} is no class of hetsim")
        kind: Any = getattr(importlib.import_module(module), name)
        fields = {key: self.decode(one) for key, one in value["fields"].items()}
        if issubclass(kind, BaseModel):  # was validated when it was read from the scenario
            return kind.model_construct(**fields)
        if issubclass(kind, tuple):
            return kind(**fields)
        if not dataclasses.is_dataclass(kind):
            raise TypeError(f"{value['class']} is no record")
        found: Any = object.__new__(cast(type, kind))
        for key, one in fields.items():
            object.__setattr__(found, key, one)
        return found
