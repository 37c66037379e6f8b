"""Exact kernel tables: a tiny table, and the installed package where there is one."""

import sys

import numpy as np
import pandas as pd
import pytest

from hetsim.results.one_run import store
from hetsim.silicon import engines, exact, kernels
from hetsim.workload.costs.architectures import model
from hetsim.workload.costs.roofline import DEVICES

KEY = ("h100", "vllm", "matrix", "fp8", ())


@pytest.fixture
def fresh():
    """No surface, step or version is remembered."""
    caches = (exact.installed, exact.rows, kernels.surface_of, engines.steps_of, store.package_version)
    for one in caches:
        one.cache_clear()
    yield
    for one in caches:
        one.cache_clear()


@pytest.fixture
def tiny(tmp_path, monkeypatch, fresh):
    """A package of another version's layout with three rows of one table, on the path."""
    about = tmp_path / "aiconfigurator_core-0.12.0.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 0.12.0\n")
    version = kernels.surfaces()[KEY].version
    folder = tmp_path / "aiconfigurator_core" / "systems" / "data" / "h100_sxm" / "gemm" / "vllm" / version
    folder.mkdir(parents=True)
    rows = [("fp8", 7, 300, 500, 0.5), ("fp8", 7, 300, 500, 0.25), ("fp8", 64, 512, 512, 3.0), ("nvfp4", 7, 9, 9, 1.0)]
    table = pd.DataFrame(rows, columns=["gemm_dtype", "m", "n", "k", "latency"])
    table.to_parquet(folder / "gemm_perf.parquet")
    monkeypatch.syspath_prepend(str(tmp_path))
    return about


def test_measured_points_are_exact_and_others_as_shipped(tiny):
    """Of two measurements of a point the shorter counts; seconds of milliseconds."""
    made, shipped = kernels.surface_of(KEY), kernels.surfaces()[KEY]
    assert float(made.at(7, 300, 500)) == pytest.approx(0.25e-3, rel=1e-12)  # a point that the shipped one lacks
    assert float(made.at(64, 512, 512)) == pytest.approx(3e-3, rel=1e-12)  # a point of both
    assert float(made.at(2048, 4096, 8192)) == pytest.approx(float(shipped.at(2048, 4096, 8192)), rel=1e-9)
    assert made.launch == shipped.launch  # a stray short time of the table is no launch
    other = (*KEY[:3], "bfloat16", ())
    assert kernels.surface_of(other).at(5, 5, 5) == pytest.approx(kernels.surfaces()[other].at(5, 5, 5), rel=1e-9)
    attention = ("h100", "vllm", "decode", "bfloat16", (128, 0))
    assert kernels.surface_of(attention) is kernels.surfaces()[attention]  # its table is not there


def test_sparse_attention_is_that_of_the_model_and_never_shorter_than_a_smaller_one(tiny, tmp_path):
    """Rows of another model, and of layers that share the choice of another one, do not count."""
    shape = (6144, 2048, 192, 256, 32, 128, 2048)
    key = ("h200", "sglang", "sparse_decode", "fp8_block/fp8", shape)
    shipped = kernels.surfaces()[key]
    folder = tmp_path / "aiconfigurator_core" / "systems" / "data" / "h200_sxm" / "sparse_attention" / "sglang"
    (folder / shipped.version).mkdir(parents=True)
    name, model_name = "dsa_generation_module", "GlmMoeDsaForCausalLM"
    rows = [
        (name, model_name, 8, 2, 4096, 0.090), (name, model_name, 8, 2, 2048, 0.5), (name, model_name, 8, 3, 5000, 0.2),
        ("dsa_generation_module_skip_indexer", model_name, 8, 2, 4096, 0.001),
        (name, "DeepseekV32ForCausalLM", 8, 2, 4096, 0.002),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["op_name", "architecture", "num_heads", "batch_size", "step", "latency"])
    table = table.assign(gemm_type="fp8_block", kv_cache_dtype="fp8")
    table.to_parquet(folder / shipped.version / f"{name}_perf.parquet")
    made = kernels.surface_of(key)
    assert float(made.at(8, 2, 4096)) == pytest.approx(0.09e-3, rel=1e-9)
    assert float(made.at(8, 3, 5000)) < 0.2e-3  # the shipped times of larger sizes are shorter
    assert float(made.at(8, 2, 2048)) < 0.0901e-3 and made.launch == shipped.launch
    assert all((np.diff(made.values, axis=axis) >= 0).all() for axis in range(3))


def test_the_tables_are_named_and_part_of_the_versions(tiny):
    assert store.versions()["aiconfigurator-core"] == "0.12.0"
    interval = engines.interval(model("llama-3.1-70b"), DEVICES["h100"], 4, "vllm-0.15")
    assert "kernels of aiconfigurator-core 0.12.0" in str(interval)
    assert not [name for name in sys.modules if name.startswith("aiconfigurator")]  # only its files are read


def test_another_version_is_not_used(tiny):
    tiny.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 0.13.0\n")
    assert exact.installed() is None and kernels.surface_of(KEY) is kernels.surfaces()[KEY]


def test_without_the_package_the_shipped_surfaces_are_used(monkeypatch, fresh):
    def missing(name):
        raise exact.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(exact.metadata, "distribution", missing)
    assert exact.installed() is None and kernels.surface_of(KEY) is kernels.surfaces()[KEY]


def test_the_installed_tables_are_looked_up_exactly(fresh):
    folder = exact.installed()
    if folder is None:
        pytest.skip("aiconfigurator-core 0.12.0 is not installed")
    version = kernels.surfaces()[KEY].version
    table = pd.read_parquet(folder / "h100_sxm" / "gemm" / "vllm" / version / "gemm_perf.parquet")
    best = table[table["gemm_dtype"] == "fp8"].groupby(["m", "n", "k"])["latency"].min()
    drawn = best.iloc[np.random.default_rng(1).integers(len(best), size=200)]
    m, n, k = (drawn.index.get_level_values(name).to_numpy() for name in "mnk")
    assert kernels.surface_of(KEY).at(m, n, k) == pytest.approx(drawn.to_numpy() / 1000, rel=1e-9)
    assert all(np.isfinite(kernels.surface_of(key).values).all() for key in list(kernels.surfaces())[::37])
