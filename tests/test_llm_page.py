"""What docs/llm.md says of defaults and of closed loops, against the schema, the policies and runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter
from tiers import spread

import hetsim as hs
from hetsim import registry
from hetsim.model.units import Fraction, Seconds
from hetsim.scenario.building.run_input import DEFAULT_BATCHING, DEFAULT_ROUTING
from hetsim.scenario.scenario import load
from hetsim.scenario.schema.language_model import LanguageModel
from hetsim.scenario.schema.steps import Roofline
from hetsim.workload.arrivals import Closed

PAGE = (Path(__file__).parent.parent / "docs" / "llm.md").read_text(encoding="utf-8")


def model_in(annotation: Any) -> type | None:
    """The class with keys that an annotation holds: of the schema, or a dataclass of which that is made."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or dataclasses.is_dataclass(annotation)):
        return annotation
    return next((one for part in get_args(annotation) if (one := model_in(part)) is not None), None)


def default(key: str) -> Any:
    """The default of a key of a language model, of its policies or of its closed arrivals."""
    first, _, name = key.partition(".")
    if first == "arrivals":
        return Closed.model_fields[name].default
    if first in ("batching", "routing"):
        spec = DEFAULT_BATCHING[True] if first == "batching" else DEFAULT_ROUTING
        if name == "name":
            return spec.name
        policy = registry.policy(first, "prefix_affinity" if first == "routing" else spec.name)
        if name == "watermark":
            assert policy(reserve="peak").watermark == 0
            return policy().watermark
        return registry.parameters(policy)[name].default
    model: Any = LanguageModel
    *path, last = key.split(".")
    for part in path:
        model = model_in(model.model_fields[part].annotation)
    if dataclasses.is_dataclass(model):
        return next(one.default for one in dataclasses.fields(model) if one.metadata.get("alias", one.name) == last)
    return next(info.default for name, info in model.model_fields.items() if last in (name, info.alias))


def stated(text: str, kind: type) -> Any:
    """A default as it is written: a number, a time, a percentage or a name."""
    text = re.split(r" \(|, or ", text)[0].strip("`").strip()
    if kind is str:
        return text
    if text.endswith("%"):
        return TypeAdapter(Fraction).validate_python(text.replace(" ", ""))
    return TypeAdapter(Seconds).validate_python(text) if text.endswith("s") else kind(text)


def rows():
    section = PAGE.partition("## Defaults")[2].partition("\n## ")[0]
    for line in re.findall(r"^\| `.*", section, re.MULTILINE):
        keys, _, values = line.strip("| ").partition(" | ")
        keys = re.findall(r"`([\w.]+)`", keys)
        parts = re.split(r", (?!or )", values)
        for number, key in enumerate(keys):
            yield key, parts[number] if len(parts) > 1 else parts[0]


@pytest.mark.parametrize(("key", "value"), list(rows()))
def test_each_default_of_the_table_is_that_of_the_code(key, value):
    found = default(key)
    assert stated(value, type(found)) == found


def test_the_table_names_every_default_of_a_service():
    """All but switches, and what is not set or said in words under the table."""
    named = {key.partition(".")[0] for key, _ in rows()}
    given = {key: one.default for key, one in LanguageModel.model_fields.items() if not isinstance(one.default, bool)}
    plain = {key for key, default in given.items() if isinstance(default, str | int | float)}
    assert plain - {"model"} <= named


def test_the_roofline_of_the_page_is_the_default():
    """Each share is written, none is left out."""
    given = yaml.safe_load(re.search(r"`step: (\{roofline: \{memory.*?\}\})`", PAGE)[1])["roofline"]
    assert set(given) == set(Roofline.model_fields)
    assert Roofline.model_validate(given) == Roofline()


def test_shares_of_memory_and_numbers_of_replicas():
    service = {"kind": "llm", "step": {"fixed": "1 ms"}}
    also = [{"device": "other", "step": {"fixed": "1 ms"}}]
    one, other = LanguageModel.model_validate({**service, "also_on": also}).kinds
    assert one.starts(one) == one.starts(other) == (1, 0)
    figures = {"kind": "llm", "model": "llama-2-70b", "gpu": "h100", "tensor_parallel": 8}
    assert (one.share, LanguageModel.model_validate(figures).share) == (1, 0.9)


# Closed loops -----------------------------------------------------------------------------------------------------

CLIENTS = 8


def loop(think="0 s", jitter="0 s", output=40, seed=0, clients=CLIENTS):
    arrivals = {"process": "closed", "clients": clients, "think": think, "start_jitter": jitter}
    service = {"kind": "llm", "step": {"fixed": "20 ms", "per_prompt_token": "0.1 ms"}}
    entry = {"name": "chat", "arrivals": arrivals, "count": 10 * CLIENTS, "service": service}
    entry["tokens"] = {"prompt": 1000, "output": output}
    return {
        "name": "loop",
        "seed": seed,
        "workload": [entry],
        "cluster": {"nodes": [{"gpus": {"type": "g", "count": 1}}]},
    }


def closed_loops():
    """The scenario of the page, and the rows of the table under it."""
    section = PAGE.partition("### Closed loops")[2].partition("\n## ")[0]
    table = [line.strip("| ").split(" | ") for line in re.findall(r"^\| .*", section, re.MULTILINE)[2:]]
    return yaml.safe_load(re.search(r"```yaml\n(.*?)```", section, re.DOTALL)[1]), table


@pytest.mark.parametrize("row", spread(range(6), 1))
def test_the_figures_of_the_page_come_out(row):
    """To the last digit that is written."""
    given, table = closed_loops()
    think, jitter, *figures = table[row]
    given["workload"][0]["arrivals"] |= {"think": yaml.safe_load(think), "start_jitter": jitter}
    result = hs.run({"name": "loop", **given})
    for metric, text in zip(("ttft_mean", "tpot_mean", "itl_p99", "output_rate"), figures, strict=True):
        number, _, unit = text.partition(" ")
        digits = len(number.partition(".")[2])
        value = result.metric(metric) * (1000 if unit == "ms" else 1)
        assert round(value, digits) == float(number), metric


def test_clients_that_start_together_read_all_prompts_at_once():
    """A round: a step that reads eight prompts, and 39 that decode."""
    tasks = hs.run(loop(), check=True).tasks
    assert tasks["ttft"].to_numpy() == pytest.approx(0.02 + CLIENTS * 0.1)
    assert tasks["arrival"].round(9).nunique() == 10
    assert tasks["finish"].max() == pytest.approx(10 * (0.02 + CLIENTS * 0.1 + 39 * 0.02))


def test_clients_that_start_apart_stay_apart():
    """Starts within 4 s, as long as a request: prompts are read by ones and twos, to the end of the run."""
    tasks = hs.run(loop(jitter="4 s", output=200), check=True).tasks.sort_values("arrival")
    assert tasks["arrival"].iloc[:CLIENTS].between(0, 4).all()
    assert tasks["ttft"].iloc[-2 * CLIENTS :].mean() < (0.02 + CLIENTS * 0.1) / 3


def test_jitter_depends_on_the_seed_and_changes_no_other_draw():
    """First arrivals are the thinking times of a loop without jitter, each later by a share of the jitter."""

    def first(**given):
        times = load(loop(think={"distribution": "exponential", "mean": "1 ms"}, **given)).build().tasks.arrival
        return times[times < float("inf")]

    assert (first(jitter="4 s") == first(jitter="4 s")).all()
    assert (first(jitter="4 s") != first(jitter="4 s", seed=1)).any()
    one, twice = first(jitter="1000 s"), first(jitter="2000 s")
    assert twice == pytest.approx(2 * one, rel=1e-3)
    assert first().max() < 0.1 < one.min()
    many = first(jitter="1000 s", clients=10 * CLIENTS)
    assert many.mean() == pytest.approx(500, rel=0.25) and many.max() <= 1001


@pytest.mark.parametrize(
    ("given", "warned"),
    [({}, True), ({"jitter": "1 s"}, False), ({"clients": 1}, False),
     ({"think": {"distribution": "exponential", "mean": "1 s"}}, False),
     ({"output": {"distribution": "uniform", "low": 1, "high": 9}}, False)],
)  # fmt: skip
def test_only_a_loop_in_step_is_warned_of(given, warned):
    assert any("start_jitter" in text for text in load(loop(**given)).build().warnings) == warned
