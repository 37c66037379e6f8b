"""Seconds that tasks use the transfer engines of an accelerator on idle links.

Only a task's own data are counted: `bytes_in`, `bytes_out`, stages given as durations, and items that only this task
writes and no other task reads, which are sent to the host at its end.  The transfer of shared items depends on where
copies are.
"""

from dataclasses import dataclass

import numpy as np

from hetsim.model.cluster import Cluster
from hetsim.model.device import Device
from hetsim.model.device_type import Link
from hetsim.model.mode import Mode
from hetsim.model.tasks import Tasks


@dataclass(frozen=True)
class Way:
    """Path to an accelerator: latency (s), and seconds per byte up (to it) and down."""

    latency: float = 0.0
    up: float = 0.0
    down: float = 0.0


def way_to_host(cluster: Cluster, device: Device) -> Way:
    """Return latency and seconds per byte between device and host, on idle links."""
    if device.type.kind == "cpu":
        return Way()
    links = [device.type.link]
    if device.switch is not None:
        links.append(cluster.nodes[device.node].spec.switch)
    latency = sum(link.latency for link in links)
    return Way(latency, 1 / min(link.upload for link in links), 1 / min(download_rate(link) for link in links))


def download_rate(link: Link) -> float:
    return link.upload if link.duplex == "half" else link.download


@dataclass(frozen=True)
class Private:
    """Bytes that each task transfers for itself alone: to upload, and to download.

    Downloads include items that only this task writes and no other task reads or writes (`final_bytes`).
    """

    up: np.ndarray
    down: np.ndarray

    @property
    def any(self) -> bool:
        return bool(self.up.any() or self.down.any())


def private_bytes(tasks: Tasks) -> Private:
    blank = np.zeros(len(tasks))
    up = blank if tasks.bytes_in is None else np.asarray(tasks.bytes_in, dtype=float)
    down = blank if tasks.bytes_out is None else np.asarray(tasks.bytes_out, dtype=float)
    return Private(up, down + final_bytes(tasks))


def final_bytes(tasks: Tasks) -> np.ndarray:
    """Return each task's bytes of written items that no other task reads or writes."""
    sizes = np.zeros(len(tasks))
    users: dict[int, dict[int, None]] = {}
    for rows in (tasks.reads, tasks.writes):
        for task, row in enumerate(rows or ()):
            for item in row:
                users.setdefault(item, {})[task] = None
    for task, row in enumerate(tasks.writes or ()):
        sizes[task] = sum(tasks.items[item].size for item in dict.fromkeys(row) if len(users[item]) == 1)
    return sizes


def stage_seconds(mode: Mode, way: Way, private: Private, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each task's upload and download seconds if launched alone; 0 on CPUs."""
    if mode.on_cpu:
        return np.zeros(len(rows)), np.zeros(len(rows))
    sizes = private.up[rows] / mode.gpus, private.down[rows] / mode.gpus
    up = mode.upload.seconds_for(1) + np.where(sizes[0] > 0, way.latency + sizes[0] * way.up, 0.0)
    down = mode.download.seconds_for(1) + np.where(sizes[1] > 0, way.latency + sizes[1] * way.down, 0.0)
    return up, down
