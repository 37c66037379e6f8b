"""A stored figure stands only with the inputs that it was made from: each way to change one gives a new figure, or is
said to be unknown and never given out again."""

from __future__ import annotations

import ast
import functools
import json
import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pages
import pandas as pd
import pytest
import syntax
import yaml
from stored import stored_runs

import hetsim
import hetsim_policies
from hetsim import registry
from hetsim.errors import UsageError
from hetsim.experiment.code_digest import code_digest
from hetsim.experiment.identity import Identity
from hetsim.experiment.sweep import sweep
from hetsim.model.files import recorded_inputs, watch_opens, watching
from hetsim.scenario.file.shipped import shipped
from hetsim.scenario.scenario import load

BASE: dict[str, Any] = {
    "name": "d",
    "cluster": {"nodes": {"cpus": 4, "gpus": {"type": "v100", "count": 2}}},
    "workload": [
        {"name": "jobs", "arrivals": {"process": "poisson", "rate": "0.3/s"}, "count": 40,
         "gpu_time": {"distribution": "lognormal", "mean": "8 s", "cv": 2}}
    ],
    "policy": "mine",
}  # fmt: skip
KEY = "def mine(task):\n    return {} * task.shortest_estimate\n"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="a process that is forked has hetsim imported already")


# Processes of their own -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What processes that are forked need not import again."""
    sweep({**BASE, "policy": "fcfs"}, {"seed": [1]})
    code_digest(np.mean)


def in_fork(function: Callable[[], Any]) -> Any:
    """What a function gives in a process of its own, which has hetsim and nothing of the user's imported."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(False)

    def child() -> None:
        try:
            watching.clear()  # whatever other tests had watched
            forkserver._forkserver._forkserver_pid = None  # a server of the parent is none of this process's children
            sys.dont_write_bytecode = True  # a file may change twice within the second that its cached code tells
            there.send((True, function()))
        except BaseException:
            there.send((False, traceback.format_exc()))
        os._exit(0)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        process = context.Process(target=child)
        process.start()
    there.close()
    done, value = here.recv()
    process.join()
    assert done, value
    return value


def called(folder: Path, script: str, scenario: dict[str, Any], keep: bool = True, trust: bool = False) -> Any:
    """The figure of a sweep that the script of a user makes, its warnings, and whether a run was made."""

    def call() -> tuple[float, list[str]]:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        main = types.ModuleType("__main__")
        main.__file__ = None
        sys.modules["__main__"] = main
        vars(main)["hs"] = __import__("hetsim")
        exec(textwrap.dedent(script), vars(main))
        if "mine" in vars(main):
            registry.register("mine", main.mine)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = sweep(scenario, {"seed": [1]}, cache="cache" if keep else None, trust=trust)
        assert found.table["status"].tolist() == ["done"], found.table["error"][0]
        return found.table["response_mean"][0], [str(one.message) for one in told]

    return in_fork(call)


@dataclass
class Way:
    """Files and a script, and what of it changes.  unknown: what is said of it, where it cannot be digested."""

    files: dict[str, str] = field(default_factory=dict)
    script: str = "from mypol import mine"
    then: dict[str, str] = field(default_factory=dict)
    script_then: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    unknown: str = ""
    scenario: dict[str, Any] = field(default_factory=lambda: BASE)


def helper(imports: str, use: str, **more: Any) -> Way:
    """A module with a constant that is used in a way."""
    text = f"{imports}\n\ndef mine(task):\n    return {use} * task.shortest_estimate\n"
    return Way({"mypol.py": text, "helper.py": "S = 1\nT = {'a': [1]}\n"}, then={
        "helper.py": "S = -1\nT = {'a': [-1]}\n"}, **more)  # fmt: skip


PARTIAL = """import functools

def key(sign, task):
    return sign * task.shortest_estimate

mine = functools.partial(key, {})
"""
CLOSURE = """def make(sign):
    def mine(task):
        return sign * task.shortest_estimate
    return mine

mine = make({})
"""
OBJECT = """class Key:
    def __init__(self, sign):
        self.sign = sign
    def __call__(self, task):
        return self.sign * task.shortest_estimate

mine = Key({})
"""
SLOTS = OBJECT.replace("class Key:\n", 'class Key:\n    __slots__ = ("sign",)\n')
ARRAY = OBJECT.replace("self.sign * ", "float(self.sign[0]) * ").replace("Key({})", "Key(np.array([{}.0]))")
CELL = """
sign = {}
def factor():
    return sign
def mine(task):
    return factor() * task.shortest_estimate
"""
BASED = "from helper import Base\n\nclass mine(Base):\n    pass\n"
FIRST = """from hetsim.policy import ListScheduler

class Base(ListScheduler):
    sign = {}
    def __init__(self):
        super().__init__(lambda task: self.sign * task.shortest_estimate)
"""
OPENED = """def mine(task):
    with open("s.txt") as file:
        return float(file.read()) * task.shortest_estimate
"""
READ = "from pathlib import Path\nS = float(Path('s.txt').read_text())\n\n" + KEY.format("S")
ENVIRONMENT = "import os\n\ndef mine(task):\n    return {} * task.shortest_estimate\n"
LAZY = "def mine(task):\n    {}\n    return {} * task.shortest_estimate\n"

CODE = {
    "a constant that is imported": helper("from helper import S", "S"),
    "a dict that is imported": helper("from helper import T", "T['a'][0]"),
    "a module that is imported": helper("import helper", "helper.S"),
    "an import inside a function": Way({"mypol.py": LAZY.format("from helper import S", "S"), "helper.py": "S = 1"},
                                       then={"helper.py": "S = -1"}),
    "a module imported inside a function": Way(
        {"mypol.py": LAZY.format("import pack.helper as h", "h.S"), "pack/__init__.py": "", "pack/helper.py": "S = 1"},
        then={"pack/helper.py": "S = -1"}),
    "a module imported inside a function by its package": Way(
        {"mypol.py": LAZY.format("import pack.helper", "pack.helper.S"), "pack/__init__.py": "",
         "pack/helper.py": "S = 1"}, then={"pack/helper.py": "S = -1"}),
    "a module imported from its package inside a function": Way(
        {"mypol.py": LAZY.format("from pack import helper", "helper.S"), "pack/__init__.py": "",
         "pack/helper.py": "S = 1"}, then={"pack/helper.py": "S = -1"}),
    "functools.partial": Way(script=PARTIAL.format(1), script_then=PARTIAL.format(-1)),
    "a closure": Way(script=CLOSURE.format(1), script_then=CLOSURE.format(-1)),
    "a closure of a module": Way(
        {"mypol.py": CLOSURE.format(1)}, "import mypol; mine = mypol.make(1)",
        script_then="import mypol; mine = mypol.make(-1)"),
    "a lambda": Way(script="mine = lambda task: task.shortest_estimate",
                    script_then="mine = lambda task: -task.shortest_estimate"),
    "a default": Way(script="def mine(task, s=1): return s * task.shortest_estimate",
                     script_then="def mine(task, s=-1): return s * task.shortest_estimate"),
    "the state of an object": Way(script=OBJECT.format(1), script_then=OBJECT.format(-1)),
    "the state of an object of a module": Way(
        {"mypol.py": OBJECT.format(1)}, "import mypol; mine = mypol.Key(1)",
        script_then="import mypol; mine = mypol.Key(-1)"),
    "functools.partial of a module": Way(
        {"mypol.py": PARTIAL.format(1)}, "import mypol, functools; mine = functools.partial(mypol.key, 1)",
        script_then="import mypol, functools; mine = functools.partial(mypol.key, -1)"),
    "an attribute of a class set by the script": Way(
        {"mypol.py": "class Sign:\n    of = 1\n\n" + KEY.format("Sign.of")}, "from mypol import mine, Sign",
        script_then="from mypol import mine, Sign; Sign.of = -1"),
    "a global that a function imports": Way(
        {"mypol.py": LAZY.format("global h; import helper as h", "sign()") + "\ndef sign():\n    return h.S\n",
         "helper.py": "S = 1"}, then={"helper.py": "S = -1"}),
    "the state of an object with slots": Way(script=SLOTS.format(1), script_then=SLOTS.format(-1)),
    "an array in an object": Way(script="import numpy as np\n" + ARRAY.format(1),
                                 script_then="import numpy as np\n" + ARRAY.format(-1)),
    "a module attribute set by the script": Way(
        {"mypol.py": "S = 1\n" + KEY.format("S")}, "import mypol; mypol.S = 1; from mypol import mine",
        script_then="import mypol; mypol.S = -1; from mypol import mine"),
    "an attribute of another module set by the script": helper(
        "import helper", "helper.S", script_then="import helper; helper.S = -1; from mypol import mine"),
    "a data file that a module reads when imported": Way({"mypol.py": READ, "s.txt": "1"}, then={"s.txt": "-1"}),
    "a data file that the code opens": Way({"mypol.py": OPENED, "s.txt": "1"}, then={"s.txt": "-1"},
                                           unknown="mypol.mine opens files"),
    "the environment when imported": Way(
        {"mypol.py": "import os\nS = float(os.environ.get('S', 1))\n" + KEY.format("S")}, environment={"S": "-1"}),
    "the environment": Way({"mypol.py": ENVIRONMENT.format("float(os.environ.get('S', 1))")},
                           environment={"S": "-1"}, unknown="mypol.mine reads the environment"),
    "the environment by getenv": Way({"mypol.py": ENVIRONMENT.format("float(os.getenv('S', 1))")},
                                     environment={"S": "-1"}, unknown="mypol.mine reads the environment"),
    "a name computed": helper("import helper", "globals()['helper'].S"),
    "a module by a computed name": helper("import importlib", "importlib.import_module('helper').S",
                                          unknown="mypol.mine imports modules by computed names"),
    "what a module gives for names that it lacks": Way(
        {"mypol.py": "import helper\n\n" + KEY.format("getattr(helper, 'S')"),
         "helper.py": "def __getattr__(name):\n    return 1\n"},
        then={"helper.py": "def __getattr__(name):\n    return -1\n"}),
    "a constant of a class under a special name": Way(
        {"mypol.py": "from helper import C\n\n" + KEY.format("C.__sign__"),
         "helper.py": "class C:\n    __sign__ = 1\n"}, then={"helper.py": "class C:\n    __sign__ = -1\n"}),
    "the environment inside a path": Way(
        {"mypol.py": ENVIRONMENT.format("float(os.path.expandvars('${S}1').replace('${S}', ''))")},
        environment={"S": "-"}, unknown="mypol.mine reads the environment"),
    "a file that Python's own parser opens": Way(
        {"mypol.py": "import configparser\n\ndef sign():\n    read = configparser.ConfigParser()\n"
         "    read.read('s.ini')\n    return int(read['s']['s'])\n\n" + KEY.format("sign()"), "s.ini": "[s]\ns=1"},
        then={"s.ini": "[s]\ns=-1"}, unknown="mypol.sign uses configparser"),
    "a line of a file": Way(
        {"mypol.py": "import linecache\n\n" + KEY.format("int(linecache.getline('s.txt', 1))"), "s.txt": "1\n"},
        then={"s.txt": "-1\n"}, unknown="mypol.mine uses linecache"),
    "globals and helpers of a notebook cell": Way(script=CELL.format(1), script_then=CELL.format(-1)),
    "a base class": Way({"mypol.py": BASED, "helper.py": FIRST.format(1)}, then={"helper.py": FIRST.format(-1)}),
    "a package installed from a folder": Way(
        {"mypol.py": "import sys\nsys.path.append('site-packages')\nfrom helper import S\n\n" + KEY.format("S"),
         "site-packages/helper/__init__.py": "S = 1", "site-packages/helper-1.0.dist-info/METADATA": "Name: helper\n"
         "Version: 1.0\n", "site-packages/helper-1.0.dist-info/top_level.txt": "helper\n",
         "site-packages/helper-1.0.dist-info/direct_url.json": '{"url": "file:///helper"}'},
        then={"site-packages/helper/__init__.py": "S = -1"}),
}  # fmt: skip


ROWS = "id,arrival,gpu_time\n" + "".join(f"{i},{i},{{}}\n" for i in range(9))
SERVED: dict[str, Any] = {
    "name": "s", "horizon": "20 s", "cluster": {"nodes": {"cpus": 4, "gpus": {"type": "v100", "count": 1}}},
    "workload": [{"name": "web", "arrivals": {"process": "poisson", "rate": "20/s"}, "service": {"profile": "p.yaml"}}],
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 9000,
    "intermediate_size": 4096,
}  # fmt: skip
FAULTS = "time,device,event\n5,n0/g0,down\n{},n0/g0,up\n"
JOBS = "name,time,application,num_replicas,batch_size\na,5,net,2,16\nb,65,net,1,16\n"
MEASURED = "placement,local_bsz,step_time,sync_time\n1,8,1.0,0.0\n1,16,1.8,0.0\n2,8,1.1,0.1\n2,16,1.9,0.1\n"
EPOCHS = "progress,iteration,metric,grad_sqr,grad_var\n100,100,0,0.0,1.0\n2000,2000,0,1.0,2.0\n"


def traced(form: str, **keys: Any) -> dict[str, Any]:
    return {**BASE, "policy": "fcfs", "workload": [{"name": "jobs", "trace": {"format": form, **keys}}]}


POLLUX = {**traced("pollux", path="jobs.csv", profiles="p"), "policy": "las_intervals"}
DATA = {
    "a trace": Way({"jobs.csv": ROWS.format(*9 * "1")}, "", {"jobs.csv": ROWS.format(*9 * "9")},
                   scenario=traced("tasks", path="jobs.csv")),
    "a trace whose name has no suffix": Way({"jobs": ROWS.format(*9 * "1")}, "", {"jobs": ROWS.format(*9 * "9")},
                                            scenario=traced("tasks", path="jobs")),
    "a table that a profile names": Way(
        {"p.yaml": "service: {compute: {table: times.csv, unit: ms}}", "times.csv": "batch,time\n1,10\n8,20\n"}, "",
        {"times.csv": "batch,time\n1,20\n8,40\n"}, scenario=SERVED),
    "a profile": Way({"p.yaml": "service: {compute: {fixed: 1 ms, per_item: 10 ms}}"}, "",
                     {"p.yaml": "service: {compute: {fixed: 1 ms, per_item: 20 ms}}"}, scenario=SERVED),
    "a list of faults": Way({"down": FAULTS.format(9)}, "", {"down": FAULTS.format(90)}, scenario={
        **BASE, "policy": "fcfs", "faults": [{"file": "down"}]}),
    "a file in a folder of profiles": Way(
        {"jobs.csv": JOBS, "p/net/placements.csv": MEASURED, "p/net/validation-16.csv": EPOCHS}, "",
        {"p/net/placements.csv": MEASURED.replace("1.8", "2.8")}, scenario=POLLUX),
    "a model's own file": Way(
        {"config.json": json.dumps(LLAMA)}, "", {"config.json": json.dumps({**LLAMA, "num_hidden_layers": 16})},
        scenario={**SERVED, "workload": [{
            "name": "chat", "arrivals": {"process": "poisson", "rate": "1/s"}, "tokens": {"prompt": 99, "output": 9},
            "service": {"kind": "llm", "model": {"config": "config.json"}, "gpu": "h100"}}]}),
    "a recorded distribution": Way(
        {"times": "x\n" + "1\n" * 9}, "", {"times": "x\n" + "9\n" * 9},
        scenario={**BASE, "policy": "fcfs", "workload": [{**BASE["workload"][0], "gpu_time": {
            "distribution": "empirical", "path": "times", "column": "x"}}]}),
}  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def goes_stale(way: Way, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that after a change the figure is the right one, and before it a warning if that is unknown."""
    write(folder, way.files)
    before, told = called(folder, way.script, way.scenario)
    (kept,) = stored_runs(folder / "cache").values()
    assert bool(kept.unknown) == bool(way.unknown)
    write(folder, way.then)
    for name, value in way.environment.items():
        monkeypatch.setenv(name, value)
    script = way.script_then or way.script
    right, _ = called(folder, script, way.scenario, keep=False)
    assert right != before, "the change changes nothing"
    after, told_after = called(folder, script, way.scenario)
    assert after == right
    for texts in (told, told_after):
        assert [way.unknown in text for text in texts] == [True] * bool(way.unknown), texts


@pytest.mark.quick(3)
@LINUX
@pytest.mark.parametrize("name", CODE)
def test_code_that_changes_gives_a_new_figure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    goes_stale(CODE[name], tmp_path, monkeypatch)


@pytest.mark.quick(2)
@LINUX
@pytest.mark.parametrize("name", DATA)
def test_a_file_that_changes_gives_a_new_figure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    goes_stale(DATA[name], tmp_path, monkeypatch)


def test_all_that_is_in_a_folder_counts(tmp_path: Path):
    write(tmp_path, DATA["a file in a folder of profiles"].files)
    seen = set()
    for name in ("", "p/net/validation-32.csv", "p/net/inside/notes.txt"):
        write(tmp_path, {name: "x"} if name else {})
        scenario = load(POLLUX, base=tmp_path)
        seen.add(Identity().scenario(scenario))
        assert Identity().scenario(scenario) in seen
    assert len(seen) == 3
    moved = load(yaml.safe_load(load(POLLUX, base=tmp_path).to_yaml(absolute_paths=True)))
    assert moved.raw["workload"][0]["trace"]["profiles"] == str(tmp_path / "p")
    assert sorted(path.name for path in moved.files) == sorted(path.name for path in scenario.files)


def test_a_name_is_not_a_file_because_one_is_called_so(tmp_path: Path):
    write(tmp_path, {"jobs": ROWS.format(*9 * "1"), "fcfs": "x", "d": "x"})
    scenario = load({**traced("tasks", path="jobs"), "name": "jobs"}, base=tmp_path)
    assert scenario.files == [tmp_path / "jobs"]
    full = yaml.safe_load(scenario.to_yaml(absolute_paths=True))
    assert (full["name"], full["workload"][0]["trace"]["path"]) == ("jobs", str(tmp_path / "jobs"))
    assert full["workload"][0]["name"] == "jobs"


def made(folder: Path) -> dict[str, int]:
    """When each finished run was written."""
    return {path.name: path.stat().st_mtime_ns for path in (folder / "cache").iterdir()}


@LINUX
def test_code_that_does_not_change_is_not_run_again(tmp_path: Path):
    """Neither do comments, nor another order of what has no order."""
    write(tmp_path, {"mypol.py": KEY.format("sum({1, 2, 'x' and 3})")})
    called(tmp_path, "from mypol import mine", BASE)
    before = made(tmp_path)
    write(tmp_path, {"mypol.py": "# A comment.\n\n\n" + KEY.format("sum({1, 2, 'x' and 3})")})
    called(tmp_path, "from mypol import mine", BASE)
    assert made(tmp_path) == before


@LINUX
def test_unknown_inputs_are_trusted_if_asked(tmp_path: Path):
    write(tmp_path, {"mypol.py": OPENED, "s.txt": "1"})
    first, _ = called(tmp_path, "from mypol import mine", BASE)
    write(tmp_path, {"s.txt": "-1"})
    before = made(tmp_path)
    again, told = called(tmp_path, "from mypol import mine", BASE, trust=True)
    assert (again, made(tmp_path)) == (first, before)
    assert "saved runs are reused nevertheless, because of trust" in told[0]
    assert called(tmp_path, "from mypol import mine", BASE)[0] != first
    assert made(tmp_path) != before


@pytest.mark.quick(1)
@LINUX
@pytest.mark.parametrize("watched", [False, True])
def test_a_policy_may_say_what_it_is(watched: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Then the text is all that counts of its code, also where another policy had all opened files watched before."""
    if watched:
        alone = in_fork
        monkeypatch.setattr(sys.modules[__name__], "in_fork", lambda call: alone(lambda: (watch_opens(), call())[1]))
    write(tmp_path, {"mypol.py": OPENED + "\nmine.identity = 'with 1'\n", "s.txt": "1"})
    first, told = called(tmp_path, "from mypol import mine", BASE)
    write(tmp_path, {"s.txt": "-1"})
    assert called(tmp_path, "from mypol import mine", BASE) == (first, []) == (first, told)
    write(tmp_path, {"mypol.py": OPENED + "\nmine.identity = 'with -1'\n"})
    assert called(tmp_path, "from mypol import mine", BASE)[0] != first


def test_a_file_that_was_edited_after_its_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, {"edited_after_import.py": KEY.format(1)})
    registry.register("mine", __import__("edited_after_import").mine)
    first = sweep(BASE, {"seed": [1]}, cache=tmp_path / "cache").table["response_mean"][0]
    write(tmp_path, {"edited_after_import.py": KEY.format(-1)})
    with pytest.raises(UsageError, match=r"edited_after_import\.py has changed since it was imported: mine "
                                         r"differs from its"):
        sweep(BASE, {"seed": [1]}, cache=tmp_path / "cache")
    write(tmp_path, {"edited_after_import.py": KEY.format(1)})
    assert sweep(BASE, {"seed": [1]}, cache=tmp_path / "cache").table["response_mean"][0] == first


def test_a_policy_of_ours_counts_with_the_packages_that_it_imports():
    parts = Identity().parts(load({**BASE, "policy": "edf"}))
    assert "package pydantic" in parts
    assert "package pydantic" not in Identity().parts(load({**BASE, "policy": "fcfs"}))


VALUES = """
import collections, dataclasses, enum, functools, re, sys, typing
import numpy as np, pandas as pd
from hetsim.experiment.code_digest import code_digest

class Color(enum.Enum):
    RED = 1

@dataclasses.dataclass
class Point:
    x: float = 1.0
    names: set[str] = dataclasses.field(default_factory=lambda: {"a", "b", "c"})

NAMES = frozenset({"x", "y", "z"})

def use(task, of=NAMES, *, by={name: 1 for name in {"p", "q", "r"}}):
    return task in {"one", "two", "three"} and NAMES and Point and np.mean(by)

for value in [
    NAMES, {name: {name} for name in NAMES}, Point(), Color.RED, use, functools.partial(use, of={"s", "t"}), Point,
    Color, collections.Counter("hello"), collections.defaultdict(set, a={"b", "c"}), re.compile("a"),
    typing.Optional[Point], np.arange(5.0), np.array(["a", None], dtype=object), np.random.default_rng(3),
    pd.DataFrame({"a": [1], "b": ["x"]}), np.float32(2), 10**5000, float("nan"), "\\ud800",
    functools.lru_cache(use), [1, [2, (3, None)]],
]:
    digest, reasons = code_digest(value)
    assert not reasons, (value, reasons)
    print(digest)
"""


@pytest.mark.slow
def test_equal_objects_have_equal_digests_in_every_process():
    """Whatever order sets have there; and unequal ones have others."""
    found = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(pages.SOURCES)}
        done = subprocess.run([sys.executable, "-c", VALUES], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found.append(done.stdout.split())
    assert found[0] == found[1]
    assert len(set(found[0])) == len(found[0])


def test_objects_without_a_digest_are_named():
    rows = (one for one in [1])
    digest, reasons = code_digest(lambda task: rows)
    assert reasons == (
        "test_inputs.test_objects_without_a_digest_are_named.<locals>.<lambda> has an object of builtins.generator, "
        "whose state cannot be read",
    )
    assert code_digest(np.random.default_rng(1)) != code_digest(np.random.default_rng(2))
    cycle: list[Any] = []
    cycle.append(cycle)
    assert code_digest(cycle) == code_digest(cycle)
    assert code_digest([[]]) != code_digest([])
    shared: list[Any] = []
    assert code_digest([shared, shared]) != code_digest([[], []])  # what is done to one is done to the other


def test_what_reads_the_clock_or_changes_a_library_is_told():
    import datetime
    import os as environment
    import time
    from datetime import datetime as moment

    def changes(task: Any) -> float:
        np.random.default_rng = task
        return 0.0

    keys = [
        lambda task: time.perf_counter(), lambda task: time.monotonic(), lambda task: datetime.datetime.now().hour,
        lambda task: moment.utcnow().hour, lambda task: datetime.date.today().day, changes, lambda view: view.now,
        lambda task: np.random.default_rng(1), lambda task: datetime.datetime(2026, 1, 1).year,
        lambda task: environment.environ["S"],
    ]  # fmt: skip
    reasons = [" ".join(code_digest(key)[1]).rpartition("> ")[2] for key in keys]
    assert reasons[:5] == ["reads the clock"] * 5
    assert [reason.endswith("reads the environment") for reason in reasons[9:]] == [True]
    assert reasons[5].endswith("changes changes numpy.random.default_rng")
    assert reasons[6:9] == ["", "", ""]


@pytest.mark.slow
def test_whatever_looks_outside_is_told_by_each_of_its_names():
    import gzip
    import importlib.util
    import pathlib
    import random
    import uuid
    import xml.etree.ElementTree as tree
    from codecs import open as codec_open
    from io import FileIO
    from os import getpid
    from os.path import exists as is_there
    from pathlib import Path as Place

    import pyarrow as pa
    import pyarrow.dataset as parts
    import pyarrow.parquet as parquet
    from scipy.io import mmread

    read, bound, now = pathlib.Path.read_text, Place("s.txt").read_text, __import__("datetime").datetime.now
    unpacked, given_out = gzip.GzipFile, np.frompyfunc(lambda x: -x, 1, 1)
    none, draws = "", "draws from a random generator without a seed"
    keys: list[tuple[Callable[..., Any], str]] = [
        (lambda task: codec_open("s.txt"), "opens files (open)"),  # noqa: SIM115
        (lambda task: FileIO("s.txt"), "opens files (FileIO)"),
        (lambda task: unpacked("s.gz"), "opens files (GzipFile)"),
        (lambda task: read(Place("s.txt")), "opens files (Path.read_text)"),
        (lambda task: bound(), "opens files (Path.read_text)"),
        (lambda task: is_there("s.txt"), "opens files (exists)"),
        (lambda task: os.path.lexists("s.txt"), "opens files (lexists)"),
        (lambda task: os.access("s.txt", 4), "queries the system (os.access)"),
        (lambda task: os.readlink("s.txt"), "queries the system (os.readlink)"),
        (lambda task: getpid(), "queries the system (os.getpid)"),
        (lambda task: os.spawnlp(os.P_WAIT, "test", "test"), "starts processes"),
        (lambda task: tree.parse("s.xml"), "uses xml.etree"),
        (lambda task: importlib.util.find_spec("helper"), "searches for modules"),
        (lambda task: mmread("s.mtx"), "opens files (mmread)"),
        (lambda task: pa.memory_map("s.txt"), "opens files (memory_map)"),
        (lambda task: pa.OSFile("s.txt"), "opens files (OSFile)"),
        (lambda task: parquet.ParquetFile("s"), "opens files (ParquetFile)"),
        (lambda task: parts.dataset("s"), "opens files (dataset)"),
        (lambda task: now(), "reads the clock"),
        (lambda task: pd.Timestamp.now(), "reads the clock"),
        (lambda task: uuid.uuid4().int, "reads system randomness"),
        (lambda task: np.random.default_rng().random(), draws),
        (lambda task: np.random.Generator(np.random.MT19937()).random(), draws),
        (lambda task: random.SystemRandom().random(), "reads system randomness"),
        (lambda task: random.Random().random(), draws),
        (lambda task: given_out(1.0), "has an object of numpy.ufunc, whose state cannot be read"),
        (lambda task: np.random.default_rng(task.index).random() + random.Random(3).random(), none),
        (lambda task: np.sqrt(1.0) + uuid.uuid5(uuid.NAMESPACE_DNS, "x").int, none),
        (lambda task: os.fspath("a") + os.path.join("a", os.sep), none),
        (lambda task: gzip.decompress(b""), none),
    ]
    for key, reason in keys:
        said = " ".join(code_digest(key)[1])
        assert reason in said and bool(said) == bool(reason), (reason, said)


def test_locks_weak_references_and_dispatching_functions_have_digests():
    """A lock has no state to count; a weak reference is what it refers to; calls change nothing of a dispatcher."""
    import threading
    import weakref

    def referred(value: float) -> Any:
        return (one := Holder(value)), weakref.ref(one)

    class Holder:
        def __init__(self, value: float):
            self.value = value

    def dispatcher(sign: int) -> Any:
        @functools.singledispatch
        def key(value: Any) -> float:
            return float(value)

        key.register(str, lambda value: sign * len(value))
        return key

    first, reference = referred(1.0)
    same, equal = referred(1.0)
    other, unequal = referred(2.0)
    assert code_digest(threading.Lock()) == code_digest(threading.Lock()) != code_digest(threading.RLock())
    assert code_digest(reference) == code_digest(equal) != code_digest(unequal)
    key, unlike = dispatcher(1), dispatcher(-1)
    before = code_digest(key)
    assert before[0] != code_digest(unlike)[0]
    key("text")
    assert code_digest(key) == before
    key.factor = 2  # of the user's, which code may read
    assert code_digest(key) != before
    for one in (threading.Lock(), threading.Event(), reference, key, first, same, other):
        assert not code_digest(lambda task, one=one: one)[1]


def test_what_is_named_by_a_text_or_describes_code_is_told():
    import inspect
    import io
    import operator
    import typing
    from operator import methodcaller as caller

    text, called = "read_text", operator.methodcaller("read_bytes")
    longer, counted = operator.methodcaller("extend", [1, 2]), operator.methodcaller("get", "stat", None)
    folder = Path("s.txt")
    keys: list[tuple[Callable[..., Any], str]] = [
        (lambda task: operator.methodcaller("read_text")(folder), "opens files (read_text)"),
        (lambda task: caller(task.name)(folder), "reads attributes by computed names"),
        (lambda task: caller("lower")(task.name), ""),
        (lambda task: called(folder), "opens files (read_bytes)"),
        (lambda task: longer(task), ""), (lambda task: counted(task), ""),
        (lambda task: operator.attrgetter("exists")(folder)(), "opens files (exists)"),
        (lambda task: getattr(io, "op" + "en")("s.txt"), "opens files"),
        (lambda task: getattr(os, task.name), "reads a computed name of os"),
        (lambda task: getattr(np, "sqrt")(4), ""),  # noqa: B009
        (lambda task: getattr(task, text, None), ""),
        (lambda task: np.datetime64("now"), "reads the clock"), (lambda task: pd.Timestamp("today"), "reads the clock"),
        (lambda task: np.datetime64("2026-01-01"), ""),
        (lambda task: sys.getrecursionlimit(), "reads settings of the process"),
        (lambda task: np.get_printoptions(), "reads settings of the process"),
        (lambda task: len(Way.__doc__ or ""), "reads descriptions (__doc__)"),
        (lambda task: Way.__annotations__, "reads descriptions (__annotations__)"),
        (lambda task: typing.get_type_hints(Way), "reads annotations"),
        (lambda task: inspect.signature(helper), "reads annotations"),
        (lambda task: inspect.getdoc(Way), "reads docstrings"),
    ]  # fmt: skip
    for number, (key, reason) in enumerate(keys):
        said = [one.rpartition("> ")[2] for one in code_digest(key)[1]]
        assert (reason in said) if reason else not said, (number, said)


ORDERED = """
import sys, numpy as np
from hetsim.experiment.code_digest import code_digest
NAMES = {"p", "q", "r", "s", "t"}
MADE = {name: len(name) for name in NAMES}
KEPT, BY_NUMBER = {"a": 1.0, "b": -1.0}, {3: 1.0, 1: -1.0}
TURNED, NUMBERS_TURNED = dict(reversed(KEPT.items())), dict(reversed(BY_NUMBER.items()))
looked_up = lambda task: MADE["p"] + MADE.get(task.name, 1) + (task.name in MADE) + KEPT[task.name]
gone_through = [lambda task: next(iter(KEPT.values())), lambda task: [one for one in KEPT], lambda task: list(KEPT)]
print(code_digest(looked_up)[0])
print(*(code_digest(one)[0] for one in gone_through))
numbers = code_digest(lambda task: BY_NUMBER.get(1))
before = code_digest(looked_up), [code_digest(one) for one in gone_through], code_digest(BY_NUMBER)
KEPT = TURNED
after = code_digest(looked_up), [code_digest(one) for one in gone_through], code_digest(NUMBERS_TURNED)
assert before[0] == after[0] and before[2] != after[2]
assert all(one != other for one, other in zip(before[1], after[1])), (before, after)
print(code_digest(lambda task: sum(MADE.values()))[0] if "through" in sys.argv else "")
"""


@pytest.mark.slow
def test_the_order_of_a_dict_counts_where_code_goes_through_it():
    """And of one with whole numbers always; of one that is made of a set and looked up in it differs in no process."""

    def printed(seed: str, *words: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(pages.SOURCES)}
        done = subprocess.run([sys.executable, "-c", ORDERED, *words], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert printed("1") == printed("2")
    assert printed("1", "through") == printed("1", "through") != printed("2", "through")


def test_members_of_a_class_count_in_their_order_and_names_of_a_module_do_not():
    one, other = (type("Q", (), names) for names in ({"a": 1, "b": 2}, {"b": 2, "a": 1}))
    assert code_digest(one) != code_digest(other)
    first, second = (types.ModuleType("names_of_a_module") for _ in range(2))
    vars(first).update(a=1, b=2)
    vars(second).update(b=2, a=1)
    digests = set()
    for module in (first, second):
        names = {"module": module, "__name__": "__main__"}
        exec("def key(task):\n    return module.__dict__['a']", names)
        digest, reasons = code_digest(names["key"])
        assert reasons == ()
        digests.add(digest)
    assert len(digests) == 1
    vars(second)["a"] = 3
    assert code_digest(names["key"])[0] not in digests


BY_HASH = """
import sys
import hetsim as hs
from hetsim import registry
from hetsim.experiment.sweep import sweep

def mine(task):
    return hash(str(task.index))

registry.register("mine", mine)
for cache in ("cache", None):
    print(sweep({}, {{"seed": [1]}}, cache=cache).table["response_mean"][0])
"""


@pytest.mark.slow
def test_a_figure_of_one_hash_seed_is_not_given_out_under_another(tmp_path: Path):
    """Where the seed is a number, it counts with the policy."""
    script = BY_HASH.format(BASE)
    figures = []
    for seed in ("1", "2", "1"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(pages.SOURCES)}
        done = subprocess.run([sys.executable, "-W", "error", "-c", script], env=env, cwd=tmp_path,
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, done.stderr
        kept, right = done.stdout.split()
        assert kept == right
        figures.append(right)
        assert len(made(tmp_path)) == len(set(figures))
    assert figures[0] == figures[2] != figures[1]


class ByName:
    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return hash(self.name) + super().__hash__() + max(id(one) for one in (self,))


@dataclass(frozen=True)
class Frozen:
    name: str = "a"


@pytest.mark.quick(0)
def test_what_depends_on_the_process_is_told(monkeypatch: pytest.MonkeyPatch):
    """Values of hash() and id(), but not where they only look something up, or are those of a class."""
    import builtins

    rows: dict[int, Any] = {}

    def counts(task: Any) -> Any:
        rows[id(task)] = rows[hash((task, 1))] = 1
        del rows[id(task.shape)]
        return rows[id(task)] if id(task) in rows and id(task) not in task.job.rows else {ByName("a"), Frozen()}

    named = [lambda task: hash(task.name), lambda task: builtins.hash(task), functools.partial(sorted, key=hash),
             lambda task: task.name.__hash__(), lambda task: [rows, hash(task)][1]]  # fmt: skip
    numbered = [lambda task: id(task), lambda task: rows[0] if id(task) < id(rows) else 0,
                lambda task: sorted(task, key=id)]  # fmt: skip
    plain = [counts, lambda hash, id: hash(id), ByName("a"), ByName, Frozen, Frozen(), lambda task: task.id(task.hash)]
    for seed, calls in ((None, "calls hash(), whose result"), ("random", ", whose result for texts differs in "
                                                                         "another process unless "
                                                                         "PYTHONHASHSEED"), ("3", "")):
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        if seed:
            monkeypatch.setenv("PYTHONHASHSEED", seed)
        for key in named:
            assert calls in (reason := " ".join(code_digest(key)[1])) and bool(calls) == bool(reason)
        for key in numbered:
            assert "calls id(), whose result" in " ".join(code_digest(key)[1])
        assert [code_digest(key)[1] for key in plain] == [()] * len(plain)


@pytest.mark.slow
def test_the_order_of_a_set_is_told(monkeypatch: pytest.MonkeyPatch):
    """Where code takes the members of a set that it makes there, unless sorted(), any() or a set does."""
    import functools

    def a(task: Any) -> Any:
        for name in {task.name, task.user}:
            task.names.append(name)

    def b(task: Any) -> Any:
        return [name + name for name in set(task.names)]

    def c(task: Any) -> Any:
        return list({one.name for one in task})[0]

    def d(task: Any) -> Any:
        return ", ".join({task.name, "x"}) if task else next(iter({task.name, "y"}))

    def e(task: Any) -> Any:
        return {one.name: 1 for one in {task, task.job}}, tuple(set(task))

    def f(task: Any) -> Any:
        return [*set(task.names)]

    def g(task: Any) -> Any:
        for name in {"a"} | task.names:
            task.names.append(name)

    def h(task: Any) -> Any:
        return next(iter(frozenset(task)))

    def i(task: Any) -> Any:
        return [number for number, name in enumerate(set(task))]

    def j(task: Any) -> Any:
        return dict.fromkeys(set(task))

    def k(task: Any) -> Any:
        return list(map(str, set(task)))

    def m(task: Any) -> Any:
        return {task.name, "b"}.pop()

    def n(task: Any) -> Any:
        first, _ = {task.name, "b"}
        return first

    def o(task: Any) -> Any:
        return sorted(set(task), key=len)

    def p(task: Any) -> Any:
# a comment that is not indented
        return list(set(task))

    @functools.wraps(h)
    def q(task: Any) -> Any:
        return list(set(task))

    def plain(task: Any) -> Any:
        if task.name in {"a", task.user} or any(one.late for one in {task, task.job}) or len({1, task.name}) > 1:
            return sorted(one.name for one in {task, task.job}), sorted(set(task.names)), {x.y for x in set(task.xs)}
        for name in sorted({task.name, task.user}):
            task.names.append(name)
        if sorted([*set(task.names)]) == sorted(name for name in list({"a", task.name})):
            return max(one.late for one in set(task)), {*set(task)} | {"a"}, len([*set(task)])
        return list(dict.fromkeys(task.names)), max(set(task.numbers)), list(task.names), "".join("ab")

    for seed in (None, "random", "3"):
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        if seed:
            monkeypatch.setenv("PYTHONHASHSEED", seed)
        for key in (a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, q):
            assert ("iterates over a set, whose order differs in another process" in " ".join(code_digest(key)[1])) == (
                seed != "3"
            )
        assert code_digest(plain)[1] == ()
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def sourceless(task):\n    return list({task.name, 1})", names)
    assert code_digest(names["sourceless"])[1] == ()  # its source is nowhere


@pytest.mark.slow
def test_no_shipped_policy_depends_on_the_process():
    """If its code counted as the user's, which that of a subclass does."""
    items = [registry.reference(kind, name) for kind in registry.POLICY_KINDS for name in registry.policies(kind)]
    walk = code_digest([registry.load_object(item) if isinstance(item, str) else item for item in items],
                       "hetsim_policies")  # fmt: skip
    assert not [reason for reason in walk[1] if "another process" in reason]


def test_a_function_put_into_a_library_counts(monkeypatch: pytest.MonkeyPatch):
    """It may change what hetsim draws, though the policy does not name it."""

    def key(task: Any) -> float:
        return 1.0

    before = code_digest(key)
    seen = [before]
    for number in (7, 8, 7):
        monkeypatch.setattr(np.random, "default_rng", lambda *_, number=number: np.random.Generator(number))
        seen.append(code_digest(key))
        monkeypatch.undo()
    assert seen[1] == seen[3] and len(set(seen)) == 3
    monkeypatch.setattr(np.random, "default_rng", np.random.Generator)  # of the library's own: not the user's code
    assert code_digest(key) == before


# Files that are opened and not named ---------------------------------------------------------------------------------

READER = """from pathlib import Path

from hetsim.model.units import ExistingFile
from hetsim.policy import ListScheduler

class mine(ListScheduler):
    def __init__(self, path: ExistingFile):
        sign = float(open(path).read()) * float({})
        super().__init__(lambda task: sign * task.shortest_estimate)
"""
NAMING = {**BASE, "policy": {"scheduler": {"name": "mine", "path": "s.txt"}}}


@pytest.mark.slow
@LINUX
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_policy_may_open_a_file_that_the_scenario_names(tmp_path: Path):
    """And no other: what was opened is compared with what was named."""
    write(tmp_path, {"mypol.py": READER.format("1"), "s.txt": "1", "t.txt": "1"})
    script = "from mypol import mine; import warnings; warnings.simplefilter('ignore', ResourceWarning)"
    before, told = called(tmp_path, script, NAMING)
    kept = made(tmp_path)
    assert not [text for text in told if "unknown" in text or "known" in text]
    assert (called(tmp_path, script, NAMING)[0], made(tmp_path)) == (before, kept)
    write(tmp_path, {"s.txt": "-1"})
    assert called(tmp_path, script, NAMING)[0] != before
    write(tmp_path, {"s.txt": "1", "mypol.py": READER.format("open('t.txt').read()")})
    assert called(tmp_path, script, NAMING)[0] == before
    (new,) = [one for one in stored_runs(tmp_path / "cache").values() if one.unknown]
    text = "opened files that the scenario does not name: t.txt"
    assert new.unknown == text
    assert text in new.warnings
    write(tmp_path, {"t.txt": "-1"})
    assert called(tmp_path, script, NAMING)[0] != before


@pytest.mark.slow
def test_shipped_scenarios_open_what_they_name():
    """While they are loaded and built, and static policies plan; test_audit runs them whole."""

    def watched() -> tuple[dict[str, str], int]:
        found, read = {}, 0
        watch_opens()
        for one in shipped():
            scenario = load(one.path)
            with recorded_inputs() as opened:
                scenario.build()
                scenario.policies.scheduler.make()
            read += sum(len(table.opened) for table in scenario._tables.values())
            if text := scenario.undeclared(opened):
                found[one.name] = text
        return found, read

    found, read = in_fork(watched)
    assert found == {}
    assert read > 20


# Only one function opens --------------------------------------------------------------------------------------------

ELSEWHERE = (
    "build.py", "calibrate", "cli", "experiment", "gallery", "page", "plots", "report", "results", "testing",
    "learning/training",
)  # fmt: skip
"""Rooms that read no input of a run: measurements, results, and code as such.  All others are looked through."""
OPENING = ("open", "read_text", "read_bytes", "fdopen")
LIBRARIES = frozenset((
    "numpy", "pandas", "pyarrow", "scipy", "gzip", "bz2", "lzma", "zipfile", "tarfile", "sqlite3", "mmap", "shelve",
))  # fmt: skip
READS = re.compile(
    "read_|load|open|from(file|txt)|genfromtxt|mem(ory_)?map|input_stream|dataset|connect|(File|Store|Archive|Dataset)$"
)
"""How the functions and classes of libraries are called that open a file, given its name."""
CALLED = re.compile("|".join(OPENING) + "|" + READS.pattern)
"""No other name is one of these."""
OPENERS = ("open_input", "open_text", "opened", "_bytes_of", "GzipFile", "BytesIO")
"""What makes an open file: the one function, those that call it, and wrappers of an open file."""


def test_what_python_itself_looks_for_is_no_input(tmp_path: Path):
    """Finding distributions tries each entry of sys.path as an archive, and reads the metadata of those it finds."""

    def opened() -> list[str]:
        watch_opens()
        about = tmp_path / "theirs-1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Name: theirs\n")
        (tmp_path / "data.txt").write_text("1")
        with recorded_inputs() as found:
            for file in (tmp_path / "missing", about / "METADATA", tmp_path / "data.txt"):
                try:
                    file.read_text()
                except FileNotFoundError:
                    continue
        return [path.name for path in found.seen]

    assert in_fork(opened) == ["data.txt"]


def opening(tree: ast.Module) -> list[str]:
    """Calls that open a file by themselves, or hand a library what is no open file."""
    nodes = [*syntax.nodes_of(tree)]
    if not any(isinstance(node, ast.Call) and CALLED.search(called_name(node)) for node in nodes):
        return []
    libraries = {
        (one.asname or one.name).partition(".")[0] for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names
        if (getattr(node, "module", None) or one.name).partition(".")[0] in LIBRARIES
    }  # fmt: skip
    functions = sorted((node for node in nodes if isinstance(node, ast.FunctionDef)), key=lambda one: one.lineno)
    found = {}
    for scope in (tree, *functions):  # inner functions come later: what is found in them counts
        within = nodes if scope is tree else syntax.nodes_of(scope)
        calls = [node for node in within if isinstance(node, ast.Call) and CALLED.search(called_name(node))]
        bound = [*_bound(scope)] if calls else []
        files = {name for name, _, value in bound if called_name(value) in OPENERS}
        files -= {name for name, entered, value in bound if not entered and called_name(value) not in OPENERS}
        for node in calls:
            found[node.lineno, node.col_offset] = ast.unparse(node) if _opens(node, libraries, files) else ""
    return [f"{line}: {text}" for (line, _), text in sorted(found.items()) if text]


def called_name(node: ast.AST | None) -> str:
    """The name of what is called, without its owner; of `a if b else c` that of `a`."""
    node = node.body if isinstance(node, ast.IfExp) else node
    function = node.func if isinstance(node, ast.Call) else node
    return getattr(function, "id", None) or getattr(function, "attr", "") if isinstance(node, ast.Call) else ""


def _bound(scope: ast.AST) -> Iterator[tuple[str, bool, ast.AST | None]]:
    """Names that a function gives to values (of its parameters None), and whether `with` does."""
    for node in ast.walk(scope):
        if isinstance(node, ast.withitem) and isinstance(node.optional_vars, ast.Name):
            yield node.optional_vars.id, True, node.context_expr
        elif isinstance(node, ast.Assign):
            yield from ((target.id, False, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.arg) and isinstance(scope, ast.FunctionDef):
            yield node.arg, False, None


def _opens(node: ast.Call, libraries: set[str], files: set[str]) -> bool:
    name, root = called_name(node), node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
    if not (isinstance(root, ast.Name) and root.id in libraries):
        writes = bool(node.args) and ast.unparse(node.args[-1]) == "'w'"
        return name in OPENING and owner not in ("self", "usage", "self._usage", "os") and not writes
    given = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
    is_file = (isinstance(given, ast.Name) and given.id in files) or called_name(given) in OPENERS
    by_name = bool(node.keywords) and not node.args and node.keywords[0].arg == "fileobj"
    writes = len(node.args) > 1 and ast.unparse(node.args[1]) in ("'w'", "'wb'")
    reads = READS.match(name) or (READS.search(name) and name[:1].isupper())
    return bool(reads) and not (is_file or by_name or writes)


@pytest.mark.slow
def test_only_one_function_opens_what_decides_a_run():
    """What another opened, or a library by its path, would be in no record."""
    top = Path(hetsim.__file__).parent
    files = [path for path in top.rglob("*.py") if not str(path.relative_to(top)).startswith(ELSEWHERE)]
    files += Path(hetsim_policies.__file__).parent.rglob("*.py")
    found = [f"{path.name} {text}" for path in sorted(files) for text in opening(ast.parse(path.read_text()))]
    assert len(files) > 300
    assert [(text.split()[0], text.partition(": ")[2]) for text in found] == [
        ("files.py", "path.open('rb')"),
        # Of what a command names, and of exchanges that are replayed, it gives the digests itself.
        ("external.py", "Path(word).read_bytes()"), ("external.py", "self._path.open('rb')"),
        ("external.py", "self._path.with_name(f'{name}-{token_hex(4)}.part').open('wb')"),
        ("exact.py", "pd.read_parquet(file)"),  # of a package whose version is in the record of a run
    ]


BY_NAME = re.compile(r"(xml|configparser|linecache|fileinput|shelve|dbm|sqlite3|runpy|pkgutil|mmap|subprocess|imp"
                     r"|h5py|importlib\.resources|pyarrow\.(fs|dataset))(\.|$)")  # fmt: skip
"""Modules that open what they are given the name of."""
BY_NAME_TOO = ("os.open", "os.popen", "io.FileIO", "codecs.open", "logging.FileHandler", "__loader__.get_data")
LISTING = ("iterdir", "glob", "rglob", "listdir", "scandir", "walk")


def handed_on(tree: ast.Module) -> list[str]:
    """Modules that open by name, openers as values (`read = pd.read_csv`), and listings of folders."""
    nodes = [*ast.walk(tree)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    names = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    bound = {id(node.value) for node in nodes if isinstance(node, ast.Assign) and {
        getattr(one, "id", None) for one in node.targets} & names}  # fmt: skip
    imported = {
        f"{node.module}.{one.name}" if isinstance(node, ast.ImportFrom) else one.name
        for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for one in node.names
    }  # fmt: skip
    libraries = {name.split(".")[0] for name in imported} & LIBRARIES | {"np", "pd", "pa", "pq", "io", "os", "csv"}
    found = [name for name in sorted(imported) if BY_NAME.match(name)]
    found += [f"{node.module}.{one.name}" for node in nodes if isinstance(node, ast.ImportFrom)
              for one in node.names if _hides(str(node.module), one)]  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.Call) and called_name(node) in ("getattr", "methodcaller", "attrgetter"):
            found += [ast.unparse(node) for one in node.args if getattr(one, "value", None) in OPENING]
        name = getattr(node, "id", None) or getattr(node, "attr", "")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LISTING:
            found.append(f".{node.func.attr}()" if ast.unparse(node.func.value) != "ast" else "")
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
            owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
            reads = owner in libraries and (READS.match(name) or name.endswith("FileIO"))
            opens = name in ("read_text", "read_bytes") or (name == "open" and isinstance(node, ast.Name))
            opens = opens or (name == "open" and id(node) in bound)
            if (id(node) not in called and (reads or opens)) or f"{owner}.{name}" in BY_NAME_TOO:
                found.append(ast.unparse(node))
    return sorted(text for text in found if text)


def _hides(module: str, one: ast.alias) -> bool:
    """Return True for an opener that is imported under a name by which the rule above does not know it."""
    if module.partition(".")[0] not in LIBRARIES | {"os", "io", "codecs", "glob", "builtins", "tokenize"}:
        return False
    other = one.asname not in (None, one.name) and (READS.match(one.name) or one.name in OPENING)
    return bool(other) or one.name in (*LISTING, "FileIO", "popen") or (module == "codecs" and one.name == "open")


@pytest.mark.slow
def test_openers_are_not_handed_on_and_folders_are_listed_where_that_is_recorded():
    """Nothing of this is seen by the rule above; each place that lists a folder records it, or reads no input."""
    top = Path(hetsim.__file__).parent
    files = [path for path in top.rglob("*.py") if not str(path.relative_to(top)).startswith(ELSEWHERE)]
    files += Path(hetsim_policies.__file__).parent.rglob("*.py")
    found = {path.name: texts for path in sorted(files) if (texts := handed_on(ast.parse(path.read_text())))}
    assert found == {
        "external.py": [".glob()", "subprocess"],  # exchanges, of which it gives the digests; a scheduler of the user's
        "files.py": [".glob()", ".glob()", "os.open"],  # what is left of files that were being written
        "scenario.py": [".rglob()"],  # the listing of a folder that a scenario names
        "shipped.py": [".glob()", ".glob()", "importlib.resources"],  # scenarios that ship
        "pollux.py": [".glob()", ".iterdir()"],  # in a folder that is recorded
        "shadow.py": [".glob()"],  # forecasts that were kept
    }


@pytest.mark.parametrize("text", [
    "f = pd.read_csv\nf(path)", "reads(pd.read_parquet)", "io.FileIO(path)", "os.open(path, 0)", "read = open",
    "read = Path.read_text", "codecs.open(path)", "import xml.etree.ElementTree", "from pyarrow import fs",
    "import linecache", "from os import open as o\no(path, 0)", "from io import FileIO\nFileIO(path)", "import mmap",
    "from io import open as o\no(path)", "from pandas import read_csv as r\nr(path)", "from codecs import open",
    "from pyarrow.parquet import read_table as r\nr(path)", "from os import listdir", "from glob import glob",
    "from numpy import load as l\nl(path)", "o = path.open\no()", "getattr(io, 'open')(path)", "import runpy",
    "operator.methodcaller('read_text')(path)", "__loader__.get_data(path)", "import configparser", "os.popen(text)",
    "import subprocess", "from importlib import resources", "logging.FileHandler(path)",
    "os.listdir(path)", "[*path.iterdir()]",
])  # fmt: skip
def test_what_hands_openers_on_is_found(text: str):
    assert len(handed_on(ast.parse(text))) == 1


IMPORTS = "import gzip, numpy as np, pandas as pd, zipfile; from numpy import load; from pyarrow import csv, parquet\n"


@pytest.mark.parametrize("text", [
    "open(path)", "path.open('rb')", "path.read_text()", "pd.read_csv(path)", "np.load(str(path))", "gzip.open(path)",
    "parquet.ParquetFile(self.path)", "load(path)", "pd.read_feather(path)", "pd.HDFStore(path)", "np.memmap(path)",
    "csv.read_csv(path)", "zipfile.ZipFile(path)", "pd.read_csv(filepath_or_buffer=path)", "gzip.GzipFile(path)",
    "source = path\npd.read_csv(source)", "def read(source):\n    return pd.read_csv(source)",
    "def read(path):\n    with open_input(path) as source:\n        return np.load(path)",
])  # fmt: skip
def test_what_opens_files_is_found(text: str):
    assert len(opening(ast.parse(IMPORTS + text))) == 1


@pytest.mark.parametrize("text", [
    "open_input(path)", "self.open(owner)", "usage.open(owner)", "pd.to_numeric(path)", "np.load(io.BytesIO(data))",
    "with open_input(path) as source:\n    parquet.read_table(source)", "gzip.GzipFile(fileobj=self._file)",
    "def read(path):\n    with opened(path) as source:\n        return pd.read_csv(source)",
    "zipfile.ZipFile(file, 'w')", "path.open('w')", "open(path, 'w')",
    "source = open_input(path)\nparquet.ParquetFile(source)",
])  # fmt: skip
def test_what_hands_on_open_files_is_not(text: str):
    assert opening(ast.parse(IMPORTS + text)) == []
