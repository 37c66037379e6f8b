"""The page of readers: which keys of a scenario theory, sizing and planners understand."""

from __future__ import annotations

from collections.abc import Iterator

from reference_pages.markdown import code, generated, row, table

from hetsim.scenario import readers

LONG = {"": "The whole file"}


def readers_page() -> Iterator[str]:
    """Each section of the table, with the keys by the set of readers that understands them."""
    yield "# Keys by reader"
    yield from generated("the table in `sim/hetsim/scenario/readers.py`")
    yield "The engine understands every key of a scenario. Other readers understand those next to which they stand."
    yield "Any other that is set, and changes what the scenario means, is not passed over: `hetsim theory` names it and"
    yield "gives no prediction, `hetsim size` runs every number, and a plan has it as ignored in its note `covers` and"
    yield "promises neither a ratio nor exact times, of which a run has a note. `hetsim plan-training` says that steps"
    yield "are timed without it, `hetsim trace validate` that recorded waits are explained without it; `hetsim twin`"
    yield "refuses it."
    yield ""
    yield "Classes have the keys of their entry, accelerators those of GPUs, variants those of their service; a"
    yield "distribution or measured times have all of their keys. `x.*` is any name below `x`, `x.**` all that is below"
    yield "it, which policies and readers of traces declare. The keys of arrivals are those of the processes that some"
    yield f"model accepts ({', '.join(readers.PROCESSES)}); `hetsim theory` refuses any other process, other"
    yield "readers take its times."
    yield ""
    models = ", ".join(code(one) for one in readers.MODELS)
    yield f"The families of models of `hetsim theory` are {models}; `{readers.SIZE}` is the bound of"
    yield f"`hetsim size`, `{readers.PLAN}` what planners prove and the plans that other policies follow,"
    yield f"`{readers.TRAINING}` the times of steps in `hetsim plan-training`, `{readers.TWIN}` the forecasts of"
    yield f"`hetsim twin`, `{readers.VALIDATE}` what `hetsim trace validate` says of recorded waits."
    sections: dict[str, dict[frozenset[str], list[str]]] = {}
    for key, known in _shown().items():
        plain = key.rstrip("*.").replace("gpu_time.TYPE", "gpu_time:TYPE")
        section, _, name = plain.rpartition(".")
        name = name.replace(":", ".") + key[len(plain) :]
        sections.setdefault(section, {}).setdefault(known, []).append(name)
    for section in sorted(sections):
        yield f"\n## {LONG.get(section, code(section))}\n"
        yield from table("understood by", "keys")
        for known, names in sorted(sections[section].items(), key=lambda one: -len(one[0])):
            yield row(_set(known), ", ".join(code(name) for name in names))


def _shown() -> dict[str, frozenset[str]]:
    """The rows, without the keys of distributions and measured times."""
    rows = readers.rows()
    laws = [key.removesuffix(".distribution") for key in rows if key.endswith(".distribution")]
    below = {f"{law}.{one}" for law in laws for one in readers.BELOW["@"].split()}
    times = [key.removesuffix(".quantiles.*") for key in rows if key.endswith(".quantiles.*")]
    below |= {f"{one}.{key}" for one in times for key in readers.BELOW["%"].split() if key != "table"}
    return {key: readers.readers_of(key) or known for key, known in rows.items() if key not in below}


def _set(known: frozenset[str]) -> str:
    """All, all but a few, or those that understand it."""
    others = [one for one in readers.READERS if one not in known]
    if not known or not others:
        return "all" if known else "none"
    if len(others) <= len(known):
        return "all but " + ", ".join(code(one) for one in others)
    return ", ".join(code(one) for one in readers.READERS if one in known)
