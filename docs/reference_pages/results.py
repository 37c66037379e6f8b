"""The page of results: metrics from their registry, and the columns of the tables."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from reference_pages.markdown import code, generated, prose, row, table

TASKS = {
    "id": "id of the task in the trace, or the number of the task from 0",
    "class": "class of the task in the workload", "user": "user of the task; empty if it has none",
    "arrival": "time at which the task arrived", "ready": "arrival of the task, or finish of its last predecessor",
    "start": "time at which the first stage of the task began; missing if the task never started",
    "finish": "time at which the last stage ended, or at which the task was rejected, expired, failed or was aborted",
    "wait": "start − ready; in a pipeline the sum over its stages, once the last stage has started",
    "response": "finish − arrival; for completed tasks only",
    "slowdown": "response / time alone in the fastest mode, transfers included",
    "bounded_slowdown_10s": "max(1, response / max(time alone, 10 s)); the bound is part of the name",
    "device_type": "type of the device on which it ran last; in a pipeline the types of its stages, joined by +",
    "device": "names of the devices that it used, joined by +", "node": "names of the nodes that it used, joined by +",
    "batch": "number of the launch that ran the task", "upload": "seconds of uploading input",
    "compute": "seconds of computing",
    "download": "seconds of downloading results",
    "overhead": "response − the time before ready − wait − upload − compute − download: queues between stages of a "
                "launch, suspension, saving, restoring, lost work",
    "status": "final status: completed, rejected, expired, failed, aborted or unfinished",
    "reason": "reason why the task did not complete",
    "preemptions": "number of stops", "migrations": "number of moves to other devices or modes",
    "deadline": "absolute deadline; missing if the task has no deadline",
    "met_deadline": "true if completed in time; missing without a deadline or if it is after the end of the run",
    "energy_j": "joules above idle power of its work that was not lost",
    "cost": "price × occupied share × time, if the cluster has prices",
    "hosts": "number of nodes of the task, if tasks may use several",
    "racks": "number of racks of the task, if there are racks",
    "step": "mean seconds per training step; for jobs with `training` or `communication`",
    "communication": "seconds of communication if its links were not shared; lost launches included",
    "bubble": "seconds in bubbles of the pipeline", "contention": "seconds lost to other jobs on its links",
    "network_bytes": "bytes that its nodes sent to each other", "mfu": "model FLOP utilization of `training`",
    "ttft": "time from arrival to the first token; for requests to language models",
    "tpot": "time per further token; for requests to language models",
    "preemptions_recompute": "number of preemptions after which its tokens were computed again (language models)",
    "preemptions_swap": "number of preemptions with a copy to the host",
    "preemptions_failure": "number of failures of its replica",
    "cached_tokens": "tokens of its prompt in the prefix cache when it first joined a batch, if there is such a cache",
    "prompt_tokens": "tokens of the prompt", "output_tokens": "tokens of the answer",
}  # fmt: skip
LAUNCHES = {
    "launch": "number of the launch", "task": "id of its first task; in a pipeline an id of `stages`",
    "members": "number of tasks in the launch",
    "mode": "mode in which the launch ran", "device_type": "type of the device",
    "device": "names of the devices that it used, joined by +",
    "node": "names of the nodes that it used, joined by +", "decided": "time at which the policy started the launch",
    "start": "time at which its first stage began", "upload_start": "start of the upload",
    "upload_end": "end of the upload",
    "compute_start": "start of computing", "compute_end": "end of computing",
    "download_start": "start of the download", "end": "time at which it released its devices",
    "outcome": "outcome of the launch: completed, stopped, lost, failed or running",
    "busy": "device-seconds of computing",
    "lost": "device-seconds of computing that were lost", "energy_j": "joules above idle power",
    "fill": "number of its tasks / maximum number of tasks in a launch of this mode",
    "fused": "names of tasks launched as one kernel, joined by +; only in runs with fused tasks",
}  # fmt: skip
DEVICES = {
    "device": "name of the device; the cores of a node are one device", "type": "type of the device",
    "kind": "kind of the device: cpu, gpu or another kind",
    "node": "node of the device", "count": "number of cores of a CPU; 1 for other devices",
    "busy": "seconds of computing × share",
    "allocated": "seconds × share that launches occupied", "up": "seconds in service", "asleep": "seconds asleep",
    "utilization": "busy / up", "allocation": "allocated / up",
    "uploading": "seconds in which its upload engine worked",
    "downloading": "seconds in which its download engine worked", "launches": "number of launches that used the device",
    "energy_j": "joules in total", "energy_tasks_j": "joules above idle power for work that was not lost",
    "energy_wasted_j": "joules above idle power for lost work", "energy_idle_j": "joules of the device at idle power",
    "energy_sleep_j": "joules of the device while asleep",
    "cost": "price × time in service or asleep", "cost_held": "price × occupied share × time",
}  # fmt: skip
TIMELINE = {
    "time": "time from which the row holds", "waiting": "number of ready tasks that do not run",
    "running": "number of tasks in launches",
    "busy_cores": "number of computing cores", "busy_gpus": "number of computing GPUs, by share",
    "allocated_gpus": "number of occupied GPUs, by share", "uploading": "number of running uploads",
    "downloading": "number of running downloads",
}  # fmt: skip
STEPS = {
    "service": "name of the language-model service", "replica": "number of the replica",
    "device": "devices of the replica, joined by +",
    "start": "time at which the first step of the row began", "end": "time at which its last step ended",
    "steps": "number of equal steps in the row",
    "sequences": "number of decoding sequences in each step", "prompt_tokens": "number of prompt tokens read",
    "tokens": "number of tokens decoded and read in all steps of the row",
    "running": "number of requests in the replica",
    "waiting": "number of requests that wait at the replica when the steps end",
    "kv_blocks": "number of KV blocks of the replica",
    "kv_used_start": "KV blocks in use when the steps begin",
    "kv_used": "KV blocks in use when the steps end, the maximum during the steps",
    "kv_free": "free KV blocks when the steps end", "kv_cached": "free KV blocks that store prefixes",
}  # fmt: skip
LINKS = {
    "link": "a node's own link (n0/network) or a rack's uplink (r0/uplink)", "kind": "kind of the link: node or uplink",
    "rate": "bytes per second in one direction", "bytes": "bytes sent", "utilization": "mean share of the rate",
    "utilization_p95": "share of the rate that is not exceeded for 95 % of the time",
    "use": "seconds with at least one job on the link", "shared": "seconds with two jobs or more",
}  # fmt: skip
STAGES = {
    "id": "name of the stage of an item in `launches`", "request": "id of the request, as in `tasks`",
    "stage": "name of the stage", "class": "class of the request", "user": "user of the request",
    "arrival": "time of arrival of the request",
    "ready": "arrival, or the time at which the item ended the previous stage",
    **{name: TASKS[name] for name in ("start", "finish")}, "wait": "start − ready",
    "device_type": "type of the device", "device": "name of the device", "node": "node of the device",
    **{name: TASKS[name] for name in ("batch", "upload", "compute", "download")},
    "overhead": "finish − start − upload − compute − download",
    **{name: TASKS[name] for name in ("status", "reason", "preemptions", "migrations", "energy_j", "cost")},
}  # fmt: skip
TABLES = {"tasks": TASKS, "launches": LAUNCHES, "devices": DEVICES, "timeline": TIMELINE, "steps": STEPS,
          "links": LINKS, "stages": STAGES}  # fmt: skip
ROWS = {"tasks": "task that arrived", "launches": "launch", "devices": "device", "timeline": "change of the numbers",
        "steps": "sequence of equal steps of a replica of a language model",
        "links": "link that multi-node jobs used",
        "stages": "stage of a pipeline, item and request"}  # fmt: skip


def results_page() -> Iterator[str]:
    """Metrics and columns."""
    from hetsim.results.declared import has_direction, higher_is_better
    from hetsim.results.formatting import unit_of
    from hetsim.results.one_run.metrics import SETS, expanded, metrics, summary_names

    yield "# Results"
    yield from generated("the registry of metrics and the tables of a run")
    yield "Times are in seconds, sizes in bytes, and energy is in joules. A summary covers the tasks that arrive"
    yield "between `warmup` and `horizon`, and the device time in this window; the tables have all tasks of the run."
    yield "[Results in pandas](../how-to/results.md) shows how to read the tables, and"
    yield "[statistics](../statistics.md) explains the confidence intervals."
    yield "\n## Metrics\n"
    yield "Metrics marked *s* are part of every summary. The other metrics are computed where they apply, and on"
    yield "request (`--metric NAME`). *Better* is the direction in which a comparison names a winner; metrics with –"
    yield "have no winner."
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
        yield f"The table has one row per {ROWS[name]}.\n"
        yield from table("column", "meaning")
        yield from (row(code(column), prose(meaning)) for column, meaning in columns.items())
    yield "\n`result.by_stage` summarizes this table with one row per stage: `items`, the means of `wait`, `service`"
    yield "and `overhead`, `batch_mean` and `utilization`. [What is measured](../background/model.md#what-is-measured)"
    yield "describes the row of a pipeline request in `tasks`."
    yield "\nFurther columns of `tasks` come from the trace. [Sweeps](../sweeps.md#the-table) describes the table of a"
    yield "sweep."
