"""Formats of node lists, from which a scenario takes its cluster: `cluster: {trace: {format: openb_nodes, path: ...}}`.

A reader is a function registered under the name of its format, here or in the entry-point group `hetsim.clusters`:

    def nodes(path: ExistingFile, *, types: TypeNames | None = None) -> list[dict[str, Any]]: ...

Its parameters are the keys of `trace:` besides `format`, validated by their annotations.  It returns what would stand
under `cluster.nodes` in a scenario file, and raises ScenarioError with file and line for what is wrong with the list.
"""

from __future__ import annotations

BUILTIN: dict[str, str] = {
    "gavel_gpus": "hetsim.workload.readers.gavel:nodes",
    "kubernetes_nodes": "hetsim.workload.readers.kubernetes:nodes",
    "openb_nodes": "hetsim.workload.readers.openb:nodes",
    "philly_vc": "hetsim.workload.readers.philly:nodes",
    "slurm_nodes": "hetsim.workload.readers.slurm:nodes",
    "swf_header": "hetsim.workload.readers.swf:nodes",
}
