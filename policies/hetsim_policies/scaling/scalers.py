"""Scaling: policies that set a service's number of replicas, by load or forecast."""

import math
from collections import deque
from collections.abc import Callable, Mapping

from hetsim.model.service import LanguageService, Service
from hetsim.model.units import Fraction, Positive, Seconds, Share
from hetsim.policy import Predictor, Scaling, ServiceSignals
from hetsim_policies.prediction.predictors import Ewma


class TargetRequests(Scaling):
    """Target requests: one replica for each `target` unfinished requests.

    Decides the number of replicas: all missing replicas start immediately; surplus replicas are drained one at a time.
    Reference: Knative's autoscaler and Ray Serve scale by requests in flight (`target_ongoing_requests`).
    Weakness: it counts requests, not tokens; without `cooldown` replicas start and stop with each burst.
    Cost: O(replicas) a request.

    target: requests that each replica should have.  cooldown: minimum time between two changes.
    """

    def __init__(self, target: Positive, cooldown: Seconds = 0.0):
        self.target, self.cooldown = target, cooldown

    def wanted(self, service: LanguageService | Service, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        numbers = {}
        for name, role in signals.roles.items():
            number, have = signals.bounds.within(math.ceil(role.outstanding / self.target)), role.replicas
            if number != have and now < signals.changed_at + self.cooldown:
                self.again = signals.changed_at + self.cooldown
                if number > have:
                    continue  # those that found no device stay wanted
                number = have
            elif number < have - 1:
                self.again = now + self.cooldown
            numbers[name] = max(number, have - 1)
        return numbers


class QueueKv(Scaling):
    """Queue and KV cache: as many replicas as keep both at their targets.

    Decides as Kubernetes' Horizontal Pod Autoscaler does with two metrics that KEDA supplies: each metric proposes
    replicas × value / target, rounded up, or the present number if it is within `tolerance` of its target.  The larger
    proposal is used; to scale down, the largest proposal of the last `stabilization` seconds.
    Reference: Kubernetes, Horizontal Pod Autoscaling; KEDA's scalers.
    Weakness: it reacts only when requests wait, so replicas are ready one model loading too late.
    Cost: O(replicas) per decision.

    waiting: target number of waiting requests per replica.  kv: target share of KV blocks in use.
    tolerance: relative deviation from a target that changes nothing.  stabilization: seconds before scaling down.
    """

    signals = ("kv",)

    def __init__(
        self, waiting: Positive = 4.0, kv: Share = 0.8, tolerance: Fraction = 0.1, stabilization: Seconds = 300.0
    ):
        self.waiting, self.kv, self.tolerance, self.stabilization = waiting, kv, tolerance, stabilization
        self._advice: dict[str, deque[tuple[float, int]]] = {}

    def wanted(self, service: LanguageService | Service, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        numbers = {}
        for name, role in signals.roles.items():
            have, usage = role.replicas, (role.waiting / self.waiting, role.ready * role.kv_used / self.kv)
            near = [have > 0 and abs(one / have - 1.0) <= self.tolerance for one in usage]
            asked = [have if stays else math.ceil(one) for one, stays in zip(usage, near, strict=True)]
            number = signals.bounds.within(max(asked))
            advice = self._advice.setdefault(name, deque())
            while advice and (advice[0][0] < now - self.stabilization or advice[-1][1] <= number):
                advice.pop() if advice[-1][1] <= number else advice.popleft()
            advice.append((now, number))
            numbers[name] = number if number >= have else min(have, advice[0][1])
        return numbers


class Predicted(Scaling):
    """Predicted: replicas for the request rate that is forecast.

    Decides the number of replicas at equal intervals (`every`): a predictor observes the arrival rate of the last
    interval; its forecast for `lead` seconds later, divided by `rate`, is the number of replicas.
    Reference: Roy, Dubey, Gokhale, Efficient Autoscaling in the Cloud Using Predictive Models (2011).
    Weakness: it knows rates, not lengths of requests; replicas are late on an unusual day.
    Cost: that of the predictor, per decision.

    rate: requests per second that a replica should serve.  lead: seconds until a replica is ready.
    predictor: how the rate is forecast (default: ewma).
    """

    measures = True

    def __init__(self, rate: Positive, predictor: Callable[[], Predictor] | None = None, lead: Seconds = 60.0):
        self.rate, self.lead, self.predictor = rate, lead, (Ewma if predictor is None else predictor)()
        if self.predictor.knows_rates:
            raise ValueError("this predictor needs the true rates, which only schedulers get; name another predictor")

    def wanted(self, service: LanguageService | Service, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        self.predictor.observe(now, signals.arrival_rate)
        number = math.ceil(self.predictor.forecast(self.lead) / self.rate - 1e-9)
        return {name: max(number, role.outstanding > 0, 0) for name, role in signals.roles.items()}


class KeepAlive(Scaling):
    """Keep alive: a replica is stopped after `keep` idle seconds (serverless).

    Decides the number of replicas: as many as unfinished requests need, but at least the replicas that are busy or were
    idle for less than `keep`; the longest idle one stops first.  With `min: 0` a request that finds no replica starts
    one.
    Reference: Shahrad et al., Serverless in the Wild (USENIX ATC 2020), whose baseline is a fixed keep-alive.
    Weakness: it pays for idle devices in every gap, and for a model loading after every gap longer than `keep`.
    Cost: O(replicas) a request.

    keep: seconds before an idle replica stops.  target: requests per replica; default: as many as it runs at a time.
    """

    follows_idle = True

    def __init__(self, keep: Seconds = 600.0, target: Positive | None = None):
        self.keep, self.target = keep, target

    def wanted(self, service: LanguageService | Service, signals: ServiceSignals, now: float) -> Mapping[str, int]:
        numbers = {}
        for name, role in signals.roles.items():
            ends = [since + self.keep for since in role.idle_since]
            need = math.ceil(role.outstanding / (self.target or service.max_sequences))
            numbers[name] = max(need, role.replicas - sum([end <= now for end in ends]))
            self.again = min([self.again, *(end for end in ends if end > now)])
        return numbers
