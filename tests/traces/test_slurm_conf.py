"""slurm.conf and sshare as a site has them: nodes, partitions, weights, intervals, shares and usage."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from yaml import safe_load

import hetsim as hs
from hetsim.cli import hetsim
from hetsim.workload.logs.recognize import node_list

CONF = r"""# a small site
ClusterName=hall
SlurmctldHost=ctl
SchedulerParameters=bf_interval=60,bf_max_job_test=1000,bf_max_job_user=20,bf_continue
PriorityType=priority/multifactor
PriorityWeightAge=1000
PriorityWeightFairshare=10000
PriorityWeightPartition=500
PriorityMaxAge=14-0
PriorityDecayHalfLife=0
PriorityFlags=CALCULATE_RUNNING
PreemptType=preempt/qos
OverTimeLimit=1
NodeName=DEFAULT CPUs=64 RealMemory=512000 State=UNKNOWN
NodeName=a[1-4] Gres=gpu:a100:4 \
   Feature=nv  # goes on
NodeName=h1 Gres=gpu:h100:8
NodeName=c1 Boards=1 Sockets=2 CoresPerSocket=8 ThreadsPerCore=2
NodeName=old[1-2] State=DOWN
PartitionName=DEFAULT MaxTime=2-00:00:00 State=UP
PartitionName=batch Nodes=a[1-4],h1,old1 Default=YES PriorityJobFactor=10
PartitionName=debug Nodes=ALL MaxTime=30 PriorityTier=10 PriorityJobFactor=20 AllowAccounts=phys,chem
PartitionName=gone Nodes=old[1-2] MaxTime=UNLIMITED
"""
SSHARE = """Account|User|RawShares|RawUsage|GrpTRESRaw
root||0|1000|cpu=5,gres/gpu=3600
 phys||10|800|cpu=4
  opt||2|100|cpu=4
   opt|ann|1|100|cpu=1,gres/gpu=1200,gres/gpu:a100=1200
  phys|bob|3|700|cpu=1
 chem||parent|200|
  chem|cho|1|200|gres/gpu=2400
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("slurm.conf").write_text(CONF)
    Path("sshare.txt").write_text(SSHARE)
    return tmp_path


def convert(*words: str) -> tuple[dict, str]:
    done = CliRunner().invoke(hetsim, ["trace", "convert", "slurm.conf", *words])
    assert done.exit_code == 0, done.output
    return safe_load(done.stdout), done.stderr


def test_a_site_is_what_its_files_say(there: Path) -> None:
    assert node_list("slurm.conf") == "slurm_conf"
    Path("slurm.conf").write_text(CONF.replace("NodeName=c1 Boards=1", "NodeName=c1 CPUs=32 Boards=1"))
    made, notes = convert("--option", "sshare=sshare.txt")
    nodes = {node["name"]: node for node in made["cluster"]["nodes"]}
    assert nodes["a100"] == {"name": "a100", "count": 4, "cpus": 64, "memory": "512000 MiB",
                             "gpus": [{"type": "a100", "count": 4}], "partitions": ["batch", "debug"]}  # fmt: skip
    assert nodes["h100"]["count"] == 1 and nodes["cpu"]["cpus"] == 32 and nodes["cpu"]["partitions"] == ["debug"]
    assert made["site"] == {"at_limit": "kill", "grace": "60 s", "partitions": {
        "batch": {"default": True, "max_time": "172800 s"},
        "debug": {"max_time": "1800 s", "tier": 10, "accounts": ["phys", "chem"]}}}  # fmt: skip
    assert made["policy"]["scheduler"] == {
        "name": "slurm_multifactor", "priority": 0, "age": 1000, "fair_share": 10000, "size": 0, "partition": 500,
        "service": 0, "max_age": "1209600 s", "half_life": "36500 d", "calc_period": "300 s", "small_first": False,
        "bf_interval": "60 s", "bf_resolution": "60 s", "sched_interval": "60 s", "bf_max_job_test": 1000,
        "bf_max_job_user": 20, "bf_job_part_count_reserve": 0, "default_queue_depth": 100,
        "partitions": {"batch": 0.5, "debug": 1.0, "gone": 0.05}, "shares": {"ann": 1, "bob": 3, "cho": 1},
        "usage": {"opt/ann": 1200, "phys/bob": 0, "chem/cho": 2400},
        "accounts": {"phys": {"shares": 10}, "opt": {"shares": 2, "parent": "phys"}, "chem": {"shares": 1}},
    }  # fmt: skip
    assert "not modeled: CALCULATE_RUNNING, bf_continue, PreemptType (line 12)" in notes
    assert "Fairshare=parent or no shares have one share" in notes


def test_it_runs_and_the_tree_may_be_none(there: Path) -> None:
    Path("slurm.conf").write_text(CONF.replace("CALCULATE_RUNNING", "NO_FAIR_TREE").replace("multifactor", "basic"))
    Path("sshare.txt").write_text("\n".join(line.rpartition("|")[0] for line in SSHARE.splitlines()))
    made, notes = convert("--option", "sshare=sshare.txt")
    scheduler = made["policy"]["scheduler"]
    assert "accounts" not in scheduler and scheduler["usage"] == {"ann": 100, "bob": 700, "cho": 200}
    assert scheduler["age"] == 1 and scheduler["fair_share"] == 0 and "is read as GPU seconds" in notes
    jobs = {"count": 8, "arrivals": {"process": "poisson", "rate": "20/h"}, "gpus": 4, "gpu_time": "1 h"}
    found = hs.run({"name": "x", **made, "workload": [{**jobs, "partition": "batch", "users": 3}]})
    assert found.metric("completed_count") == 8


@pytest.mark.parametrize(("old", "new", "said"), [
    ("OverTimeLimit=1", "Include more.conf", "13: Include: included files are not read; insert their lines here"),
    ("CPUs=64", "CPUs=many", "15: CPUs, RealMemory: a[1-4]"),
    ("WeightAge=1000", "WeightAge=high", '6: PriorityWeightAge: high is not'),
    ("MaxAge=14-0", "MaxAge=soon", "column PriorityMaxAge"),
    ("bf_interval=60", "bf_interval=often", "4: SchedulerParameters: bf_interval must be a whole"),
    ("OverTimeLimit=1", "whatever", "13: whatever is not KEY=VALUE"),
    ("NodeName=", "# NodeName=", "has no NodeName that accepts jobs"),
    ("gpu:h100:8", "gpu:h100:many", "17: Gres: gpu:h100:many is not gpu:TYPE:NUMBER"),
    ("NodeName=h1", "NodeName=a[4-5]", "17: NodeName: node a4 is given twice"),
    ("NodeName=h1", "NodeName=h[1-", "17: NodeName: h[1- is not a list"),
    ("PriorityTier=10", "PriorityTier=top", "22: PriorityTier: top is not a whole number"),
    ("Name=debug Nodes=ALL", "Name=debug Nodes=ALL Default=YES", "at most one partition may be the default; got"),
    ("Name=debug Nodes=ALL MaxTime=30", "Name=debug Nodes=ALL MaxTime=half", "column MaxTime"),
])  # fmt: skip
def test_what_is_wrong_is_said_with_its_line(there: Path, old: str, new: str, said: str) -> None:
    Path("slurm.conf").write_text(CONF.replace(old, new))
    done = CliRunner().invoke(hetsim, ["trace", "convert", "slurm.conf", "--format", "slurm_conf"])
    assert done.exit_code == 3 and said in done.stderr.replace('"', ""), done.output


def test_words_of_slurm_for_no_limit_and_for_one_gpu(there: Path) -> None:
    old = {"MaxTime=2-00:00:00": "MaxTime=INFINITE", "MaxTime=30": "MaxTime=-1", "gpu:h100:8": "gpu:h100(S:0)",
           "OverTimeLimit=1": "OverTimeLimit=UNLIMITED", "bf_interval=60": "BF_INTERVAL=-1", "gpu:a100:4": "gpu",
           "Nodes=a[1-4],h1": "Nodes=x9"}  # fmt: skip
    text = CONF
    for before, after in old.items():
        text = text.replace(before, after)
    Path("slurm.conf").write_text(text)
    shares = SSHARE.replace("root||0|", "root|||").replace("gres/gpu=2400", "gres/gpu:a=900,gres/gpu:b=9")
    Path("sshare.txt").write_text(shares)
    made, notes = convert("--option", "sshare=sshare.txt")
    gpus = {node["gpus"][0]["type"]: node["gpus"][0]["count"] for node in made["cluster"]["nodes"] if "gpus" in node}
    assert gpus == {"h100": 1, "gpu": 1}
    assert made["site"] == {"at_limit": "overrun", "partitions": {"debug": {"tier": 10, "accounts": ["phys", "chem"]}}}
    assert made["policy"]["scheduler"]["bf_max_job_test"] == 0
    assert made["policy"]["scheduler"]["usage"]["chem/cho"] == 909
    assert "left out: batch (line 21), gone (line 23)" in notes


@pytest.mark.parametrize(("old", "new", "said"), [
    ("|3|700", "|many|700", "6: column RawShares"), ("User", "Users", "no users with"),
    ("cpu=1,gres/gpu=1200", "cpu=1", None), ("Account|", "Name|", "no users with"),
])  # fmt: skip
def test_what_is_wrong_with_shares_is_said(there: Path, old: str, new: str, said: str | None) -> None:
    Path("sshare.txt").write_text(SSHARE.replace(old, new))
    done = CliRunner().invoke(hetsim, ["trace", "convert", "slurm.conf", "--option", "sshare=sshare.txt"])
    assert done.exit_code == (3 if said else 0) and (said or "") in done.stderr
