"""`hetsim report --watch`: pages of what is still being made, on the loopback alone."""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from chromium import BROWSER, browser
from click.testing import CliRunner
from interrupts import heeds_interrupts

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import UsageError
from hetsim.experiment.partial import planned_again, so_far
from hetsim.experiment.shard import ShardOver
from hetsim.page.watch import HOST, PageServer, Watched
from hetsim.results.many_runs.sweep import EACH, TABLE, TABLES

QUEUE: dict[str, Any] = {
    "name": "queue",
    "seed": 3,
    "cluster": {"nodes": [{"count": 2, "cpus": 1}]},
    "workload": [{"count": 40, "arrivals": {"process": "poisson", "rate": "1/s"},
                  "cpu_time": {"distribution": "exponential", "mean": "1 s"}}],
    "policy": "fcfs",
}  # fmt: skip
COUNTS = {"cluster.nodes.0.count": [2, 3, 4]}


def unfinished(folder: Path, **options: Any) -> pd.DataFrame:
    """Make a sweep, and take its end away; its table as it was."""
    table = hs.sweep(QUEUE, COUNTS, out=folder, **options).table
    for name in (TABLE, EACH, TABLES):
        (folder / name).unlink()
    return table


def drop_runs(folder: Path, keep: set[int], **options: Any) -> None:
    """Leave only runs of the points in `keep`, as a sweep of these alone keeps them."""
    counts = [COUNTS["cluster.nodes.0.count"][point] for point in sorted(keep)]
    shutil.rmtree(folder / "runs")
    hs.sweep(QUEUE, {"cluster.nodes.0.count": counts}, out=folder.with_name("part"), **options)
    shutil.move(folder.with_name("part") / "runs", folder / "runs")


@pytest.mark.quick(3)
@pytest.mark.parametrize("policies", [None, ["fcfs", "sjf"], ["fcfs_skip", {"scheduler": {"name": "edf"}}]])
@pytest.mark.parametrize("replications", [1, 3])
def test_points_that_have_their_runs_are_those_of_the_finished_sweep(
    tmp_path: Path, policies: list[Any] | None, replications: int
) -> None:
    options = {"policies": policies, "replications": replications}
    table = unfinished(tmp_path / "sweep", **options)
    drop_runs(tmp_path / "sweep", {0, 2}, **options)
    found = so_far(planned_again(tmp_path / "sweep"), tmp_path / "sweep")
    assert found is not None
    expected = table[table["point"] != 1].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.table, expected)
    left = replications * len(policies or ["fcfs"])
    assert f"{left:,} runs are left" in found.remarks[-1]


@pytest.mark.parametrize("over", [
    {"seed": [1, 2]}, {"policy": ["fcfs", "sjf"]}, {"policy.scheduler.placement": ["first_fit", "best_fit"]},
    {"workload.0.arrivals.rate": ["1/s", "90/min"]}, {"cluster.nodes.0": [{"count": 3, "cpus": 1}]},
])  # fmt: skip
def test_every_kind_of_value_is_planned_again(tmp_path: Path, over: dict[str, Any]) -> None:
    made = hs.sweep(QUEUE, over, out=tmp_path)
    found = so_far(planned_again(tmp_path), tmp_path)
    assert found is not None and found.table.equals(made.table)


def test_a_point_whose_replications_or_policies_are_going_on_is_not_shown(tmp_path: Path) -> None:
    """Figures of some replications, or of some policies, would be read as those of all."""
    options: dict[str, Any] = {"policies": ["fcfs", "sjf"], "replications": 3}
    with pytest.raises(ShardOver):
        hs.sweep(QUEUE, COUNTS, out=tmp_path, shard="1/2", **options)
    assert so_far(planned_again(tmp_path), tmp_path) is None
    with pytest.raises(ShardOver):
        hs.sweep(QUEUE, COUNTS, out=tmp_path, shard="2/2", **options)
    found = so_far(planned_again(tmp_path), tmp_path)
    assert found is not None and found.table.equals(hs.sweep(QUEUE, COUNTS, **options).table)


@pytest.mark.slow
def test_runs_left_of_a_precision_are_a_bound(tmp_path: Path) -> None:
    options: dict[str, Any] = {"replications": {"precision": 0.2, "metric": "response_mean", "max": 60}}
    table = unfinished(tmp_path / "sweep", **options)
    drop_runs(tmp_path / "sweep", {1}, **options)
    found = so_far(planned_again(tmp_path / "sweep"), tmp_path / "sweep")
    assert found is not None and found.table.equals(table[table["point"] == 1].reset_index(drop=True))
    assert found.remarks[-1] == "so far 1 of 3 rows have all their runs; at least 20 runs are left"


def test_a_page_rests_as_long_as_it_took(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.page()
    before = watched.state
    watched._rests_until = math.inf
    (tmp_path / "run.json").write_text("{")
    assert (watched.state, state_of(watched.page())) == (before, before)
    watched._rests_until = 0.0
    assert watched.state != before


def test_a_sweep_without_runs_has_no_points_yet(tmp_path: Path) -> None:
    unfinished(tmp_path)
    shutil.rmtree(tmp_path / "runs")
    assert so_far(planned_again(tmp_path), tmp_path) is None


def test_points_that_the_files_do_not_name_come_at_the_end(tmp_path: Path) -> None:
    hs.sweep(QUEUE, COUNTS, policies={"mine": {"scheduler": {"name": "sjf"}}}, out=tmp_path)
    with pytest.raises(UsageError, match="can be shown only when it is finished, as its files do not define all runs"):
        planned_again(tmp_path)


@contextmanager
def served(folder: Path) -> Iterator[PageServer]:
    with PageServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def answer(server: PageServer, path: str, host: str | None = None) -> HTTPResponse:
    connection = HTTPConnection(HOST, server.server_port, timeout=600)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    return connection.getresponse()


def text(server: PageServer) -> str:
    server.watched._rests_until = 0.0  # as if time had passed since the last page
    return answer(server, "/").read().decode()


def state_of(page: str) -> str:
    """The state of the directory that a page was made of."""
    return page.partition('.text() !== "')[2].partition('"')[0]


def test_the_page_follows_the_directory(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    with served(folder) as server:
        first = text(server)
        assert "There are no results yet." in first
        unfinished(folder, replications=2)
        assert state_of(first) != answer(server, "/state").read().decode()
        assert "so far 3 of 3 rows have all their runs; 0 runs are left" in text(server)
        hs.sweep(QUEUE, COUNTS, out=folder, replications=2)
        assert "so far" not in text(server) and "3 points, 2 replications each" in text(server)
        shutil.rmtree(folder)
        hs.run(QUEUE).save(folder)
        assert "fcfs" in text(server) and 'id="explorer"' in text(server)
        assert state_of(text(server)) == answer(server, "/state").read().decode()
        (folder / "run.json").write_text("{")
        assert "is damaged" in text(server)
    assert [inner.name for inner in tmp_path.iterdir()] == ["sweep"]


def test_clients_that_leave_and_odd_names_are_no_errors(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/\xff")
    hs.run(QUEUE).save(tmp_path / "run")
    with served(tmp_path / os.fsdecode(b"\xff")) as server:
        for sent in (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.server_port, b"GET /"):
            with socket.create_connection((HOST, server.server_port)) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # as of a killed client
                client.sendall(sent)
        os.rename(tmp_path / "run", os.fsencode(tmp_path) + b"/\xff/run")
        assert "for results every" in text(server) or "run" in text(server)
    assert "Traceback" not in capfd.readouterr().err


def test_only_the_page_is_served_and_only_by_the_names_of_this_machine(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.server_address[0] == HOST
        own = f"localhost:{server.server_port}"
        assert [answer(server, "/", host).status for host in (None, own, "example.org", "")] == [200, 200, 403, 403]
        assert [answer(server, path).status for path in ("/run.json", "/../etc/passwd", "/state/x")] == [404] * 3
        with pytest.raises(UsageError, match=rf"port {server.server_port} of {HOST} cannot be used"):
            PageServer(tmp_path, server.server_port)


@pytest.mark.slow
def test_ctrl_c_ends_it_and_nothing_stays(tmp_path: Path) -> None:
    hs.run(QUEUE).save(tmp_path / "run")
    before = sorted(path.name for path in (tmp_path / "run").iterdir())
    program = "from hetsim.cli import main; main()"
    command = [sys.executable, "-c", program, "report", "--watch", str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=heeds_interrupts) as process:  # fmt: skip
        try:
            assert process.stdout is not None and process.stderr is not None
            host, port = process.stdout.readline().strip().removeprefix("http://").strip("/").split(":")
            connection = HTTPConnection(host, int(port), timeout=60)
            connection.request("GET", "/")
            assert b"explorer" in connection.getresponse().read()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0 and "Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before


@pytest.mark.parametrize(("words", "said"), [
    (["--port", "80"], "--port needs --watch"),
    (["--watch", "--page", "a.html"], "--watch and --page exclude each other: leave out --page"),
])  # fmt: skip
def test_options_that_do_not_go_together(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["report", str(tmp_path), *words])
    assert done.exit_code == 2 and said in done.output


def test_a_file_is_not_watched(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["report", "--watch", str(tmp_path / "file")])
    assert done.exit_code == 2 and "the directory" in done.output


@pytest.mark.nightly
@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_many_open_pages_follow_in_a_browser(tmp_path: Path) -> None:
    """Nine of them, more than a browser has connections to one host."""
    folder = tmp_path / "sweep"
    frames = """Array.from(document.querySelectorAll("iframe"), one => one.contentDocument.body?.innerText ?? "")"""
    with served(folder) as server, browser(tmp_path / "profile") as page:
        page.call("Page.navigate", url=server.address)
        add = """document.body.append(Object.assign(document.createElement("iframe"), {src: "/", id: "walk"}))"""
        waits = f"""new Promise(done => {{ const look = () => {frames}.filter(text => text.includes("TEXT")).length
            === 9 ? done(1) : setTimeout(look, 50); look(); }})"""
        page.value("""new Promise(done => { const look = () => document.readyState == "complete"
            && document.body.innerText.includes("no results yet") ? done(1) : setTimeout(look, 50); look(); })""")
        page.value("clearInterval(looks); " + "; ".join([add] * 9))
        assert page.value(waits.replace("TEXT", "no results yet")) == 1
        unfinished(folder)
        assert page.value(waits.replace("TEXT", "3 of 3 rows have all their runs")) == 1
        hs.sweep(QUEUE, COUNTS, out=folder)
        waits = waits.replace("includes(\"TEXT\")", "includes(\"Make it again\") && !text.includes(\"so far\")")
        assert page.value(waits) == 1
        assert not page.errors
