"""`hetsim trace fetch`: public logs are listed, and downloaded files verified and converted; nothing is downloaded."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hetsim import registry
from hetsim.cli import hetsim as program
from hetsim.workload.logs.public_logs import LOGS

PUBLISHED = Path(__file__).parents[2] / "scenarios" / "hetsim_scenarios" / "published"
LUBLIN = PUBLISHED / "rlscheduler" / "lublin_1.swf.gz"
LOG = "; MaxProcs: 4\n" + "".join(f"{k} {k * 10} 0 60 2 -1 -1 2 -1 -1 1 1 1 1 1 1 -1 -1\n" for k in range(1, 4))


def fetch(*arguments):
    return CliRunner().invoke(program, ["trace", "fetch", *map(str, arguments)])


def test_every_log_has_a_reader_a_place_and_a_license():
    for log in LOGS.values():
        assert log.format in registry.table("traces")
        assert log.url.startswith("https://") and log.license
    done = fetch()
    assert done.exit_code == 0
    assert all(log.name in done.output and log.url in done.output for log in LOGS.values())
    assert [one["name"] for one in json.loads(fetch("--json").stdout)] == list(LOGS)


def test_a_shipped_log_is_the_public_one(tmp_path):
    """Its content, whether compressed or not."""
    plain = tmp_path / "lublin.swf"
    plain.write_bytes(gzip.decompress(LUBLIN.read_bytes()))
    for path in (LUBLIN, plain):
        assert f"{path}: is lublin-256" in fetch("lublin-256", path).output


def test_a_verified_log_is_converted(tmp_path):
    path, target = tmp_path / "log.swf", tmp_path / "log.csv"
    path.write_text(LOG)
    hash_ = hashlib.sha256(LOG.encode()).hexdigest()
    done = fetch("ricc", path, target, "--sha256", hash_)
    assert done.exit_code == 0, done.output
    assert len(target.read_text().splitlines()) == 4
    assert fetch("ricc", path, target).exit_code == 2, "it exists"


def test_an_unknown_hash_is_said_to_be_unknown(tmp_path):
    path = tmp_path / "log.swf"
    path.write_text(LOG)
    assert "that of ricc is not known here" in fetch("ricc", path).output
    assert json.loads(fetch("ricc", path, "--json").stdout)["verified"] is False


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["lublin"], 3, 'did you mean "lublin-256"'),
        (["lublin-256", "nowhere.swf"], 3, "there is no such file"),
        (["lublin-256", "."], 3, "is a folder"),
    ],
)
def test_mistakes(arguments, code, message):
    done = fetch(*arguments)
    assert done.exit_code == code
    assert message in done.output


def test_a_log_whose_hash_differs_is_refused_and_nothing_written(tmp_path):
    path, target = tmp_path / "log.swf", tmp_path / "log.csv"
    path.write_text(LOG)
    done = fetch("lublin-256", path, target)
    assert done.exit_code == 3
    assert "it is damaged, or another version; get it again from https://" in done.output
    assert not target.exists()
    cut = tmp_path / "cut.swf.gz"
    cut.write_bytes(LUBLIN.read_bytes()[:1000])
    assert "ends too early" in fetch("lublin-256", cut).output
