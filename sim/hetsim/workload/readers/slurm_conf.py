"""The settings of a Slurm site (`slurm_conf`): slurm.conf, and shares from sshare.

    sshare -a -P -o Account,User,RawShares,RawUsage,GrpTRESRaw > sshare.txt
    hetsim trace convert slurm.conf site.yaml --option sshare=sshare.txt

Nodes are those of NodeName; a node is in each partition whose key Nodes lists it.  A conversion also writes `site:`,
with the limits and tiers of partitions, and `policy:`, with the weights, times and intervals of `slurm_multifactor`;
settings that slurm.conf omits have Slurm's defaults (22.05).  A note names keys about scheduling that are not modeled.
sshare provides the tree of accounts, the shares of users, and their usage: GPU seconds of GrpTRESRaw if that column
exists, else RawUsage, in the units that the site bills.
Reference: slurm.conf(5), sshare(1), Slurm Workload Manager 22.05 (SchedMD).
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetsim.model.units import ExistingFile, shown
from hetsim.workload.node_lists import hosts
from hetsim.workload.readers.slurm import gpus_in, limit_of
from hetsim.workload.rows.job_log import JobLog, LogCut, TypeNames
from hetsim.workload.rows.text_rows import LONGEST_LINE, numbered_lines

WEIGHTS = {"PriorityWeightAge": "age", "PriorityWeightFairshare": "fair_share", "PriorityWeightJobSize": "size",
           "PriorityWeightPartition": "partition", "PriorityWeightQOS": "service"}  # fmt: skip
TIMES = {"PriorityMaxAge": ("max_age", "7-0"), "PriorityDecayHalfLife": ("half_life", "7-0"),
         "PriorityCalcPeriod": ("calc_period", "5")}  # fmt: skip
# Defaults in SchedulerParameters: times (bf_window in minutes, others in seconds), then numbers of jobs
INTERVALS = {"bf_interval": 30, "bf_resolution": 60, "sched_interval": 60, "bf_window": 1440}
COUNTS = {"bf_max_job_test": 500, "bf_max_job_user": 0, "bf_job_part_count_reserve": 0, "default_queue_depth": 100}
# Keys, of the file or of a partition, that affect when jobs start and that are not modeled
NOT_MODELED = ("PriorityWeightTRES", "PriorityWeightAssoc", "PriorityUsageResetPeriod", "PreemptType",
               "PreemptExemptTime", "TopologyPlugin", "FairShareDampeningFactor", "MaxNodes", "MinNodes",
               "MaxCPUsPerNode", "OverSubscribe", "ExclusiveUser", "QOS", "AllowQos", "AllowGroups", "LLN")  # fmt: skip
OFF = {"no", "none", "0", "preempt/none", "topology/none", "topology/default", "unlimited", "all"}
# states of nodes that accept no jobs; UNKNOWN, the usual state in slurm.conf, is not one
OUT = {"FUTURE", "DOWN", "DRAIN", "FAIL", "FAILING"}
NEVER = "36500 d"
_HOSTS = re.compile(r"[^\s,\[\]]+|[^\s,\[\]]*(\[\d+(-\d+)?(,\d+(-\d+)?)*\][^\s,\[\]]*)+")
_GPUS = re.compile(r"gpu(:[^\d:][^:]*)?(:\d+)?")
_WORD = re.compile(r'(\w+)\s*=\s*("[^"]*"|\S+)')


class SlurmConf:
    """A slurm.conf: its keys in lower case, its nodes and its partitions."""

    def __init__(self, path: Path, types: dict[str, str]):
        self.log = JobLog(path, LogCut())
        self.keys: dict[str, tuple[int, str]] = {}  # line and text
        self.nodes: list[dict[str, Any]] = []
        self.partitions: dict[str, dict[str, str]] = {}
        self.empty: list[str] = []  # partitions without a node that takes jobs
        self.unmodeled: dict[str, int] = {}  # keys that are set and have no counterpart, and the first line of each
        usual: dict[str, dict[str, str]] = {"nodename": {}, "partitionname": {}}
        for line, text in _lines(path):
            words = {key.lower(): value.strip('"') for key, value in _WORD.findall(text)}
            first = next(iter(words), "")
            if text.lower().startswith("include "):
                self.log.wrong(line, "", "Include: included files are not read; insert their lines here")
            elif not words:
                self.log.wrong(line, "", f"{shown(text)} is not KEY=VALUE")
            elif first in usual and words[first].upper() == "DEFAULT":
                usual[first] |= words
            elif first == "nodename":
                self._add_nodes(line, usual[first] | words, types)
            elif first == "partitionname":
                self.partitions[words[first]] = usual[first] | words | {"line": str(line)}
            else:
                self.keys |= {key: (line, value) for key, value in words.items()}
            for name in NOT_MODELED:
                if words.get(name.lower(), "no").lower() not in OFF:
                    self.unmodeled.setdefault(name, line)
        named = {node["name"]: node for node in self.nodes}
        for partition, words in self.partitions.items():
            inside = words.get("nodes", "")
            there = [host for host in (named if inside.upper() == "ALL" else hosts(inside)) if host in named]
            for host in there:
                named[host].setdefault("partitions", []).append(partition)
            self.empty += [] if there else [f"{partition} (line {words['line']})"]
        self.log.require(self.nodes, "has no NodeName that accepts jobs (of slurm.conf)")

    def _add_nodes(self, line: int, words: dict[str, str], types: dict[str, str]) -> None:
        sockets = words.get("sockets", words.get("socketsperboard", "1"))
        parts = [words.get("boards", "1"), sockets, words.get("corespersocket", "1"), words.get("threadspercore", "1")]
        parts = [words[key] for key in ("cpus", "procs") if key in words][:1] or parts
        memory = words.get("realmemory", "1")
        if not all(text.isdecimal() and int(text) for text in (*parts, memory)):
            self.log.wrong(line, "", f"CPUs, RealMemory: {shown(words['nodename'])} needs a number of cores and of MiB")
            return
        names, gres = hosts(words["nodename"]), [part for part in words.get("gres", "").split(",") if "gpu" in part]
        before = {node["name"] for node in self.nodes}
        again = next((name for number, name in enumerate(names) if name in before or name in names[:number]), None)
        if not all(map(_HOSTS.fullmatch, re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", words["nodename"]))) or not names:
            self.log.wrong(line, "", f"NodeName: {shown(words['nodename'])} is not a list such as n[1-4],m1")
        elif again is not None:
            self.log.wrong(line, "", f"NodeName: node {shown(again)} is given twice")
        elif wrong := [part for part in gres if not _GPUS.fullmatch(re.sub(r"\([^)]*\)", "", part))]:
            self.log.wrong(line, "", f"Gres: {shown(wrong[0])} is not gpu:TYPE:NUMBER")
        node: dict[str, Any] = {"cpus": math.prod(map(int, parts))}
        node |= {"memory": f"{memory} MiB"} if "realmemory" in words else {}
        if gpus := gpus_in(words.get("gres", ""), types):
            node["gpus"] = gpus
        if words.get("state", "").upper() not in OUT:
            self.nodes += [{"name": name, **node} for name in names]

    def text(self, key: str, usual: str = "") -> str:
        return self.keys.get(key.lower(), (0, usual))[1]

    def seconds(self, line: int, key: str, text: str) -> float:
        """Return the seconds of a time such as 7-0 (7 days) or 5 (minutes); inf: no limit."""
        limit = limit_of(self.log, line, "" if text.upper() in ("INFINITE", "UNLIMITED", "NONE", "-1") else text, key)
        return math.inf if limit is None or math.isnan(limit) else limit

    def site(self) -> dict[str, Any]:
        """Return the key `site`: the action at time limits, and the partitions with nodes."""
        used = {name for node in self.nodes for name in node.get("partitions", ())}
        line, grace = self.keys.get("overtimelimit", (0, "0"))
        over = self.seconds(line, "OverTimeLimit", grace)
        rules: dict[str, Any] = {"at_limit": "kill" if over < math.inf else "overrun"}
        rules |= {"grace": f"{over:.0f} s"} if 0 < over < math.inf else {}
        return {**rules, "partitions": {
            name: self._partition(words) for name, words in self.partitions.items() if name in used}}  # fmt: skip

    def _partition(self, words: dict[str, str]) -> dict[str, Any]:
        made: dict[str, Any] = {"default": True} if words.get("default", "").upper() == "YES" else {}
        for key, name in (("MaxTime", "max_time"), ("DefaultTime", "default_time")):
            seconds = self.seconds(int(words["line"]), key, words.get(key.lower(), "UNLIMITED"))
            made |= {name: f"{seconds:.0f} s"} if seconds < math.inf else {}
        for key in ("PriorityTier", "PriorityJobFactor"):
            if not words.get(key.lower(), "1").isdecimal():
                self.log.wrong(int(words["line"]), "", f"{key}: {shown(words[key.lower()])} is not a whole number")
        if (tier := words.get("prioritytier", "1")) not in ("1", "") and tier.isdecimal():
            made["tier"] = int(tier)
        if words.get("allowaccounts", "ALL").upper() != "ALL":
            made["accounts"] = words["allowaccounts"].split(",")
        return made

    def scheduler(self) -> tuple[dict[str, Any], list[str]]:
        """Return the policy `slurm_multifactor` of the file, and settings not modeled."""
        made: dict[str, Any] = {"name": "slurm_multifactor", "priority": 0.0}
        basic = self.text("PriorityType").lower() == "priority/basic"  # jobs in the order of their arrival
        for key, name in WEIGHTS.items():
            line, text = self.keys.get(key.lower(), (0, "0"))
            if not text.isdecimal():
                self.log.wrong(line, "", f"{key}: {shown(text)} is not a whole number")
            made[name] = 0.0 if basic or not text.isdecimal() else float(text)
        for key, (name, usual) in TIMES.items():
            line, text = self.keys.get(key.lower(), (0, usual))
            seconds = self.seconds(line, key, text)
            made[name] = f"{seconds:.0f} s" if name == "calc_period" or 0 < seconds < math.inf else NEVER
        made |= {"age": 1.0, "max_age": NEVER} if basic else {}
        made["small_first"] = self.text("PriorityFavorSmall").upper() == "YES"
        parameters = self.text("SchedulerParameters").lower()
        given = dict(part.partition("=")[::2] for part in parameters.split(",") if part)
        stopped = given.get("bf_interval") == "-1"  # then nothing is backfilled
        given |= {"bf_interval": "0", "bf_max_job_test": "0"} if stopped else {}
        only_changes = given.get("sched_interval") == "-1"  # then no pass looks at all jobs
        given |= {"sched_interval": "0"} if only_changes else {}
        for name, standard in (INTERVALS | COUNTS).items():
            value = given.pop(name, str(standard))
            if not value.isdecimal():
                line = self.keys["schedulerparameters"][0]
                self.log.wrong(line, "", f"SchedulerParameters: {name} must be a whole number from 0; got {value}")
            elif name != "bf_max_job_user" or int(value):
                made[name] = f"{value} {'min' if name == 'bf_window' else 's'}" if name in INTERVALS else int(value)
        made |= {"sched_interval": None} if only_changes else {}
        if self.text("SchedulerType").lower() == "sched/builtin":
            made["bf_max_job_test"] = 0
        factors = {name: words.get("priorityjobfactor", "1") for name, words in self.partitions.items()}
        if made["partition"] and all(text.isdecimal() for text in factors.values()):
            highest = max(1, *map(int, factors.values()))
            made["partitions"] = {name: int(factor) / highest for name, factor in factors.items()}
        flags = [flag for flag in self.text("PriorityFlags").upper().split(",") if flag not in ("", "NO_FAIR_TREE")]
        return made, [*flags, *given, *(f"{name} (line {line})" for name, line in self.unmodeled.items())]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    begun, start = "", 0
    for number, text in numbered_lines(path, LONGEST_LINE):
        text = text.partition("#")[0].rstrip()
        begun, start = begun + text.removesuffix("\\") + " ", start or number
        if not text.endswith("\\"):
            if begun.strip():
                yield start, begun.strip()
            begun, start = "", 0


def nodes(path: ExistingFile, *, types: TypeNames | None = None, sshare: ExistingFile | None = None) -> list[Any]:
    """The nodes of slurm.conf.

    `sshare` (a file of accounts, shares and usage) does not affect the nodes; `trace convert` adds it to `policy:`.
    """
    return SlurmConf(Path(path), types or {}).nodes


def site_and_policy(path: str, *, sshare: str | None = None, **_: Any) -> tuple[dict[str, Any], list[str]]:
    """Return `site:` and `policy:` of a slurm.conf, and notes on what is not modeled."""
    conf = SlurmConf(Path(path), {})
    (scheduler, other), site, notes = conf.scheduler(), conf.site(), list[str]()
    conf.log.row_problems.fail_if_any()
    if conf.empty:
        notes.append(f"{path}: partitions without a node that accepts jobs are left out: {', '.join(conf.empty)}")
    if other:
        notes.append(f"{path}: not modeled: {', '.join(other)}; limits of QOS are not in this file (sacctmgr show qos)")
    if sshare is not None:
        more, remarks = shares_and_usage(Path(sshare), "NO_FAIR_TREE" not in conf.text("PriorityFlags").upper())
        scheduler, notes = scheduler | more, notes + remarks
    return {"site": site, "policy": {"scheduler": scheduler}}, notes


nodes.more = site_and_policy  # type: ignore[attr-defined]


def shares_and_usage(path: Path, tree: bool = True) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters accounts, shares and usage from sshare -P, and notes.

    tree: return the tree of accounts, which the method Fair Tree requires.
    """
    log, columns = JobLog(path, LogCut()), list[str]()
    accounts, above, notes = dict[str, dict[str, Any]](), list[tuple[int, str]](), dict[str, None]()
    shares, usage = dict[str, float](), dict[str, float]()
    for line, text in numbered_lines(path, LONGEST_LINE):
        columns = columns or [word.strip() for word in text.split("|")]
        row = dict(zip(columns, text.split("|"), strict=False))
        account, user = row.get("Account", ""), row.get("User", "").strip()
        depth, name, amount = len(account) - len(account.lstrip()), account.strip(), row.get("RawShares", "1").strip()
        if not name or name == "Account":
            continue
        if not amount.isdecimal() and amount != "parent" and (user or name != "root"):
            log.wrong(line, "RawShares", f"{shown(amount)} is not a number of shares")
        if amount in ("parent", "0") and name != "root":
            notes[f"{path}: entries with Fairshare=parent or no shares have one share"] = None
        share = float(amount) if amount.isdecimal() and int(amount) else 1.0
        if user:
            if shares.setdefault(user, share) != share:
                notes[f"{path}: a user has the shares of the first of its accounts in all of them"] = None
            seconds = row.get("RawUsage", "").strip()
            if (counted := row.get("GrpTRESRaw")) is not None:  # of all GPUs, or by type where only that is counted
                amounts = re.findall(r"gres/gpu=(\d+)", counted) or re.findall(r"gres/gpu:[^=,]+=(\d+)", counted)
                seconds = str(sum(map(int, amounts)))
            if not seconds.isdecimal():
                log.wrong(line, "RawUsage", f"{shown(seconds)} is not a number of seconds")
                continue
            member = f"{name}/{user}" if tree else user
            usage[member] = usage.get(member, 0.0) + float(seconds)
            continue
        above = [one for one in above if one[0] < depth]
        if name != "root":
            accounts[name] = {"shares": share} | ({"parent": above[-1][1]} if above and above[-1][1] != "root" else {})
        above.append((depth, name))
    log.require(usage, "has no users with Account, User, RawShares and RawUsage (of sshare -a -P)")
    if "GrpTRESRaw" not in columns:
        notes[f"{path}: RawUsage, the site's billing unit, is read as GPU seconds; GrpTRESRaw has GPU seconds"] = None
    made: dict[str, Any] = {"usage": usage} | ({"accounts": accounts} if tree else {})
    return made | ({"shares": shares} if any(share != 1.0 for share in shares.values()) else {}), list(notes)
