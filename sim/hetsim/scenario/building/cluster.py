"""Build a `Cluster` from the `cluster:` part of a scenario."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from hetsim.errors import Problem, ScenarioError, suggestion
from hetsim.model.cluster import MAX_DEVICES, Cluster, Fabric, NodeSpec
from hetsim.model.device_type import FREE, DeviceType, Link, Price
from hetsim.scenario.file.document import Document, Path_
from hetsim.scenario.schema import cluster as schema


def build_cluster(cluster: schema.ClusterSpec, document: Document) -> Cluster:
    """Build the cluster; raise ScenarioError with all problems, such as no devices."""
    problems: list[Problem] = []
    first_by_name: dict[str, tuple[DeviceType, str]] = {}
    names: dict[str, int] = {}
    specs = []
    for number, nodes in enumerate(cluster.nodes):
        path: Path_ = ("cluster", "nodes", number)
        spec = _spec(nodes, cluster.prices)
        parts = [("cpu", spec.cpu_type)] + [("gpus", device) for device, _ in spec.accelerators]
        for key, device in parts:
            first, where = first_by_name.setdefault(device.name, (device, ".".join(map(str, path))))
            if first != device:
                problems.append(document.problem((*path, key), _two_ways(device, first, where)))
        # Equal types are one object: modes and devices are matched by identity.
        merged = tuple((first_by_name[device.name][0], count) for device, count in spec.accelerators)
        spec = replace(spec, cpu_type=first_by_name[spec.cpu_type.name][0], accelerators=merged)
        if spec.drivers > spec.cpus:
            text = f"{spec.driver_cores} for each of {spec.drivers // spec.driver_cores} accelerators exceed the"
            text = f"{text} {spec.cpus} cores of a node; give nodes more cpus, or fewer driver cores"
            problems.append(document.problem((*path, "driver_cores"), text))
            spec = replace(spec, driver_cores=0)
        if spec.memory is not None and math.inf > spec.keep > spec.memory:
            text = f"a node keeps {spec.keep / 1e9:g} GB of models in {spec.memory / 1e9:g} GB of memory; give it less"
            problems.append(document.problem((*path, "keep"), text))
        specs.append(spec)
        taken = next((name for name in _names(spec) if names.setdefault(name, number) != number), None)
        if taken is not None:
            where = f"cluster.nodes.{names[taken]}"
            problems.append(document.problem((*path, "name"), f'the node name "{taken}" is taken by {where}'))
    problems += [document.problem(("cluster", "nodes"), text) for text in _wrong_size(specs)]
    problems += _prices_without_type(cluster, first_by_name, document)
    if not problems and cluster.racks is not None:
        specs = _in_racks(specs, cluster.racks, document, problems)
    stores = {one.name: one.out for one in cluster.stores}
    if len(stores) < len(cluster.stores):
        problems.append(document.problem(("cluster", "stores"), "two stores have the same name; rename one"))
    if problems:
        raise ScenarioError(problems)
    built = Cluster(specs)
    uplinks = {} if cluster.racks is None else _uplinks(built, cluster.racks, document)
    built.fabric = Fabric(uplinks, cluster.contention, stores)
    return built


def _wrong_size(specs: list[NodeSpec]) -> Iterator[str]:
    if not any(spec.count and (spec.cpus or any(count for _, count in spec.accelerators)) for spec in specs):
        yield "the cluster has no devices: no core and no GPU"
    devices = sum(spec.count * (1 + sum(count for _, count in spec.accelerators)) for spec in specs)
    if devices > MAX_DEVICES:
        yield f"the cluster must have at most {MAX_DEVICES:,} devices, for memory; got {devices:,}"


def _in_racks(
    specs: list[NodeSpec], racks: schema.Racks, document: Document, problems: list[Problem]
) -> list[NodeSpec]:
    if (size := racks.nodes) is None:
        if all(spec.rack is None for spec in specs):
            text = "no node has a rack; give the number of nodes of each rack (nodes: 8), or a rack to each node"
            problems.append(document.problem(("cluster", "racks"), text))
        return specs
    in_racks: list[NodeSpec] = []
    before = 0
    for number, spec in enumerate(specs):
        if spec.rack is not None:
            path = ("cluster", "nodes", number, "rack")
            problems.append(document.problem(path, "rack and cluster.racks.nodes exclude each other; leave one out"))
        first = 0
        while first < spec.count:
            rack, place = divmod(before, size)
            count = min(size - place, spec.count - first)
            label = None if spec.name is None or spec.count == 1 else first
            in_racks.append(replace(spec, count=count, rack=f"r{rack}", first=label))
            first += count
            before += count
    return in_racks


def _uplinks(cluster: Cluster, racks: schema.Racks, document: Document) -> dict[str, float]:
    rates: dict[str, float] = {}
    for node in cluster.nodes:
        if node.spec.rack is not None:
            own = min(node.spec.network.upload, node.spec.network.download)
            rates[node.spec.rack] = rates.get(node.spec.rack, 0.0) + own
    for rack in racks.uplinks:
        if rack not in rates:
            near = suggestion(rack, rates) or f"; there are {', '.join(list(rates)[:8])}"
            raise ScenarioError(document.problem(("cluster", "racks", "uplinks", rack), f'unknown rack "{rack}"{near}'))
    if racks.oversubscription is not None:
        if math.inf in rates.values():
            text = "an oversubscribed uplink needs the network rates of its nodes; give the nodes a network"
            raise ScenarioError(document.problem(("cluster", "racks", "oversubscription"), text))
        return {rack: racks.uplinks.get(rack, rate / racks.oversubscription) for rack, rate in rates.items()}
    return {rack: racks.uplinks.get(rack, racks.uplink or math.inf) for rack in rates}


def _prices_without_type(
    cluster: schema.ClusterSpec, known: dict[str, tuple[DeviceType, str]], document: Document
) -> Iterator[Problem]:
    for name in cluster.prices:
        path: Path_ = ("cluster", "prices", name)
        if name not in known:
            near = suggestion(name, known) or f"; there are {', '.join(known)}"
            yield document.problem(path, f'the cluster has no device type "{name}"{near}')
    for number, nodes in enumerate(cluster.nodes):
        at_type: list[tuple[str, schema.Accelerator | schema.Cpu]] = [("gpus", one) for one in nodes.gpus]
        at_type += [("accelerators", one) for one in nodes.accelerators]
        for key, one in (*at_type, ("cpu", nodes.cpu)):
            if one.price is not None and one.type in cluster.prices:
                text = f'the price of "{one.type}" must be given once: here or under cluster.prices'
                yield document.problem(("cluster", "nodes", number, key), text)


def _names(spec: NodeSpec) -> list[str]:
    if spec.name is None:
        return []
    return [spec.name] if spec.count == 1 else [f"{spec.name}{copy}" for copy in range(spec.count)]


def _two_ways(device: DeviceType, first: DeviceType, where: str) -> str:
    differing = [part.name for part in fields(device) if getattr(device, part.name) != getattr(first, part.name)]
    keys = " and ".join({"link": "pcie"}.get(name, name) for name in differing)
    return f'device type "{device.name}" has another {keys} in {where}; give the two types different names'


def _spec(nodes: schema.Nodes, prices: Mapping[str, Price]) -> NodeSpec:
    accelerators = [(_type(one, nodes.pcie, prices), one.count) for one in (*nodes.gpus, *nodes.accelerators)]
    switch = nodes.pcie.switch
    return nodes.made(
        accelerators=tuple(accelerators),
        cpu_type=nodes.cpu.made(
            name=nodes.cpu.type, kind="cpu", price=nodes.cpu.price or prices.get(nodes.cpu.type, FREE)
        ),
        switch_size=switch.size if switch else None,
        switch=switch.made() if switch else Link(),
        network=nodes.network.link() if nodes.network else Link(),
        nvlink=nodes.nvlink.link() if nodes.nvlink else Link(),
        partitions=tuple(dict.fromkeys(nodes.partitions)),
    )


def _type(accelerator: schema.Accelerator, pcie: schema.Pcie, prices: Mapping[str, Price]) -> DeviceType:
    return accelerator.made(
        name=accelerator.type,
        link=accelerator.pcie or pcie.made(),
        sharing=accelerator.sharing.cut(),
        price=accelerator.price or prices.get(accelerator.type, FREE),
    )
