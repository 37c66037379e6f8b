"""Prices of devices: the cluster's own, or others given to the policy.

The scenario says prices once, at the cluster (`price: 2.5/h` at a type of device or a node), and the metric `cost`
counts with the same.  `costs` of a policy stand in where the cluster has none; for a type that has a price they are
refused, so that a policy never optimizes another bill than the one that is shown.
"""

from __future__ import annotations

from collections.abc import Mapping

from hetsim.errors import Problem, ScenarioError
from hetsim.model.cluster import Cluster


def check_costs(costs: Mapping[str, float], cluster: Cluster) -> None:
    """Raise ScenarioError for a type that the cluster lacks or that has a price."""
    for name in costs:
        if name not in cluster.types:
            text = f'costs: the cluster has no type "{name}"; it has {", ".join(cluster.types)}'
            raise ScenarioError(Problem(text, key="policy.scheduler"))
        if cluster.price_of(name):
            text = f'costs: the cluster has a price of "{name}" already; give it in one place only'
            raise ScenarioError(Problem(text, key="policy.scheduler"))


def prices(cluster: Cluster, costs: Mapping[str, float]) -> dict[str, float]:
    """Price of a device and time, by type: as given, else the cluster's, else 1."""
    hour = 3600.0
    return {name: costs.get(name) or hour * cluster.price_of(name) or 1.0 for name in cluster.types}
