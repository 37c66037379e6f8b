"""Names that columns of job logs have."""

from __future__ import annotations

NAMES: dict[str, tuple[str, ...]] = {
    "id": ("jobid", "id", "job", "jid", "jobname", "taskid", "name", "jobnumber", "uid", "jobidraw", "podname"),
    "arrival": ("submittime", "submit", "submitted", "submittedtime", "submission", "submissiontime", "arrival",
                "arrivaltime", "submitat", "submittedat", "creationtime", "createdat", "created", "qtime", "queuedat",
                "queued", "ctime", "queuetime", "enqueuetime", "enqueued", "requesttime", "tsubmit", "timestamp"),
    "start": ("starttime", "start", "started", "startedat", "begin", "begintime", "scheduledtime", "began",
              "launchtime", "tstart", "starttimestamp", "dispatchtime", "allocatedat"),
    "end": ("endtime", "end", "ended", "endedat", "finish", "finishtime", "finished", "finishedat", "completiontime",
            "completed", "completedat", "stoptime", "tend", "deletiontime", "endtimestamp", "completion"),
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
    "user": ("user", "username", "owner", "userid", "submitter", "usr", "who", "uname"),
    "class": ("class", "jobtype", "type", "workload", "application", "app", "tasktype", "kind", "model"),
    "queue": ("queue", "queuename"),
    "partition": ("partition", "pool", "part"),
    "vc": ("vc", "virtualcluster"),
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
          "replicas", "instnum", "numinst", "numinstances", "allocnodes", "reqnodes")  # fmt: skip
"""Names of columns with how many nodes or instances a job has."""
