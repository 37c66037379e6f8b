"""Stages of a pipeline: PipeDream's published optima, every partition of small chains, profiles and the command."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tiers import spread

from hetsim.cli import main
from hetsim.errors import NothingMeets, ScenarioError
from hetsim.pipelines.layer_cuts import Layer, chain
from hetsim.pipelines.partition import EqualDevices, NetworkLevel, memory_of, pipeline_partition, unlike_partition
from hetsim.workload.readers.layer_profiles import read_profile

GIVEN = Path(__file__).parents[3] / "shared" / "data" / "training"
given = pytest.mark.skipif(not (GIVEN / "pipedream.csv").exists(), reason="the published profiles are not there")

DIAMOND = """\
node1 -- Input0 -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=9.0, parameter_size=0.0
node2 -- Split -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=10.0, parameter_size=5.0
node3 -- Left -- forward_compute_time=2.0, backward_compute_time=4.0, activation_size=[1.0; 2.0], parameter_size=0.0
node4 -- Right -- forward_compute_time=3.0, backward_compute_time=1.0, activation_size=7.0, parameter_size=0.0
node5 -- Join -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=1.0, parameter_size=0.0
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node5
\tnode4 -- node5
"""
TABLE = "layer,activations,weights,seconds.gpu,seconds.npu\na,100,10,0.002,0.001\nb,50,20,0.001,0.004\n"


def hetsim(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["plan", "partition", *(str(one) for one in arguments)])


def layers_of(*times: float, sent: float = 0.0) -> list[Layer]:
    return [Layer(f"l{n}", time, 0.0, sent, 0.0) for n, time in enumerate(times)]


def random_chain(seed: int, n: int) -> list[Layer]:
    draw = np.random.default_rng(seed)
    return [Layer(f"l{k}", *draw.uniform(0, 3, 2), *draw.uniform(0, 4, 2)) for k in range(n)]


def cut(layers: list[Layer], stages: int) -> Iterator[list[list[Layer]]]:
    for places in itertools.combinations(range(1, len(layers)), stages - 1):
        yield [layers[a:b] for a, b in itertools.pairwise((0, *places, len(layers)))]


@given
def test_published_optima_of_pipedream() -> None:
    rows = list(csv.DictReader((GIVEN / "pipedream.csv").read_text().splitlines()))
    for row in rows:
        cuts = read_profile(GIVEN / "pipedream_profiles" / f"{row['model']}.txt")
        level = NetworkLevel(int(row["machines"]), float(row["bandwidth_GBps"]) * 1e9)
        found = pipeline_partition(cuts, [level], activations=row["activations"] == "yes")
        assert found.seconds == pytest.approx(float(row["optimum_s"]), rel=1e-9, abs=0)
        assert [stage.replicas for stage in found.stages] == [3, 1]
    assert len(rows) >= 3


def test_by_hand() -> None:
    """Layers of 3, 1, 2, 2 s on two equal devices; 4, 2, 2, 2, 2 s on devices of speed 2, 1, 1."""
    two = pipeline_partition(chain(layers_of(3, 1, 2, 2)), [NetworkLevel(2, math.inf)], replication=False)
    assert two.seconds == 4
    groups = [EqualDevices("fast", 1, 2.0), EqualDevices("slow", 2)]
    three = unlike_partition(chain(layers_of(4, 2, 2, 2, 2)), groups, replication=False)
    assert three.seconds == 4
    assert three.latency == pytest.approx(8)  # 8 s of layers at speed 2 and 4 s at speed 1 on one device


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("replication", [True, False])
def test_equal_devices_against_every_partition(seed: int, replication: bool) -> None:
    draw = np.random.default_rng(1000 + seed)
    n, m, rate = int(draw.integers(2, 7)), int(draw.integers(1, 5)), float(draw.uniform(0.5, 8))
    m = m if replication else min(m, n)
    layers = random_chain(seed, n)
    best = math.inf
    for count in range(1, min(n, m) + 1):
        shares = [one for one in itertools.product(range(1, m + 1), repeat=count) if sum(one) == m]
        for parts, share in itertools.product(cut(layers, count), shares):
            if not replication and max(share) > 1:
                continue
            times = [
                (sum(one.seconds for one in part) + 4 * (r - 1) * sum(one.weights for one in part) / (rate * r)) / r
                for part, r in zip(parts, share, strict=True)
            ]
            sent = [2 * a[-1].activations / (rate * min(p, q))
                    for a, p, q in zip(parts, share, share[1:], strict=False)]  # fmt: skip
            best = min(best, max(times + sent))
    found = pipeline_partition(chain(layers), [NetworkLevel(m, rate)], replication=replication)
    assert found.seconds == pytest.approx(best)


def test_nested_levels_replicate_what_the_inner_level_makes() -> None:
    """Two nodes of two devices: a node halves each layer of 4 s, and two nodes halve that again."""
    found = pipeline_partition(chain(layers_of(4, 4)), [NetworkLevel(2, math.inf), NetworkLevel(2, math.inf)])
    assert found.seconds == 2
    assert sum(stage.replicas for stage in found.stages) == 4
    slow = [Layer("l0", 4, 0, 0, 1.0), Layer("l1", 4, 0, 0, 1.0)]  # reducing gradients between nodes costs too much
    apart = pipeline_partition(chain(slow), [NetworkLevel(2, math.inf), NetworkLevel(2, 0.1)])
    assert [(stage.first, stage.last, stage.replicas) for stage in apart.stages] == [(0, 0, 2), (1, 1, 2)]


@pytest.mark.parametrize("seed", spread(range(12), 4))
@pytest.mark.parametrize("inference", [True, False])
def test_unlike_devices_against_every_partition(seed: int, inference: bool) -> None:
    draw = np.random.default_rng(2000 + seed)
    layers = random_chain(seed, int(draw.integers(2, 6)))
    groups = [
        EqualDevices(name, int(draw.integers(1, 3)), *draw.uniform(0.5, 4, 3))
        for name in "abc"[: int(draw.integers(1, 4))]
    ]
    deadline = math.inf if seed % 2 else float(draw.uniform(0.8, 1.5)) * sum(one.forward for one in layers)
    best = every_partition(layers, groups, inference, deadline)
    if best is None:
        with pytest.raises(NothingMeets, match=r"no plan meets the deadline of"):
            unlike_partition(chain(layers), groups, inference=inference, deadline=deadline)
        return
    found = unlike_partition(chain(layers), groups, inference=inference, deadline=deadline)
    assert (found.seconds, found.latency) == pytest.approx(best)


def every_partition(
    layers: list[Layer], groups: list[EqualDevices], inference: bool, deadline: float
) -> tuple[float, float] | None:
    """Least time between two items, and with it the least latency, over all orders, cuts and replicas."""
    ways, found = 1 if inference else 2, []
    devices = sum(one.count for one in groups)
    for order in itertools.permutations(groups):
        choices = [(place, r) for place, group in enumerate(order) for r in range(1, group.count + 1)]
        for count in range(1, min(devices, len(layers)) + 1):
            for chosen in itertools.product(choices, repeat=count):
                places = [place for place, _ in chosen]
                used = [sum(r for place, r in chosen if place == one) for one in range(len(order))]
                if places != sorted(places) or any(u > g.count for u, g in zip(used, order, strict=True)):
                    continue
                for parts in cut(layers, count):
                    busy, latency = [], 0.0
                    behind = [sum(r for _, r in chosen[k:]) for k in range(1, count + 1)]
                    if any(needed(part, r, after, inference) > order[place].memory
                           for part, (place, r), after in zip(parts, chosen, behind, strict=True)):  # fmt: skip
                        continue
                    for part, (place, r) in zip(parts, chosen, strict=True):
                        group = order[place]
                        time = sum(one.forward if inference else one.seconds for one in part) / group.speed
                        if not inference:
                            time += 4 * (r - 1) * sum(one.weights for one in part) / (group.inside * r)
                        busy.append(time / r)
                        latency += time
                    for part, (a, p), (b, q) in zip(parts, chosen, chosen[1:], strict=False):
                        rate = order[a].inside if a == b else min(order[a].link, order[b].link)
                        busy.append(ways * part[-1].activations / (rate * min(p, q)))
                        latency += ways * part[-1].activations / rate
                    if latency <= deadline:
                        found.append((max(busy), latency))
    return min(found) if found else None


def needed(part: list[Layer], replicas: int, behind: int, inference: bool) -> float:
    """Memory of a stage: weights and the largest activations, or what training stashes of each micro-batch."""
    weights = sum(one.weights for one in part)
    if inference:
        return weights + max(one.activations for one in part)
    flying = 1 + math.ceil(behind / replicas)
    return (flying + 1) * weights + flying * sum(one.activations for one in part)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("replication", [True, False])
def test_memory_of_equal_devices_against_every_partition(seed: int, replication: bool) -> None:
    """With the least memory that any plan needs, with one below it, and with what is enough for half of the plans."""
    draw = np.random.default_rng(3000 + seed)
    n, m, rate = int(draw.integers(2, 6)), int(draw.integers(1, 5)), float(draw.uniform(0.5, 8))
    m = m if replication else min(m, n)
    layers = random_chain(seed, n)
    plans: list[tuple[float, float]] = []
    for count in range(1, min(n, m) + 1):
        shares = [one for one in itertools.product(range(1, m + 1), repeat=count) if sum(one) == m]
        for parts, share in itertools.product(cut(layers, count), shares):
            if not replication and max(share) > 1:
                continue
            times = [
                (sum(one.seconds for one in part) + 4 * (r - 1) * sum(one.weights for one in part) / (rate * r)) / r
                for part, r in zip(parts, share, strict=True)
            ]
            sent = [2 * a[-1].activations / (rate * min(p, q))
                    for a, p, q in zip(parts, share, share[1:], strict=False)]  # fmt: skip
            full = max(needed(part, r, sum(share[k:]), False)
                       for k, (part, r) in enumerate(zip(parts, share, strict=True), 1))  # fmt: skip
            plans.append((full, max(times + sent)))
    plans.sort()
    for memory in {plans[0][0], plans[len(plans) // 2][0]}:
        best = min(time for full, time in plans if full <= memory)
        room = memory * (1 + 1e-12)
        found = pipeline_partition(chain(layers), [NetworkLevel(m, rate)], replication=replication, memory=room)
        assert found.seconds == pytest.approx(best)
        assert max(memory_of(chain(layers), found, False)) <= room
    with pytest.raises(NothingMeets) as caught:
        pipeline_partition(chain(layers), [NetworkLevel(m, rate)], replication=replication, memory=plans[0][0] * 0.99)
    figures = [f"{size:.6g} B" for size in (plans[0][0], 0.99 * plans[0][0])]
    assert f"needs {figures[0]} on a device, but each has {figures[1]};" in str(caught.value)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("inference", [True, False])
def test_memory_of_unlike_devices_against_every_partition(seed: int, inference: bool) -> None:
    draw = np.random.default_rng(4000 + seed)
    layers = random_chain(seed, int(draw.integers(2, 5)))
    scale = 2 if inference else 8
    groups = [
        EqualDevices(name, int(draw.integers(1, 3)), *draw.uniform(0.5, 4, 3), memory=float(draw.uniform(1, 3)) * scale)
        for name in "abc"[: int(draw.integers(1, 4))]
    ]
    best = every_partition(layers, groups, inference, math.inf)
    if best is None:
        with pytest.raises(NothingMeets, match="no pipeline fits the memory: the best cut needs"):
            unlike_partition(chain(layers), groups, inference=inference)
        return
    found = unlike_partition(chain(layers), groups, inference=inference)
    assert (found.seconds, found.latency) == pytest.approx(best)


def test_nested_levels_keep_to_the_memory() -> None:
    """Two nodes of two devices: with room for all, both halves twice over; with less, a stage on each device."""
    layers = [Layer(f"l{n}", 1, 0, 1.0, 10.0) for n in range(4)]
    levels = [NetworkLevel(2, math.inf), NetworkLevel(2, math.inf)]
    plenty = pipeline_partition(chain(layers), levels, memory=1e6)
    assert plenty == pipeline_partition(chain(layers), levels)
    tight = pipeline_partition(chain(layers), levels, memory=60.0)
    assert [stage.replicas for stage in tight.stages] == [1, 1, 1, 1]
    assert memory_of(chain(layers), tight, False) == [54, 43, 32, 21]  # (1 + devices behind) of 11, and 10 of gradients
    with pytest.raises(NothingMeets, match="no pipeline fits the memory"):
        pipeline_partition(chain(layers), levels, memory=20.0)


def test_the_command_says_memory_and_what_does_not_fit(tmp_path: Path) -> None:
    """Weights of 10 and 20 bytes: one device for both needs 130 of inference, each for one 110 and 70."""
    path = tmp_path / "two.csv"
    path.write_text(TABLE)
    devices = [f"{name},memory={{}}B" for name in ("gpu", "npu")]
    options = [word for one in devices for word in ("--device", one.format(120))]
    answer = json.loads(hetsim(path, *options, "--inference", "--json").stdout)
    assert [(stage["device"], stage["memory_bytes"]) for stage in answer["stages"]] == [("npu", 110), ("gpu", 70)]
    assert "110 B" in hetsim(path, *options, "--inference").stdout
    options = [word for one in devices for word in ("--device", one.format(100))]
    small = hetsim(path, *options, "--inference")
    assert small.exit_code == 4
    assert "needs 110 B on a device, but gpu has 100 B, npu has 100 B" in " ".join(small.stderr.split())


def test_many_groups_are_searched_from_orders_by_speed() -> None:
    """Layers that only one of six devices makes fast, each another: the order of the devices is that of the layers."""
    names = "fbdace"
    layers = [Layer(str(k), 9, 0, 0, 0, {names[k]: 1.0}) for k in range(6)]
    found = unlike_partition(chain(layers), [EqualDevices(name) for name in sorted(names)], inference=True)
    assert found.seconds == 1
    assert "".join(stage.device for stage in found.stages) == names


def test_branches_are_cut_as_pipedream_cuts_them(tmp_path: Path) -> None:
    """Cuts of a diamond and the bytes that PipeDream counts there; beside both branches it counts Split's too."""
    path = tmp_path / "diamond.txt"
    path.write_text(DIAMOND)
    cuts = read_profile(path)
    names = {frozenset(cuts.layers[one].name for one in members): size
             for members, size in zip(cuts.sets, cuts.crossing, strict=True)}  # fmt: skip
    assert names == {
        frozenset({"Split"}): 10,
        frozenset({"Split", "Left"}): 13,
        frozenset({"Split", "Right"}): 17,
        frozenset({"Split", "Left", "Right"}): 20,
        frozenset({"Split", "Left", "Right", "Join"}): 1,
    }
    found = pipeline_partition(cuts, [NetworkLevel(2, math.inf)], replication=False)
    assert found.seconds == pytest.approx(8e-3)  # Split and Left or Split, Right, and what is left
    assert pipeline_partition(cuts, [NetworkLevel(2, 2e3)], replication=False).seconds == pytest.approx(12e-3)


def test_command_prints_stages_and_devices_alone(tmp_path: Path) -> None:
    """Layer a is made for the NPU, b for the GPU: 100 bytes at 100 kB/s between them take 1 ms."""
    path = tmp_path / "two.csv"
    path.write_text(TABLE)
    options = ("--device", "gpu,link=1 MB/s", "--device", "npu,link=100 kB/s", "--inference")
    answer = json.loads(hetsim(path, *options, "--json").stdout)
    assert [stage["device"] for stage in answer["stages"]] == ["npu", "gpu"]
    assert (answer["seconds"], answer["latency"]) == pytest.approx((1e-3, 3e-3))
    assert answer["alone"] == pytest.approx({"gpu": 3e-3, "npu": 5e-3})
    text = hetsim(path, *options).stdout
    assert "2 stages on 2 devices, one item every 1 ms" in text
    assert "all layers on npu: one item every 5 ms" in text
    late = hetsim(path, *options, "--deadline", "2.9ms")
    assert late.exit_code == 4
    assert "no plan meets the deadline of" in late.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "devices of different types"),
        (("--level", "4@1GB/s", "--device", "gpu"), "devices of different types"),
        (("--level", "4"), "--level must be COUNT@RATE"),
        (("--level", "0@1GB/s"), "--level must be a whole number from 1 to 64"),
        (("--level", "4@0 GB/s"), '--level: must be above 0; got "0 GB/s"'),
        (("--level", "4@1GB"), "is not a unit here"),
        (("--level", "4@1GB/s", "--memory", "0GB"), '--memory: must be above 0; got "0GB"'),
        (("--device", "gpu", "--memory", "1GB"), "--memory needs --level"),
        (("--device", "gpu,memory=16"), "memory: \"16\" has no unit"),
        (("--level", "4@1GB/s", "--inference"), "--inference needs --device"),
        (("--device", "gpu,sped=2"), 'unknown key "sped"; did you mean "speed"?'),
        (("--device", "gpu,speed=-1"), 'must be above 0; got "-1"'),
        (("--device", "gpu", "--device", "gpu"), '"gpu" is given twice'),
        (("--device", "gpu,count=65"), "must be a whole number from 1 to 64"),
        (("--device", "gpu,count=20", "--device", "npu,count=13"), "--device must give at most 32 devices in all"),
        (("--device", "gpu", "--deadline", "5"), '"5" has no unit'),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    path = tmp_path / "two.csv"
    path.write_text(TABLE)
    answer = hetsim(path, *options)
    assert answer.exit_code == 2
    assert said in " ".join(answer.stderr.split())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "layer,activation,seconds.gpu\n", ':1: the column "activations" is missing'),
        ("a.csv", "layer,activations\n", ':1: the column "forward" is missing'),
        ("a.csv", TABLE.replace("0.004", "-4"), ':3:15: seconds.npu: must be a number from 0 to 1e+30; got "-4"'),
        ("a.csv", TABLE.replace("0.004", "1e308"), ':3:15: seconds.npu: must be a number from 0 to 1e+30; got "1e30'),
        ("a.csv", TABLE.replace("b,50", '"b, again",5 0'), ':3:12: activations: must be a number from 0 to 1e+30'),
        ("a.csv", TABLE + "c,1\n", ":4:4: a row must have 5 values, as the header; got 2"),
        ("a.csv", TABLE + "c,1,2,3,4,5\n", ":4:11: a row must have 5 values, as the header; got 6"),
        ("a.csv", TABLE.replace("weights", "wieghts"), ':1:19: unknown column "wieghts"'),
        ("a.csv", TABLE.replace("weights", "layer"), ':1:19: the column "layer" appears twice'),
        ("a.csv", TABLE.replace("0.001", "0").replace("0.002", "0"), ":1:27: seconds.gpu: at least one layer "
                                                                     "must take more than 0 s"),
        ("a.csv", "layer,activations,forward,backward\na,1,0,2\n", ":1:19: forward: at least one layer must "
                                                                   "take more than 0 s"),
        ("a.csv", TABLE.splitlines()[0], ": the file has no layer"),
        ("a.txt", "", ": the file has no layer"),
        ("a.txt", DIAMOND + "\tnode5 -- node9\n", ':11: an edge: there is no layer'),
        ("a.txt", DIAMOND + "\tnode5 -- node2\n", 'the layers form a cycle;'),
        (
            "a.txt",
            DIAMOND.replace("\tnode3 -- node5\n", "").replace("\tnode2 -- node3\n", ""),
            'layer "node3" (Left) does not lead to the last layer, the only end',
        ),
        ("a.txt", DIAMOND.replace("parameter_size=5.0", "parameters=5.0"), ':2: layer "node2": parameter_size missing'),
        ("a.txt", DIAMOND.replace("parameter_size=5.0", "parameter_size=nan"), ":2:109: parameter_size: must be a"),
        ("a.txt", DIAMOND + DIAMOND, ':11: layer "node1" is given twice'),
        ("a.txt", "network\n", ":1: must be NODE -- DESCRIPTION -- FIGURES"),
    ],
)
def test_wrong_profiles_are_located(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    answer = hetsim(path, "--level", "2@1GB/s")
    assert answer.exit_code == 3
    assert f"{name}" in answer.stderr
    assert said in answer.stderr.replace("\n", " ")
    with pytest.raises(ScenarioError):
        read_profile(path)


def test_devices_without_times_are_named(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text(TABLE)
    answer = hetsim(path, "--device", "cpu")
    assert answer.exit_code == 3
    assert 'no times for the device "cpu"; there are columns for gpu, npu' in answer.stderr
    equal = hetsim(path, "--level", "2@1GB/s")
    assert equal.exit_code == 3
    assert "no forward and backward times, which --level needs;" in equal.stderr
