"""A scheduler in a process of its own: what is said, what comes out, and what happens if it goes wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pages
import pytest
from click.testing import CliRunner

import hetsim as hs
from hetsim.cli import hetsim
from hetsim.errors import PolicyError, ScenarioError, UsageError
from hetsim.experiment.identity import Identity
from hetsim.experiment.run import prepare
from hetsim.page.common import commands as repeat_commands
from hetsim.policy.external import Exchange, ExternalProgram

HERE = Path(__file__).parent
EXAMPLES = pages.TOP / "docs/how-to/external"
EXTERNAL = {"scheduler": {"name": "external", "timeout": "20 s"}}


def command(name: str) -> list[str]:
    return [sys.executable, str(HERE / "external_schedulers.py"), name]


def jobs(count: int, **more) -> dict:
    """A job of two cores a second on four, for three seconds each."""
    entry = {"name": "jobs", "count": count, "arrivals": {"process": "deterministic", "interval": "1 s"}, "cpus": 2}
    return {"cluster": {"nodes": [{"cpus": 4}]}, "seed": 1, "policy": EXTERNAL,
            "workload": [entry | {"cpu_time": "3 s"}], **more}  # fmt: skip


def messages(folder: Path) -> list[dict]:
    (file,) = folder.iterdir()
    assert file.suffix == ".jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def kinds(events: list[dict]) -> list[str]:
    return [event["type"] for event in events]


def test_all_messages_and_the_log_that_replays_them(tmp_path: Path) -> None:
    result = hs.run(jobs(4), external=command("all_messages"), exchange=tmp_path)
    tasks = result.tasks
    assert tasks["status"].tolist() == ["completed", "rejected", "rejected", "completed"]
    assert tasks["reason"].tolist()[1:3] == ["killed by the external scheduler", "rejected by the external scheduler"]
    # Stopped at 2.5 s and started again at once, it has lost nothing.
    assert tasks["preemptions"].tolist() == [1, 1, 0, 0] and tasks["finish"].tolist()[::3] == [3.0, 6.0]
    said = messages(tmp_path)
    heard, told = said[::2], said[1::2]
    assert kinds(heard[0]["events"]) == ["SIMULATION_BEGINS"] and kinds(heard[-1]["events"])[-1] == "SIMULATION_ENDS"
    assert all(one["now"] == other["now"] for one, other in zip(heard, told, strict=True))
    events = [event for message in heard for event in message["events"]]
    killed = [event["data"]["job_ids"] for event in events if event["type"] == "JOB_KILLED"]
    assert killed == [["w0!0"], ["w0!1"]]
    submitted = [event["data"]["job_id"] for event in events if event["type"] == "JOB_SUBMITTED"]
    assert submitted == ["w0!0", "w0!1", "w0!2", "w0!0#1", "w0!3"]
    assert {"JOB_SUBMITTED", "JOB_COMPLETED", "JOB_KILLED", "NOTIFY", "REQUESTED_CALL"} < set(kinds(events))
    again = hs.run(jobs(4), exchange=tmp_path)
    assert again.tasks.equals(tasks)
    with pytest.raises(PolicyError, match="cannot be replayed: .* has no log of this run"):
        hs.run(jobs(5), exchange=tmp_path)


def test_hetsim_says_whether_a_job_that_is_to_start_if_it_fits_does(tmp_path: Path) -> None:
    """The third job has no cores at 2 s; at 3 s the first has ended."""
    hs.run(jobs(3), external=command("tries"), exchange=tmp_path, check=True)
    events = [event for message in messages(tmp_path)[::2] for event in message["events"]]
    told = [(event["timestamp"], event["data"]["type"], event["data"]["job_id"]) for event in events
            if event["data"].get("type", "").startswith("job_")]  # fmt: skip
    assert told == [
        (0, "job_started", "w0!0"), (1, "job_started", "w0!1"), (2, "job_does_not_fit", "w0!2"),
        (3, "job_fits", "w0!2"), (3, "job_started", "w0!2"),
    ]  # fmt: skip


def test_decisions_in_the_schedulers_own_time_take_effect_then() -> None:
    tasks = hs.run(jobs(2), external=command("in_its_own_time")).tasks
    assert tasks["start"].tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dies", "closed its pipes (exit status 7) (t = 0 s)"),
        ("hangs", "did not answer within 0.5 s (`timeout`) (t = 0 s)"),
        ("hangs_at_the_end", "did not answer within 3 s (`timeout`) (t = 3 s)"),
        ("chatters", "answered with more than one line"),
        ("raves", "must answer with"),
        ("lists", "must answer with"),
        ("goes_back", "must answer with"),
        ("invents", "sent EXECUTE_JOB for the job 'w0!99', which is not waiting"),
        ("repeats", "sent EXECUTE_JOB for the job 'w0!0', which is not waiting"),
        ("overfills", "starts w0!1 on 0-1, where it does not fit now (t = 1 s)"),
        ("leaves_the_cluster", "with resources '3-4'; there are resources 0-3"),
        ("miscounts", "starts w0!0 on 0-2, 3 × cpu, but the job needs 2 × cpu"),
        ("registers", "answered REGISTER_JOB, which is not supported"),
        ("starts_nothing", "starts nothing: at t = 1 s no task runs,"),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_said_with_time_and_message(name: str, said: str, tmp_path: Path) -> None:
    seconds = {"hangs": "0.5 s", "hangs_at_the_end": "3 s"}.get(name, "20 s")
    timeout = {"scheduler": {"name": "external", "timeout": seconds}}
    count = 1 if name == "hangs_at_the_end" else 2
    before = children()
    with pytest.raises(PolicyError) as caught:
        hs.run(jobs(count, policy=timeout), external=command(name), exchange=tmp_path)
    assert said in str(caught.value)
    assert "last message: {" in str(caught.value)
    assert children() <= before
    assert [file.suffix for file in tmp_path.iterdir()] == [".part"]


def test_a_decision_that_the_engine_refuses_is_said_with_the_message() -> None:
    scenario = jobs(4)
    scenario["workload"][0]["stopping"] = {"preemptible": False}
    said = r'(?s)but it is not preemptible \(t = 2.5 s\)\n +last message: {"now":2.5,.*KILL_JOB'
    with pytest.raises(PolicyError, match=said):
        hs.run(scenario, external=command("all_messages"))


def answered(*events: dict, now: object = 0) -> str:
    return json.dumps({"now": now, "events": [{"timestamp": 0, "type": "NOTIFY", **event} for event in events]})


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (answered({"type": "REQUESTED_CALL"}), "answered REQUESTED_CALL, which is not supported"),
        (answered({"type": "EXECUTE_JOB", "data": {"job_id": "w0!0", "alloc": "0-99999999999"}}), "are resources 0-3"),
        (answered({"type": "EXECUTE_JOB", "data": {"job_id": "w0!0", "alloc": "0-1 7-5"}}), "are resources 0-3"),
        (answered({"type": "EXECUTE_JOB", "data": {"job_id": [{}]}}), "the job [{}], which is not waiting"),
        (answered({"type": "EXECUTE_JOB", "data": {"job_id": "w0!0", "if_fits": "false"}}), "(KeyError: 'false')"),
        (answered({"type": "EXECUTE_JOB", "data": {"job_id": "w0!0", "if_fits": True, "mode": "x"}}),
         "w0!0 has no mode 'x'; it has 2xcpu"),
        (answered({"type": "KILL_JOB", "data": {"job_ids": [[], {}]}}), "the job [], which is not running"),
        (answered({"type": "KILL_JOB", "data": {"job_ids": 5}}), "with job_ids 5, which must be a list"),
        (answered({"type": "KILL_JOB", "data": {"job_ids": "w0!0"}}),
         "sent KILL_JOB with job_ids 'w0!0', which must be a list such as [\"w0!0\"] (t = 0 s)"),
        (answered({"timestamp": -1}), "(ValueError: timestamp is -1.0; it must be at least 0.0, that of the message)"),
        (answered({"type": "CALL_ME_LATER", "data": {"timestamp": 10**400}}), "(OverflowError: "),
        (answered({"type": "CALL_ME_LATER"}), "answered CALL_ME_LATER with wrong data (KeyError: 'timestamp')"),
        (answered({"type": "SET_RESOURCE_STATE", "data": {"resources": "0", "state": 1e308}}), "got 1e+308 (t = 0 s)"),
        (answered({"type": "SET_RESOURCE_STATE", "data": {"resources": "0", "state": []}}), "got [] (t = 0 s)"),
        (answered({"timestamp": 10**400}), "(OverflowError: "),
        (answered({"timestamp": float("nan")}), "(ValueError: timestamp is nan; it must be"),
        (answered(now=float("nan")), "(ValueError: now is nan)"),
        ("[" * 200_000, "(RecursionError: "),
        (answered({"type": "\x1b[31m" + "x" * 10_000}), "answered \\x1b[31mxxx"),
    ],
    ids=lambda text: text[-30:],
)  # fmt: skip
def test_whatever_is_answered_is_refused_with_time_and_message(answer, said, monkeypatch) -> None:
    class Told:
        """In place of a process."""

        def ask(self, message: str) -> bytes:
            return (answer if "JOB_SUBMITTED" in message else answered()).encode()

        def close(self) -> None:
            pass

    monkeypatch.setattr("hetsim_policies.dynamic.external.Exchange", lambda *_: Told())
    with pytest.raises(PolicyError) as caught:
        hs.run(jobs(1), external=["true"])
    text = str(caught.value)
    assert said in text and " (t = 0 s)\n" in text and "last message: {" in text and len(text) < 2000
    assert caught.value.time == 0.0


@pytest.mark.slow
def test_answers_without_end_at_one_instant_are_an_error(monkeypatch) -> None:
    """A job that does not fit is asked for again at once, and again."""
    class Insists:
        def ask(self, message: str) -> bytes:
            now, events = json.loads(message).values()
            events = [event for event in events if "job_id" in event["data"]]
            wanted = [event["data"]["job_id"] for event in events
                      if "JOB_SUBMITTED" in event["type"] or "job_does_not_fit" in event["data"].values()]  # fmt: skip
            data = [{"job_id": job, "if_fits": True, "alloc": None} for job in wanted]
            return answered(*({"type": "EXECUTE_JOB", "data": one, "timestamp": now} for one in data), now=1e9).encode()

        def close(self) -> None:
            pass

    monkeypatch.setattr("hetsim_policies.dynamic.external.Exchange", lambda *_: Insists())
    with pytest.raises(PolicyError, match="messages at this instant, and no time passes: it loops"):
        hs.run(jobs(3), external=["true"])


def children() -> set[str]:
    found = subprocess.run(["pgrep", "-P", str(os.getpid())], capture_output=True, text=True, check=False)
    return set(found.stdout.split())


def test_the_command_line_says_what_to_give_and_ends_with_1(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(json.dumps(jobs(2)), encoding="utf-8")
    run = CliRunner().invoke
    refused = run(hetsim, ["run", str(file)])
    assert refused.exit_code == 3 and f"{file}:1:" in refused.output and '--external "./my-scheduler"' in refused.output
    absent = run(hetsim, ["run", str(file), "--external", "./no-such-program"])
    assert absent.exit_code == 2 and 'there is no program "./no-such-program"' in absent.output
    text = " ".join(command("raves"))
    failed = run(hetsim, ["run", str(file), "--external", text, "--out", str(tmp_path / "out")])
    assert failed.exit_code == 1 and not (tmp_path / "out" / "summary.json").exists()
    inside = tmp_path / "inside.yaml"
    named = {"scheduler": {"name": "external", "command": text}}
    inside.write_text(json.dumps(jobs(2, policy=named)), encoding="utf-8")
    assert run(hetsim, ["run", str(inside)]).exit_code == 3


def test_its_identity_is_that_of_its_files(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("print(1)", encoding="utf-8")

    def inputs(*words: str) -> dict[str, str]:
        return Identity().inputs(prepare(jobs(1), program=ExternalProgram.given(words)))

    first = inputs(sys.executable, str(script))
    assert first == inputs(sys.executable, str(script)) and not any("unknown" in name for name in first)
    assert first != inputs(sys.executable, str(script), "--fast")
    script.write_text("print(2)", encoding="utf-8")
    assert first != inputs(sys.executable, str(script))
    for words in ((sys.executable, "-m", "mine"), (sys.executable, str(tmp_path))):
        assert any("unknown" in name for name in inputs(*words))
    assert not any("external" in name for name in Identity().inputs(prepare(jobs(1))))


def test_a_large_message_to_a_process_that_does_not_read_times_out() -> None:
    exchange = Exchange(ExternalProgram(("sleep", "60")), "x", 0.2, UsageError)
    begun = time.monotonic()
    with pytest.raises(UsageError, match="did not answer"):
        exchange.ask("x" * 1_000_000)
    exchange.close()
    assert time.monotonic() - begun < 10


@pytest.mark.nightly
def test_zeromq_says_the_same_as_pipes(tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'hetsim[zmq]'")
    for transport in ([], ["{endpoint}"]):
        hs.run(jobs(4), external=[*command("all_messages"), *transport], exchange=tmp_path / f"{len(transport)}")
    pipes, by_zeromq = (messages(tmp_path / name) for name in "01")
    assert pipes == by_zeromq
    before = children()
    wrong = {"dies": "has ended (exit status 7) (t = 0 s)", "hangs": "did not answer within 0.5 s (`timeout`)"}
    for name, said in wrong.items():
        with pytest.raises(PolicyError) as caught:
            policy = {"scheduler": {"name": "external", "timeout": "0.5 s" if name == "hangs" else "20 s"}}
            hs.run(jobs(2, policy=policy), external=[*command(name), "{endpoint}"])
        assert said in str(caught.value)
    assert children() <= before


def test_zeromq_without_pyzmq_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setattr("hetsim.policy.external.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install \"hetsim\[zmq\]\""):
        hs.run(jobs(1), external=["true", "{endpoint}"])


@pytest.mark.parametrize(("longest", "said"), [(1 << 26, "did not answer within 0.1 s"), (1000, "more than 0 MiB")])
def test_an_endless_line_is_cut_off(longest: int, said: str, monkeypatch) -> None:
    monkeypatch.setattr("hetsim.policy.external.LONGEST", longest)
    exchange = Exchange(ExternalProgram(("sh", "-c", "while :; do printf x; done")), "x", 0.1, UsageError)
    begun = time.monotonic()
    with pytest.raises(UsageError, match=said):
        exchange.ask("{}")
    exchange.close()
    assert time.monotonic() - begun < 10


@pytest.mark.slow
def test_the_process_and_all_that_it_started_end_with_a_killed_worker(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    script = f'sleep 60 & echo $$ $! > "{file}"; while :; do sleep 1; done'
    worker = (
        "import os\nfrom hetsim.policy.external import Exchange, ExternalProgram as Program\n"
        f"exchange = Exchange(Program(('sh', '-c', {script!r})), 'x', 20.0, RuntimeError)\n"
        f"while not (os.path.exists({str(file)!r}) and os.path.getsize({str(file)!r})): pass\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", worker], check=False).returncode == -9
    there, end = [int(word) for word in file.read_text(encoding="utf-8").split()], time.monotonic() + 10
    assert len(there) == 2
    while (left := [pid for pid in there if runs(pid)]) and time.monotonic() < end:
        time.sleep(0.01)
    assert left == []


def runs(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip()[:1] not in ("", "Z")


@pytest.mark.nightly
def test_each_point_of_a_sweep_keeps_an_exchange_of_its_own(tmp_path: Path) -> None:
    over = {"workload.0.cpu_time": ["1 s", "2 s"]}
    kept = hs.sweep(jobs(2), over, external=command("one_by_one"), exchange=tmp_path)
    assert [file.suffix for file in tmp_path.iterdir()] == [".jsonl"] * 2
    assert hs.sweep(jobs(2), over, exchange=tmp_path, workers=2).table.equals(kept.table)


@pytest.mark.nightly
def test_searches_and_training_take_it(tmp_path: Path) -> None:
    """On a node of two cores jobs run one by one under fcfs, too."""
    given, drawn = command("one_by_one"), jobs(4)
    drawn["workload"][0]["cpu_time"] = {"distribution": "exponential", "mean": "1 s"}
    drawn["policy"] = EXTERNAL | {"admission": {"name": "queue_limit", "limit": 9}}
    over = {"policy.admission.limit": [1]}
    options = {"metric": "response_mean", "first": 2, "final": 3}
    tuning = hs.tune(drawn, over=over, external=given, exchange=tmp_path, **options)
    assert len([*tmp_path.glob("*.jsonl")]) == 10  # two settings, five replications
    assert hs.tune(drawn, over=over, exchange=tmp_path, **options).table.equals(tuning.table)
    for policy in ({"external": given}, {"policy": "fcfs"}):
        sized = hs.size(drawn, "wait_mean < 1 h", "cluster.nodes.0.count", most=1, replications=2, **policy)
        assert sized.size == 1
    two = drawn | {"cluster": {"nodes": [{"cpus": 2}]}, "policy": "fcfs"}
    learned = hs.train(two, steps=20, replications=2, baselines=["external", "fcfs"], external=given)
    theirs, ours = (learned.runs[name].column("wait_mean").tolist() for name in ("external", "fcfs"))
    assert theirs == ours and len(set(ours)) == 2


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"exchange and cache exclude each other"):
        hs.replicate(jobs(1), replications=2, external=["true"], exchange=tmp_path, cache=tmp_path)
    for what in (Path("true"), 5):
        with pytest.raises(UsageError, match="external must be a command, a text or a list of its parts; got"):
            hs.run(jobs(1), external=what)
    for seconds in ("25 d", 0):
        with pytest.raises(ScenarioError, match="timeout"):
            hs.run(jobs(1, policy={"scheduler": {"name": "external", "timeout": seconds}}), external=["true"])


def test_gangs_and_gpus_are_placed_where_the_answer_says(tmp_path: Path) -> None:
    """Two nodes of two cores and two GPUs: resources 2, 3 and 6, 7 are the GPUs."""
    script = tmp_path / "gpus.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    new = [e['data']['job_id'] for e in m['events'] if e['type'] == 'JOB_SUBMITTED']\n"
        "    alloc = {'w0!0': '3 6', 'w0!1': '7', 'w0!2': '0 4'}\n"
        "    print(json.dumps({'now': m['now'], 'events': [{'timestamp': m['now'], 'type': 'EXECUTE_JOB',\n"
        "          'data': {'job_id': j, 'alloc': alloc[j]}} for j in new]}), flush=True)\n", encoding="utf-8",
    )  # fmt: skip
    at = {"process": "deterministic", "interval": "1 s"}
    workload = [
        {"name": "gang", "count": 1, "arrivals": at, "gpus": 2, "span": "any", "gpu_time": "9 s"},
        {"name": "one", "count": 1, "arrivals": at, "gpus": 1, "gpu_time": "9 s"},
        {"name": "cores", "count": 1, "arrivals": at, "cpus": 2, "span": "any", "cpu_time": "9 s"},
    ]
    nodes = [{"cpus": 2, "gpus": {"type": "g", "count": 2}, "count": 2}]
    scenario = {"cluster": {"nodes": nodes}, "seed": 1, "policy": "external", "workload": workload}
    tasks = hs.run(scenario, external=[sys.executable, str(script)], check=True).tasks.set_index("class")
    assert tasks["device"].to_dict() == {"gang": "n0/g1+n1/g0", "one": "n1/g1", "cores": "n0/cpu0+n1/cpu0"}


def test_resources_sleep_and_wake(tmp_path: Path) -> None:
    """Both GPUs sleep; one is woken, and is ready two seconds later."""
    gpus = {"type": "g", "count": 2, "power": {"idle": "50 W", "busy": "100 W", "wake": "2 s"}}
    cluster = {"nodes": [{"cpus": 8, "gpus": gpus}]}
    hs.run(jobs(3, cluster=cluster), external=command("sleeps"), exchange=tmp_path, check=True)
    events = [event for message in messages(tmp_path)[::2] for event in message["events"]]
    changes = [(event["timestamp"], event["data"]) for event in events if event["type"] == "RESOURCE_STATE_CHANGED"]
    assert changes == [(0.0, {"resources": "8-9", "state": "off"}), (0.0, {"resources": "9", "state": "wake"})]
    told = [(event["timestamp"], event["data"]["type"], event["data"].get("resources"))
            for event in events if event["type"] == "NOTIFY"]  # fmt: skip
    assert (0.0, "event_machine_unavailable", "8") in told and (2.0, "event_machine_available", "9") in told


def test_faults_are_told_and_the_job_comes_back(tmp_path: Path) -> None:
    """One by one: with a failure the job is submitted again, with another id, and completes."""
    faults = [{"on": "n0", "every": "5 s", "repair": "2 s"}]
    result = hs.run(jobs(6, faults=faults), external=command("one_by_one"), exchange=tmp_path, check=True)
    assert set(result.tasks["status"]) == {"completed"}
    events = [event for message in messages(tmp_path)[::2] for event in message["events"]]
    told = [event["data"] for event in events if event["timestamp"] == 5.0]
    assert {"type": "event_machine_unavailable", "resources": "0-3"} in told
    assert any(data.get("job_state") == "COMPLETED_FAILED" and data["job_id"] == "w0!1" for data in told)
    assert any(data.get("job_id") == "w0!1#1" for data in told)


@pytest.mark.nightly
def test_the_suite_of_conformance_runs_on_it(tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(json.dumps(jobs(2)), encoding="utf-8")
    for name, code in (("one_by_one", 0), ("overfills", 3)):
        words = ["validate", str(file), "--external", " ".join(command(name)), "--conformance"]
        done = CliRunner().invoke(hetsim, words)
        assert done.exit_code == code, done.output


COMPILED = {
    "fcfs.c": ["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o"],
    "fcfs.rs": ["rustc", "-O", "-D", "warnings", "-o"],
    "fcfs.go": ["go", "build", "-o"],
}


@pytest.mark.nightly
@pytest.mark.parametrize("source", COMPILED)
def test_the_examples_start_all_jobs_as_fcfs_does(source: str, tmp_path: Path) -> None:
    compiler = COMPILED[source]
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]} here")
    program = tmp_path / "fcfs"
    kept = {**os.environ, "GOCACHE": str(tmp_path / "go"), "GO111MODULE": "off"}
    subprocess.run([*compiler, str(program), str(EXAMPLES / source)], check=True, env=kept)
    assert len((EXAMPLES / source).read_text(encoding="utf-8").splitlines()) <= 45
    found = hs.compare("backfilling", ["external", "fcfs"], external=str(program), replications=2)
    first, second = (found.runs[name].results[0].tasks for name in ("external", "fcfs"))
    assert first["start"].tolist() == second["start"].tolist()
    words = ["validate", "backfilling", "--policy", "external", "--external", str(program), "--conformance"]
    assert (done := CliRunner().invoke(hetsim, words)).exit_code == 0, done.output


@pytest.mark.nightly
def test_what_the_exchange_costs(tmp_path: Path) -> None:
    """At most 150 us for a message and its answer, in the best of ten tries, and a minute for 100,000 jobs."""
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc here")
    program = tmp_path / "fcfs"
    subprocess.run(["gcc", "-O2", "-o", str(program), str(EXAMPLES / "fcfs.c")], check=True)
    exchange = Exchange(ExternalProgram((str(program),)), "x", 20.0, UsageError)
    tries = []
    for _ in range(10):
        begun = time.perf_counter()
        for _ in range(1000):
            exchange.ask('{"now":0.0,"events":[{"timestamp":0.0,"type":"REQUESTED_CALL","data":{}}]}')
        tries.append((time.perf_counter() - begun) / 1000)
    exchange.close()
    assert min(tries) <= 150e-6
    begun = sum(os.times()[:4])
    hs.run(jobs(100_000), external=str(program))
    assert sum(os.times()[:4]) - begun <= 60


@pytest.mark.slow
def test_workers_caches_and_explanations_know_it(tmp_path: Path) -> None:
    """Runs in two processes are those of one; a cache has them again until the program changes."""
    script = tmp_path / "mine.py"
    shutil.copy(HERE / "external_schedulers.py", script)
    words = [sys.executable, str(script), "one_by_one"]
    drawn = jobs(8)
    drawn["workload"][0]["cpu_time"] = {"distribution": "exponential", "mean": "1 s"}

    def means(**options) -> list[float]:
        return hs.replicate(drawn, external=words, replications=3, **options).column("wait_mean").tolist()

    first = means(cache=tmp_path / "cache")
    assert len(set(first)) == 3
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*") if file.is_file()}
    assert means(cache=tmp_path / "cache") == first == means(workers=2)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*") if file.is_file()} == files
    with script.open("a", encoding="utf-8") as stream:
        stream.write("# changed")
    assert means(cache=tmp_path / "cache") == first
    assert len([file for file in (tmp_path / "cache").rglob("*") if file.is_file()]) > len(files)
    result = hs.run(jobs(2), external=words)
    assert result.explain("1")["seconds"].sum() == 2.0
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    assert f"mine.py (SHA-256 {digest[:12]})" in repeat_commands("hetsim run", [result])
