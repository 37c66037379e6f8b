"""A scheduler in another process and any language, by the protocol of Batsim.

Decides when and, if it names resources, where.  Messages report events; the process answers with decisions, in
simulated time.  A resource is a core or an accelerator, and a job requests the resources of its fastest mode.
Reference: Dutot, Mercier, Poquet, Richard, Batsim: a Realistic Language-Independent Resources and Jobs Management
Systems Simulator (JSSPP 2016).  Weakness: no batches of requests, no forks of runs; it cannot place data items.
Cost: a message and its answer per round, about 0.1 ms, in addition to the process's own computing.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count, groupby
from typing import Annotated, Any, Literal

from pydantic import Field

from hetsim.errors import PolicyError, Problem, ScenarioError, visible
from hetsim.model.device import Device
from hetsim.model.device_type import MILLI, WHOLE
from hetsim.model.mode import Mode
from hetsim.model.plan import Placement
from hetsim.model.task import RUNNING, WAITING, Task
from hetsim.model.units import Seconds
from hetsim.policy import Decision, PlanProblem, Reject, Scheduler, Set, Start, Stop, View, Wait
from hetsim.policy.external import Exchange, ExternalProgram

SHOWN, WRONG_SHOWN = 300, 900  # characters that an error shows of a message, and of what is wrong
UNREADABLE = ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(eq=False, slots=True)
class Job:
    """An attempt of a task, which an external scheduler sees as a job."""

    id: str
    task: Task
    attempt: int
    start: float = math.inf
    lanes: Sequence[int] = ()
    over: bool = False


class External(Scheduler):
    """A scheduler in its own process, whose command is given with `--external`.

    protocol: format of messages: as in Batsim, one line of JSON per message.
    timeout: maximum wall-clock time in which the process must answer, at most a day.
    """

    external_program: ExternalProgram | None = None  # set by the code that builds a run: no scenario names it

    def __init__(
        self, protocol: Literal["batsim"] = "batsim", timeout: Annotated[Seconds, Field(gt=0, le=86_400)] = 10.0
    ):
        self.protocol, self.timeout = protocol, timeout
        self._exchange: Any = None
        self._events: list[dict[str, Any]] = []  # what the next message tells
        self._due: list[tuple[float, int, dict[str, Any]]] = []  # what was answered, and calls, by time
        self._number = count()
        self._jobs: dict[str, Job] = {}
        self._of: dict[int, Job] = {}  # the last attempt of each task
        self._cores: dict[int, str] = {}  # cores in use, and their jobs
        self._refused: dict[Job, Any] = {}  # jobs that did not fit when they were to start `if_fits`, and their modes
        self._last = self._answer = ""

    def check(self, problem: PlanProblem) -> None:
        if self.external_program is None:
            what = "the command of external must be given on the command line or in Python"
            text = f'{what}: give --external "./my-scheduler" (external=["./my-scheduler"]), or --exchange to replay it'
            raise ScenarioError(Problem(text, key="policy.scheduler"))

    def begin(self, view: View) -> None:
        self._view = view
        self._to_come = sum(view.request_mix().values())
        self._lanes = [lane for node in view.cluster.nodes for lane in [node.cpu] * node.cpus + [*node.accelerators]]

    def _tell(self, kind: str, **data: Any) -> None:
        self._events.append({"timestamp": self._view.now, "type": kind, "data": data})

    def ready(self, task: Task) -> None:
        if (before := self._of.get(task.index)) is not None:
            self._over(before, "COMPLETED_FAILED")  # unless the process stopped it, a device failed
        attempt = 0 if before is None else before.attempt + 1
        job = Job(f"w0!{task.index}" + f"#{attempt}" * (attempt > 0), task, attempt)
        self._jobs[job.id] = self._of[task.index] = job
        part, modes = 1.0 - task.done, [task.modes[at] for at in task.modes_by_speed()]
        self._tell("JOB_SUBMITTED", job_id=job.id, job={
            "id": job.id, "subtime": task.ready, "res": _res(modes[0]), "walltime": task.estimate_in(modes[0]) * part,
            "profile": str(task.shape.index), "name": str(task.id), "class": task.class_, "user": task.user,
            "priority": task.priority, "deadline": task.deadline if task.deadline < math.inf else None,
            "walltimes": {mode.name: task.estimate_in(mode) * part for mode in modes[1:]},
        })  # fmt: skip
        self._to_come -= not attempt

    def finished(self, task: Task) -> None:
        self._over(self._of[task.index], "COMPLETED_SUCCESSFULLY")

    def gone(self, task: Task) -> None:
        job = self._of.get(task.index)
        self._to_come -= job is None  # admission refused it
        if job is not None and not job.over:
            job.over, before = True, len(self._events)
            self._events = [event for event in self._events if event["data"].get("job_id") != job.id]
            if len(self._events) == before:  # else the process has not heard of it
                self._tell("JOB_KILLED", job_ids=[job.id], job_progress={job.id: {"progress": 0}})

    def _over(self, job: Job, state: str) -> None:
        if not job.over:
            job.over = True
            for lane in job.lanes:
                self._cores.pop(lane, None)
            if state == "COMPLETED_FAILED" and self._view.now - job.start >= job.task.time_limit:
                state = "COMPLETED_WALLTIME_REACHED"
            code = int(state != "COMPLETED_SUCCESSFULLY")
            self._tell("JOB_COMPLETED", job_id=job.id, job_state=state, return_code=code, alloc=_intervals(job.lanes))

    def device(self, device: Device, up: bool) -> None:
        if numbers := [number for number, lane in enumerate(self._lanes) if lane is device]:
            self._tell("NOTIFY", type=f"event_machine_{'' if up else 'un'}available", resources=_intervals(numbers))

    def schedule(self, view: View) -> Iterator[Decision]:
        if self._exchange is None:
            self._open(view)
        for job in [job for job, mode in self._refused.items() if job.over or self._first(job, mode, view) is not None]:
            del self._refused[job]
            if not job.over:
                self._tell("NOTIFY", type="job_fits", job_id=job.id)
        for asked in count():
            if asked > 10_000 + 10 * len(self._jobs):
                raise self._wrong(f"answered {asked:,} messages at this instant, and no time passes: it loops")
            while self._due and self._due[0][0] <= view.now:
                event = heappop(self._due)[2]
                try:
                    yield from self._carry_out(event["type"], event.get("data") or {}, view)
                except UNREADABLE as error:
                    raise self._wrong(f"answered {event['type']} with wrong data ({_named(error)})") from error
            if not self._events:
                break
            if not self._to_come:
                self._to_come = -1
                self._tell("NOTIFY", type="no_more_static_job_to_submit")
            events, self._events = self._events, []
            self._ask(events)
        yield Wait(self._due[0][0] if self._due else math.inf)

    def run_ended(self, time: float | None) -> None:
        if self._exchange is not None:
            with closing(self._exchange):
                if time is not None:
                    self._tell("SIMULATION_ENDS")
                    self._ask(self._events)
                    self._exchange.in_order = True

    def _open(self, view: View) -> None:
        self.check(PlanProblem(None, view.cluster))  # type: ignore[arg-type]
        resources = [
            {"id": number, "name": lane.name, "state": "idle", "properties":
             {"type": lane.type.name, "kind": lane.type.kind, "node": lane.node, "rack": lane.rack or ""}}
            for number, lane in enumerate(self._lanes)
        ]  # fmt: skip
        off = "profiles-forwarded-on-submission dynamic-jobs-enabled dynamic-jobs-acknowledged forward-unknown-events"
        profiles = {str(shape.index): {"modes": [*map(_mode, shape.modes)]} for shape in view.request_mix()}
        data = {"nb_resources": len(resources), "nb_compute_resources": len(resources), "nb_storage_resources": 0,
                "allow_compute_sharing": False, "allow_storage_sharing": False, "compute_resources": resources,
                "storage_resources": [], "workloads": {"w0": "hetsim"}, "profiles": {"w0": profiles},
                "config": dict.fromkeys(off.split(), False)}  # fmt: skip
        stream = view.random.bit_generator.state  # of seed and replication: no other run has it
        assert self.external_program is not None
        name = hashlib.sha256(f"{self.external_program.scenario}{stream}{_ENCODE(data)}".encode()).hexdigest()[:16]
        self._exchange = Exchange(self.external_program, name, self.timeout, self._wrong)
        self._ask([{"timestamp": view.now, "type": "SIMULATION_BEGINS", "data": data}])

    def _ask(self, events: list[dict[str, Any]]) -> None:
        self._last, self._answer = _ENCODE({"now": self._view.now, "events": events}), ""
        try:
            self._answer = self._exchange.ask(self._last).decode(errors="backslashreplace").rstrip("\n")
            answer = json.loads(self._answer)
            if not self._view.now <= answer["now"] < math.inf:
                raise ValueError(f"now is {answer['now']}")
            for event in answer["events"]:
                if not self._view.now <= (time := float(event["timestamp"])) < math.inf:
                    raise ValueError(f"timestamp is {time}; it must be at least {self._view.now}, that of the message")
                (event.get("data") or {}).items(), event["type"].encode()  # as they will be read
                heappush(self._due, (time, next(self._number), event))
        except UNREADABLE as error:
            form = '{"now": time, "events": [{"timestamp", "type", "data"}, ...]}'
            raise self._wrong(f"must answer with {form} ({_named(error)})") from None

    @property
    def said(self) -> str:  # type: ignore[override]
        texts = {"last message": self._last, "answer": self._answer}
        return "".join(f"\n       {name}: {visible(text[:SHOWN])}{'…' if len(text) > SHOWN else ''}"
                       for name, text in texts.items() if text)  # fmt: skip

    def _wrong(self, what: str) -> PolicyError:
        what = f"the external scheduler {visible(what[:WRONG_SHOWN])} (t = {self._view.now:g} s)"
        return PolicyError(what + self.said)

    def _carry_out(self, kind: str | None, data: dict[str, Any], view: View) -> Iterator[Decision]:
        if kind == "EXECUTE_JOB":
            job = self._job(kind, data.get("job_id"), WAITING)
            asks = {True: True, False: False}[data.get("if_fits", False)] and data.get("alloc") is None
            if asks and self._first(job, data.get("mode"), view) is None:
                self._refused[job] = data.get("mode")
                return self._tell("NOTIFY", type="job_does_not_fit", job_id=job.id)
            placement = self._place(job, data, view)
            job.start = view.now
            yield Start(job.task, placement)
            if asks:
                self._tell("NOTIFY", type="job_started", job_id=job.id)
        elif kind == "REJECT_JOB":
            job = self._job(kind, data.get("job_id"), WAITING)
            job.over = True
            yield Reject(job.task, "rejected by the external scheduler")
        elif kind == "KILL_JOB":
            for job_id in self._listed(data.get("job_ids") or []):
                if (to_kill := self._jobs.get(str(job_id))) is None or not to_kill.over:  # else it ended meanwhile
                    yield from self._stop(self._job(kind, job_id, RUNNING), bool(data.get("resubmit")))
        elif kind == "CALL_ME_LATER":
            time = float(data["timestamp"])
            if not view.now < time < math.inf:
                raise self._wrong(f"must be called at a later time; got {time:g} s")
            heappush(self._due, (time, next(self._number), {"type": None}))
        elif kind is None:  # the call: what this process is told, and cannot say itself
            self._tell("REQUESTED_CALL")
        elif kind == "SET_RESOURCE_STATE":
            state = data.get("state", "on")
            if state not in ("off", "on", "wake") and not (isinstance(state, int | float) and 1e-3 <= state <= 1e3):
                raise self._wrong(f"must set the state off, on, wake or a frequency (nominal: 1); got {state!r}")
            for device in dict.fromkeys(self._lanes[one] for one in self._numbers(kind, data.get("resources"))):
                yield Set(device, state)
            self._tell("RESOURCE_STATE_CHANGED", resources=data["resources"], state=str(state))
        elif kind not in ("NOTIFY", "SET_JOB_METADATA"):  # which Batsim's schedulers may send, and change nothing here
            raise self._wrong(f"answered {kind}, which is not supported")

    def _stop(self, job: Job, resubmit: bool) -> Iterator[Decision]:
        """Stop a job; with `resubmit` it waits again and keeps its work, else reject it."""
        self._over(job, "COMPLETED_KILLED")
        yield Stop(job.task, keep=resubmit)
        self._tell("JOB_KILLED", job_ids=[job.id], job_progress={job.id: {"progress": job.task.done}})
        if not resubmit:
            yield Reject(job.task, "killed by the external scheduler")

    def _listed(self, ids: Any) -> list[Any]:
        if not isinstance(ids, list):
            raise self._wrong(f'sent KILL_JOB with job_ids {ids!r}, which must be a list such as ["w0!0"]')
        return ids

    def _job(self, kind: str, job_id: Any, state: int) -> Job:
        job = self._jobs.get(str(job_id))
        if job is None or job.over or job.task.state != state:
            is_not = "waiting" if state == WAITING else "running"
            raise self._wrong(f"sent {kind} for the job {job_id!r}, which is not {is_not}")
        return job

    def _numbers(self, kind: str, text: Any) -> list[int]:
        try:
            ends = [[*map(int, part.split("-"))] for part in text.replace(",", " ").split()]
        except (ValueError, AttributeError):
            ends = []
        if not ends or not all(one[0] <= one[-1] < len(self._lanes) for one in ends):
            raise self._wrong(f"sent {kind} with resources {text!r}; there are resources 0-{len(self._lanes) - 1}")
        return sorted({number for one in ends for number in range(one[0], one[-1] + 1)})

    @staticmethod
    def _modes(job: Job, wanted: Any) -> list[Mode]:
        modes = [one for at in job.task.modes_by_speed() if wanted in (None, (one := job.task.modes[at]).name)]
        if not modes:
            raise ValueError(f"{job.id} has no mode {wanted!r}; it has {', '.join(one.name for one in job.task.modes)}")
        return modes

    def _first(self, job: Job, wanted: Any, view: View) -> Placement | None:
        return next((at for one in self._modes(job, wanted) if (at := view.first(one, job.task)) is not None), None)

    def _place(self, job: Job, data: dict[str, Any], view: View) -> Placement:
        task, wanted, alloc = job.task, data.get("mode"), data.get("alloc")
        modes = self._modes(job, wanted)
        if alloc is None:
            if (free := self._first(job, wanted, view)) is None:
                raise self._wrong(f"starts {job.id}, which fits on no device now")
            return free
        job.lanes = lanes = self._numbers("EXECUTE_JOB", alloc)
        kind, there = self._lanes[lanes[0]].type, f"starts {job.id} on {alloc}"
        mode = next((mode for mode in modes if mode.type is kind and _res(mode) == len(lanes)), None)
        if mode is None:
            asks = " or ".join(f"{_res(mode)} × {mode.type.name}" for mode in modes)
            raise self._wrong(f"{there}, {len(lanes)} × {kind.name}, but the job needs {asks}")
        parts = [(device, len([*same])) for device, same in groupby(self._lanes[lane] for lane in lanes)]
        cores = tuple(number * MILLI for _, number in parts) if mode.on_cpu and len(parts) > 1 else None
        placement = Placement(mode, tuple(device for device, _ in parts), parts=cores)
        whole_cores = lanes if mode.on_cpu and not mode.millicores % MILLI else ()
        if not view.fits(mode, placement, (task,)) or any(lane in self._cores for lane in whole_cores):
            raise self._wrong(f"{there}, where it does not fit now")
        self._cores |= dict.fromkeys(whole_cores, job.id)
        return placement


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _res(mode: Mode) -> int:
    return mode.gpus or max(1, math.ceil(mode.cpus))


def _mode(mode: Mode) -> dict[str, Any]:
    return {"name": mode.name, "type": mode.type.name, "res": _res(mode), "gpus": mode.gpus,
            "share": mode.share / WHOLE, "cpus": mode.cpus, "memory": mode.memory, "gpu_memory": mode.gpu_memory,
            "span": mode.span_any, "nodes": mode.node_count,
            "partition": "" if mode.partition is None else mode.partition.name}  # fmt: skip


def _intervals(numbers: Sequence[int]) -> str:
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
