"""A proposed mapping as YAML to paste, with comments."""

from __future__ import annotations

from typing import Any

from hetsim.errors import visible
from hetsim.workload.mapped.proposed_columns import Proposal


def written(proposal: Proposal) -> str:
    """The proposal as YAML to paste, with what there is to say of it in comments."""
    keys = proposal.keys
    if "columns" not in keys:
        head = ", ".join(_pair(key, keys[key]) for key in ("format", "path"))
        return f"# The reader of {keys['format']} knows its columns.\nworkload:\n  - trace: {{{head}}}\n"
    lines = [f"# Proposed from the header and the first {proposal.looked_at:,} rows."]
    lacking = proposal.lacking
    if lacking:
        lines.append(f"# It cannot be run before {' and '.join(lacking)} {'are' if lacking[1:] else 'is'} mapped.")
    lines += [f"# unsure: {visible(text)}" for text in proposal.unsure]
    lines += [f"# missing: {visible(text)}" for text in proposal.missing]
    if proposal.unused:
        lines.append(f"# not used: {visible(', '.join(proposal.unused))}")
    lines += ["workload:", "  - trace:"]
    lines += [f"      {_pair('format', keys['format'])}", f"      {_pair('path', keys['path'])}", "      columns:"]
    examples = {target: visible(text) for target, text in proposal.examples.items()}
    pairs = [(_pair(target, column), examples.get(target, "")) for target, column in keys["columns"].items()]
    width = max((len(pair) for pair, _ in pairs), default=0)
    lines += [f"        {pair:<{width}}  # {example}" if example else f"        {pair}" for pair, example in pairs]
    lines += [f"        # {target}: COLUMN" for target in lacking]
    lines += [f"      {_pair(key, keys[key])}" for key in FURTHER if key in keys]
    return "\n".join(lines) + "\n"


FURTHER = ("units", "time", "missing", "missing_values", "decimal", "separator", "header")


def _pair(key: str, value: Any) -> str:
    """A key and its value on one line of YAML."""
    import yaml

    for unicode in (True, False):  # what cannot be seen is written as an escape, which YAML reads again
        text = yaml.safe_dump(
            {key: value}, default_flow_style=True, allow_unicode=unicode, width=10**6, sort_keys=False
        ).strip()
        if text.isprintable():
            break
    return text[1:-1]
