"""Texts for every reader of traces and of lists of nodes, in which each column and option meets a case."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from test_cluster_traces import FLAT, INSTANCES, JOBS, NODES, NODES_JSON, SCONTROL, SEVEN, TASKS, THROUGHPUTS, pod
from test_request_traces import SESSIONS
from test_trace_damage import BACCT, EXAMPLES, MAPPING, POLLUX, PROFILE

from hetsim.workload.mapped.mapping import GangOf
from hetsim.workload.readers import layer_profiles, snapshot


@dataclass
class Case:
    """A text for a reader, its options, and files that these name."""

    reader: str
    text: str
    options: dict[str, Any] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)
    file: str = "t.txt"
    kind: str = "traces"
    read: Callable[..., Any] | None = None


SACCT = """\
JobID|User|Account|Partition|QOS|Priority|Submit|Start|End|State|Timelimit|ReqTRES|AllocTRES|NodeList
5|ann|lab|gpu|high|12|2026-03-28T23:00:00|2026-03-28T23:00:10|2026-03-29T03:01:10|COMPLETED|05:00||cpu=8,gres/gpu:a100=2,gres/gpu:v100=1,mem=3G,node=2|n[01-02]
6_1|bob|lab|cpu|low||2026-03-29T00:01:00|2026-03-29T00:01:00|2026-03-29T00:03:00|TIMEOUT by 0|1|cpu=4,mem=500M|cpu=6,mem=1.5Kn,node=3|n[02-04]
7|bob|lab|cpu||3|2026-03-29T00:02:00|Unknown|Unknown|PENDING|1-00:00:00|cpu=4||None assigned
8|bob|lab|cpu|||2026-03-29T00:02:00|2026-03-29T00:02:30|Unknown|RUNNING|UNLIMITED|cpu=4|cpu=4|n02
9+0|eve|lab|gpu|||2026-03-29T00:02:00|2026-03-29T00:02:30|2026-03-29T00:05:30|COMPLETED|1-02:03:04|cpu=1|cpu=2,gres/gpu=1,mem=2T|n02
9+1|eve|lab|gpu|||2026-03-29T00:02:00|2026-03-29T00:02:30|2026-03-29T00:05:30|COMPLETED|1-02:03:04|cpu=1|cpu=3,gres/gpu=3|n03
10|eve|||||2026-03-29T00:03:00|2026-03-29T00:03:30|2026-03-29T00:04:30|REQUEUED||billing=1|cpu=2,gres/gpu:t4=0|n05
10|eve|||||2026-03-29T00:03:00|2026-03-29T00:05:30|2026-03-29T00:07:30|COMPLETED||billing=1|cpu=2|n06
11|eve|||||2026-03-29T00:04:00|2026-03-29T00:05:30|2026-03-29T00:07:30|COMPLETED||billing=1||
11.batch|eve|||||2026-03-29T00:04:00|2026-03-29T00:05:30|2026-03-29T00:07:30|COMPLETED||cpu=1||
"""  # noqa: E501
SWF = """\
; Computer: Test machine
; MaxNodes: 8
; MaxProcs: 64
; UnixStartTime: 1000000
  1   0   5   100  8 -1 2048 12  200 1024  1  3  2 -1  1  1 -1 -1
  2  10  -1    50 13 -1 512 -1   -1   -1  0  4  2 -1  3 -1 -1 -1
  4  30   0     0 -1 -1 -1  4   60   -1  5  3  2 -1  1  1 -1 -1
  5  40   7    90  6 -1 -1  4   60   0  1  -1  2 -1  2  1 -1 -1
  7  60   7    90  4 -1 -1  4   60   -1  3  3  2 -1  2  1 -1 -1
  8  70   0     0  2 -1 -1  2    0   -1  1  5 -1 -1 -1  4 -1 -1
  9  80   0    -1  2 -1 -1  2   60   -1  1  5  2 -1  2  1 -1 -1
"""
SQUEUE = """\
JOBID|PARTITION|USER|ACCOUNT|QOS|STATE|SUBMIT_TIME|START_TIME|TIME_LIMIT|CPUS|TRES_PER_NODE|NODES|NODELIST|REASON|PRIORITY
1|p|ann|lab|high|RUNNING|2026-01-01T00:00:00|2026-01-01T00:01:00|1:00:00|8|gres/gpu:a100:2|2|n[1-2]|None|10
2_[1-3,6%2]|p,q|bob|lab||PENDING|2026-01-01T00:02:00|N/A|2-00:00:00|1.5K|gpu:1|1-2||Priority|
3|q|bob|||PENDING|2026-01-01T00:02:00|2026-01-01T00:09:00|UNLIMITED|4|N/A|1||JobHeldUser|3
4_[1,3...]|q|eve|||PD|2026-01-01T00:03:00|2026-01-01T00:08:00|30|4|gres:gpu=3|1||Resources|5
5|q|eve|||COMPLETED|2026-01-01T00:03:00|2026-01-01T00:04:00|30|4||1|n3||5
6_7|q|eve|||CG|2026-01-01T00:03:00|2026-01-01T00:05:00|NOT_SET|4|gpu|1|n3||5
2_6|q|bob|||PENDING|2026-01-01T00:02:00|N/A|10|1|gpu:1|1||Priority|
8_[10-16:3]|q|eve|||PENDING|2026-01-01T00:03:00||10|4||1||Dependency|5
9_[10-16:3]|q|eve|||PENDING|2026-01-01T00:03:00||10|4||1|||5
"""
PIPEDREAM = """\
node1 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=0.0, parameter_size=0.0
node2 -- Conv2d(3, 8) -- forward_compute_time=0.5, backward_compute_time=1.1, activation_size=1024.0, parameter_size=64.0
node3 -- ReLU -- forward_compute_time=0.2, backward_compute_time=0.1, activation_size=[512.0; 256.0], parameter_size=0.0
node4 -- Add -- forward_compute_time=0.3, backward_compute_time=0.4, activation_size=2048.0, parameter_size=32.0
node5 -- Linear -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=128.0, parameter_size=4096.0
	node1 -- node2
	node2 -- node3
	node2 -- node4
	node3 -- node4
	node4 -- node5
"""  # noqa: E501
LAYERS = """\
layer,activations,weights,forward,backward,seconds.npu,seconds.gpu
a,1000,64,0.5,1.0,0.7,0.3
b,2000,128,0.25,0.5,1.2,0.2
"c, d",500,0,1.5,3,2,1.1
"""
TABLE = """\
id,arrival,class,user,priority,weight,deadline,patience,cpu_time,gpu_time,gpu_time.t4,gpu_time_estimate,cpus,gpus,memory,gpu_memory,bytes_in,bytes_out,predecessors,reads,writes,devices,qos,extra,note
a,0,c,u,1,2,50,9,10,1,2,1.5,2,1,1e9,5e8,100,10,,,x,t4|v100,high,3.5,hello
b,5.5,c,v,,1,,,20,,4,,1,0.5,,,,0,a,x,y;z,,low,,
c,7,d,,2,,80,60,inf,3,inf,2,1,2,2e9,,5,,a;b,y x,,v100,,1,z
"""  # noqa: E501
REQUESTS = "arrival,prompt_tokens,output_tokens,class,user\n0,5,2,a,u\n0.5,7,1,b,v\n3,9,4,a,u\n2,8,8,a,w\n"
PODS = [
    pod("a", "2026-01-01T00:00:00Z", "2026-01-01T00:00:05Z", "2026-01-01T00:01:05Z", gpus=1),
    pod("a2", "2026-01-01T00:00:02Z", "2026-01-01T00:00:07Z", "2026-01-01T00:01:09Z", gpus=2, memory="1500M"),
    pod("b", "2026-01-01T00:00:10Z", "2026-01-01T00:00:10Z", None, phase="Running"),
    pod("d", "2026-01-01T00:00:30+01:00", "2026-01-01T00:00:31Z", "2026-01-01T00:00:41Z", cpu="2", node="k2"),
    pod("e", "2026-01-01T00:00:40Z", "2026-01-01T00:00:51Z", "2026-01-01T00:00:59Z", **{"amd.com/gpu": "1", "cpu": "3"}),  # noqa: E501
]
for one in PODS[:2]:
    one["metadata"]["labels"]["volcano.sh/job-name"] = "train"
    one["metadata"]["annotations"] = {"scheduling.k8s.io/group-name": "other"}
PODS[3]["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:20Z"}]  # noqa: E501
PODS[3]["status"]["containerStatuses"][0]["restartCount"] = 2
PODS[3]["spec"]["activeDeadlineSeconds"] = 600
PODS[4]["spec"]["containers"][1]["resources"] = {"requests": {"nvidia.com/mig-1g.10gb": "1", "ephemeral-storage": "1Gi"}}  # noqa: E501
EVENTS = "\n".join(json.dumps({"type": "MODIFIED", "object": one}) for one in [*PODS, PODS[0]]) + "\n"
NODE_STATES = json.dumps({"items": [
    {"metadata": {"name": f"k{n}", "labels": {"nvidia.com/gpu.product": "T4"} if n % 2 else {}},
     "spec": {"unschedulable": n == 2}, "status": {
         "allocatable": {"cpu": f"{n}850m", "memory": f"{n}28000Mi", "nvidia.com/gpu" if n != 3 else "amd.com/gpu": str(n)},  # noqa: E501
         "conditions": [{"type": "Ready", "status": "False" if n == 4 else "True"}]}}
    for n in range(1, 6)
]}, indent=0)  # fmt: skip
PARTITIONED = SCONTROL.replace("State=IDLE", "State=IDLE+CLOUD Partitions=gpu,all").replace(
    "Gres=gpu:a100:4(S:0-1)", "Gres=gpu:a100:4(S:0-1),gpu:2,shard:8"
)  # fmt: skip
POOL = "; MaxProcs: 64\n; MaxNodes: 8\n  1 0 0 1\n"
TYPES = {"types": {"a100": "A", "T4": "t", "V100M32": "v", "k80": "K"}}
NET = {f"profiles/net/{name}": text for name, text in PROFILE.items()} | {
    "profiles/net/placements.csv": "placement,local_bsz,step_time,sync_time\n1,4,0.5,0\n1,8,1,0\n2,4,0.6,0.1\n2,8,1.1,0.1\n"  # noqa: E501
    "11,4,0.7,0.2\n11,8,1.2,0.2\n4,4,0.8,0.3\n",
    "profiles/net/scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,4,4,1,0.4\n3,6,4,1.2,0.5\n",  # noqa: E501
    "profiles/net/validation-8.csv": "progress,iteration,grad_sqr,grad_var\n10,10,1,1\n20,22,0.5,2\n",
    "profiles/net/validation-16.csv": "progress,iteration,grad_sqr,grad_var\n10,6,1,1\n20,12,0.5,2\n",
}
MORE_JOBS = POLLUX + "c,25,net,2,16\nd,30.5,net,4,16\n"
RATES = {"throughputs": "rates.json"}
CUT = {"since": 5.0, "until": 50.0, "time_scale": 0.5}


def _snapshot(path: Path) -> Any:
    return snapshot.read(path, {"n1": ["p"], "n2": ["p"], "n3": ["q"], "n4": ["q", "p"]})


def _profile(path: Path) -> Any:
    return layer_profiles.read_profile(path)


NEEDS: dict[str, dict[str, Any]] = {
    "gavel": {"paths": RATES, "others": {"rates.json": THROUGHPUTS}}, "csv": {"options": MAPPING},
    "jsonl": {"options": MAPPING}, "pollux": {"paths": {"profiles": "profiles"}, "others": NET},
}  # fmt: skip
CASES = {name: Case(name, text, **NEEDS.get(name, {})) for name, text in EXAMPLES.items()} | {
    "lsf bacct": Case("lsf", BACCT),
    "slurm all": Case("slurm", SACCT, {"node_counts": True, "attempts": "restarts", "zone": "Europe/Berlin"}),
    "slurm separate": Case("slurm", SACCT, {"types": {"a100": "A"}, "estimates": "perfect"}),
    "swf nodes": Case("swf", SWF, {"cores_per_node": 4, "size": "used"}),
    "swf gpus": Case("swf", SWF, {"processors": "gpus", **CUT}),
    "openb types": Case("openb", EXAMPLES["openb"], TYPES),
    "openb lasting": Case("openb", "\n".join(
        ",".join(row.split(",")[:8]) for row in EXAMPLES["openb"].splitlines()
    ).replace(",creation_time", "").replace(",deletion_time", ""), {"duration": 5.0}),
    "philly flat": Case("philly", FLAT, {"repeated": True}),
    "philly last": Case("philly", EXAMPLES["philly"], {"attempts": "last"}),
    "pai joined": Case("pai", TASKS, paths={"jobs": "jobs.csv", "instances": "instances.csv"},
                       others={"jobs.csv": JOBS, "instances.csv": INSTANCES}),
    "pai jobs": Case("pai", TASKS, TYPES, {"jobs": "jobs.csv"}, {"jobs.csv": JOBS}),
    "gavel seven": Case("gavel", SEVEN, {"types": {"v100": "V", "v100_unconsolidated": "W"}}, **NEEDS["gavel"]),
    "pbs restarts": Case("pbs", EXAMPLES["pbs"], {"attempts": "restarts"}),
    "kubernetes gangs": Case("kubernetes", json.dumps({"items": PODS}, indent=0), TYPES),
    "kubernetes events": Case("kubernetes", EVENTS, {"gang": False, "user_label": "volcano.sh/job-name"}),
    "kubernetes by": Case("kubernetes", json.dumps(PODS, indent=0), {"gang": GangOf(by="user")}),
    "burstgpt sessions": Case("burstgpt", SESSIONS),
    "requests cut": Case("requests", REQUESTS, {"sort": True, "sample": 0.7}),
    "pollux any": Case("pollux", MORE_JOBS, {"sizes": "any", "batch": "any", "max_gpus": 6}, **NEEDS["pollux"]),
    "pollux adaptive": Case("pollux", MORE_JOBS, {"batch": "adaptive", "local_limits": {"net": 6}}, **NEEDS["pollux"]),
    "hcsp types": Case("hcsp", "# x\n\n1 2 3\n4 -1 6\n7.5 8 9\n", {"types": ["cpu", "gpu", "t"]}),
    "hcsp machines": Case("hcsp", "1\n2\n3\n4\n5\n6\n", {"machines": 3}),
    "hetero_dag two": Case("hetero_dag", "# x\n5 1 2 3\n1 4 0.5 -1 5\n2 8 1 1.5 1,5\n3 -1 2 2 2\n\n",
                           {"types": ["gpu", "t"]}),
    "hetero_dag five": Case("hetero_dag", "5 1 2 3 1\n1 4 0.5 -1\n2 8 1 1.5 1,5\n3 -1 2 2 2\n"),
    "wfformat gpus": Case("wfformat", EXAMPLES["wfformat"], {"gpu_speedup": 4.0}),
    "tasks all": Case("tasks", TABLE, file="t.csv"),
    "tasks renamed": Case("tasks", TABLE.replace("weight,deadline", "w,d"), {"columns": {"extra": "weight", "arrival": "deadline"}}, file="t.csv"),  # noqa: E501
    "tasks flops": Case("tasks", "flops,bytes,efficiency,upload,download,slice\n1e12,1e9,0.5,1,2,1g.5gb\n2e12,,,,,\n",
                        file="t.csv"),
    "squeue": Case("squeue", SQUEUE, read=_snapshot),
    "squeue alloc": Case("squeue", SQUEUE.replace("TRES_PER_NODE", "TRES_ALLOC").replace("|STATE|", "|ST|"),
                         read=_snapshot),
    "pipedream": Case("pipedream", PIPEDREAM, read=_profile),
    "layers": Case("layers", LAYERS, file="t.csv", read=_profile),
    "layers measured": Case("layers", re.sub(r"(0.5,1.0|0.25,0.5|1.5,3|forward,backward),", "", LAYERS), file="t.csv", read=_profile),  # noqa: E501
    "openb_nodes": Case("openb_nodes", NODES, TYPES, kind="clusters"),
    "slurm_nodes": Case("slurm_nodes", PARTITIONED, TYPES, kind="clusters"),
    "slurm_nodes down": Case("slurm_nodes", SCONTROL, {"down": True}, kind="clusters"),
    "kubernetes_nodes": Case("kubernetes_nodes", NODE_STATES, TYPES, kind="clusters"),
    "kubernetes_nodes down": Case("kubernetes_nodes", NODE_STATES, {"down": True}, kind="clusters"),
    "kubernetes_nodes capacity": Case("kubernetes_nodes", NODES_JSON, kind="clusters"),
    "gavel_gpus": Case("gavel_gpus", THROUGHPUTS, {"gpus": {"k80": 2, "v100": 4}}, kind="clusters"),
    "swf_header": Case("swf_header", POOL, kind="clusters"),
    "swf_header nodes": Case("swf_header", POOL, {"cores_per_node": 8}, kind="clusters"),
    "philly_vc": Case("philly_vc", "vc,node num\nv1,3\nv2,2\nv3,0\n", {"gpu": "p100", "gpus_per_node": 4}, kind="clusters"),  # noqa: E501
}  # fmt: skip
