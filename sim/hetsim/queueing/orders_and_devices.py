"""Models of a scheduler's order, and of devices that differ, fail or sleep."""

import math
from typing import Any, cast

from hetsim.errors import UsageError
from hetsim.model.faults import FaultProcess
from hetsim.queueing import facts as declared
from hetsim.queueing.facts import Density, Facts, Match, PredictedRow, density_of, law_of, mixed
from hetsim.queueing.families import (
    JOBS_IN_SYSTEM,
    SMALL,
    equal_service,
    matched,
    own_lines,
    own_order,
    predicted_rows,
    require,
    rows_inside,
    rows_of,
    sized_tasks,
)
from hetsim.results.declared import RESPONSE_MEAN, WAIT_MEAN
from hetsim.theory import breakdowns, general, levels, networks, priorities, sizes
from hetsim.theory.routing import slow_server


def sharing(facts: Facts, model: str) -> Match:
    """Match the scenario to M/G/1-PS: a GPU shared by time slices."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.open_door()
    require(understood)
    kind = facts.only_mode.type.sharing
    facts.suppose("the GPU shares by time slices, at no cost", kind.kind == "timeslice" and not kind.switch_cost,
                  "cluster.nodes.gpus.sharing", kind.kind)  # fmt: skip
    law, load = facts.law, facts.rate * facts.law.mean
    facts.one_gpu(load)
    require(facts.steady(load, 1, law))
    prediction = general.mg1_ps(facts.rate, law.mean)
    rows = [*rows_of(facts, prediction, load, False), PredictedRow("slowdown_mean", 1 / (1 - load))]
    return matched(facts, model, prediction, rows)


def priority_classes(facts: Facts, model: str) -> Match:
    """Match the scenario to Cobham's priorities, or to preemptive-resume priorities."""
    preemptive = bool(facts.parameter("scheduler", "preemptive", False))
    understood = own_order(facts)
    aging = facts.parameter("scheduler", "aging", 0)
    facts.suppose("priorities do not change", not aging, "policy.scheduler.aging", f"{aging:g}/s")
    ranks = sorted({one.priority for one in facts.customers}, reverse=True)
    labels = [one.label for one in facts.customers]
    apart = len(ranks) == len(labels) == len(set(labels))
    facts.suppose("classes have different priorities", apart, "workload", ", ".join(map(str, ranks)))
    require(understood, apart)
    servers = facts.servers
    ordered = sorted(facts.customers, key=lambda one: -one.priority)
    classes = [priorities.Class(one.rate, one.law.mean, one.law.scv) for one in ordered if one.law is not None]
    if servers > 1:
        kinds = {one.law for one in ordered}
        common = all(law is not None and law.kind == "exponential" for law in kinds)
        common = common and len(kinds) <= (2 if len(ordered) == 2 else 1)
        text = "with several servers: exponential service, equal for all classes or for two classes"
        require(facts.suppose(text, common, facts.time_key, facts.law.shown))
    require(facts.steady(facts.rate * facts.law.mean, servers, facts.law))
    if servers > 1 and len(kinds) > 1:
        quick = levels.are_quick(classes, servers, preemptive)
        require(facts.suppose(SMALL, quick, "cluster.nodes", f"{servers} servers"))
    solve = priorities.preemptive_resume if preemptive else priorities.nonpreemptive
    rows = []
    for one, prediction in zip(ordered, solve(classes, servers), strict=True):
        if not preemptive:  # suspended time is not part of the simulator's wait
            rows.append(PredictedRow(WAIT_MEAN, prediction.wait_mean, one.label))
        rows.append(PredictedRow(RESPONSE_MEAN, prediction.response_mean, one.label))
    load = facts.rate * facts.law.mean
    return matched(facts, model.replace("M/G/1", "M/G/1" if servers == 1 else f"M/M/{servers}"), None,
                   [*rows, PredictedRow(facts.busy_metric, facts.busy_share(load))])  # fmt: skip


def by_size(facts: Facts, _: str) -> Match:
    """Match the scenario to M/G/1 ordered by size, remaining time or attained service."""
    understood = own_order(facts)
    discipline = str(facts.parameter("scheduler", "discipline", "block"))
    facts.suppose("the first in order is the next", "keep" not in discipline, "policy.scheduler.discipline", discipline)
    require(understood)
    text = f"{facts.servers} servers" if facts.servers != 1 else facts.policies.scheduler.name
    single = facts.suppose("there is one server", facts.servers == 1, "policy.scheduler", text)
    densities = [density_of(*one.timing) if one.timing else None for one in facts.customers]
    smooth = facts.suppose("service times have a known density", None not in densities, facts.time_key, facts.law.shown)
    law, rate = facts.law, facts.rate
    require(single, smooth)
    require(facts.steady(rate * law.mean, 1, law))
    by_class = [(one, each) for one, each in zip(facts.customers, densities, strict=True) if each is not None]
    mixture = Density(tuple((one.rate / rate * share, part) for one, each in by_class for share, part in each.parts))
    if facts.scheduler == declared.ATTAINED:
        given, width = facts.parameter("scheduler", "thresholds", None) or [3600.0], facts.only_mode.width
        prediction = sizes.las(rate, mixture, mixture.edges, thresholds=[float(one) / width for one in given])
    else:
        prediction = (sizes.sjf if facts.scheduler == declared.SHORTEST else sizes.srpt)(rate, mixture, mixture.edges)
    rows = [PredictedRow(WAIT_MEAN, prediction.wait_mean), PredictedRow(RESPONSE_MEAN, prediction.response_mean)]
    labels = [one.label for one in facts.customers]
    if len(labels) == len(set(labels)) > 1:
        rows += [PredictedRow(RESPONSE_MEAN, prediction.response_of(each), one.label) for one, each in by_class]
    rows += predicted_rows({
        "slowdown_mean": None if math.isnan(prediction.slowdown_mean) else prediction.slowdown_mean,
        JOBS_IN_SYSTEM: prediction.jobs_in_system_mean,
        facts.busy_metric: facts.busy_share(rate * law.mean),
    })  # fmt: skip
    return matched(facts, prediction.model, prediction, rows)


def unlike(facts: Facts, model: str) -> Match:
    """Match the scenario to M/M/c of unlike servers, the fastest free server first."""
    understood = facts.arrivals() & facts.recognized
    facts.open_door()
    facts.order(blind=False)
    modes, first = facts.modes, facts.modes[0]
    types = {mode.type for mode in modes}
    devices = len({(mode.on_cpu, mode.gpus, mode.millicores, mode.memory) for mode in modes}) == 1
    devices = devices and all(len(shape.modes) == len(types) == len(modes) for shape in facts.input.tasks.shapes)
    devices = devices and (first.on_cpu or all(mode.whole_devices for mode in modes))
    facts.suppose("a server is a fixed number of whole devices", devices, facts.customers[0].key, facts.shown_modes)
    facts.alone()
    slots = [[facts.slots(node, mode) for mode in modes] for node in facts.cluster.nodes]
    room = facts.side_by_side(slots)
    facts.suppose("servers never wait for cores or memory of their node", room, "cluster.nodes")
    placement = facts.parameter("scheduler", "placement", None)
    name = getattr(placement, "name", "")
    reserve = placement is not None and facts.declared("placement", name) == declared.RESERVE
    text = "the fastest free server is taken"
    facts.suppose(text + ", a slower one if many tasks wait" * reserve, reserve or placement is None,
                  "policy.scheduler.placement", name)  # fmt: skip
    drawn = [one.demand.cpu_time if first.on_cpu else one.demand.gpu_time for one in facts.customers]
    own = any(one.demand.modes or one.demand.typed_gpu_time or one.demand.scaling for one in facts.customers)
    timed = all(hasattr(one, "scv") for one in drawn) and not own and any(one.mean > 0 for one in drawn)
    facts.suppose("times are random, and differ only by the speeds of types", timed, facts.time_key)
    require(understood, devices, timed)
    law = mixed((one.rate, law_of(each)) for one, each in zip(facts.customers, drawn, strict=True))
    facts.exponential(law)
    means = [law.mean / mode.type.speed for mode in modes]
    kinds = sorted((mean, sum(counts)) for mean, counts in zip(means, zip(*slots, strict=True), strict=True))
    servers = sum(count for _, count in kinds)
    states = math.prod(sorted(count + 1 for _, count in kinds)[:-1])
    require(facts.suppose(SMALL, levels.is_quick(states, servers), "cluster.nodes"))
    mean = servers / sum(count / each for each, count in kinds)
    require(facts.steady(facts.rate * mean, servers, law._replace(mean=mean)))
    if reserve:
        single = servers == len(kinds) == 2
        require(facts.suppose("there are two servers, a fast one and a slow one", single, "cluster.nodes"))
        prediction = slow_server(facts.rate, kinds[0][0], kinds[1][0], placement.parameters.get("threshold", 2))
    else:
        prediction = levels.unlike_servers(facts.rate, kinds)
    rows = rows_of(facts, prediction, prediction.utilization * servers, True)
    return matched(facts, prediction.model, prediction, rows)


def forks(facts: Facts, _: str) -> Match:
    """Match the scenario to fork-join: jobs with one part per server."""
    understood = own_lines(facts)
    tasks, one = facts.input.tasks, len(facts.model.workload) == 1 and len(facts.input.tasks) > 0
    require(facts.suppose("there is one stream of jobs", one, "workload"), understood)
    shapes = [tasks.shapes[number] for number in tasks.shape[: len(facts.customers)]]  # of the parts of the first job
    apart = len({id(shape.modes[0]) for shape in shapes}) == len(shapes) == sum(len(one.modes) for one in shapes)
    require(facts.suppose("each part has its own server", apart, "workload.0.classes", facts.shown_modes))
    law = equal_service(facts, zip((shape.modes[0] for shape in shapes), facts.customers, strict=True))
    rate = facts.customers[0].rate
    require(facts.steady(rate * law.mean, 1, law))
    prediction = networks.fork_join(rate, law.mean, len(shapes))
    return matched(facts, prediction.model, prediction, rows_inside(prediction))


def faults(facts: Facts, model: str) -> Match:
    """Match the scenario to M/G/1 or M/M/c with GPUs that fail and are repaired."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.open_door()
    facts.one_by_one(blind=False)
    require(understood)
    mode, fault, built = facts.only_mode, facts.model.faults[0], facts.input.faults
    servers, law = facts.servers, facts.law
    gpus = [device.index for node in facts.cluster.nodes for device in node.accelerators]
    alone = not mode.on_cpu and mode.gpus == 1 and mode.whole_devices and servers == len(gpus)
    facts.suppose("a server is one whole GPU", alone, f"{facts.customers[0].key}.gpus", str(mode))
    process = built[0] if len(built) == 1 and fault.on is not None else None
    fails = isinstance(process, FaultProcess) and sorted(process.devices) == gpus
    facts.suppose("GPUs fail independently, and nothing else fails", fails, "faults")
    require(alone, fails)
    between, repair = law_of(fault.every), law_of(fault.repair)
    require(facts.suppose("times between faults are exponential", between.kind == "exponential", "faults.0.every"))
    interval = {shape.stopping.interval for shape in facts.input.tasks.shapes}
    lost = interval == {math.inf}
    key, share = f"{facts.customers[0].key}.stopping.interval", between.mean / (between.mean + repair.mean)
    load, memory = facts.rate * law.mean / share, 1 / (1 / between.mean + 1 / repair.mean)
    if lost and servers == 1:
        service = law.mean if law.kind == "constant" else facts.phases
        require(facts.suppose("service is phase-type or constant", service is not None, facts.time_key, law.shown))
        given = cast(Any, service), between.mean, repair.mean
        try:
            prediction = breakdowns.mg1_breakdowns(facts.rate, *given, repair.scv)
            mean, square = breakdowns.completion(*given, repair.scv)
        except UsageError as error:
            require(facts.suppose("the mean response is finite", False, "faults.0.every", str(error)))
        varies = breakdowns.varies_finitely(*given[:2])
        facts.suppose("the variance of waits is finite", varies, "faults.0.every", between.shown, soft=True)
        completes = law._replace(mean=mean, scv=square / mean**2 - 1)
        require(facts.steady(prediction.load, 1, completes, memory=memory))
        rows = predicted_rows({WAIT_MEAN: prediction.wait_mean})
    else:
        require(facts.suppose("a fault loses at most an interval of work", not lost, key, "all work is lost"))
        facts.exponential()
        require(facts.suppose("repairs are exponential", repair.kind == "exponential", "faults.0.repair", repair.shown))
        require(facts.steady(load, servers, law, memory=memory))
        repeated = 2 * max(interval) / between.mean / (1 - load / servers)  # twice the load that is added, at most
        facts.suppose("no work is lost", False, key, f"at most {max(interval):g} s a fault", soft=True,
                      error=repeated if repeated <= declared.NEARLY else math.inf)  # fmt: skip
        require(facts.suppose(SMALL, levels.is_quick(servers + 1, servers), "cluster.nodes", f"{servers} servers"))
        prediction = breakdowns.mmc_breakdowns(facts.rate, law.mean, servers, uptime_mean=between.mean,
                                               repair_mean=repair.mean)  # fmt: skip
        rows = []
    return matched(facts, prediction.model, prediction, [*rows, *rows_inside(prediction)])


def setup(facts: Facts, model: str) -> Match:
    """Match the scenario to M/G/1 or M/PH/c on GPUs that sleep when idle."""
    require(own_order(facts))
    mode, law, rate, servers = facts.only_mode, facts.law, facts.rate, facts.servers
    devices = [device for node in facts.cluster.nodes for device in node.accelerators]
    alone = not mode.on_cpu and mode.gpus == 1 and mode.whole_devices and servers == len(devices)
    facts.suppose("a server is one whole GPU", alone, f"{facts.customers[0].key}.gpus", str(mode))
    power, memory = mode.type.power, facts.parameter("scheduler", "memory", 3600.0)
    # What is asked for within the memory, less and less, and 6 deviations of it: a GPU is kept awake from 0.5 on.
    wanted = power.wake * (rate + 6 * math.sqrt(rate / 2 / memory) + 1 / memory)
    never = facts.parameter("scheduler", "safety", 1.0) == 0 and wanted < 0.5
    facts.suppose("the forecast wakes no additional GPU", never, "policy.scheduler.safety", f"wants up to {wanted:.2g}")
    require(facts.suppose("sleep saves energy", power.sleep < power.idle, "cluster.nodes.gpus.power"), alone)
    patience = facts.parameter("scheduler", "patience", None)
    after = power.wake * power.idle / (power.idle - power.sleep) if patience is None else patience
    simple = servers == 1 or min(after, power.wake) == 0  # else their places say which is taken, and so which sleeps
    require(facts.suppose("there is one GPU, or idle GPUs sleep at once", simple, "cluster.nodes.gpus.count",
                          f"{servers}, after {after:g} s"))  # fmt: skip
    require(facts.steady(rate * law.mean, servers, law, memory=power.wake + after))
    if servers == 1:
        prediction = breakdowns.mg1_setup(rate, law.mean, law.scv, power.wake, sleep_after=after)
        return matched(facts, prediction.model, prediction, rows_inside(prediction))
    service: Any = facts.phases
    require(facts.suppose("service is phase-type", service is not None, facts.time_key, law.shown))
    quick = breakdowns.quick_setup(service, servers)
    require(facts.suppose(SMALL, quick, "cluster.nodes", f"{servers} servers"))
    prediction = breakdowns.mphc_setup(rate, service, servers, power.wake)
    return matched(facts, prediction.model, prediction, rows_inside(prediction))


def tandem(facts: Facts, _: str) -> Match:
    """Match the scenario to a tandem with the stations upload, compute and download."""
    understood = facts.arrivals() & sized_tasks(facts)
    facts.open_door()
    facts.undisturbed()
    facts.order(blind=False)
    require(understood)
    facts.links_alone()
    stages = {
        "upload": facts.transfer("bytes_in", facts.customers),
        "compute": facts.law,
        "download": facts.transfer("bytes_out", facts.customers),
    }
    used = {name: law for name, law in stages.items() if law.mean > 0}
    for name, law in used.items():
        facts.exponential(law, f"{name} is exponential", _STAGE_KEYS[name].format(facts.customers[0].key))
    slowest = max(used.values(), key=lambda law: law.mean)
    facts.one_gpu(facts.rate * slowest.mean, soft=True)
    require(facts.steady(facts.rate * slowest.mean, 1, slowest))
    network = networks.tandem(facts.rate, [networks.Station(law.mean, 1, name) for name, law in used.items()])
    rows = predicted_rows({
        RESPONSE_MEAN: network.response_mean,
        "response_p95": (network.response_percentile(0.95)
                         if all(law.kind == "exponential" for law in used.values()) else None),
        JOBS_IN_SYSTEM: network.jobs_in_system_mean,
        facts.busy_metric: facts.busy_share(facts.rate * facts.law.mean),
    })  # fmt: skip
    return matched(facts, f"tandem of M/M/1: {' → '.join(used)}", None, rows)


_STAGE_KEYS = {"upload": "{}.bytes_in", "compute": "{}.gpu_time", "download": "{}.bytes_out"}
