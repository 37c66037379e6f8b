"""Files of learned policies: arrays and JSON, no executable content.

A NumPy archive (.npz) with the network's arrays `array0`, `array1`, ... and `about`, the bytes of a JSON object:
format, versions of the format and of the features, what the policy decides, agent, window, device types, scale, and
training.  It is read with allow_pickle=False.  It is written under a temporary name first, so that a file is never
partial.  Equal policies give equal bytes.
"""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hetsim.errors import ScenarioError, file_error
from hetsim.learning.agents.network import ScoreNetwork
from hetsim.learning.observation.window import (
    ADMISSION,
    DECIDES,
    FEATURES_VERSION,
    MAX_WINDOW,
    SCHEDULING,
    SHORTEST,
    Layout,
)
from hetsim.model.cluster import Cluster
from hetsim.model.files import open_input, write_whole

FORMAT = "hetsim learned policy"
VERSION = 2
PLACES = {SCHEDULING: "policy.scheduler", ADMISSION: "policy.admission"}  # Scenario key of a policy, by what it decides
MAX_BYTES = 64_000_000  # maximum size of a policy file; real ones are far smaller


@dataclass
class LearnedPolicy:
    """A trained network, and a description of the scenario that it was trained for."""

    network: ScoreNetwork
    window: int
    types: tuple[str, ...]
    scale: float
    agent: str
    training: dict[str, Any] = field(default_factory=dict)  # how it was trained: scenario, steps, seed, reward, ..
    decides: str = SCHEDULING

    @property
    def layout(self) -> Layout:
        return Layout(self.window, self.types, self.decides)

    def best(self, observation: np.ndarray, mask: np.ndarray) -> int:
        """Return the possible action with the highest score; at ties, the first."""
        possible = np.flatnonzero(mask)
        return int(possible[self.network.scores(self.layout.row(observation, possible)).argmax()])

    def check(self, cluster: Cluster, path: Path) -> None:
        """Raise ScenarioError, with the file's name, if it does not match this cluster."""
        here = Layout.for_cluster(cluster, self.window, self.decides)
        mine = self.layout
        if here.types != mine.types:
            theirs = f"{here.observation} numbers, {here.actions} actions"
            text = (
                f"was learned for the device types {', '.join(mine.types)} ({mine.observation} numbers observed, "
                f"{mine.actions} actions), but the cluster has {', '.join(here.types)} ({theirs}): train one for it "
                "(hetsim train)"
            )
            raise file_error(path, text)


def save(policy: LearnedPolicy, path: str | Path) -> None:
    """Write the policy file; an error leaves no partial file."""
    about = {
        "format": FORMAT, "version": VERSION, "features": FEATURES_VERSION,
        **{key: value for key, value in vars(policy).items() if key != "network"},
        "observation": policy.layout.observation, "actions": policy.layout.actions,
    }  # fmt: skip
    parts: dict[str, np.ndarray] = {"about": np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8)}
    parts |= {f"array{number}": array for number, array in enumerate(policy.network.arrays)}

    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, array in parts.items():
                data = io.BytesIO()
                np.lib.format.write_array(data, np.ascontiguousarray(array), allow_pickle=False)
                # A fixed date: numpy.savez would write the time of day into the file.
                entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, data.getvalue())

    write_whole(Path(path), write)


def load(path: str | Path, decides: str | None = None) -> LearnedPolicy:
    """Read a policy file; raise ScenarioError if invalid or for another decision."""
    path = Path(path)
    wrong = partial(file_error, path)
    policy = _checked(_read_parts(path, wrong), wrong)
    if decides not in (None, policy.decides):
        raise wrong(f"was learned for {policy.decides}, not for {decides}: put it under {PLACES[policy.decides]}")
    return policy


def _read_parts(path: Path, wrong: Callable[[str], ScenarioError]) -> dict[str, np.ndarray]:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise wrong(f"is not a learned policy: it has {size:,} bytes")
        with open_input(path) as source:
            data = source.read()
        if data[:2] != b"PK":
            raise wrong("is not a learned policy: it is not an .npz archive (hetsim train)" if data else "is empty")
    except OSError as error:
        raise wrong(f"cannot be read: {error.strerror or error}") from None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size <= MAX_BYTES:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                parts = {name: arrays[name] for name in arrays.files}
    except Exception as error:  # zip, its compressions and NumPy's headers each complain in their own way
        raise wrong(f"is damaged or cut off: {' '.join(str(error).split()) or type(error).__name__}") from None
    if size > MAX_BYTES:
        raise wrong(f"is not a learned policy: it has {size:,} bytes")
    for name, array in parts.items():
        if not isinstance(array, np.ndarray):  # NumPy gives the bytes of what is not an array as they are
            raise wrong(f'is not a learned policy: "{name}" in it is not an array')
    return parts


def _checked(parts: dict[str, np.ndarray], wrong: Any) -> LearnedPolicy:
    try:
        about = json.loads(bytes(parts["about"].astype(np.uint8)).decode())
        recognized = about["format"] == FORMAT
    except (KeyError, ValueError, TypeError, RecursionError):
        recognized = False
    if not recognized:
        raise wrong("is an .npz archive, but not a learned policy (hetsim train)")
    try:
        _check_versions(about, wrong)
        layout = Layout(int(about["window"]), tuple(map(str, about["types"])), str(about["decides"]))
        scale = float(about["scale"])
        arrays = _numbered(parts, wrong)
        if not isinstance(about["agent"], str):
            raise wrong(f"is damaged: its agent must be a name; got {shown(about['agent'])}")
        training = dict(about["training"])
        said = int(about["observation"]), int(about["actions"])
    except KeyError as error:
        raise wrong(f"is damaged: it does not say its {error.args[0]}") from None
    except (TypeError, ValueError, OverflowError):
        raise wrong("is damaged: numbers and names in its description have wrong types") from None
    if layout.decides not in DECIDES:
        raise wrong(f'is damaged: decides must be {" or ".join(DECIDES)}; got "{layout.decides}"')
    if not 1 <= layout.window <= MAX_WINDOW:
        raise wrong(f"is damaged: its window must be from 1 to {MAX_WINDOW:,} tasks; got {layout.window:,}")
    if said != (layout.observation, layout.actions):
        raise wrong(
            f"is damaged: it states {said[0]} observed numbers and {said[1]} actions, but a window of {layout.window} "
            f"tasks and {len(layout.types)} device types need {layout.observation} numbers and {layout.actions} actions"
        )
    shapes = [array.shape for array in arrays]
    sound = all(array.dtype == np.float32 and np.isfinite(array).all() for array in arrays)
    if not SHORTEST <= scale < float("inf") or not sound or not _chained(shapes):
        raise wrong("is damaged: the shapes of its arrays do not form a network")
    if shapes[0][0] != layout.inputs:
        raise wrong(f"is damaged: its network must read {layout.inputs} numbers per action; got {shapes[0][0]}")
    return LearnedPolicy(
        ScoreNetwork(arrays), layout.window, layout.types, scale=scale, agent=about["agent"], training=training,
        decides=layout.decides
    )


def _check_versions(about: Mapping[str, Any], wrong: Any) -> None:
    versions = (
        (about["version"], VERSION, "its file format"),
        (about["features"], FEATURES_VERSION, "what it observes"),
    )
    for theirs, ours, what in versions:
        if isinstance(theirs, bool) or not isinstance(theirs, int):
            raise wrong(f"is damaged: the version of {what} must be a whole number; got {shown(theirs)}")
        if theirs > ours:
            text = f"was made by a newer hetsim: the version of {what} is {theirs}, but this hetsim knows {ours}"
            raise wrong(f"{text}; update hetsim, or train it again")
        if theirs < ours:
            text = f"was made by an older hetsim: the version of {what} is {theirs}, but this hetsim has {ours}"
            raise wrong(f"{text}; train it again")


def _numbered(parts: Mapping[str, np.ndarray], wrong: Any) -> list[np.ndarray]:
    expected = [f"array{number}" for number in range(len(parts) - 1)]
    for name in parts:
        if name != "about" and name not in expected:
            raise wrong(f'is damaged: its arrays must be array0, array1 and so on; got "{name}"')
    return [parts[name] for name in expected]


def shown(value: Any) -> str:
    """Format a value of the file as text of at most 40 characters."""
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _chained(shapes: list[tuple[int, ...]]) -> bool:
    if len(shapes) < 2 or len(shapes) % 2:
        return False
    width = shapes[0][0] if len(shapes[0]) == 2 else 0
    for weights, biases in zip(shapes[::2], shapes[1::2], strict=True):
        if len(weights) != 2 or weights[0] != width or biases != weights[1:]:
            return False
        width = weights[1]
    return width == 1 and shapes[0][0] > 0
