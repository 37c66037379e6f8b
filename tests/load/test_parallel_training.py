"""Parallel training in closed form: collectives, steps and memory, from the formulas and from scenarios."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import hetsim as hs
from hetsim.errors import ScenarioError
from hetsim.formulas.training import ParallelPlan, Rate, TrainingMachine, Transformer, memory, ring_over_nodes, step

GIB = 2**30
MEASURED = Path(__file__).parents[3] / "shared" / "data" / "training" / "megatron.csv"
needs_data = pytest.mark.skipif(not MEASURED.exists(), reason="the measured steps are not there")
GPT3 = {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200}



def all_reduce_over_nodes(
    nodes: int, each: int, size: float, inside: Rate, card: float, cards: int, latency: float = 0.0,
    latency_inside: float = 0.0,
) -> float:  # fmt: skip
    """Seconds of an all-reduce of `each` ranks on each of some nodes with `cards`."""
    sent, within, latencies = ring_over_nodes(
        2, nodes, each, size=size, inside=inside, latency=latency, latency_inside=latency_inside
    )
    return latencies + max(within, sent / (card * min(cards, each)))


def test_collectives() -> None:
    # 32 ranks: 2 · 31/32 bytes for each byte, at the rate of the slowest hop of a ring over all cards.
    assert all_reduce_over_nodes(4, 8, 1e9, 240e9, 25e9, 8) == pytest.approx(1.9375 / 200)
    assert all_reduce_over_nodes(4, 8, 1e9, 150e9, 25e9, 8) == pytest.approx(1.9375 / 150), "NVLink is slower"
    assert all_reduce_over_nodes(4, 8, 1e9, 200e9, 25e9, 1) == pytest.approx(1.9375 / 25)
    assert all_reduce_over_nodes(4, 8, 0.0, 200e9, 25e9, 1, 1e-5, 1e-6) == pytest.approx(2 * (3 * 1e-5 + 7 * 1e-6))


NCCL = [
    # nodes, NVLink, cards and their rate, measured: bus bandwidth in GB/s of an all-reduce on nodes of 8 GPUs.
    (2, 240, 1, 25, 24.0),  # A100, NVIDIA/nccl#1048
    (3, 240, 4, 25, 96.0),  # A100, NVIDIA/nccl-tests#119
    (2, 450, 8, 50, 8 * 47.0),  # H100, NVIDIA/nccl-tests#290: 46 to 48 per card
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "nvlink", "cards", "rate", "measured"), NCCL)
def test_published_bus_bandwidths(nodes: int, nvlink: float, cards: int, rate: float, measured: float) -> None:
    """At the nominal rates of the links; the two phases of a hierarchical all-reduce would be off by -19 to +65 %."""
    size = 1e9
    links = {"nvlink": f"{nvlink} GB/s", "cards": cards, "network": {"out": f"{cards * rate} GB/s"}}
    node = {"count": nodes, "gpus": {"type": "g", "count": 8}} | links
    for pattern, ways in (("all_reduce", 2), ("all_gather", 1)):
        how = {"pattern": pattern, "bytes": f"{size} B", "every": "1 s"}
        entry = {"arrivals": {"process": "all_at_once", "count": 1}, "nodes": nodes, "gpus": 8, "gpu_time": "1 s"}
        run = hs.run({"cluster": {"nodes": node}, "workload": entry | {"communication": how}, "policy": "fcfs"})
        seconds = float(run.tasks["compute"].iloc[0]) - 1
        assert ways * (1 - 1 / (8 * nodes)) * size / seconds / 1e9 == pytest.approx(measured, rel=0.08)


def test_a_ring_that_nvlink_limits_leaves_room_on_its_cards() -> None:
    """Two jobs of two nodes share an uplink of 400 GB/s; NVLink of 100 GB/s sets the pace, so that four would fit: no
    delay.  On NVLink of 400 GB/s each could fill the uplink alone."""

    def delay(nvlink: str) -> list[float]:
        nodes = {"name": "n", "count": 4, "gpus": {"type": "g", "count": 8}, "cards": 8, "network": {"out": "400 GB/s"}}
        job = {"arrivals": {"process": "all_at_once", "count": 2}, "nodes": 2, "gpus": 8, "gpu_time": "10 s",
               "communication": {"pattern": "all_reduce", "bytes": "100 GB", "every": "1 s"}}  # fmt: skip
        cluster = {"nodes": nodes | {"nvlink": nvlink}, "racks": {"nodes": 2, "uplink": "400 GB/s"}}
        policy = {"scheduler": "fcfs", "placement": "spread_racks"}
        found = hs.run({"cluster": cluster, "workload": job, "policy": policy}, check=True).tasks
        return [*found["step"], *found["contention"]]

    ring = 100 * 2 * 15 / 16  # GB
    assert delay("100 GB/s") == pytest.approx([1 + ring / 100] * 2 + [0, 0])
    both = 1 + ring / 400
    slowed = both + (ring / 400) ** 2 / both  # two jobs on one link: T = (C² + 2 C s + 2 s²) / (C + s)
    assert delay("400 GB/s") == pytest.approx([slowed] * 2 + [10 * (slowed - both)] * 2)


def test_schedules() -> None:
    kinds: list[tuple[Any, int]] = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)]
    assert [ParallelPlan(8, 1, 1, 4, 1, kind, chunks).in_flight for kind, chunks in kinds] == [8, 4, 5.5]


def test_operations_of_a_step_of_175_billion_parameters() -> None:
    assert Transformer(**GPT3).flops(1536) / 1024 / 140e12 == pytest.approx(31.466, abs=5e-4)


def test_memory_of_175_billion_parameters() -> None:
    for recomputation, kept in (("none", 51.75), ("full", 4.5)):
        plan = ParallelPlan(64, 1, 8, 8, 1, recomputation=recomputation)  # type: ignore[arg-type]
        found = [size / GIB for size in memory(Transformer(**GPT3), plan)]
        assert found == pytest.approx([45.74, kept], abs=5e-3)


def training(nodes: int = 8, **keys: Any) -> dict[str, Any]:
    gpus = {"type": "a100", "count": 8, "memory": "80 GB", "peak": {"flops": "312 TFLOP/s", "bandwidth": "2039 GB/s"}}
    links = {
        "nvlink": {"rate": "240 GB/s", "latency": "5 us"}, "cards": 8,
        "network": {"out": "200 GB/s", "latency": "5 us"},
    }  # fmt: skip
    values = {"model": GPT3, "batch": 64, "tensor": 8, "pipeline": 8, "recomputation": "full", "steps": 10} | keys
    entry = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "nodes": nodes, "gpus": 8}
    cluster = {"nodes": [{"name": "n", "count": nodes, "cpus": 8, "gpus": gpus} | links]}
    return {"cluster": cluster, "workload": [entry | {"training": values}], "policy": "fcfs"}


def seconds(*args: Any, **keys: Any) -> float:
    return float(hs.run(training(*args, **keys), check=True).tasks["compute"].iloc[0]) / 10


def test_a_step_from_a_scenario() -> None:
    """Table 5 of Korthikanti et al. (2022): 175B, selective recomputation, 13.75 s measured."""
    keys = {"schedule": "interleaved", "chunks": 3, "recomputation": "selective", "sequence_parallel": True}
    assert seconds(**keys) == pytest.approx(13.75, rel=0.03)


def test_less_communication_and_less_waiting_take_less_time() -> None:
    assert seconds(batch=128) < 2 * seconds(batch=64)  # the bubble is that of one batch
    assert seconds(schedule="interleaved", chunks=3) < seconds()
    assert seconds(nodes=16, batch=128, sharded_optimizer=True, buckets=8) < seconds(nodes=16, batch=128)


@pytest.mark.parametrize(
    ("keys", "key", "sentence"),
    [
        ({"recomputation": "none"}, "training", "45.74 GiB of weights and their states and 51.75 GiB of activations "
         "(104.7 GB) exceed the 74.51 GiB (80 GB) of one"),
        ({"pipeline": 97}, "training.pipeline", "97 stages need more than the 96 layers"),
        ({"pipeline": 10}, "training.pipeline", "96 layers do not divide into 10 equal parts"),
        ({"tensor": 7}, "training.tensor", "96 heads do not divide into 7 equal parts"),
        ({"data": 2}, "training.data", "tensor 8 × pipeline 8 × data 2 must be the 64 GPUs of the job; got 128"),
        ({"batch": 63, "micro_batch": 2}, "training.batch", "63 samples do not divide into micro-batches of 2"),
        ({"chunks": 2}, "training.chunks", "an interleaved pipeline must have 2 or more chunks, others 1"),
        ({"efficiency": 0}, "training.efficiency", "a share above 0"),
        ({"efficiency": "150%"}, "training.efficiency", "must be at most 1"),
        ({"efficency": 1}, "training.efficency", "unknown key"),
    ],
)
def test_what_cannot_be_is_said(keys: dict[str, Any], key: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as error:
        hs.run(training(**keys))
    assert key in str(error.value) and sentence in str(error.value)


def test_tensor_parallelism_beyond_nvlink_is_told_with_its_price() -> None:
    found = hs.run(training(nodes=16, tensor=16, pipeline=8))
    assert any("tensor (16) is above 8, the number of GPUs that NVLink joins: a step "
               "takes" in one for one in found.warnings)


@pytest.mark.slow
def test_what_lies_beyond_an_island_goes_over_pcie() -> None:
    """Two islands of four GPUs: the ring of eight has a hop over PCIe, that of four has none."""

    def price(island: int | None, tensor: int, pcie: str = "25 GB/s") -> tuple[float, list[str]]:
        given = training(nodes=8, tensor=tensor, pipeline=64 // tensor, batch=64)
        (node,) = given["cluster"]["nodes"]
        node |= {"pcie": {"upload": pcie, "download": pcie}} | ({} if island is None else {"island": island})
        found = hs.run(given, check=True)
        return float(found.tasks["compute"].iloc[0]) / 10, found.warnings

    whole, quiet = price(None, 8)
    cut, told = price(4, 8)
    assert not quiet and price(8, 8) == (whole, [])
    assert any(f"tensor (8) is above 4, the number of GPUs that NVLink joins: a step takes {cut:.4g} "
               f"s" in one for one in told)
    # A step of 64 micro-batches, 12 layers a stage: six all-reduces of 2 · 2048 · 12288 bytes of eight ranks each.
    more = 6 * 12 * (64 + 7) * 2 * 7 / 8 * 2 * 2048 * 12288 * (1 / 25e9 - 1 / 240e9)
    assert cut - whole == pytest.approx(more, rel=1e-9)
    assert price(4, 4)[0] == pytest.approx(price(None, 4)[0]), "fits into an island"
    given = training(nodes=8, tensor=8, pipeline=8, batch=64)
    given["cluster"]["nodes"][0] |= {"island": 4}
    (free,) = hs.run(given).warnings
    assert free.endswith(f"a step takes {whole:.4g} s; pcie has no rate, so transfers over it take 0 s")
    assert "no rate" not in told[0]


def test_ranks_beyond_an_island_send_over_pcie() -> None:
    def seconds_of(island: int) -> float:
        node = {"name": "n", "cpus": 8, "gpus": {"type": "g", "count": 4}, "nvlink": "100 GB/s", "island": island,
                "pcie": {"upload": "10 GB/s", "download": "20 GB/s"}}  # fmt: skip
        how = {"pattern": "all_reduce", "bytes": "1 GB", "every": "1 s"}
        entry = {"arrivals": {"process": "all_at_once", "count": 1}, "gpus": 4, "gpu_time": "1 s", "communication": how}
        run = hs.run({"cluster": {"nodes": [node]}, "workload": [entry], "policy": "fcfs"})
        return float(run.tasks["compute"].iloc[0])

    assert seconds_of(4) == pytest.approx(1 + 1.5 / 100)
    assert seconds_of(2) == pytest.approx(1 + 1.5 / 10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"devices": "v100"}, "workload.0.devices: the cluster has no accelerator v100; there are a100"),
        ({"peak": None}, "workload.0.training: the speed of x is unknown; give it the key peak under cluster"),
        ({"count": 0}, "workload.0.training: training needs GPUs, but the cluster has none"),
    ],
)
def test_gpus_on_which_a_job_cannot_train_are_named(change: dict[str, Any], said: str) -> None:
    given = training()
    if "devices" in change:
        given["workload"][0] |= change
    elif "peak" in change:
        given["cluster"]["nodes"][0]["gpus"] |= {"type": "x"} | change
    else:
        del given["cluster"]["nodes"][0]["gpus"]
    with pytest.raises(ScenarioError, match=said):
        hs.run(given)


def sending(pattern: str, overlap: str = "0%", nodes: int = 4) -> float:
    """The time of a job that computes for 1 s between rounds of communication of 10 GB, in steps of 1 s."""
    links = {"network": {"out": "25 GB/s"}}
    entry = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "nodes": nodes, "gpus": 1}
    how = {"pattern": pattern, "bytes": "10 GB", "every": "1 s", "overlap": overlap}
    cluster = {"nodes": [{"name": "n", "count": 4, "cpus": 8, "gpus": {"type": "g", "count": 1}} | links]}
    entry |= {"gpu_time": "100 s", "communication": how}
    return float(hs.run({"cluster": cluster, "workload": [entry], "policy": "fcfs"}).tasks["finish"].iloc[0]) / 100


def test_communication_of_jobs_known_by_their_step() -> None:
    assert sending("all_reduce") == pytest.approx(1.6)
    assert sending("all_to_all") == pytest.approx(1.3)
    assert sending("reduce_scatter") == sending("all_gather") == pytest.approx(1.3)
    assert sending("ring") == pytest.approx(1.4)
    assert sending("all_reduce", overlap="50%") == pytest.approx(1.1)
    assert sending("all_reduce", overlap="60%") == 1
    assert sending("all_reduce", nodes=1) == 1


@pytest.mark.parametrize(("overlap", "said"), [("110%", "must be at most 1"), (-1, "must be at least 0")])
def test_a_share_is_between_none_and_all(overlap: Any, said: str) -> None:
    with pytest.raises(ScenarioError, match=f"communication.overlap: {said}"):
        sending("ring", overlap)


def test_several_widths_of_one_job() -> None:
    """A mode for each width: twice the data-parallel ranks take half of the micro-batches, and reduce gradients."""
    keys = {"model": {**GPT3, "layers": 24, "hidden": 4096, "heads": 32}, "pipeline": 1, "batch": 256}
    several = training(4, **keys, widths=[1, 2, 4])
    del several["workload"][0]["nodes"]
    found = hs.run(several, check=True)
    shape = found.record.input.tasks.shapes[0]
    assert [mode.node_count for mode in shape.modes] == [1, 2, 4]
    alone = [float(hs.run(training(4, **keys) | {"workload": [
        training(4, **keys)["workload"][0] | {"nodes": nodes}]}).tasks["compute"].iloc[0]) for nodes in (1, 2, 4)]
    assert found.record.input.tasks.time[0].tolist() == alone
    assert alone[0] > alone[1] > alone[2] > alone[0] / 4
    assert found.tasks["hosts"].iloc[0] == 4, "the fastest"
    with pytest.raises(ScenarioError, match=r"256 samples do not divide .* \(on 3 nodes\)"):
        hs.run(several | {"workload": [several["workload"][0] | {"training": {
            **several["workload"][0]["training"], "widths": [1, 3]}}]})
    with pytest.raises(ScenarioError, match="training.widths defines the numbers of nodes; leave one of the two out"):
        hs.run(training(4, **keys, widths=[1, 2]))


def test_a_model_by_its_name_is_the_one_by_its_figures() -> None:
    """GPT-3 has 12 hidden² weights a layer: the catalogue and the formula of the papers agree."""
    named = seconds(model={"name": "gpt-3-175b", "sequence": 2048})
    assert named == pytest.approx(seconds(model={**GPT3, "vocabulary": 50257}), rel=1e-3)
    assert seconds(model={"name": "llama-2-70b", "sequence": 4096}, batch=64) > 0


def test_parameters_of_named_models() -> None:
    for name, billions in (("llama-2-70b", 69), ("mixtral-8x7b", 46.7), ("gpt-3-175b", 174.6)):
        from hetsim.scenario.schema.training import TransformerSpec as Named

        found = Named.model_validate({"name": name, "sequence": 2048}).described()
        assert found.parameters / 1e9 == pytest.approx(billions, rel=0.01)
        assert (found.expert_parameters > 0) == (name == "mixtral-8x7b")


def test_experts_on_several_ranks_hold_less_and_send_tokens() -> None:
    """Of 8 experts each rank holds 8/e; 4 all-to-alls a layer and micro-batch move (e − 1)/e of 2·b·s·h·k bytes."""
    from hetsim.scenario.schema.training import TransformerSpec as Named

    model = Named.model_validate({"name": "mixtral-8x7b", "sequence": 2048}).described()
    machine = TrainingMachine(312e12, 2.039e12, 8, 240e9, 25e9, 8)
    whole, parts = ParallelPlan(64, data=16), ParallelPlan(64, data=16, experts=8)
    dense = model.parameters - model.expert_parameters
    assert memory(model, whole)[0] == pytest.approx(18 * model.parameters)
    assert memory(model, parts)[0] == pytest.approx(18 * (dense + model.expert_parameters / 8))
    size = 2 * 2048 * 4096 * 2
    inside = step(model, parts, machine).experts
    assert inside == pytest.approx(4 * 4 * 32 * 7 / 8 * size / 240e9)
    over = step(model, ParallelPlan(64, data=16, experts=16), machine).experts
    assert over == pytest.approx(4 * 4 * 32 * size * (7 / 16 / 240e9 + 8 / 16 / 25e9))
    assert step(model, whole, machine).experts == 0


@pytest.mark.parametrize(
    ("keys", "key", "sentence"),
    [
        ({"model": {"name": "llama-2-70c", "sequence": 2048}}, "training.model.name", 'did you mean "llama-2-70b"'),
        ({"model": {"name": "zz", "sequence": 9}}, "training.model.name", 'unknown model "zz" (hetsim list models)'),
        ({"model": {"name": "gpt-3-175b", "sequence": 2048, "layers": 9}}, "training.model.layers", "leave one of"),
        ({"model": {"layers": 9, "sequence": 2048}}, "training.model.hidden", "the key is missing; give the model"),
        ({"experts": 8}, "training.experts", "the model has none"),
        ({"model": {"name": "mixtral-8x7b", "sequence": 2048}, "experts": 3}, "training.experts", "do not divide"),
        ({"model": {"name": "mixtral-8x7b", "sequence": 2048}, "experts": 2}, "training.experts", "1 data-parallel"),
    ],
)
def test_models_and_experts_that_cannot_be(keys: dict[str, Any], key: str, sentence: str) -> None:
    with pytest.raises(ScenarioError) as error:
        hs.run(training(**keys))
    assert key in str(error.value) and sentence in str(error.value)


def test_data_parallel_steps_from_two_measured_widths() -> None:
    """`every` from 8 GPUs, `bytes` from what 16 take longer: a ring of 32 moves 31/32 over 15/16 of it."""
    one, two = 0.300, 0.320
    size = f"{round((two - one) * 12.5e9 * 16 / 30)} B"  # 2 · 15/16 of it over one card of 12.5 GB/s
    entry = {"name": "job", "arrivals": {"process": "all_at_once", "count": 1}, "gpus": 8, "gpu_time": "300 s",
             "communication": {"pattern": "all_reduce", "bytes": size, "every": "300 ms"}}  # fmt: skip
    nodes = {"name": "n", "count": 4, "gpus": {"type": "v100", "count": 8}, "network": {"out": "12.5 GB/s"}}
    found = []
    for count in (1, 2, 4):
        run = {"cluster": {"nodes": nodes}, "workload": [entry | {"nodes": count}], "policy": "fcfs"}
        found.append(float(hs.run(run).tasks["step"].iloc[0]))
    assert found == pytest.approx([one, two, one + 31 / 30 * (two - one)], rel=1e-6)


# Measured steps -------------------------------------------------------------------------------------------------


def rows() -> list[dict[str, str]]:
    with MEASURED.open() as file:
        return list(csv.DictReader(file))


def keys_of(row: dict[str, str]) -> dict[str, Any]:
    names = {"tensor": "tp", "pipeline": "pp", "data": "dp", "batch": "batch", "micro_batch": "microbatch"}
    keys: dict[str, Any] = {key: int(row[name]) for key, name in (*names.items(), ("chunks", "chunks"))}
    keys["schedule"] = "interleaved" if keys["chunks"] > 1 else "1f1b"
    return keys | {"recomputation": row["recompute"], "sequence_parallel": row["seq_parallel"] == "1"}


def model_of(row: dict[str, str]) -> dict[str, int]:
    names = {"layers": "layers", "hidden": "hidden", "heads": "heads", "sequence": "seq", "vocabulary": "vocab"}
    return {key: int(row[name]) for key, name in names.items()}


@needs_data
@pytest.mark.slow
def test_published_steps_from_scenarios() -> None:
    """Twelve steps of Megatron-LM on up to 2,520 A100, with the two constants that were fitted to them."""
    errors = []
    for row in rows():
        found = seconds(int(row["gpus"]) // 8, model=model_of(row), **keys_of(row))
        errors.append(abs(found / float(row["step_s"]) - 1))
    assert np.mean(errors) <= 0.04 and max(errors) <= 0.09


@needs_data
def test_each_half_of_the_published_steps_foretells_the_other() -> None:
    def errors(chosen: list[dict[str, str]], constants: np.ndarray) -> np.ndarray:
        machine = TrainingMachine(312e12, 2.039e12, 8, 240e9, 25e9, 8, 5e-6, 5e-6, *map(float, constants))
        found = [step(Transformer(**model_of(row)), ParallelPlan(**keys_of(row)), machine).seconds for row in chosen]
        return np.array(found) / [float(row["step_s"]) for row in chosen] - 1

    left: list[float] = []
    for known, kept in ((rows()[::2], rows()[1::2]), (rows()[1::2], rows()[::2])):
        fitted = minimize(lambda x, known=known: (errors(known, x) ** 2).sum(), [0.7, 2.0], method="Nelder-Mead").x
        left += list(abs(errors(kept, fitted)))
    assert np.mean(left) <= 0.05 and max(left) <= 0.10
