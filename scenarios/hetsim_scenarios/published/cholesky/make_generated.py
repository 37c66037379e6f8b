"""Writes generated-10.txt: a Cholesky factorization of 10 × 10 tiles in the format of the published measurements.

    python scenarios/hetsim_scenarios/published/cholesky/make_generated.py

Tiles have 960 × 960 numbers.  Times are operations over assumed rates, in milliseconds: a core does 20 GFLOP/s, a GPU
500 to 1,000; as in the measured files, potrf has no version for GPUs.
"""

from __future__ import annotations

from pathlib import Path

TILES, SIDE = 10, 960
OPERATIONS = {"potrf": SIDE**3 / 3, "trsm": SIDE**3, "syrk": SIDE**3, "gemm": 2 * SIDE**3}
CORE = 20e9
GPU = {"trsm": 0.5e12, "syrk": 0.8e12, "gemm": 1e12}


def rows() -> list[str]:
    """A row for each task, in the order of the right-looking loop."""
    ids: dict[tuple[str, int, int, int], int] = {}
    found = []

    def add(kernel: str, place: tuple[int, int, int], *before: tuple[str, int, int, int]) -> None:
        ids[(kernel, *place)] = number = len(ids) + 1
        core = 1000 * OPERATIONS[kernel] / CORE
        gpu = 1000 * OPERATIONS[kernel] / GPU[kernel] if kernel in GPU else -1
        wanted = ",".join(str(ids[one]) for one in before if one in ids)
        found.append(f"{number} {core:.6g} {gpu:.6g} {wanted}".rstrip())

    for k in range(TILES):
        add("potrf", (k, k, k), ("syrk", k, k, k - 1))
        for i in range(k + 1, TILES):
            add("trsm", (i, k, k), ("potrf", k, k, k), ("gemm", i, k, k - 1))
        for i in range(k + 1, TILES):
            add("syrk", (i, i, k), ("trsm", i, k, k), ("syrk", i, i, k - 1))
            for j in range(k + 1, i):
                add("gemm", (i, j, k), ("trsm", i, k, k), ("trsm", j, k, k), ("gemm", i, j, k - 1))
    return found


if __name__ == "__main__":
    Path(__file__).with_name("generated-10.txt").write_text("\n".join(rows()) + "\n", encoding="utf-8")
