"""Names that columns of job logs have."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAMES: dict[str, tuple[str, ...]] = {
    "id": ("jobid", "id", "job", "jid", "jobname", "taskid", "name", "jobnumber", "uid", "jobidraw", "podname"),
    "arrival": ("submittime", "submit", "submitted", "submittedtime", "submission", "submissiontime", "arrival",
                "arrivaltime", "submitat", "submittedat", "creationtime", "createdat", "created", "qtime", "queuedat",
                "queued", "ctime", "queuetime", "enqueuetime", "enqueued", "requesttime", "tsubmit",
                "submitdate", "submissiondate", "jobsubmittime", "datesubmitted", "timestamp"),
    "start": ("starttime", "start", "started", "startedat", "begin", "begintime", "scheduledtime", "began",
              "launchtime", "tstart", "starttimestamp", "dispatchtime", "allocatedat", "startdate",
              "jobstarttime", "datestarted"),
    "end": ("endtime", "end", "ended", "endedat", "finish", "finishtime", "finished", "finishedat", "completiontime",
            "completed", "completedat", "stoptime", "tend", "deletiontime", "endtimestamp", "completion", "stoppedat",
            "stopped", "enddate", "jobendtime", "jobfinishtime", "terminatedat", "datefinished"),
    "duration": ("runtime", "duration", "elapsed", "elapsedtime", "walltime", "wallclock", "runtimeseconds", "ranfor",
                 "executiontime", "exectime", "elapsedraw", "walltimeused", "jobduration", "timeused", "usedwalltime"),
    "wait": ("wait", "waittime", "queuewait", "waitingtime", "queuedfor", "timeinqueue", "pendingtime"),
    "time_limit": ("timelimit", "walltimelimit", "requestedtime", "reqtime", "limit", "timelimitraw", "maxruntime",
                   "requestedwalltime", "walltimerequested", "walltimereq", "reqwalltime", "timereq", "timelimits"),
    "gpus": ("numgpus", "gpus", "gpu", "ngpus", "gpunum", "gpucount", "numgpu", "gpurequest", "gpusrequested",
             "reqgpus", "allocgpus", "gpusallocated", "gpusalloc", "gpureq", "requestedgpus", "ngpu", "usedgpus"),
    "cpus": ("cores", "cpus", "numcpus", "ncpus", "cpunum", "cpu", "numcores", "ncores", "cpucount", "alloccpus",
             "reqcpus", "cpurequest", "cpusrequested", "cpureq", "processors", "nprocs", "slots", "vcpus",
             "coresallocated", "cpusallocated", "requestedcores", "cpucores", "cpumilli", "millicpu", "millicores"),
    "memory": ("memory", "mem", "reqmem", "memreq", "memoryrequest", "memorymb", "memgb", "ram", "allocmem",
               "memoryrequested", "requestedmemory", "rammb", "ramgb", "memorymib"),
    "gpu_memory": ("gpumemory", "gpumem", "vram", "gpumemorygb"),
    "devices": ("gputype", "gpumodel", "gpuspec", "accelerator", "acceleratortype", "gpukind",
                "gpuname", "gres", "kind", "model"),
    "user": ("user", "ownername", "username", "owner", "userid", "submitter", "usr", "who", "uname"),
    "class": ("class", "jobtype", "type", "workload", "application", "app", "tasktype", "kind", "model"),
    "queue": ("queue", "queuename", "jobqueue"),
    "partition": ("partition", "pool", "part"),
    "vc": ("vc", "virtualcluster", "cluster"),
    "group": ("group", "groupname", "team", "department", "organization", "org"),
    "account": ("account", "project", "projectname"),
    "qos": ("qos", "tier"),
    "status": ("status", "state", "exitstatus", "jobstate", "result", "jobstatus", "podphase"),
    "recorded_node": ("nodelist", "node", "host", "nodes", "hostname", "machine", "hosts", "exechost", "nodename"),
    "priority": ("priority", "prio"),
    "deadline": ("deadline", "due", "duedate"),
}  # fmt: skip
"""Names that columns of logs have, without signs between words; the first is the surest."""

WIDTHS = ("nodes", "numnodes", "nnodes", "nodenum", "nodecount", "workernum", "workers", "numworkers", "instances",
          "replicas", "numreplicas", "instnum", "numinst", "numinstances", "allocnodes", "reqnodes")  # fmt: skip
"""Names of columns with how many nodes or instances a job has."""

# Words in names -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Words:
    """Words that identify a column: one of each set, and none of the last."""

    sets: tuple[frozenset[str], ...]
    none: frozenset[str] = frozenset()

    def match(self, words: frozenset[str]) -> bool:
        return not words & self.none and all(words & one for one in self.sets)


def _words(*sets: str, none: str = "") -> Words:
    return Words(tuple(frozenset(one.split()) for one in sets), frozenset(none.split()))


_ASKED = "limit limits requested request req reqd max maximum timeout estimated estimate est expected allowed predicted"
_WAITED = "wait waited waiting pending queue queued queueing queuing"
_SPENT = "util utilization utilization hour hours time seconds sec power id ids index cost price rate temperature"
_LONG = "time s sec secs seconds ms millis minutes mins h hours duration"

WORDS: dict[str, tuple[Words, ...]] = {
    "id": (_words("job task pod run trial request", "id name number no uuid key"), _words("uuid")),
    "arrival": (
        _words("submit submitted submission arrival arrive arrived created creation create enqueued enqueue queued",
               none="gap gaps rate duration wait delay"),
        _words("time date datetime timestamp", none=f"{_ASKED} {_WAITED} {_LONG.replace('time', '')} run end start cpu "
               "gpu token prompt e2e mean avg finish finished begin completed e token tokens to"),
    ),
    "start": (
        _words("start started begin began launch launched dispatch dispatched scheduled",
               none=f"{_WAITED} delay latency to"),
    ),
    "end": (
        _words("end ended finish finished stop stopped complete completed completion terminated termination deleted "
               "deletion", none=f"{_ASKED} {_WAITED}"),
    ),
    "duration": (
        _words("duration elapsed runtime walltime wallclock ran", none=f"{_ASKED} {_WAITED} cpu gpu gpus mean avg"),
        _words("run running exec execution wall processing service", _LONG,
               none=f"{_ASKED} {_WAITED} cpu gpu gpus mean avg start end"),
    ),
    "wait": (
        _words("wait waited waiting pending queueing queuing", none="mean avg reason"),
        _words("queue", _LONG.replace("time ", "time delay "), none="mean avg"),
    ),
    "time_limit": (
        _words(_ASKED, "time walltime runtime wallclock duration timeout wall run", none="gpu cpu start end submit"),
    ),
    "gpus": (
        _words("gpu gpus ngpus accelerator accelerators", none=f"{_SPENT} mem memory vram type model name spec kind "
               "card sku milli s h"),
    ),
    "cpus": (
        _words("cpu cpus core cores vcpu vcpus ncpus ncores processor processors procs nprocs slots",
               none=f"{_SPENT} gpu gpus mem memory type model name milli s h"),
    ),
    "gpu_memory": (_words("gpu gpus", "mem memory", none=_SPENT), _words("vram")),
    "memory": (_words("mem memory ram", none=f"{_SPENT} gpu gpus vram shared per"),),
    "devices": (_words("gpu gpus accelerator", "type model name kind sku card spec"),),
    "user": (_words("user username owner submitter userid uid uname", none="group time cpu"),),
    "class": (_words("class category type kind application app workload framework", none="gpu gpus cpu node exit"),),
    "queue": (_words("queue", none="time s sec seconds wait delay"),),
    "partition": (_words("partition"),),
    "group": (_words("group team department org organization organization"),),
    "account": (_words("account project"),),
    "qos": (_words("qos"),),
    "status": (_words("status state outcome"),),
    "recorded_node": (
        _words("node nodes host hosts machine nodelist server hostname", none="count num number n type"),
    ),
    "priority": (_words("priority prio"),),
    "deadline": (_words("deadline due"),),
}  # fmt: skip
"""By what words in their names columns may be known that have none of the names above."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PLURALS = re.compile(r"\b(?:n|num)?([GC])PUs?(?![a-z])|(?<=[a-z])([GC])PUs?(?![a-z])")


def words_of(name: str) -> frozenset[str]:
    """The words of a name: `jobSubmitTime` and `Job submit-time` have the same."""
    plain = _PLURALS.sub(lambda match: f"_{(match[1] or match[2]).lower()}pus_", name)
    return frozenset(word.casefold() for word in _WORD.findall(plain))


def by_words(target: str, name: str) -> bool:
    """Return True if the words of a name indicate this target."""
    words = words_of(name)
    return any(one.match(words) for one in WORDS.get(target, ()))
