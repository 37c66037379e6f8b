"""ER-LS, online list scheduling by enhanced rules: CPUs or GPUs, once and for all.

Decides on which side a task runs, when it becomes ready, by its times p on a core and q on a GPU, of which there are
m and k.  If p is at least the time at which a GPU will be free plus q, the GPUs get it; else the cores get it if
p/sqrt(m) <= q/sqrt(k), and the GPUs if not.  On each side the next task goes to whatever is free first.
Times count from the start of the load, as published; here from when the system was last empty.
Reference: Amaris, Lucarelli, Mommessin, Trystram, Generic Algorithms for Scheduling Applications on Hybrid Multi-core
Machines (2017): at most 4 sqrt(m/k) times the least makespan for m >= k, also of task graphs that are uncovered as
they run; no online algorithm is below sqrt(m/k) (Canon, Marchal, Simon, Vivien, Online Scheduling of Task Graphs on
Heterogeneous Platforms, 2020).
Where a task takes several devices, m and k count how many such tasks a side can run at once.  Of several types of
accelerators the one that would end it first stands for the GPUs.
Weakness: the sides are balanced on average only, by rule and not by load: a side can stand empty; and a task that
finds no room yet (several devices, memory) holds up those behind it on its side.
Cost: O(log devices) a task; tasks of several devices look at all lanes of their type.
"""

from __future__ import annotations

from math import sqrt

from hetsim.model.cluster import Cluster, DeviceType
from hetsim.model.plan import can_host
from hetsim.model.task import Task
from hetsim.model.tasks import Mode
from hetsim.policy import View
from hetsim_policies.dynamic.common.lines import AssigningScheduler, DeviceLine, LineTask


class ErLs(AssigningScheduler):
    """The GPU if it ends before the CPU alone, else p/√m against q/√k."""

    def make_lines(self, cluster: Cluster) -> list[DeviceLine]:
        lanes: dict[DeviceType, int] = {}
        for node in cluster.nodes:
            if node.cpus:
                lanes[node.cpu.type] = lanes.get(node.cpu.type, 0) + node.cpus
            for device in node.accelerators:
                lanes[device.type] = lanes.get(device.type, 0) + self.unit(device.type)
        self._since = 0.0
        self._line = {kind: DeviceLine(number, kind, count) for number, (kind, count) in enumerate(lanes.items())}
        self._hosts = {
            kind: [n for n in cluster.nodes if n.cpu.type is kind or any(d.type is kind for d in n.accelerators)]
            for kind in lanes
        }
        self._can: dict[Mode, bool] = {}
        return list(self._line.values())

    def ready(self, task: Task) -> None:
        if not self.jobs and not self.waiting:
            self._since = self._view.now
        super().ready(task)

    def assign(self, task: Task, view: View) -> LineTask | None:
        modes = [task.modes[position] for position in task.modes_by_speed()]
        jobs = [self._job(task, mode, view) for mode in modes if mode.type in self._line]
        possible = [job for job in jobs if self._possible(job, view)] or jobs
        cpu = min((job for job in possible if job.mode.on_cpu), key=_end, default=None)
        gpu = min((job for job in possible if not job.mode.on_cpu), key=_end, default=None)
        if cpu is None or gpu is None:
            return cpu or gpu
        return gpu if self._accelerated(cpu, gpu) else cpu

    def _accelerated(self, cpu: LineTask, gpu: LineTask) -> bool:
        """The enhanced rules."""
        if cpu.length >= gpu.begin - self._since + gpu.length:
            return True
        m, k = (max(1, job.lines[0].lanes // job.need) for job in (cpu, gpu))
        return cpu.length / sqrt(m) > gpu.length / sqrt(k)

    def _job(self, task: Task, mode: Mode, view: View) -> LineTask:
        line = self._line[mode.type]
        need = self.need(mode) * max(1, mode.gpus)
        seconds = task.remaining_in(mode)
        return LineTask(task, mode, None, lines=(line,), need=need, begin=line.free_at(need, view.now), length=seconds)

    def _possible(self, job: LineTask, view: View) -> bool:
        """Return True if the mode could run on some empty node, with the task's data."""
        mode = job.mode
        if mode not in self._can:
            hosts = self._hosts[mode.type]
            self._can[mode] = mode.span_any or any(can_host(node, mode) for node in hosts)
        data = sum(view.items[item].size for item in dict.fromkeys((*job.task.reads, *job.task.writes)))
        room = mode.on_cpu or mode.type.memory is None or mode.gpu_memory + data <= mode.type.memory
        return self._can[mode] and room


def _end(job: LineTask) -> float:
    return job.begin + job.length
