"""Recognizes the format of a trace by its first lines, for commands on a file."""

import gzip
import re
import zlib
from pathlib import Path

from hetsim.model.files import open_input
from hetsim.workload.readers.task_table import KNOWN
from hetsim.workload.rows.text_rows import NUMBER, PARQUET

LOOKED_AT = 65_536  # bytes read of a file

# format by columns that no other format has together; the first match counts
COLUMNS = (
    ("openb", {"cpu_milli", "gpu_milli"}),
    ("philly", {"num_gpus", "gpu_time", "timestamp"}),
    ("helios", {"gpu_num", "vc"}),
    ("acme", {"gpu_num", "type"}),
    ("alibaba_dlrm", {"instance_sn", "role"}),
    ("alibaba_spot", {"gpu_model", "worker_num"}),
    ("slurm", {"JobID", "Submit"}),
    ("azure_llm", {"TIMESTAMP", "ContextTokens"}),
    ("burstgpt", {"Timestamp", "Request tokens"}),
)

# Formats of text records, by how a record begins
RECORDS = (
    ("pbs", r"\A\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;[A-Z];"), ("lsf", r'\A"JOB_|^Job <\d+(\[\d+\])?>,'),
    ("sge", r"\A(?:#.*\n)*[^:\n]*(?::[^:\n]*){7}:\d{9,13}:\d{1,13}:\d{1,13}:(?:[^:\n]*:){30}"),
)  # fmt: skip
# JSON formats, by a word near the beginning of the file
TEXTS = (
    ("ray", '"required_resources"'), ("ray", '"entrypoint"'), ("kubernetes", '"Pod"'), ("wfformat", '"workflow"'),
    ("philly", '"attempts"'), ("mooncake", '"hash_ids"'), ("kubernetes", '"containerStatuses"'),
)  # fmt: skip


REQUESTS = {"arrival", "prompt_tokens"}  # columns of a plain table of requests without times


# Formats of node lists, by their columns
NODES = (
    ("openb_nodes", {"sn", "gpu", "model"}), ("philly_vc", {"vc", "node num"}), ("slurm_nodes", {"NodeName", "State"}),
)  # fmt: skip


def node_list(file: str | Path) -> str | None:
    """Return the format of a node list, or None if the file does not look like one."""
    if (text := _beginning(Path(file))) is None:
        return None
    if re.search(r"(?im)^(ClusterName|SlurmctldHost|PartitionName) *=|^NodeName *= *DEFAULT", text):
        return "slurm_conf"
    if '"ClusterQueue"' in text:
        return "kueue_objects"
    if text.lstrip().startswith("NodeName="):
        return "slurm_nodes"
    columns = _columns(_head(text))
    return next((name for name, needed in NODES if needed <= columns), None)


def recognize(file: str | Path) -> str | None:
    """Return the name of a trace format, or None if the file gives no hint."""
    path = Path(file)
    if path.suffix.lower() in PARQUET:
        return "tasks"
    if (text := _beginning(path)) is None:
        return None
    ending = path.with_suffix("").suffix if path.suffix.lower() == ".gz" else path.suffix
    if ending.lower() == ".swf" or text.startswith(";"):
        return "swf"
    if text.lstrip()[:1] in ("{", "["):
        return next((name for name, word in TEXTS if word in text), None)
    record_format = next((name for name, sign in RECORDS if re.search(sign, text, re.MULTILINE)), None)
    if record_format is not None:
        return record_format
    head = _head(text)
    if head.count("\t") in (6, 9) and "," not in head.split("\t")[-1]:
        return "gavel"
    columns = _columns(head)
    if columns >= REQUESTS and not any(name.startswith(("cpu_time", "gpu_time")) for name in columns):
        return "requests"
    return next((name for name, needed in COLUMNS if needed <= columns), None)


def maybe_table(file: str | Path) -> bool:
    """Return True unless the file is certainly not a task table (errors are allowed)."""
    path = Path(file)
    text = None if path.suffix.lower() in PARQUET else _beginning(path)
    if text is None or not text.strip() or "\0" in text or "\ufffd" in text[:-1]:
        return True  # empty, or no text; the last sign may have been cut
    head = _head(text)
    columns = _columns(head)
    if any(name in KNOWN or name.startswith("gpu_time.") for name in columns):
        return True
    # A line of words may be a header with names that are all misspelt; one with numbers is none.
    return text.lstrip()[:1] not in ("{", "[") and "," in head and not any(map(NUMBER.fullmatch, columns))


def _beginning(path: Path) -> str | None:
    try:
        with open_input(path) as source:
            zipped = source.read(2) == b"\x1f\x8b"
        with open_input(path) as stored, gzip.GzipFile(fileobj=stored) if zipped else stored as source:
            return source.read(LOOKED_AT).decode("utf-8-sig", errors="replace")
    except (OSError, EOFError, zlib.error):
        return None


def _head(text: str) -> str:
    return text.split("\n", 1)[0].strip("\r ")


def _columns(head: str) -> set[str]:
    return {cell.strip().strip('"') for cell in re.split(r"[,;|\t]", head)}
