"""Model match: the queueing model of a scenario, its assumptions and predictions.

The keys of a scenario determine which model is tried: for example batch service if there are services, Cobham's formula
if there are several priorities, M/M/c/K if the queue has a limit.  Then each assumption of the model is checked in the
scenario, with the key that decides it.  If a required assumption fails, there is no prediction.  If only soft ones fail
(a service that is not quite exponential, a short warm-up), or the formula is approximate, the prediction has an error:
"nearly" if small, else "approximation".
"""

from collections.abc import Callable

from hetsim.errors import UsageError
from hetsim.queueing import facts as declared
from hetsim.queueing import losses, orders_and_devices, stations
from hetsim.queueing.facts import Facts, Match, Unmatched
from hetsim.queueing.families import moves_data
from hetsim.scenario.scenario import Scenario


def match(scenario: Scenario) -> Match:
    """Match a scenario to a model; no prediction if a required assumption fails."""
    facts = Facts(scenario)
    family = _family(facts)
    facts.recognize(family)
    model, solve = FAMILIES[family]
    try:
        return solve(facts, model)
    except UsageError as error:
        facts.suppose("the model can be solved", False, value=str(error))
    except Unmatched:
        pass
    return Match(model, facts.assumptions)


def _family(facts: Facts) -> str:
    entries = facts.model.workload
    if any(entry.service is not None for entry in entries):
        return "choices" if facts.input.language else "batches"
    if any(entry.trace is not None for entry in entries):
        return "delay"
    if any(getattr(entry.arrivals, "closed", False) for entry in entries):
        return "closed"
    if (family := _of_clients(facts)) is not None:
        return family
    if facts.admission in BY_ADMISSION:
        return BY_ADMISSION[facts.admission]
    if facts.admission == declared.WORK and facts.parameter("admission", "max_wait", None) is not None:
        return "work"
    if any(one.demand.patience is not None for one in facts.customers):
        return "patience"
    if facts.scheduler == declared.SHARING:
        return "sharing"
    if facts.scheduler in BY_SIZE:
        return BY_SIZE[facts.scheduler]
    if facts.scheduler == declared.PRIORITIES and len({one.priority for one in facts.customers}) > 1:
        return "preemptive" if facts.parameter("scheduler", "preemptive", False) else "priorities"
    if facts.scheduler == declared.ASLEEP:
        return "setup"
    if facts.model.faults:
        return "faults"
    if len({mode.type for mode in facts.modes}) > 1:
        return "unlike"
    if len({mode.gpus for mode in facts.modes}) > 1 and all(len(one.modes) == 1 for one in facts.input.tasks.shapes):
        return "gangs"
    return "tandem" if moves_data(facts) and facts.mode is not None and facts.mode.type.streams > 1 else "delay"


def _of_clients(facts: Facts) -> str | None:
    clients = [entry.clients for entry in facts.model.workload if entry.clients is not None]
    if facts.admission == declared.LIMIT:
        return "retrials" if clients else None
    if any(one.hedge is not None for one in clients):
        return "copies"
    if any(one.is_drawn for one in clients):
        return "returns"
    return "forks" if any(entry.together for entry in facts.model.workload) else None


# families of models by the declaration of the scheduler
BY_SIZE = {declared.SHORTEST: "sjf", declared.REMAINING: "srtf", declared.ATTAINED: "las"}

# families of models by the declaration of the admission policy
BY_ADMISSION = {declared.LIMIT: "limit", declared.BUCKET: "bucket", declared.TRUNKS: "trunks", declared.TOLLS: "naor"}

Solve = Callable[[Facts, str], Match]
# Title and solver of each family; `hetsim.scenario.readers` has the keys that a family understands
FAMILIES: dict[str, tuple[str, Solve]] = {
    "delay": ("G/G/c, first come, first served", stations.delay),
    "unlike": ("M/M/c of unlike servers", orders_and_devices.unlike),
    "tandem": ("tandem of M/M/1: upload → compute → download", orders_and_devices.tandem),
    "sharing": ("M/G/1-PS", orders_and_devices.sharing),
    "priorities": ("M/G/1 with non-preemptive priorities", orders_and_devices.priority_classes),
    "preemptive": ("M/G/1 with preemptive-resume priorities", orders_and_devices.priority_classes),
    **{name: (f"M/G/1, {order}", orders_and_devices.by_size) for order, name in BY_SIZE.items()},
    "limit": ("M/M/c/K", losses.limited),
    "retrials": ("M/M/c with retrials", losses.tries_again),
    "returns": ("M/M/c+M with retrials", losses.tries_again),
    "copies": ("redundant copies", losses.copies),
    "forks": ("fork-join of M/M/1", orders_and_devices.forks),
    "gangs": ("gangs in one queue", losses.gangs_in_line),
    "bucket": ("token bucket with Poisson arrivals (M/D/1/b): loss only", losses.token_bucket),
    "trunks": ("trunk reservation, M/M/c/c of several classes", losses.trunk_reservation),
    "naor": ("M/M/1 with Naor's threshold", losses.naor),
    "work": ("M/M/1 with a limit on the work ahead", losses.work_limit),
    "patience": ("M/M/c+M", losses.impatient),
    "closed": ("closed loop, M/M/c//N", stations.closed),
    "faults": ("M/M/c with breakdowns", orders_and_devices.faults),
    "setup": ("M/G/1 with set-up", orders_and_devices.setup),
    "batches": ("greedy batches, M/D^[1,b]/1", stations.greedy_services),
    "choices": ("the shorter of two queues", stations.shorter_lines),
}
