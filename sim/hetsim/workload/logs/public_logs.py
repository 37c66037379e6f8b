"""Public logs too large to ship: where they are, licenses, and formats.

Nothing is downloaded here: a user fetches the file, and `hetsim trace fetch` verifies and converts it.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hetsim.errors import UnknownName
from hetsim.model.files import open_input
from hetsim.workload.rows.text_rows import problem_of

PWA = "https://www.cs.huji.ac.il/labs/parallel/workload"
ACKNOWLEDGE = "free, with acknowledgement"
"""The contributors to be named stand in the header of each log of the Parallel Workloads Archive."""
HUB = "https://github.com"
BLOCK = 1 << 20


@dataclass(frozen=True)
class PublicLog:
    """A public log: `size` in bytes, `sha256` of its (unpacked) content."""

    name: str
    what: str
    url: str
    license: str
    format: str
    options: dict[str, Any] = field(default_factory=dict)
    size: int | None = None
    sha256: str | None = None


LOGS = {
    log.name: log
    for log in (
        PublicLog("lublin-256", "10,000 jobs of Lublin's model on 256 processors",
                  f"{HUB}/LoCinder/ILOS/blob/91c36e9/data/lublin_256.swf", license="MIT", format="swf",
                  size=649_089,
                  sha256="a394ab3d81179ebcf645a1cbd593a60b6dff7f11a510e1e6285c45f43310c962"),
        PublicLog(
            "ricc", "RICC 2010, 447,794 jobs on 8,192 cores", f"{PWA}/l_ricc/", license=ACKNOWLEDGE, format="swf"
        ),
        PublicLog("sdsc-sp2", "SDSC SP2 1998, on 128 nodes", f"{PWA}/l_sdsc_sp2/", license=ACKNOWLEDGE, format="swf"),
        PublicLog("hpc2n", "HPC2N 2002, on 240 processors", f"{PWA}/l_hpc2n/", license=ACKNOWLEDGE, format="swf"),
        PublicLog("ctc-sp2", "CTC SP2 1996, on 338 nodes", f"{PWA}/l_ctc_sp2/", license=ACKNOWLEDGE, format="swf"),
        PublicLog(
            "anl-intrepid", "ANL Intrepid 2009, on 163,840 cores", f"{PWA}/l_anl_int/", license=ACKNOWLEDGE,
            format="swf"
        ),
        PublicLog(
            "philly", "Microsoft's GPU clusters 2017", f"{HUB}/msr-fiddle/philly-traces", license="CC-BY-4.0",
            format="philly"
        ),
        PublicLog("helios", "SenseTime's GPU clusters 2020", f"{HUB}/S-Lab-System-Group/HeliosData",
                  license="CC-BY-4.0", format="helios"),
        PublicLog("acme", "Seren and Kalos, language models 2023", f"{HUB}/InternLM/AcmeTrace",
                  license="see the repository", format="acme"),
        PublicLog("openb", "Alibaba's GPU cluster 2023: pods with shares of GPUs",
                  f"{HUB}/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023",
                  license="for research or study", format="openb"),
        PublicLog("pai", "Alibaba's PAI 2020, task table",
                  f"{HUB}/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2020",
                  license="for research or study", format="pai"),
        PublicLog("azure-llm-code", "Azure 2023, an hour of a language model that completes code",
                  f"{HUB}/Azure/AzurePublicDataset/blob/master/data/AzureLLMInferenceTrace_code.csv",
                  license="CC-BY-4.0", format="azure_llm"),
        PublicLog("azure-llm-conv", "Azure 2023, an hour of a language model in conversations",
                  f"{HUB}/Azure/AzurePublicDataset/blob/master/data/AzureLLMInferenceTrace_conv.csv",
                  license="CC-BY-4.0", format="azure_llm"),
        PublicLog("chameleon", "Measured kernel times of Cholesky and LU graphs on cores and GPUs",
                  f"{HUB}/marcosamaris/heterogeneous-SWF",
                  license="for research; cite the repository", format="hetero_dag"),
        PublicLog(
            "mooncake", "Requests with common prefixes", f"{HUB}/kvcache-ai/Mooncake", license="Apache-2.0",
            format="mooncake"
        ),
        PublicLog(
            "burstgpt", "Requests to GPT-3.5 and GPT-4", f"{HUB}/HPMLL/BurstGPT", license="CC-BY-4.0", format="burstgpt"
        ),
    )
}  # fmt: skip


def public_log(name: str) -> PublicLog:
    """The log of that name; UnknownName with a suggestion otherwise."""
    if name not in LOGS:
        raise UnknownName("public log", name, LOGS, " (hetsim trace fetch lists them)")
    return LOGS[name]


def verify(log: PublicLog, path: Path, sha256: str | None = None) -> str:
    """The SHA-256 of a downloaded file; ScenarioError if it is not the log's.

    sha256: the one that it should have, in place of what is known here.
    """
    digest, size = content_hash(path)
    wanted = sha256 or log.sha256
    if wanted is not None and digest != wanted.lower():
        text = f"its SHA-256 is {digest}, that of {log.name} is {wanted.lower()}"
        if sha256 is None and log.size is not None and size != log.size:
            text += f" ({size:,} bytes instead of {log.size:,})"
        text += f": it is damaged, or another version; get it again from {log.url}"
        raise problem_of(path, text)
    return digest


def content_hash(path: Path) -> tuple[str, int]:
    """SHA-256 and size of a file's content, unpacked if it is compressed with gzip."""
    digest, size = hashlib.sha256(), 0
    try:
        with open_input(path) as source:
            packed = source.read(2) == b"\x1f\x8b"
        with open_input(path) as stored, gzip.GzipFile(fileobj=stored) if packed else stored as content:
            while block := content.read(BLOCK):
                digest.update(block)
                size += len(block)
    except FileNotFoundError:
        raise problem_of(path, "there is no such file") from None
    except IsADirectoryError:
        raise problem_of(path, "is a folder; name the file of the log") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise problem_of(path, "is compressed and ends too early, or is damaged") from None
    return digest.hexdigest(), size
