"""The page of readers: the keys of a scenario that theory, sizing and planners understand."""

from __future__ import annotations

from collections.abc import Iterator

from reference_pages.markdown import code, generated, row, table

from hetsim.scenario import readers

LONG = {"": "The whole file"}


def readers_page() -> Iterator[str]:
    """Write each section of the table, with the keys by the set of readers that understand them."""
    yield "# Keys by reader"
    yield from generated("the table in `sim/hetsim/scenario/readers.py`")
    yield "The engine understands every key of a scenario. Theory, sizing, planners and other readers understand"
    yield "only the keys in their rows below. If a scenario sets another key that changes its meaning, the reader"
    yield "reports this key:"
    yield ""
    yield "- `hetsim theory` names the key and gives no prediction."
    yield "- `hetsim size` simulates every size instead of using a bound."
    yield "- A plan lists the key as ignored in its note `covers`, and states neither a ratio nor exact times; the run"
    yield "  has a note on this."
    yield "- `hetsim plan-training` reports that step times do not include the key."
    yield "- `hetsim trace validate` reports that recorded waits are explained without the key."
    yield "- `hetsim twin` refuses the scenario."
    yield ""
    yield "A class has the keys of its workload entry, an accelerator the keys of a GPU, and a variant the keys of"
    yield "its service. A reader that understands a distribution or measured times understands all of their keys."
    yield "`x.*` is any name below `x`, and `x.**` is every key below `x`, as policies and trace readers declare it."
    yield f"The keys of arrivals are those of the processes that some model accepts ({', '.join(readers.PROCESSES)});"
    yield "`hetsim theory` refuses any other process, and the other readers use the arrival times of the process."
    yield ""
    models = ", ".join(code(one) for one in readers.MODELS)
    yield f"The model families of `hetsim theory` are {models}."
    yield f"The reader `{readers.SIZE}` is the bound of `hetsim size`."
    yield f"`{readers.PLAN}` stands for the proofs of planners and for the plans that other policies follow,"
    yield f"`{readers.TRAINING}` for the step times of `hetsim plan-training`, `{readers.TWIN}` for the forecasts"
    yield f"of `hetsim twin`, and `{readers.VALIDATE}` for the explanations of recorded waits by"
    yield "`hetsim trace validate`."
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
    """Return the rows without the keys of distributions and measured times."""
    rows = readers.rows()
    laws = [key.removesuffix(".distribution") for key in rows if key.endswith(".distribution")]
    below = {f"{law}.{one}" for law in laws for one in readers.BELOW["@"].split()}
    times = [key.removesuffix(".quantiles.*") for key in rows if key.endswith(".quantiles.*")]
    below |= {f"{one}.{key}" for one in times for key in readers.BELOW["%"].split() if key != "table"}
    return {key: readers.readers_of(key) or known for key, known in rows.items() if key not in below}


def _set(known: frozenset[str]) -> str:
    """Name a set of readers: all, all but a few, or the readers that understand the keys."""
    others = [one for one in readers.READERS if one not in known]
    if not known or not others:
        return "all" if known else "none"
    if len(others) <= len(known):
        return "all but " + ", ".join(code(one) for one in others)
    return ", ".join(code(one) for one in readers.READERS if one in known)
