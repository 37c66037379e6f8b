"""Formats of node lists, from which a scenario imports its cluster.

A reader is a function registered under the name of its format, here or in the entry-point group `hetsim.clusters`:

    def nodes(path: ExistingFile, *, types: TypeNames | None = None) -> list[dict[str, Any]]: ...

Its parameters are the keys of `trace:` other than `format`, validated by their annotations.  It returns the content of
`cluster.nodes` in a scenario file, and raises ScenarioError with file and line for errors in the list.

A reader may have an attribute `more`: a function with the same parameters that returns other parts of a scenario, such
as `policy:`, and notes.  `hetsim trace convert` writes these parts next to the nodes, and prints the notes.
"""

import re

BUILTIN: dict[str, str] = {
    "gavel_gpus": "hetsim.workload.readers.gavel:nodes",
    "kubernetes_nodes": "hetsim.workload.readers.kubernetes:nodes",
    "kueue_objects": "hetsim.workload.readers.kueue:nodes",
    "openb_nodes": "hetsim.workload.readers.openb:nodes",
    "philly_vc": "hetsim.workload.readers.philly:nodes",
    "slurm_conf": "hetsim.workload.readers.slurm_conf:nodes",
    "slurm_nodes": "hetsim.workload.readers.slurm:nodes",
    "swf_header": "hetsim.workload.readers.swf:nodes",
}


def hosts(text: str) -> list[str]:
    """Return the host names in a list such as `n[01-03,7],login` or `r[1-2]n[1-4]`."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text):
        before, bracket, rest = part.partition("[")
        inside, _, after = rest.partition("]")
        if not bracket:
            names.append(part)
            continue
        further = hosts(after) if after else [""]
        for piece in inside.split(","):
            low, dash, high = piece.partition("-")
            numbers = [piece]
            if dash and low.isdecimal() and high.isdecimal() and int(high) - int(low) < 100_000:
                numbers = [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
            names += [f"{before}{number}{end}" for number in numbers for end in further]
    return names
