"""The page of results: metrics from their registry, and the columns of the tables."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from reference_pages.markdown import code, generated, prose, row, table

TASKS = {
    "id": "id of the trace, or the number of the task from 0",
    "class": "class of the workload", "user": "user, empty where there is none",
    "arrival": "time of arrival", "ready": "arrival, or the last predecessor's finish",
    "start": "start of its first stage; missing if it never started",
    "finish": "end of its last stage, or when it was rejected, expired, failed or was aborted",
    "wait": "start − ready; through a pipeline summed over its stages, once the last has started",
    "response": "finish − arrival, of completed tasks",
    "slowdown": "response / time alone in the fastest mode, transfers included",
    "bounded_slowdown_10s": "max(1, response / max(time alone, 10 s)); the bound is part of the name",
    "device_type": "type of device it ran on last; through a pipeline those of its stages, joined by +",
    "device": "its devices, joined by +", "node": "its nodes, joined by +",
    "batch": "number of the launch it was part of", "upload": "seconds of uploading", "compute": "seconds of computing",
    "download": "seconds of downloading",
    "overhead": "response − the time before ready − wait − upload − compute − download: queues between stages of a "
                "launch, suspension, saving, restoring, lost work",
    "status": "completed, rejected, expired, failed, aborted or unfinished", "reason": "why, where it did not complete",
    "preemptions": "stops", "migrations": "moves to other devices or modes",
    "deadline": "absolute deadline; missing where there is none",
    "met_deadline": "completed in time; missing where there is no deadline, or only one after the end of the run",
    "energy_j": "joules above idle of its work that counted",
    "cost": "price × share held × time, where the cluster has prices",
    "hosts": "number of its nodes, where tasks may use several", "racks": "and of their racks, where there are any",
    "step": "mean seconds of a step, of jobs with `training` or `communication`",
    "communication": "seconds of it, with every link to itself; all launches, lost ones too",
    "bubble": "seconds in bubbles of the pipeline", "contention": "seconds that others on its links took",
    "network_bytes": "bytes that its nodes sent to each other", "mfu": "model FLOP utilization, of `training`",
    "ttft": "time from arrival to the first token, of requests to language models",
    "tpot": "time per further token",
    "preemptions_recompute": "times that a request to a language model gave way and was read again",
    "preemptions_swap": "times that it was copied to the host", "preemptions_failure": "times that its replica failed",
    "cached_tokens": "tokens of its prompt that the prefix cache had when it joined first, where there is one",
    "prompt_tokens": "tokens of the prompt", "output_tokens": "tokens of the answer",
}  # fmt: skip
LAUNCHES = {
    "launch": "number of the launch", "task": "id of its first task; of a pipeline, in `stages`",
    "members": "tasks in it",
    "mode": "mode in which it ran", "device_type": "type of device", "device": "its devices, joined by +",
    "node": "its nodes, joined by +", "decided": "when the policy started it",
    "start": "when its first stage began", "upload_start": "begin of the upload", "upload_end": "end of the upload",
    "compute_start": "begin of computing", "compute_end": "end of computing",
    "download_start": "begin of the download", "end": "when it let go of its devices",
    "outcome": "completed, stopped, lost, failed or running", "busy": "device-seconds computed",
    "lost": "the part of them that did not count", "energy_j": "joules above idle",
    "fill": "tasks in it / most tasks that a launch of this mode may have",
    "fused": "names of tasks launched as one kernel, joined by +; only of runs that have any",
}  # fmt: skip
DEVICES = {
    "device": "name of the device; the cores of a node are one", "type": "its type", "kind": "cpu, gpu or another",
    "node": "its node", "count": "cores, or 1", "busy": "seconds × share in which it computed",
    "allocated": "seconds × share held by launches", "up": "seconds up", "asleep": "seconds asleep",
    "utilization": "busy / up", "allocation": "allocated / up", "uploading": "seconds of its upload engine",
    "downloading": "seconds of its download engine", "launches": "launches that used it",
    "energy_j": "joules in all", "energy_tasks_j": "of them for work that counted",
    "energy_wasted_j": "for work that was lost", "energy_idle_j": "idle", "energy_sleep_j": "asleep",
    "cost": "price × time up or asleep", "cost_held": "price × share held × time",
}  # fmt: skip
TIMELINE = {
    "time": "from this time on", "waiting": "tasks ready and not running", "running": "tasks in launches",
    "busy_cores": "cores that compute", "busy_gpus": "GPUs that compute, by share",
    "allocated_gpus": "GPUs held, by share", "uploading": "uploads under way", "downloading": "downloads under way",
}  # fmt: skip
STEPS = {
    "service": "language model", "replica": "number of its replica", "device": "devices of the replica, joined by +",
    "start": "when the first of the steps began", "end": "when the last was over", "steps": "steps that are alike",
    "sequences": "sequences that decode in each of them", "prompt_tokens": "prompt tokens read",
    "tokens": "tokens decoded and read in all of them", "running": "requests in the replica",
    "waiting": "requests sent to it that are not in it, when the steps end", "kv_blocks": "KV blocks that it has",
    "kv_used_start": "KV blocks held when the steps begin", "kv_used": "and when they end, the most in between",
    "kv_free": "KV blocks free then", "kv_cached": "free ones that hold prefixes",
}  # fmt: skip
LINKS = {
    "link": "a node's own link (n0/network) or a rack's uplink (r0/uplink)", "kind": "node or uplink",
    "rate": "bytes per second in one direction", "bytes": "bytes out", "utilization": "mean share of the rate",
    "utilization_p95": "share of the rate not exceeded for 95 % of the time",
    "use": "seconds with a job on it", "shared": "seconds with two jobs or more",
}  # fmt: skip
STAGES = {
    "id": "name of the stage of an item in `launches`", "request": "id of its row in `tasks`",
    "stage": "name of the stage", "class": "class of the request", "user": "user of the request",
    "arrival": "time of arrival of the request", "ready": "arrival, or when the item has left the stage before",
    **{name: TASKS[name] for name in ("start", "finish")}, "wait": "start − ready",
    "device_type": "type of device", "device": "device", "node": "its node",
    **{name: TASKS[name] for name in ("batch", "upload", "compute", "download")},
    "overhead": "finish − start − upload − compute − download",
    **{name: TASKS[name] for name in ("status", "reason", "preemptions", "migrations", "energy_j", "cost")},
}  # fmt: skip
TABLES = {"tasks": TASKS, "launches": LAUNCHES, "devices": DEVICES, "timeline": TIMELINE, "steps": STEPS,
          "links": LINKS, "stages": STAGES}  # fmt: skip
ROWS = {"tasks": "task that arrived", "launches": "launch", "devices": "device", "timeline": "change",
        "steps": "event of a replica of a language model",
        "links": "link that jobs over several nodes used",
        "stages": "stage of a pipeline, item and request that arrived"}  # fmt: skip


def results_page() -> Iterator[str]:
    """Metrics and columns."""
    from hetsim.results.declared import has_direction, higher_is_better
    from hetsim.results.formatting import unit_of
    from hetsim.results.one_run.metrics import SETS, expanded, metrics, summary_names

    yield "# Results"
    yield from generated("the registry of metrics and the tables of a run")
    yield "Times are seconds, sizes bytes, energy joules. A summary covers the tasks that arrive in the window from"
    yield "`warmup` to `horizon`, and device time in it; the tables hold everything. How to read them:"
    yield "[results in pandas](../how-to/results.md); what intervals mean: [statistics](../statistics.md)."
    yield "\n## Metrics\n"
    yield "Those marked *s* are part of every summary; the others are computed where they apply, and when asked for by"
    yield "name (`--metric`). *Better* says which way a comparison names a winner; – for those that have no winner."
    yield ""
    yield from table("metric", "unit", "better", "", "meaning")
    for name, metric in metrics().items():
        better = "–" if not has_direction(name) else "more" if higher_is_better(name) else "less"
        text = inspect.getdoc(metric) or ""
        yield row(code(name), unit_of(name), better, "s" if name in summary_names() else "", prose(text))
    yield "\n## Sets of metrics\n"
    for name in SETS:
        if name != "all":
            yield f"- `{name}`: " + ", ".join(code(one) for one in expanded([name])) + "."
    yield "- `all`: every metric."
    for name, columns in TABLES.items():
        yield f"\n## result.{name}\n"
        yield f"One row a {ROWS[name]}.\n"
        yield from table("column", "meaning")
        yield from (row(code(column), prose(meaning)) for column, meaning in columns.items())
    yield "\n`result.by_stage` sums them up, a row a stage: `items`, means of `wait`, `service` and `overhead`,"
    yield "`batch_mean` and `utilization`. What a request through a pipeline is in `tasks`:"
    yield "[what is measured](../background/model.md#what-is-measured)."
    yield "\nOther columns of `tasks` are those that its trace brought along. The table of a sweep is described in"
    yield "[sweeps](../sweeps.md#the-table)."
