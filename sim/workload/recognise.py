"""Which format a trace is in, told from its first lines: for commands that are given a file and nothing else."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from sim.workload.task_table import PARQUET

LOOKED_AT = 65_536
"""Bytes read of a file."""

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
"""Formats by columns that no other has together; the first that fits."""

TEXTS = (("kubernetes", '"Pod"'), ("wfformat", '"workflow"'), ("philly", '"attempts"'), ("mooncake", '"hash_ids"'))
"""Formats in JSON by a word that they have near their beginning."""


def recognise(file: str | Path) -> str | None:
    """The name of a trace format; None where the file gives no hint, or cannot be read."""
    path = Path(file)
    if path.suffix.lower() in PARQUET:
        return "tasks"
    try:
        with path.open("rb") as source:
            zipped = source.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as source:
            text = source.read(LOOKED_AT).decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error):
        return None
    if ".swf" in path.suffixes or text.startswith(";"):
        return "swf"
    if text.lstrip()[:1] in ("{", "["):
        return next((name for name, word in TEXTS if word in text), None)
    head = text.split("\n", 1)[0].strip("\ufeff\r ")
    if head.count("\t") in (6, 9) and "," not in head.split("\t")[-1]:
        return "gavel"
    columns = {cell.strip().strip('"') for cell in head.replace("|", ",").split(",")}
    return next((name for name, needed in COLUMNS if needed <= columns), None)
