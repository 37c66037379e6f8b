"""Writes requests.csv.gz: requests that call one service twice, one after the other, as workload M² of the paper.

    python scenarios/hetsim_scenarios/published/dagor/make_requests.py

150 requests a second of 1,000 users for 100 s, at random times in hundredths of seconds.  The second call is sent 50 ms
after the first, if that was admitted, and waits for its answer; a request succeeds if it has that of the second within
500 ms.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

RATE, SECONDS, USERS, APART, TIMEOUT, SERVICE = 150, 100, 1_000, 0.05, 0.5, 0.04


def main() -> None:
    draw = np.random.default_rng(1)
    times = np.sort(draw.integers(100 * SECONDS, size=RATE * SECONDS)) / 100
    users = draw.integers(USERS, size=len(times))
    rows = ["id,arrival,user,predecessors,deadline,cpu_time"]
    for number, (at, user) in enumerate(zip(times, users, strict=True)):
        rows.append(f"{number}a,{at:g},{user},,,{SERVICE}")
        rows.append(f"{number}b,{at + APART:g},{user},{number}a,{at + TIMEOUT:g},{SERVICE}")
    with gzip.GzipFile(Path(__file__).with_name("requests.csv.gz"), "wb", mtime=0) as file:
        file.write(("\n".join(rows) + "\n").encode())


if __name__ == "__main__":
    main()
