"""Calibration: coefficients found again, profiles that scenarios include, drives that match the simulation."""

import json
import math
import sys
import time

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiers import examples

import hetsim as hs
from hetsim.calibrate import example
from hetsim.calibrate.measure import (
    CalibrationError,
    HostDevice,
    MeasuredDevice,
    Overlapping,
    fit,
    link_profile,
    measure,
    service_profile,
)
from hetsim.calibrate.verify import ServiceProfile, poisson, serve_overlapped, verify
from hetsim.cli import main
from hetsim.errors import ScenarioError
from hetsim.scenario.file.document import dump
from hetsim.scenario.scenario import Scenario
from hetsim.scenario.schema.service import ServiceSpec

BATCHES = (1, 2, 4, 8, 16, 32, 64)
UP, WORK, DOWN = (0.0001, 0.0002), (0.00125, 0.013), (0.00001, 0.0001)


class VirtualClock:
    """Time passes only when somebody takes it."""

    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time

    def wait(self, until):
        self.time = max(self.time, until)


class Fake:
    """A GPU whose stages take a·n + b of a virtual clock."""

    name, kind, bytes_in, bytes_out, memories = "a fake", "gpu", 600_000, 4000, ("pinned", "pageable")

    def __init__(self, clock=None, odd=()):
        self.clock = clock or VirtualClock()
        self.odd = dict(odd)
        self.engines = [0.0, 0.0, 0.0]

    def _take(self, coefficients, n, factor=1.0):
        seconds = factor * (coefficients[0] * n + coefficients[1])
        self.clock.time += seconds
        return seconds

    def upload(self, n, memory):
        return self._take(UP, n, 2.0 if memory == "pageable" else 1.0)

    def compute(self, n):
        return self._take(WORK, n, self.odd.get(n, 1.0))

    def download(self, n, memory):
        return self._take(DOWN, n, 2.0 if memory == "pageable" else 1.0)


class FakeStreams(Fake):
    """The same with engines that overlap."""

    def overlapped(self, n):
        return max(a * n + b for a, b in (UP, WORK, DOWN))

    def submit(self, n):
        at = self.clock.time
        for engine, (a, b) in enumerate((UP, WORK, DOWN)):
            at = self.engines[engine] = max(at, self.engines[engine]) + a * n + b
        return lambda: self.clock.time >= at - 1e-12


def fake_cpu():
    found = Fake()
    found.kind, found.memories = "cpu", ()
    return found


def flat():
    found = Fake()
    found.compute = lambda n: 0.01
    return found


def falling():
    found = Fake()
    found.compute = lambda n: 1.0 / n
    return found


def broken():
    raise RuntimeError("no weights here")


def number():
    return 5


def sleeper():
    """In real time, and hardly hurt by what else the machine does."""
    return HostDevice(lambda n: time.sleep(0.002 * n + 0.002), "a sleeper")


NOTHING = 3


def command(*arguments):
    return CliRunner().invoke(main, ["calibrate", *map(str, arguments)])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# The fit --------------------------------------------------------------------------------------------------------


@examples(150)
@given(
    per_item=st.floats(1e-6, 1.0),
    fixed=st.floats(1e-6, 1.0),
    sizes=st.lists(st.integers(1, 512), min_size=2, max_size=9, unique=True).map(sorted),
)
def test_an_exact_line_is_found_again(per_item, fixed, sizes):
    found = fit(sizes, [per_item * n + fixed for n in sizes])
    for n in sizes:
        assert found.seconds_for(n) == pytest.approx(per_item * n + fixed, rel=1e-9)
    assert found.worst < 1e-9


@examples(80)
@given(st.lists(st.floats(1e-6, 10.0), min_size=2, max_size=7))
def test_no_coefficient_is_ever_negative(seconds):
    found = fit(BATCHES[: len(seconds)], seconds)
    assert found.per_item >= 0 and found.fixed >= 0 and found.per_item + found.fixed > 0
    for n, tau, residual in zip(BATCHES, seconds, found.residuals, strict=False):
        assert tau == pytest.approx(found.seconds_for(n) * (1 + residual))


def test_one_special_size_does_not_bend_the_line():
    seconds = [0.002 * n + 0.01 for n in BATCHES]
    seconds[0] /= 5
    found = fit(BATCHES, seconds)
    assert found.per_item == pytest.approx(0.002) and found.fixed == pytest.approx(0.01)
    assert found.residuals[0] == pytest.approx(-0.8) and found.worst == pytest.approx(0.8)


# Measuring ------------------------------------------------------------------------------------------------------


def test_a_device_is_measured_stage_by_stage():
    found = measure(FakeStreams(), BATCHES)
    assert isinstance(found.device, MeasuredDevice) and isinstance(found.device, Overlapping)
    for name, (a, b) in {"upload": UP, "compute": WORK, "download": DOWN}.items():
        assert found.stage(name).per_item == pytest.approx(a) and found.stage(name).fixed == pytest.approx(b)
    assert found.lines["upload pageable"].per_item == pytest.approx(2 * UP[0])
    assert found.overlapped == pytest.approx([WORK[0] * n + WORK[1] for n in BATCHES])
    assert not found.remarks


def test_the_median_withstands_an_interruption():
    class Interrupted(Fake):
        calls = 0

        def compute(self, n):
            self.calls += 1
            return super().compute(n) * (50 if self.calls % 3 == 0 else 1)

    assert measure(Interrupted(), (1, 8, 64)).stage("compute").per_item == pytest.approx(WORK[0])


def test_what_is_not_linear_is_remarked():
    found = measure(Fake(odd={32: 0.3}), BATCHES)
    assert found.stage("compute").per_item == pytest.approx(WORK[0])
    assert found.remarks == [
        "compute: a batch of 32 took less time than the smaller one before it",
        "compute: times are up to 70% off the fitted line: inaccurate",
    ]


def test_a_busy_machine_is_remarked():
    class Busy(Fake):
        calls = 0

        def compute(self, n):
            self.calls += 1
            return super().compute(n) * (1 + self.calls % 3)

    found = measure(Busy(), BATCHES)
    assert 0.2 < found.spread["compute"] < 0.6 and found.spread["upload pinned"] == 0
    (remark,) = found.remarks
    assert remark.startswith("compute: repeats scatter by ±") and remark.endswith(
        "; other load on the machine may be the cause")


@pytest.mark.parametrize("device", [flat, falling])
def test_compute_that_does_not_grow_cannot_be_fitted(device):
    with pytest.raises(CalibrationError, match="compute time does not grow with .* measure larger batches"):
        measure(device(), (1, 2, 4))


# Profiles -------------------------------------------------------------------------------------------------------


def scenario(service, pcie=None):
    node = {"cpus": 1, "gpus": {"type": "g", "count": 1, "streams": 2}} | ({"pcie": pcie} if pcie else {})
    entry = {"name": "s", "arrivals": {"process": "poisson", "rate": "300/s"}, "count": 500, "service": service}
    return {"name": "t", "cluster": {"nodes": node}, "workload": entry}


def written(folder, *, device=None):
    found = measure(device or Fake(), BATCHES)
    (folder / "f.service.yaml").write_text(dump(service_profile(found)))
    (folder / "f.link.yaml").write_text(dump(link_profile(found)) if found.device.kind != "cpu" else "")
    return found


def test_a_profile_is_its_coefficients(here):
    written(here)
    inline = {
        "upload": {"per_item": "0.1 ms", "fixed": "0.2 ms"},
        "compute": {"per_item": "1.25 ms", "fixed": "13 ms"},
        "download": {"per_item": "0.01 ms", "fixed": "0.1 ms"},
        "max_batch": 64,
    }
    by_profile = hs.run(scenario({"profile": "f.service.yaml"})).tasks
    by_hand = hs.run(scenario(inline)).tasks
    np.testing.assert_array_equal(by_profile["finish"], by_hand["finish"])


def test_what_stands_beside_a_profile_wins(here):
    written(here)
    service = {"profile": str(here / "f.service.yaml"), "max_batch": 4, "compute": {"per_item": "2 ms"}}
    mode = Scenario.load(scenario(service)).build().services[0].shape.modes[0]
    assert mode.batch_limit == 4 and mode.fixed == 0 and mode.upload.seconds_for(1) == pytest.approx(0.0003)


def test_a_link_profile_is_its_rates(here):
    written(here)
    node = Scenario.load(scenario({"profile": "f.service.yaml"}, {"profile": "f.link.yaml"})).model.cluster.nodes[0]
    assert node.pcie.upload == pytest.approx(6e9) and node.pcie.download == pytest.approx(4e8)
    assert node.pcie.latency == pytest.approx(1e-4)


def test_a_profile_lies_beside_its_scenario_and_travels_with_it(tmp_path):
    written(tmp_path)
    (tmp_path / "s.yaml").write_text(dump(scenario({"profile": "f.service.yaml"})))
    loaded = Scenario.load(tmp_path / "s.yaml")
    before = loaded.content_hash
    moved = yaml.safe_load(loaded.to_yaml(absolute_paths=True))
    assert moved["workload"]["service"]["profile"] == str(tmp_path / "f.service.yaml")
    profile = tmp_path / "f.service.yaml"
    profile.write_text(profile.read_text().replace("13 ms", "14 ms"))
    assert Scenario.load(tmp_path / "s.yaml").content_hash != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "f.yaml: the file does not exist"),
        ("pcie: {upload: 5 GB/s}", "has no section service:; profiles of hetsim calibrate have one"),
        ("service: {compute: {fixed: 3}}", 'f.yaml:1:21: service.compute.fixed: "3" has no unit'),
        ("service: {compte: 3 ms}", 'unknown key "compte"; did you mean "compute"?'),
        ("service: {upload: 3 ms}", "f.yaml:1:1: service: a service needs compute"),
        ("service: {profile: f.yaml}", "includes another profile; only scenarios may include profiles"),
        ("- 5", "a profile must be a mapping of keys to values; got a list"),
        ("service: {step: {fixed: 3 ms}}", "f.yaml describes a language model; add kind: llm to the service"),
        ("service: {kind: llm, front_end: 3 ms}", "f.yaml describes a language model; add kind: llm to the service"),
    ],
)
def test_profiles_that_are_none(here, content, message):
    if content is not None:
        (here / "f.yaml").write_text(content)
    with pytest.raises(ScenarioError) as caught:
        Scenario.load(scenario({"profile": "f.yaml"}))
    assert "workload.service.profile" in str(caught.value) and message in str(caught.value)


def test_a_profile_of_batches_is_not_one_of_a_language_model(here):
    (here / "f.yaml").write_text("service: {compute: 3 ms}")
    with pytest.raises(ScenarioError, match="f.yaml describes batches, not a language model; leave out kind: llm"):
        Scenario.load(scenario({"kind": "llm", "profile": "f.yaml"}))
    (here / "f.yaml").write_text("service: {step: {fixed: 3 ms}}")
    with pytest.raises(ScenarioError, match="f.yaml:1:1: service: has no kind; a language model needs kind: llm here"):
        Scenario.load(scenario({"kind": "llm", "profile": "f.yaml"}))


# Verifying ------------------------------------------------------------------------------------------------------


def profile_of(device):
    section = service_profile(measure(device, BATCHES))["service"]
    return section, ServiceProfile.from_service(ServiceSpec.model_validate(section))


@pytest.mark.parametrize("make", [Fake, fake_cpu])
def test_a_serial_drive_is_the_simulation(make):
    device = make()
    section, profile = profile_of(device)
    rows = verify(device, section, profile, [50.0, 300.0, 600.0], 2.0, clock=device.clock)
    assert [row.policy for row in rows] == ["serial_greedy"] * 3 and len(rows[2].measured) > 1000
    for row in rows:
        np.testing.assert_allclose(row.measured, row.simulated, atol=1e-9)
        assert row.figures()[-1][1] == pytest.approx(row.figures()[-1][2], rel=1e-9) and abs(row.error) < 1e-9


def test_no_size_is_computed_for_the_first_time_while_requests_wait():
    """As cuDNN: the first batch of each size takes 0.1 s longer, since a kernel is chosen for it."""

    class Choosing(Fake):
        chosen = frozenset()

        def compute(self, n):
            self.clock.time += 0.0 if n in self.chosen else 0.1
            self.chosen |= {n}
            return super().compute(n)

    device = Choosing()
    section, profile = profile_of(Fake())
    (row,) = verify(device, section, profile, [600.0], 2.0, clock=device.clock)
    np.testing.assert_allclose(row.measured, row.simulated, atol=1e-9)


@pytest.mark.slow
def test_an_overlapped_drive_keeps_two_batches_in_flight_and_beats_the_serial_one():
    device = FakeStreams()
    section, profile = profile_of(device)
    serial, overlapped = verify(device, section, profile, [0.97 * profile.capacity], 4.0, clock=device.clock)
    assert overlapped.policy == "async_linear"
    assert overlapped.measured.mean() < 0.9 * serial.measured.mean()
    assert overlapped.simulated.mean() < 0.95 * serial.simulated.mean()
    assert (overlapped.measured > 0).all() and abs(overlapped.error) < 0.3


@pytest.mark.slow
def test_an_overlapped_drive_never_has_three_in_flight():
    class Counted(FakeStreams):
        flying = most = 0

        def submit(self, n):
            assert 1 <= n <= 8
            self.flying += 1
            self.most = max(self.most, self.flying)
            ended, told = super().submit(n), []

            def query():
                if ended() and not told:
                    told.append(True)
                    self.flying -= 1
                return ended()

            return query

    device = Counted()
    _, profile = profile_of(device)
    served = serve_overlapped(device, poisson(400.0, 1.0, 1), profile, 8, device.clock)
    assert device.most == 2 and device.flying == 0 and (served >= WORK[1]).all()


# The command ----------------------------------------------------------------------------------------------------


def test_from_a_device_to_a_scenario(here):
    done = command("--model", f"{__name__}:sleeper", "--batches", "1,4,16", "--repeats", 3)
    assert done.exit_code == 0, done.stderr
    assert "a sleeper" in done.stdout and "per item" in done.stdout
    assert "profile: sleeper.service.yaml" in done.stderr and not (here / "sleeper.link.yaml").exists()
    about = yaml.safe_load((here / "sleeper.service.yaml").read_text())["measured"]
    assert about["batches"] == [1, 4, 16] and len(about["stages"]["compute"]["medians_ms"]) == 3
    service = {"profile": "sleeper.service.yaml"}
    assert (hs.run(scenario(service), check=True).tasks["status"] == "completed").all()
    options = ("--model", f"{__name__}:sleeper", "--verify", "sleeper.service.yaml", "--json")
    checked = command(*options, "--rate", 50, "--seconds", 0.3)
    assert checked.exit_code == 0, checked.stderr
    (row,) = json.loads(checked.stdout)
    assert row["policy"] == "serial_greedy" and row["mean"]["measured"] > 0 and math.isfinite(row["error"])
    shown = command(*options[:-1], "--rate", 50, "--seconds", 0.2)
    assert "difference" in shown.stdout and "driving 50 requests/s" in shown.stderr


def test_a_gpu_gives_two_profiles(here):
    arguments = ("--model", f"{__name__}:FakeStreams", "--out", "deep/er", "--name", "my gpu")
    done = command(*arguments)
    assert done.exit_code == 0, done.stderr
    assert [path.name for path in sorted((here / "deep/er").iterdir())] == ["my-gpu.link.yaml", "my-gpu.service.yaml"]
    assert "two streams" in done.stdout
    again = command(*arguments)
    assert again.exit_code == 2 and "--force replaces it" in again.stderr
    assert command(*arguments, "--force", "-q").stderr == ""
    printed = json.loads(command(*arguments, "--force", "--json").stdout)
    assert printed["service"]["service"]["compute"] == {"per_item": "1.25 ms", "fixed": "13 ms"}
    assert printed["link"]["pcie"]["upload"] == "6 GB/s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere.at.all:network"], 'no module "nowhere"'),
        (["--model", "hetsim.calibrate.example"], "--model must be package.module:factory, such as"),
        (["--model", "hetsim.calibrate.example:netwrk"], "netwrk does not exist in hetsim.calibrate.example"),
        (["--model", f"{__name__}:NOTHING"], "NOTHING is not a function in"),
        (["--model", f"{__name__}:broken"], "failed: RuntimeError: no weights here"),
        (["--model", f"{__name__}:number"], "must return a PyTorch module"),
        (["--batches", "8"], "--batches must be two or more sizes, to separate the fixed cost; got"),
        (["--batches", "8,4"], "must be strictly increasing"),
        (["--batches", "4,4"], "must be strictly increasing"),
        (["--batches", "1,x"], "--batches must be whole numbers such as"),
        (["--batches", "0,1"], "--batches must be sizes from 1 to"),
        (["--repeats", "1"], "--repeats"),
    ],
)
def test_wrong_usage_is_a_sentence(here, arguments, message):
    model = [] if "--model" in arguments else ["--model", f"{__name__}:Fake"]
    done = command(*model, *arguments)
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and not list(here.iterdir())


def test_a_device_that_is_not_linear_is_a_sentence(here):
    done = command("--model", f"{__name__}:falling", "--batches", "1,2")
    assert done.exit_code == 1 and "the compute time does not grow with the batch" in done.stderr
    assert not list(here.iterdir())


def test_what_verify_may_be_given(here):
    model = ("--model", f"{__name__}:fake_cpu", "--verify")
    assert command(*model, "no.yaml").exit_code == 3
    (here / "link.yaml").write_text("pcie: {upload: 1 GB/s}")
    assert "has no section `service:` with `compute`" in command(*model, "link.yaml").stderr
    (here / "bad.yaml").write_text("service:\n  compute: {per_item: 1}\n")
    assert "bad.yaml:2:13: service.compute.per_item" in command(*model, "bad.yaml").stderr
    written(here)
    other = command(*model, "f.service.yaml")
    assert other.exit_code == 2 and "is a profile of a gpu, but the model runs on a cpu" in other.stderr


def test_without_torch_the_extra_is_named(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "hetsim.calibrate.torch_device", raising=False)
    done = command("--model", "hetsim.calibrate.torch_device:resnet50")
    assert done.exit_code == 2 and "hetsim[calibrate]" in done.stderr


def test_the_example_is_a_device_of_its_own():
    device = example.network()
    assert isinstance(device, HostDevice) and isinstance(device, MeasuredDevice) and not isinstance(device, Overlapping)
    assert device.compute(3) > 0 and device.run(3).shape == (3, 10)


def test_a_torch_module_on_the_cpu(here):
    torch = pytest.importorskip("torch")
    from hetsim.calibrate.torch_device import device_of

    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 4))
    with pytest.raises(ValueError, match="input_shape"):
        device_of(module, "cpu")
    module.input_shape = (3, 4)
    device = device_of(module, "cpu")
    assert isinstance(device, HostDevice) and isinstance(device, MeasuredDevice)
    assert (device.bytes_in, device.bytes_out) == (48, 16) and device.compute(5) > 0
