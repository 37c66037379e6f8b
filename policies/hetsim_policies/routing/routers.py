"""Routing: the choice of the replica that serves a request to a language model."""

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hetsim.model.units import NotNegative
from hetsim.policy import Generation, OpenReplicas, Replica, RoutedReplica, RoutedRequest, Routing


class LeastOutstanding(Routing):
    """Least outstanding: the replica with the fewest unfinished requests.

    Decides which replica serves a request: join the shortest queue, requests in service included; on unlike devices,
    the replica with the fewest requests (the new one included) per token/s of its speed (shortest expected delay).
    Reference: Winston, Optimality of the Shortest Line Discipline (1977), for equal exponential servers; for unlike
    servers Banawan and Zahorjan, Load Sharing in Heterogeneous Queueing Systems (INFOCOM 1989).
    Weakness: it counts requests, not tokens: a long answer weighs as much as a short one.
    Cost: one operation on an array of loads per request.
    """

    queueing = "shortest line"
    signals = ("queue",)

    def choose(self, request: RoutedRequest, replicas: OpenReplicas, random: np.random.Generator) -> RoutedReplica:
        return replicas.least_loaded()


class PowerOfTwo(Routing):
    """Power of two choices: the less loaded of two replicas drawn at random.

    Decides which replica serves a request without comparing all replicas.  The load of a replica is its number of
    requests divided by its speed.
    Reference: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing (2001): for n replicas the longest
    queue is about log log n / log 2, instead of log n / log log n with random choices.
    Weakness: it is worse than comparing all replicas if that costs nothing.  Cost: O(1) a request.
    """

    queueing = "shorter of two lines"
    signals = ("queue",)

    def choose(self, request: RoutedRequest, replicas: OpenReplicas, random: np.random.Generator) -> RoutedReplica:
        if (count := len(replicas)) == 1:
            return replicas[0]
        first = int(random.integers(count))
        second = int(random.integers(count - 1))
        one, other = replicas[first], replicas[second + (second >= first)]
        fewer = (other.outstanding + 1) / other.speed < (one.outstanding + 1) / one.speed
        return other if fewer else one


class PrefixAffinity(Routing):
    """Prefix affinity: the replica that caches most of the prompt, if not overloaded.

    Decides which replica serves a request by the tokens that need not be prefilled there.
    Reference: the cache-aware routing of Zheng et al., SGLang: Efficient Execution of Structured Language Model
    Programs (NeurIPS 2024), and Qin et al., Mooncake: A KVCache-centric Disaggregated Architecture for LLM Serving
    (FAST 2025).  Weakness: popular prefixes overload the replica that caches them; `slack` bounds this overload.
    Cost: O(replicas × blocks of the prefix) a request.

    slack: a replica is overloaded if it has this many requests more than the least loaded replica; on unlike devices
        requests are weighted by the fastest replica's speed / the replica's speed.
    """

    signals = ("queue", "prefix")

    def __init__(self, slack: Annotated[int, Field(ge=1)] = 8):
        self.slack = slack

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        fastest = max(replica.speed for replica in replicas)
        loads = [(replica.outstanding + 1) * (fastest / replica.speed) for replica in replicas]
        bound = min(loads) + self.slack
        able = [(replica, load) for replica, load in zip(replicas, loads, strict=True) if load < bound]
        return min(able, key=lambda one: (-one[0].cached(request), one[1]))[0]


WEIGHTS = {"prefix": 3.0, "queue": 2.0, "kv": 2.0}
SEEN = {"prefix": "prefix", "queue": "waiting", "running": "queue", "kv": "kv"}  # the signal of each score


class Scored(Routing):
    """Scored: the replica with the largest weighted sum of scores from 0 to 1.

    Decides which replica serves a request by scores of each replica: `prefix`, the share of the prompt that is in the
    replica's prefix cache; `queue`, from 1 for the fewest waiting requests to 0 for the most; `running`, likewise for
    the number of unfinished requests divided by the speed; `kv`, the free share of KV blocks.
    Reference: the scheduler of llm-d (Kubernetes Gateway API Inference Extension), with its default weights.
    Weakness: with delayed signals (`refresh`, `delay`) all requests between two updates go to the same replica.
    Cost: O(replicas × blocks of the prefix) a request.

    weights: weight of each score, by name.
    """

    def __init__(self, weights: dict[Literal["prefix", "queue", "running", "kv"], NotNegative] | None = None):
        self.weights = {name: weight for name, weight in (WEIGHTS if weights is None else weights).items() if weight}
        self.signals = tuple(SEEN[name] for name in self.weights)
        if not self.weights:
            raise ValueError("weights are all 0; give one of prefix, queue, running and kv a weight above 0")

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        total = np.zeros(len(replicas))
        for name, weight in self.weights.items():
            if name == "prefix":
                total += weight * np.array([replica.cached(request) for replica in replicas]) / request.prompt
            elif name == "kv":
                total += weight * (1.0 - np.array([replica.kv_used for replica in replicas]))
            else:
                loads = replicas.loads if name == "running" else np.array([float(one.waiting) for one in replicas])
                spread = float(np.ptp(loads))
                total += weight * ((loads.max() - loads) / spread if spread else 1.0)
        return replicas[int(total.argmax())]


class Foresight(Routing):
    """Foresight: the replica where the request is forecast to be served first.

    Decides which replica serves a request by an exact forecast (`foresee`) of each replica with the request added, on
    estimates.
    Reference: none; it is an upper benchmark of routing.
    Weakness: a real router has no such forecast; delays of the other requests are ignored.
    Cost: one forecast per replica for each request, linear in the replica's requests.

    by: the time to minimize: that of the first token, or of the end of the answer.
    """

    signals = ("forecast",)

    def __init__(self, by: Literal["first_token", "end"] = "end"):
        self.by = by

    def choose(self, request: Generation, replicas: OpenReplicas, random: np.random.Generator) -> Replica:
        field = "first_tokens" if self.by == "first_token" else "ends"
        return min(replicas, key=lambda one: getattr(one.foresee(request), field).get(request.row, math.inf))


class RoundRobinRouting(Routing):
    """Round robin: the replicas take turns.

    Decides which replica serves a request: the next in turn, whatever the loads.
    Reference: none; it is the baseline of load balancing.
    Weakness: requests of uneven length pile up on some replicas while others are idle; the mean wait is well above that
    of one common queue.  Cost: O(1) a request.
    """

    signals = ("queue",)

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RoutedRequest, replicas: OpenReplicas, random: np.random.Generator) -> RoutedReplica:
        """Return the replica with the next number, cyclically; replicas may come and go."""
        following = [replica for replica in replicas if replica.number > self._last]
        chosen = min(following or replicas, key=lambda replica: replica.number)
        self._last = chosen.number
        return chosen
