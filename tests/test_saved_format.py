"""The format of saved runs: tags and fields of every version, runs of older ones, and folders that strangers made.

    python tests/test_saved_format.py       writes tests/saved_format.csv: what came has the version in `since`, what
                                            went the last version that had it in `until`
"""

from __future__ import annotations

import csv
import dataclasses
import inspect
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as parquet
import pytest
import saved_runs
import test_digests
from click.testing import CliRunner
from tiers import spread

import hetsim as hs
from hetsim.cli import main
from hetsim.errors import DamagedFile, UsageError
from hetsim.model.cluster import Partition
from hetsim.model.demand import Stopping
from hetsim.results import saved_classes, saved_input
from hetsim.results.declared import current_name
from hetsim.results.one_run import store
from hetsim.results.one_run.result import Result
from hetsim.results.saved_classes import CLASSES, READERS, VERSION
from hetsim.results.saved_input import OBJECTS, load_input, save_input
from hetsim.scenario.scenario import load

FILE = Path(__file__).with_name("saved_format.csv")
TABLE = "sim/hetsim/results/saved_classes.py"
LEFT_OUT = "scheduler admission closed calls batching replica_policies iteration eviction faults overloads unplanned"
"""Of the input: policies, what draws random numbers, and what is told before a run.  One that is over needs none."""
RUNS = Path(__file__).with_name("data") / "saved_runs_0.tar.xz"
SMALL = {
    "name": "small",
    "cluster": {"nodes": {"cpus": 4, "gpus": {"type": "k20", "count": 2}}},
    "workload": {"name": "a", "arrivals": {"process": "poisson", "rate": "2/s"}, "count": 9, "gpu_time": "700 ms"},
}


# Tags and fields ----------------------------------------------------------------------------------------------------


FILES = ("oversubscribed-racks", "fused-network", "broken-and-late", "prefixes")
"""Runs that together have all files of a record."""


def fields_of_today() -> set[tuple[str, str]]:
    """Tags with their fields."""
    return {(tag, name) for tag, (_, names) in CLASSES.items() for name in names}


def is_file(tag: str) -> bool:
    return tag.startswith("record/") and tag != "record/tasks"


def columns_of(folder: Path) -> set[tuple[str, str]]:
    """Files of a record but `tasks.parquet` (which is in the table) with their columns and keys."""
    found = {("record/rest", key) for key in json.loads((folder / "record/rest.json").read_text())}
    for path in (folder / "record").glob("*.parquet"):
        found |= {(f"record/{path.stem}", name) for name in parquet.read_schema(path).names if path.stem != "tasks"}
    return found


def columns_of_today(folder: Path) -> set[tuple[str, str]]:
    runs = saved_runs.scenarios(folder)
    return {one for name in FILES for one in columns_of(hs.run(runs[name]).save(folder / "saved" / name))}


def rows_of_file() -> list[tuple[str, str, int, int | None]]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return [(row["tag"], row["field"], int(row["since"]), int(row["until"]) if row["until"] else None)
                for row in csv.DictReader(file)]  # fmt: skip


def newest_of(rows: list[tuple[str, str, int, int | None]]) -> int:
    """The version that was last changed."""
    return max(max(since, -1 if until is None else until + 1) for _, _, since, until in rows)


def update() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows, today = rows_of_file(), fields_of_today() | columns_of_today(Path(folder))
    if {row[:2] for row in rows if row[3] is None} != today and newest_of(rows) >= VERSION:
        sys.exit(f"set VERSION = {newest_of(rows) + 1} in {TABLE} first: runs of version {VERSION} lack what came")
    rows = [(tag, name, since, until if until is not None or (tag, name) in today else VERSION - 1)
            for tag, name, since, until in rows]  # fmt: skip
    rows += [(tag, name, VERSION, None) for tag, name in today - {row[:2] for row in rows if row[3] is None}]
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["tag", "field", "since", "until"])
        writer.writerows(sorted(rows, key=lambda row: (row[0], row[1], row[2])))


@pytest.mark.parametrize("files", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["classes", "files"])
def test_tags_and_fields_change_with_a_new_version_only(files: bool, tmp_path: Path):
    rows, today = rows_of_file(), columns_of_today(tmp_path) if files else fields_of_today()
    listed = {row[:2] for row in rows if row[3] is None and is_file(row[0]) == files}
    newest = newest_of(rows)
    if listed == today:
        return
    changed = ", ".join(sorted(f"{tag}.{name}" for tag, name in listed ^ today))
    what = f"set VERSION = {newest + 1} in {TABLE} (with an entry of READERS for what went), then "
    pytest.fail(f"the format of saved runs changed ({changed}): {what if newest >= VERSION else ''}"
                "run python tests/test_saved_format.py")  # fmt: skip


def test_the_fields_of_a_version_are_not_written_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A field that came is not listed as one of the version so far, which runs of it lack."""
    monkeypatch.setitem(CLASSES, "price", (CLASSES["price"][0], {**CLASSES["price"][1], "fees": "fees"}))
    monkeypatch.setattr(sys.modules[__name__], "columns_of_today", lambda _: {
        row[:2] for row in rows_of_file() if row[3] is None and is_file(row[0])})  # fmt: skip
    monkeypatch.setattr(sys.modules[__name__], "FILE", shutil.copy(FILE, tmp_path / FILE.name))
    newest = newest_of(rows_of_file())
    monkeypatch.setattr(sys.modules[__name__], "VERSION", newest)
    with pytest.raises(SystemExit, match=f"set VERSION = {newest + 1}"):
        update()
    monkeypatch.setattr(sys.modules[__name__], "VERSION", newest + 1)
    update()
    assert ("price", "fees", newest + 1, None) in rows_of_file()


def test_what_a_version_had_is_read_or_dropped_by_a_reader():
    rows = rows_of_file()
    for version in range(VERSION):
        for tag in {row[0] for row in rows if row[0] in CLASSES}:
            fields = {name: None for one, name, since, until in rows
                      if one == tag and since <= version and (until is None or version <= until)}  # fmt: skip
            for step in range(version, VERSION):
                fields = READERS[step](tag, fields) if step in READERS else fields
            kind, names = CLASSES[tag]
            if not fields:
                continue
            assert fields.keys() <= names.keys(), f"version {version}: {tag} has fields that none reads"
            needed = {name for name, attribute in names.items()
                      if inspect.signature(kind).parameters[attribute].default is inspect.Parameter.empty}  # fmt: skip
            assert needed <= fields.keys(), f"version {version}: {tag} lacks fields without a default"


@pytest.mark.parametrize("tag", [tag for tag in CLASSES if tag != "record/tasks"])
def test_every_field_of_a_class_is_saved_or_left_out_by_name(tag: str):
    kind, names = CLASSES[tag]
    parameters = {name for name in inspect.signature(kind).parameters if not name.startswith("_")}
    assert set(names.values()) == parameters - set(LEFT_OUT.split() if tag == "run" else ())
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    assert len(set(names.values())) == len(names) and set(LEFT_OUT.split()) <= fields | {*LEFT_OUT.split()} - parameters


def test_what_the_fields_of_a_class_hold_has_a_tag():
    """By the annotations: classes of hetsim that stand in them are in the table too."""
    kinds = {kind for kind, _ in CLASSES.values()}
    modules = {sys.modules[kind.__module__] for kind in kinds}
    ours = {name: one for module in modules for name, one in vars(module).items()
            if inspect.isclass(one) and one.__module__.startswith("hetsim.")
            and not getattr(one, "_is_protocol", False)}
    for kind, names in CLASSES.values():
        annotations = inspect.get_annotations(kind if dataclasses.is_dataclass(kind) else kind.__init__)
        for attribute in names.values():
            for word in re.findall(r"\w+", str(annotations.get(attribute, ""))):
                assert word not in ours or ours[word] in kinds, f"{kind.__name__}.{attribute}: {word} has no tag"


def test_a_renamed_class_or_attribute_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = load(SMALL).build(1)
    save_input(run, tmp_path)
    before = [(tmp_path / name).read_bytes() for name in (OBJECTS, saved_input.ARRAYS)]
    names = [(kind, name, getattr(kind, name)) for kind, _ in CLASSES.values()
             for name in ("__name__", "__qualname__", "__module__")]  # fmt: skip
    try:
        for kind, name, value in names:
            setattr(kind, name, f"other_{value}")
        save_input(run, tmp_path)
        assert load_input(tmp_path).name == "small"
    finally:
        for kind, name, value in names:
            setattr(kind, name, value)
    assert [(tmp_path / name).read_bytes() for name in (OBJECTS, saved_input.ARRAYS)] == before
    renamed = dataclasses.make_dataclass("Renamed", [("how", str), ("pace", Any), ("extra", float)], frozen=True)
    device = run.cluster.nodes[0].accelerators[0].type
    was = device.preemption
    object.__setattr__(device, "preemption", renamed(was.kind, was.rate, was.overhead))
    monkeypatch.setitem(CLASSES, "preemption", (renamed, {"kind": "how", "rate": "pace", "overhead": "extra"}))
    cpu = run.cluster.nodes[0].cpu.type
    object.__setattr__(cpu, "preemption", renamed(cpu.preemption.kind, None, 0.0))
    save_input(run, tmp_path)
    assert (tmp_path / OBJECTS).read_bytes() == before[0]
    back = load_input(tmp_path).cluster.nodes[0].accelerators[0].type.preemption
    assert type(back) is renamed and back.how == was.kind


def test_a_class_that_is_not_in_the_table_is_refused(tmp_path: Path):
    class Own(Stopping):
        pass

    run = load(SMALL).build(1)
    run.tasks.shapes[0].stopping = Own()
    with pytest.raises(UsageError, match="Own cannot be saved with a run"):
        save_input(run, tmp_path)


@pytest.mark.quick(5)
@pytest.mark.parametrize("name", spread(test_digests.CASES, 12))
def test_what_is_loaded_is_saved_as_it_was(name: str, tmp_path: Path):
    """Of every shipped scenario and small system: all that its input holds has a tag, and nothing is lost."""
    save_input(test_digests.CASES[name](), tmp_path)
    before = [(tmp_path / file).read_bytes() for file in (OBJECTS, saved_input.ARRAYS)]
    save_input(load_input(tmp_path), tmp_path)
    assert [(tmp_path / file).read_bytes() for file in (OBJECTS, saved_input.ARRAYS)] == before


def test_sets_of_many_nodes_can_be_saved(tmp_path: Path):
    """They are numbers with a bit for each node, and Python limits the decimal digits of a number."""
    run, mask = load(SMALL).build(1), (1 << 20_000) - 1
    run.cluster.partitions["all"] = Partition("all", mask)
    save_input(run, tmp_path)
    assert load_input(tmp_path).cluster.partitions["all"].mask == mask


# Runs of older versions ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_runs.unpacked(RUNS, tmp_path_factory.mktemp("old"))


OLD = (*saved_runs.SHIPPED, *saved_runs.WRITTEN)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", spread(OLD, 5))
def test_a_run_of_version_0_has_its_tables_metrics_and_explanations(name: str, old: Path):
    result = Result.load(old / name)
    result.saved.values.clear()  # those of summary.json; all are computed from the record
    expected = json.loads((old / f"{name}.json").read_text())
    expected["metrics"] = {current_name(one): value for one, value in expected["metrics"].items()}
    close(json.loads(json.dumps(saved_runs.known(result))), expected)
    again = Result(result.record)
    for table in ("tasks", "launches", "devices", "timeline", "steps", "links"):
        of_file, of_record = (getattr(one, table).reset_index(drop=True) for one in (result, again))
        if len(of_file) or len(of_record):
            pd.testing.assert_frame_equal(of_file, of_record, check_dtype=False, check_categorical=False)


def close(found: Any, expected: Any) -> None:
    """Equal but for the last digits of numbers; what was not known then does not count."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys()
        for key in expected:
            close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            close(one, other)
    else:
        assert found == (pytest.approx(expected, rel=1e-9) if isinstance(expected, float) else expected)


def test_the_runs_of_version_0_hold_all_that_it_could(old: Path):
    classes = {name for folder in OLD for name in re.findall(r'"class": "[\w.]+:(\w+)"', text(old / folder))}
    tags = {re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in classes}
    assert tags | {"run", "random_tree", "cluster", "shape"} == {tag for tag, _, since, _ in rows_of_file()
                                                                 if since == 0 and "/" not in tag}  # fmt: skip


def text(folder: Path) -> str:
    return (folder / "record" / OBJECTS).read_text()


@pytest.mark.parametrize("version", [0, 1])
def test_a_field_that_older_files_lack_has_its_default(
    version: int, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = old / "curves" if version == 0 else hs.run(SMALL).save(tmp_path / "r")
    more = ("notes", list, dataclasses.field(default_factory=list)), ("level", int, dataclasses.field(default=7))
    grown = dataclasses.make_dataclass("Grown", more, bases=(Stopping,), frozen=True)
    monkeypatch.setitem(CLASSES, "stopping", (grown, CLASSES["stopping"][1] | {"notes": "notes", "level": "level"}))
    for shape in Result.load(folder).record.input.tasks.shapes:
        assert type(shape.stopping) is grown and shape.stopping.notes == [] and shape.stopping.level == 7


def test_a_field_that_went_is_handled_by_the_reader_of_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = hs.run(SMALL).save(tmp_path / "r")
    names = {name: name for name in ("idle", "busy", "wake")}
    monkeypatch.setitem(CLASSES, "power", (lambda idle, busy, wake: (idle, busy, wake), names))
    with pytest.raises(DamagedFile, match='its power has the field "sleep"'):
        Result.load(folder).record  # noqa: B018
    for module in (saved_classes, saved_input):
        monkeypatch.setattr(module, "VERSION", VERSION + 1)
    reader = {VERSION: lambda tag, fields: {k: v for k, v in fields.items() if (tag, k) != ("power", "sleep")}}
    monkeypatch.setattr(saved_input, "READERS", READERS | reader)
    assert Result.load(folder).record.input.cluster.nodes[0].accelerators[0].type.power == (0.0, 0.0, 0.0)


# Folders that strangers made ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hs.run(SMALL).save(tmp_path_factory.mktemp("good") / "r")


def object_of(found: Any, tag: str) -> dict[str, Any]:
    """The first object with this tag (of version 0: this class)."""
    if isinstance(found, dict):
        if tag in (found.get("tag"), found.get("class", "").partition(":")[2]):
            return found
        found = list(found.values())
    for one in found if isinstance(found, list) else ():
        if (inner := object_of(one, tag)) is not None:
            return inner
    return None  # type: ignore[return-value]


HOSTILE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tag": (lambda d: object_of(d, "link").update(tag="os:system"), ', which does not exist'),
    "tag that is a list": (lambda d: object_of(d, "link").update(tag=["link"]), "unhashable"),
    "class of version 0": (lambda d: object_of(d, "link").update({"class": "os:system"}) or object_of(d, "link").pop(
        "tag"), "'tag' is missing"),
    "field": (lambda d: object_of(d, "link")["fields"].update(__class__=1), 'its link has the field "__class__"'),
    "no field": (lambda d: object_of(d, "tasks")["fields"].pop("arrival"), "arrival"),
    "fields": (lambda d: object_of(d, "link").update(fields=[1]), "cannot be read"),
    "array": (lambda d: object_of(d, "tasks")["fields"]["time"].update(array=99), 'it has no array "99"'),
    "array below 0": (lambda d: object_of(d, "tasks")["fields"]["time"].update(array=-1), 'it has no array "-1"'),
    "same": (lambda d: object_of(d, "run")["fields"].update(tasks={"same": 10**9}), ", which is not defined before"),
    "circle": (lambda d: object_of(d, "run")["fields"].update(tasks={"same": 0}), ', which is not defined before'),
    "same list": (lambda d: object_of(d, "run")["fields"].update(tasks={"same": []}), "unhashable"),
    "no number": (lambda d: object_of(d, "link").pop("number"), "'number' is missing"),
    "other object": (lambda d: d.update(run=object_of(d, "link")), "cannot be read"),
    "no run": (lambda d: d.pop("run"), "'run' is missing"),
    "negative": (lambda d: object_of(d, "random_tree")["fields"].update(replication=-1), "replication must be from 0"),
    "nodes": (lambda d: object_of(d, "node_spec")["fields"].update(count=10**12), "2,000,000"),
    "float": (lambda d: object_of(d, "link")["fields"].update(upload={"float": "1 GB"}), "could not convert"),
    "int": (lambda d: object_of(d, "link")["fields"].update(upload={"int": "0x1g"}), "invalid literal"),
    "dict": (lambda d: object_of(d, "run")["fields"].update(warnings={"dict": [[[], 1]]}), "unhashable"),
    "newer": (lambda d: d.update(version=VERSION + 1), f"has version \"{VERSION + 1}\"; this hetsim reads 0 to"),
    "version": (lambda d: d.update(version="1"), "has version \"1\""),
    "version below 0": (lambda d: d.update(version=-1), 'has version "-1"'),
    "version that is true": (lambda d: d.update(version=True), 'has version "true"|has version true'),
}  # fmt: skip


def refused(folder: Path, why: str) -> None:
    """One sentence, on the command line too."""
    with pytest.raises(UsageError) as problem:
        Result.load(folder).record  # noqa: B018
    assert re.search(why, str(problem.value)) and "\n" not in str(problem.value)
    called = CliRunner().invoke(main, ["explain", str(folder), "0"])
    assert called.exit_code == 2 and isinstance(called.exception, SystemExit), called.output
    assert "Traceback" not in called.output


def sealed_again(folder: Path) -> Path:
    """With digests that fit."""
    about = {key: value for key, value in json.loads((folder / store.MARK).read_text()).items()
             if key not in ("format", "sha256", "files")}  # fmt: skip
    store.write_mark(folder, about)
    return folder


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_folder_that_no_hetsim_wrote_is_refused(name: str, good: Path, tmp_path: Path):
    change, why = HOSTILE[name]
    folder = Path(shutil.copytree(good, tmp_path / "r"))
    path = folder / "record" / OBJECTS
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    refused(sealed_again(folder), why)


@pytest.mark.parametrize(("file", "content", "why"), [
    (OBJECTS, '{"version": 1, "run": ' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deeply"),
    (OBJECTS, '{"version": 1, "run": ' + '{"tuple": [' * 700 + "]}" * 700 + "}", "nested too deeply|recursion"),
    (OBJECTS, "[1]", "cannot be read"), (OBJECTS, "{", "cannot be read"), (OBJECTS, "\ud800", "cannot be read"),
    ("rest.json", "{}", "is missing"), ("rest.json", "[" * 200_000, "nested too deeply"),
    ("arrays.parquet", "no Parquet", "cannot be read"), ("tasks.parquet", "no Parquet", "cannot be read"),
])  # fmt: skip
def test_a_file_of_a_record_that_is_something_else_is_refused(
    file: str, content: str, why: str, good: Path, tmp_path: Path
):
    folder = Path(shutil.copytree(good, tmp_path / "r"))
    (folder / "record" / file).write_bytes(content.encode(errors="surrogatepass"))
    refused(sealed_again(folder), why)


def test_a_column_that_no_record_has_is_refused(good: Path, tmp_path: Path):
    folder = Path(shutil.copytree(good, tmp_path / "r"))
    path = folder / "record" / "tasks.parquet"
    pd.read_parquet(path).assign(__class__=np.zeros(9)).to_parquet(path)
    refused(sealed_again(folder), "__class__")


@pytest.mark.parametrize("change", [
    lambda mark: mark.pop("policy"), lambda mark: mark.update(warnings=3), lambda mark: mark.update(files=[1]),
])  # fmt: skip
def test_a_mark_with_other_keys_is_refused(change: Callable[[Any], Any], good: Path, tmp_path: Path):
    folder = Path(shutil.copytree(good, tmp_path / "r"))
    about = json.loads((folder / store.MARK).read_text())
    change(about)
    kept = {key: value for key, value in about.items() if key not in ("format", "sha256")}
    (folder / store.MARK).write_text(store.sealed(kept, 1))
    refused(folder, str(folder))


def test_no_name_in_a_file_is_imported(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "stranger.py").write_text("class Link: pass\nclass Stranger: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, why in (("stranger:Link", ""), ("stranger:Stranger", 'names the class "stranger"')):
        folder = Path(shutil.copytree(old / "curves", tmp_path / name.replace(":", "")))
        document = json.loads(text(folder))
        object_of(document, "Link")["class"] = name
        (folder / "record" / OBJECTS).write_text(json.dumps(document))
        if why:
            refused(sealed_again(folder), why)
        else:
            assert Result.load(sealed_again(folder)).record.input.name == "curves"
        assert "stranger" not in sys.modules


if __name__ == "__main__":
    update()
