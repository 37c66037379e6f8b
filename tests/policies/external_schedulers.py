"""Schedulers for tests of the exchange: python external_schedulers.py NAME [ENDPOINT].

They use the standard library alone, unless an endpoint of ZeroMQ is given.
"""

import json
import sys
import time


def answer(now, *events):
    return json.dumps({"now": now, "events": [{"timestamp": now, "type": kind, "data": data} for kind, data in events]})


class OneByOne:
    """The next job starts when nothing runs and no device is down."""

    def __init__(self):
        self.waiting, self.running, self.down = [], None, 0

    def decide(self, now, events):
        for kind, data in events:
            if kind == "JOB_SUBMITTED":
                self.waiting.append(data["job_id"])
            elif kind == "JOB_COMPLETED" and data["job_id"] == self.running:
                self.running = None
            elif kind == "JOB_KILLED":
                self.waiting = [job for job in self.waiting if job not in data["job_ids"]]
            elif kind == "NOTIFY" and data["type"].startswith("event_machine"):
                self.down += 1 if data["type"] == "event_machine_unavailable" else -1
        if not self.down and self.running is None and self.waiting:
            self.running = self.waiting.pop(0)
            return answer(now, ("EXECUTE_JOB", {"job_id": self.running}))
        return answer(now)


class Tries:
    """Each job starts if it fits when it comes, or when hetsim says that it fits."""

    def decide(self, now, events):
        kinds = "JOB_SUBMITTED", "job_fits"
        jobs = [data["job_id"] for kind, data in events if kind in kinds or data.get("type") in kinds]
        return answer(now, *(("EXECUTE_JOB", {"job_id": job, "if_fits": True}) for job in jobs))


class Scripted:
    """Answers to the messages with a job of this number, by the name of the script; else nothing."""

    def __init__(self, name):
        self.name, self.called = name, 0

    def decide(self, now, events):
        kinds = [kind for kind, _ in events]
        jobs = [data["job_id"] for kind, data in events if kind == "JOB_SUBMITTED"]
        return getattr(self, self.name)(now, kinds, jobs)

    def dies(self, now, kinds, jobs):
        return sys.exit(7) if jobs else answer(now)

    def hangs(self, now, kinds, jobs):
        return time.sleep(60) if jobs else answer(now)

    def hangs_at_the_end(self, now, kinds, jobs):
        return time.sleep(60) if "SIMULATION_ENDS" in kinds else answer(now, *self.each(jobs))

    def chatters(self, now, kinds, jobs):
        return answer(now) + "\n" + answer(now) if jobs else answer(now)

    def raves(self, now, kinds, jobs):
        return "who is there?" if jobs else answer(now)

    def lists(self, now, kinds, jobs):
        return "[]" if jobs else answer(now)

    def goes_back(self, now, kinds, jobs):
        return answer(now - 1)

    def invents(self, now, kinds, jobs):
        return answer(now, *[("EXECUTE_JOB", {"job_id": "w0!99"}) for _ in jobs])

    def repeats(self, now, kinds, jobs):
        return answer(now, *self.each(jobs), *self.each(jobs))

    def overfills(self, now, kinds, jobs):
        return answer(now, *[("EXECUTE_JOB", {"job_id": job, "alloc": "0-1"}) for job in jobs])

    def leaves_the_cluster(self, now, kinds, jobs):
        return answer(now, *[("EXECUTE_JOB", {"job_id": job, "alloc": "3-4"}) for job in jobs])

    def miscounts(self, now, kinds, jobs):
        return answer(now, *[("EXECUTE_JOB", {"job_id": job, "alloc": "0-2"}) for job in jobs])

    def registers(self, now, kinds, jobs):
        return answer(now, *[("REGISTER_JOB", {}) for _ in jobs])

    def starts_nothing(self, now, kinds, jobs):
        return answer(now)

    def sleeps(self, now, kinds, jobs):
        """Put resources 8 and 9 to sleep before anything else, and wake one as the first job comes."""
        events = [("SET_RESOURCE_STATE", {"resources": "8-9", "state": "off"})] * ("SIMULATION_BEGINS" in kinds)
        wake = [("SET_RESOURCE_STATE", {"resources": "9", "state": "wake"})] * ("w0!0" in jobs)
        return answer(now, *events, *wake, *self.each(jobs))

    def each(self, jobs):
        return [("EXECUTE_JOB", {"job_id": job}) for job in jobs]

    def in_its_own_time(self, now, kinds, jobs):
        """Start each job a second and a half after it came; the decision is sent at once."""
        text = json.dumps([{"timestamp": now + 1.5, "type": kind, "data": data} for kind, data in self.each(jobs)])
        return f'{{"now": {now + 1.5}, "events": {text}}}'

    def all_messages(self, now, kinds, jobs):
        """The first job is stopped when a call comes and goes on, the second is killed, the third is rejected."""
        events = []
        for job in jobs:
            if job in ("w0!0", "w0!1"):
                events += [("EXECUTE_JOB", {"job_id": job, "alloc": "0-1" if job == "w0!0" else "2,3"})]
            elif job == "w0!2":
                events += [("REJECT_JOB", {"job_id": job}), ("CALL_ME_LATER", {"timestamp": now + 0.5})]
            else:
                events += [("EXECUTE_JOB", {"job_id": job})]
        if "REQUESTED_CALL" in kinds:
            events += [("KILL_JOB", {"job_ids": ["w0!0"], "resubmit": True}), ("KILL_JOB", {"job_ids": ["w0!1"]})]
        return answer(now, *events)


schedulers = {"one_by_one": OneByOne, "tries": Tries}
scheduler = schedulers[sys.argv[1]]() if sys.argv[1] in schedulers else Scripted(sys.argv[1])


def exchange(line):
    message = json.loads(line)
    return scheduler.decide(message["now"], [(event["type"], event["data"]) for event in message["events"]])


if len(sys.argv) > 2:
    import zmq

    server = zmq.Context().socket(zmq.REP)
    server.bind(sys.argv[2])
    while True:
        line = server.recv()
        print("this is printed, and is no answer", flush=True)
        server.send_string(exchange(line).replace(", ", ",\n"))
        if b"SIMULATION_ENDS" in line:
            sys.exit()
for line in sys.stdin:
    print(exchange(line), flush=True)
