"""The input of a run in its directory: cluster, tasks and modes; no trace files.

record/input.json       each object once, with a tag for its class (`hetsim.results.saved_classes`)
record/arrays.parquet   one array per row; input.json refers to arrays by their row
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import UsageError
from hetsim.model.files import naming, write_text
from hetsim.model.record import RunInput
from hetsim.model.units import shown
from hetsim.results.saved_classes import CLASSES, READERS, VERSION
from hetsim.results.stored_files import check_parquet, read_json

OBJECTS, ARRAYS, RANDOM = "input.json", "arrays.parquet", ("seed", "replication", "loads")


def save_input(run: RunInput, folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = _Writer()
    text = json.dumps({"version": VERSION, "run": writer.encode(run)}, allow_nan=False)
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
    """Read the saved input; UsageError if it is too new, any exception if damaged."""
    import pyarrow.parquet as pq

    document = read_json(folder / OBJECTS)
    version = document.get("version", 0)
    if type(version) is not int or not 0 <= version <= VERSION:
        text = f"it has version {shown(version)}; this hetsim reads 0 to {VERSION}; run.json states its hetsim version"
        raise UsageError(f"{folder / OBJECTS} cannot be read: {text}")
    check_parquet(folder / ARRAYS)
    rows = pq.read_table(folder / ARRAYS).to_pylist()
    arrays = [np.frombuffer(row["data"], np.dtype(row["dtype"])).reshape(row["shape"]).copy() for row in rows]
    run = document["run"]
    if version == 0:
        random = {"class": ":RandomTree", "fields": dict(zip(RANDOM, document["random"]["tuple"], strict=True))}
        run = {"class": ":Run", "fields": {**dict(run["dict"]), "random": random | {"number": None}}, "number": None}
    return _Reader(arrays, version).decode(run)


class _Writer:
    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._tags = {kind: tag for tag, (kind, _) in CLASSES.items()}
        self._numbers: dict[int, int] = {}
        self._written: list[Any] = []  # so that no id is given twice

    def encode(self, value: Any) -> Any:
        if isinstance(value, int) and value.bit_length() > 63:  # a set of nodes; Python limits decimal digits
            return {"int": hex(value)}
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
        if id(value) in self._numbers:
            return {"same": self._numbers[id(value)]}
        number = self._numbers[id(value)] = len(self._written)
        self._written.append(value)
        return {"number": number, **self._object(value)}

    def _object(self, value: Any) -> dict[str, Any]:
        if isinstance(value, np.ndarray):
            if value.dtype.hasobject:
                return {"objects": [self.encode(one) for one in value.tolist()]}
            self.arrays.append(value)
            return {"array": len(self.arrays) - 1}
        if (tag := self._tags.get(type(value))) is None:
            raise UsageError(f"a {type(value).__qualname__} cannot be saved with a run: it has no tag (saved_classes)")
        names = CLASSES[tag][1]
        return {"tag": tag, "fields": {name: self.encode(getattr(value, at)) for name, at in names.items()}}


class _Reader:
    def __init__(self, arrays: list[np.ndarray], version: int):
        self.arrays, self.version = arrays, version
        self._read: dict[int, Any] = {}

    def decode(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.decode(one) for one in value]
        if not isinstance(value, dict):
            return value
        if "float" in value:
            return float(value["float"])
        if "int" in value:
            return int(value["int"], 16)
        if "dict" in value:
            return {self.decode(key): self.decode(one) for key, one in value["dict"]}
        if "tuple" in value:
            return tuple(self.decode(one) for one in value["tuple"])
        if "same" in value:
            if value["same"] not in self._read:
                raise ValueError(f"it refers to the object {shown(value['same'])}, which is not defined before")
            return self._read[value["same"]]
        self._read[value["number"]] = decoded = self._object(value)
        return decoded

    def _object(self, value: dict[str, Any]) -> Any:
        if "array" in value:
            if value["array"] not in range(len(self.arrays)):
                raise ValueError(f"it has no array {shown(value['array'])}")
            return self.arrays[value["array"]]
        if "objects" in value:
            return np.fromiter((self.decode(one) for one in value["objects"]), object)
        tag, fields = (value["tag"], value["fields"]) if self.version else _tagged(value)
        if tag not in CLASSES:
            raise ValueError(f"it names the class {shown(tag)}, which does not exist")
        decoded = {name: self.decode(one) for name, one in fields.items()}
        for version in range(self.version, VERSION):
            decoded = READERS[version](tag, decoded) if version in READERS else decoded
        kind, names = CLASSES[tag]
        for name in decoded.keys() - names.keys():
            raise ValueError(f"its {tag} has the field {shown(name)}, which does not exist")
        make = getattr(kind, "model_construct", kind)  # of pydantic: was validated with the scenario
        return make(**{names[name]: one for name, one in decoded.items()})


def _tagged(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Tag and fields of an object saved in format 0, whose tags are Python names."""
    if "shape" in value:
        return "shape", dict(zip(("modes", "stopping", "preemptible"), value["shape"], strict=False))
    if "cluster" in value:
        return "cluster", {"specs": value["cluster"], "partitions": value["partitions"], "fabric": value["fabric"]}
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", value["class"].partition(":")[2]).lower(), value["fields"]
