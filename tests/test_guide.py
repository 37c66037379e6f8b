"""The guide: its blocks run, its generated pages are up to date, its site is built without a dead link."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pages
import pytest
from shared_schema import shared_schema

import hetsim as hs
from hetsim import registry
from hetsim.results.formatting import unit_of
from hetsim.results.one_run.metrics import metrics

DOCS = pages.TOP / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "reference")
QUICK = {"index", "how-to/own-trace-reader", "background/model"}
"""Pages whose blocks the quick tier runs."""


SACCT = """\
JobID|User|Account|Partition|Submit|Start|End|State|Timelimit|AllocTRES|NodeList
5|ann|lab|gpu|2026-01-01T00:00:00|2026-01-01T00:00:10|2026-01-01T00:01:10|COMPLETED|00:05:00|cpu=8,gres/gpu:a100=2|n01
6|bob|lab|gpu|2026-01-01T00:01:00|2026-01-01T00:01:10|2026-01-01T00:03:00|TIMEOUT|00:01:00|cpu=4,mem=500M|n01
"""
JOBS = """\
job,submit_time,wait_s,runtime_s,nodes,gpus_per_node,mem,user,queue
1,2026-01-01 00:00:00,30,3600,1,4,64G,ann,q1
2,2026-01-01 00:10:00,0,,1,1,16G,,q2
3,2026-01-01 00:20:00,5,120,1,2,,bob,q2
"""
NODES = "NodeName=n01 CPUTot=64 Gres=gpu:a100:4(S:0-1) RealMemory=512000 State=IDLE\n"
SERVICE = "service: {upload: {per_item: 0.1 ms}, compute: {per_item: 1 ms, fixed: 5 ms}, download: {fixed: 0.1 ms}}\n"
MEASURED = {1: 6.1, 2: 6.3, 4: 6.6, 8: 7.2, 16: 11.9, 32: 21.5, 64: 40}
LATENCIES = "model,size,p50_ms\n" + "".join(f"resnet50,{size},{time}\n" for size, time in MEASURED.items())
REQUESTS = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 00:{minute:02}:00.0000000,{100 + minute},20\n" for minute in range(20)
)
ALL_REDUCE = "".join(
    [
        "# Collective test starting: all_reduce_perf\n",
        *(f"#  Rank {k} Group 0 Pid {k} on node0 device {k} [0x0f] NVIDIA A100-SXM4-80GB\n" for k in range(8)),
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n",
        *(
            f"{size} {size // 4} float sum -1 " + f"{us:.2f} {size / us / 1e3:.2f} {1.75 * size / us / 1e3:.2f} 0 " * 2
            + "\n"
            for size, us in ((1 << 20, 40), (1 << 23, 105), (1 << 26, 560), (1 << 29, 4100), (1 << 30, 8150))
        ),
    ]
)
FILES: dict[str, dict[str, str]] = {
    "traces": {
        "pods.csv": "scenarios/hetsim_scenarios/clusters/pods.csv",
        "nodes.csv": "scenarios/hetsim_scenarios/clusters/pods-nodes.csv",
        "sacct.txt": SACCT,
        "site-log.csv": "scenarios/hetsim_scenarios/clusters/site-log.csv",
        "jobs.csv": JOBS,
        "nodes.txt": NODES,
    },
    "calibrate": {
        "latencies.csv": LATENCIES,
        "network.service.yaml": SERVICE,
        "network.link.yaml": "pcie: {upload: 12 GB/s, download: 11 GB/s, latency: 10 us}\n",
        "AzureLLMInferenceTrace_code.csv": REQUESTS,
        "all_reduce.txt": ALL_REDUCE,
    },
    "how-to/language-model": {"profile.csv.gz": "tests/measured/splitwise_perf_model.csv.gz"},
    "how-to/from-a-log": {"site-log.csv": "scenarios/hetsim_scenarios/clusters/site-log.csv"},
    "how-to/parallel-training": {"vgg16-npu-gpu.csv": "scenarios/hetsim_scenarios/pipelines/vgg16-npu-gpu.csv"},
    "statistics": {"jobs.csv": "id,arrival,gpu_time\n" + "".join(f"{k},{k * 86400},3600\n" for k in range(60))},
    "learning": {"mine.npz": "scenarios/hetsim_scenarios/learning/affinity-dqn.npz"},
}
"""Files that pages take for given, as users have them: a shipped file, or a text."""


def page_id(page: Path) -> str:
    return page.relative_to(DOCS).with_suffix("").as_posix()


def marked(page: Path):
    return pytest.param(page, id=page_id(page), marks=[] if page_id(page) in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_every_block_runs(page, tmp_path, monkeypatch):
    import matplotlib

    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registered", {kind: dict(those) for kind, those in registry._registered.items()})
    modules = set(sys.modules)
    for name, source in FILES.get(page_id(page), {}).items():
        if source.startswith(("scenarios/", "tests/")):
            shutil.copy(pages.TOP / source, name)
        else:
            Path(name).write_text(source)
    try:
        pages.Reader().follow(page)
    finally:
        registry.of_packages.cache_clear()
        for name in set(sys.modules) - modules:  # what the page wrote and imported
            if Path(getattr(sys.modules[name], "__file__", None) or "/").is_relative_to(tmp_path):
                del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_what_is_not_run_says_so(page):
    """Blocks have a language; those that are only shown are text, output of an earlier run, or for the shell."""
    for block in pages.blocks(page):
        assert block.language in (*pages.RUN, "", "text", "sh", "toml"), f"{page.name}:{block.line}"
        if block.language in ("python", "yaml", "console") and block.shown_only:
            assert "the tests do not run" in block.above


def made():
    """The module docs/make_reference.py."""
    spec = spec_from_file_location("make_reference", DOCS / "make_reference.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_what_is_written_now():
    for name, text in made().pages().items():
        there = (DOCS / "reference" / name).read_text(encoding="utf-8")
        assert there == text, f"docs/reference/{name} is out of date: python docs/make_reference.py"


def policies():
    catalogue = import_module("hetsim_policies").CATALOGUE
    return [(kind, name) for kind, names in catalogue.items() for name in names]


@pytest.mark.parametrize(("kind", "name"), policies(), ids=lambda value: value)
def test_every_policy_says_where_it_comes_from_what_it_promises_and_what_it_costs(kind, name):
    reference = made()
    text = reference.head(registry.policy(kind, name))
    line = " ".join(text.split())
    assert reference.reference(text), "a reference, or the sentence that there is none"
    assert re.search(r"Cost(?: of all)?: \S", line)
    assert re.search(r"Weakness(?:es)?: \S", line) or reference.guarantee(text)


@pytest.mark.slow
def test_metrics_and_columns_of_the_reference_are_those_of_a_run():
    """Of runs with prices, a language model, fused kernels, a network, a pipeline: they have columns of their own."""
    reference = made()
    assert all(unit_of(name) for name in metrics())
    seen = {name: set() for name in reference.TABLES}
    priced = {**pages.WHOLE, "cluster": {"nodes": {"gpus": {"type": "g", "price": "1/h"}}}}
    split = hs.load("npu-and-gpu", {"cluster.nodes.gpus.price": "1/h", "workload.requests.count": 5})
    for scenario in (priced, LANGUAGE, "first-steps", "fused-network", NETWORK, split):
        result = hs.run(scenario)
        for name, columns in reference.TABLES.items():
            found = set(getattr(result, name).columns)
            assert found <= set(columns), name
            seen[name] |= found
    assert seen == {name: set(columns) for name, columns in reference.TABLES.items()}


NETWORK = {
    "cluster": {"nodes": {"count": 2, "cpus": 1, "network": {"out": "1 GB/s"}}, "racks": {"nodes": 1}},
    "workload": {
        "arrivals": {"process": "all_at_once", "count": 1},
        "nodes": 2,
        "cpu_time": "1 s",
        "communication": {"pattern": "ring", "bytes": "1 GB", "every": "1 s"},
    },
}
LANGUAGE = {
    "cluster": {"nodes": {"gpus": {"type": "g", "memory": "80 GB"}}},
    "workload": {
        "arrivals": {"process": "poisson", "rate": "1/s"},
        "count": 3,
        "service": {"kind": "llm", "step": {"fixed": "10 ms"}, "kv": {"tokens": 1000}, "prefix_cache": True},
        "tokens": {"prompt": 10, "output": 5},
    },
}


def properties(schema):
    """(where, its schema) of every key of a scenario."""
    for title, part in [("the whole file", schema), *schema["$defs"].items()]:
        for key, one in {**part.get("properties", {}), **part.get("patternProperties", {})}.items():
            yield f"{title}: {key}", one


def test_every_key_of_a_scenario_is_described_in_a_sentence():
    found = dict(properties(shared_schema()))
    assert len(found) > 400
    for where, one in found.items():
        assert re.fullmatch(r"\S.{3,}\.", one.get("description", "")), where


@pytest.mark.slow
def test_descriptions_are_read_when_a_schema_is_asked_for(monkeypatch):
    """Not when the models are imported, which every run would wait for."""
    code = "import inspect; inspect.getsource = None; import hetsim.scenario.schema.whole"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=pages.TOP)


def test_code_blocks_cut_no_comment():
    """A line that is wider than the page is wrapped."""
    style = (DOCS / "site.css").read_text(encoding="utf-8")
    assert re.search(r"pre > code \{[^}]*white-space: pre-wrap", style)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The guide as a site."""
    folder = tmp_path_factory.mktemp("site")
    build = ["-m", "mkdocs", "build", "--strict", "--quiet", "-f", ".ci/docs.yml", "-d", str(folder)]
    done = subprocess.run([sys.executable, *build], cwd=pages.TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_has_every_page(site):
    for page in DOCS.rglob("*.md"):
        if page.name != "issue_template.md":  # a form for those who open an issue
            assert (site / page.relative_to(DOCS).with_suffix(".html")).exists()
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
def test_the_site_fetches_nothing_from_elsewhere(site):
    """No script, style, font or picture from another host; links that a reader may click on are another matter."""
    elsewhere = r"""\s*[=(]\s*["']?((?:https?:)?//[^"') >]*)"""
    loads = re.compile(r"(?:<script[^>]*src|<link[^>]*href|<img[^>]*src|@import|url)" + elsewhere)
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = re.sub(r"<link rel=.canonical.[^>]*>", "", file.read_text(encoding="utf-8"))
        assert not loads.findall(text), file.relative_to(site)
