"""Predict 3,420 measured servers of language models, none of them fitted, and print how far off that is.

`python -m benchmarks.measured_servers --wheel PATH` reads the measured points of the wheel aiconfigurator-core
(`benchmarks/measured_rows.py`) and predicts each from the kernels that hetsim ships (`benchmarks/measured_model.py`);
212 of them read prompts and decode on different GPUs (`benchmarks/measured_disaggregated.py`).  `--simulate N` compares
the stepper of these files with `hetsim run`.  What is kept out (`measured_rows`) stays so until `--kept-out`.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

import hetsim as hs
from benchmarks import measured_disaggregated as disaggregated
from benchmarks import measured_model as servers
from benchmarks.measured_model import Predict, architecture, first_token, kernels, left_out, prepared, replayed
from benchmarks.measured_rows import ASYNCHRONOUS, BUDGET, ROUNDS, rows_of, rules_of, server_of, version
from hetsim.model.step_times import KernelSteps, scaled
from hetsim.silicon.engines import formats_of, interval
from hetsim.silicon.kernels import Kernels
from hetsim.workload.costs import roofline

FILE = pathlib.Path(__file__).parents[1] / "sim" / "hetsim" / "silicon" / "engines.json"


def shipped(frame: pd.DataFrame) -> dict[str, object]:
    """What `engines.json` holds."""
    fits, guessed = servers.engine_fits(frame), servers.engine_fits(frame, unknown=True)
    measured: dict[str, list[float]] = {}
    points: dict[str, list[list[float]]] = {}
    found, cell, sound = servers.folded(frame), servers.cells(frame), frame["sound"].to_numpy(dtype=bool)
    for key in sorted(set(cell)):
        part = frame[cell == key]
        if (bounds := servers.own(found[sound & (cell == key)])) is not None:
            measured[key] = bounds
            tokens = part["isl"] + part["osl"]
            loads = zip(tokens, part["batch_size"], part["gpus"], strict=True)
            of_key = {tuple(np.round(np.log2(one), 1)) for one in loads}
            points[key] = [[float(value) for value in one] for one in sorted(of_key)]
    levels = {
        "measured": measured,
        "known": {"transferred": servers.of_known(frame), "guessed": servers.of_known(frame, unknown=True)},
        "families": {"measured": servers.of_families(frame, gpus=False), "transferred": servers.of_families(frame),
                     "guessed": servers.of_families(frame, unknown=True)},
    }  # fmt: skip
    engines, (of_memory, bounds_of_memory) = {}, memory(frame)
    for engine, part in frame.groupby("backend"):
        versions = sorted({version(text) for text in part["backend_version"].dropna()} - {()})
        first = ".".join(map(str, versions[0]))
        engines[engine] = {
            "from": first, "to": ".".join(map(str, versions[-1])),
            "constants": named(fits[engine]), "unknown": named(guessed[engine]), "tokens": BUDGET[engine],
            "phases": "prefill_first" if engine == "sglang" else "mixed",
            "models": frequent(key.rpartition("/")[2] for key in cell[frame["backend"] == engine]),
            "formats": frequent(formats_of(architecture(one.model, one.formats)) for one in part["server"]),
            "gpus": frequent(part["gpu"]),
            "front_end": float(f"{fits[engine][-1] + servers.FRONT_END:.5g}"),
            "asynchronous": ASYNCHRONOUS.get(str(engine), first),
            **({"memory": bounds_of_memory} if engine in of_memory else {}),
        }  # fmt: skip
    rounded = {
        level: {key: [round(value, 4) for value in one] for key, one in of_level.items()}
        for level, of_level in levels.items()
    }
    return {"engines": engines, "errors": rounded, "points": points, "widening": round(servers.widening(frame), 4)}


def is_late(row: pd.Series, steps: KernelSteps, front_end: float, room: float) -> bool:
    """Is a replay with this room later than measured, if its steps are scaled to the measured time a token?"""
    speed, reserved = 1.0, row["server"].engine == "trtllm"
    for _ in range(4):
        times = scaled(steps, speed)
        run = servers.replay(times, row["rules"], *row["load"][:3], int(room), reserved, servers.FRONT_END)
        speed *= row["silicon_tpot_ms"] / 1e3 / run.tpot
    return bool(run.ttft + front_end > row["silicon_ttft_ms"] / 1e3)


def memory(frame: pd.DataFrame) -> tuple[set[str], list[float]]:
    """Engines, and bounds of measured / computed memory for keys and values, as logarithms, with the number of servers.

    Measured is the memory with which a replay has the measured time to the first token: of servers with too little
    memory for all clients, the wait for it is most of that time.  Computed is as hetsim does (`blocks_of`).  Servers
    whose first token no memory from 1/2 to 2 times explains are left out.
    """
    fits, engines, ratios = servers.engine_fits(frame), set[str](), list[float]()
    for _, row in frame[frame["saturated"]].iterrows():
        server, rules, room = row["server"], row["rules"], row["load"][3]
        made, bare, gpus = kernels(server), roofline.DEVICES[server.gpu].memory, server.divided.tensor
        assert isinstance(made, Kernels) and bare is not None
        case = row, made.steps(named(fits[server.engine])), float(fits[server.engine][-1])
        low, high = room / 2, room * 2
        if not is_late(*case, low) or is_late(*case, high):
            continue
        for _ in range(9):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if is_late(*case, middle) else (low, middle)
        model = architecture(server.model, (*server.formats[:2], rules.stored or server.formats[2]))
        share, beside = rules.memory, bare * gpus - model.bytes
        left = share * beside if server.engine == "trtllm" else share * bare * gpus - model.bytes
        engines.add(server.engine)
        ratios.append(math.log(middle * model.stored(gpus) / left))
    found = servers.own(np.array(ratios)[:, None])
    assert found is not None
    return engines, [round(value, 4) for value in found]


def frequent(values: Iterable[str]) -> list[str]:
    """Values that come at least `LEAST` times."""
    return sorted(value for value, count in Counter(values).items() if count >= servers.LEAST)


def written(value: object, depth: int = 3) -> str:
    """JSON with a line for each key down to a depth."""
    if depth and isinstance(value, dict) and any(isinstance(one, dict | list) for one in value.values()):
        lines = ",\n".join(f"{json.dumps(key)}: {written(one, depth - 1).strip()}" for key, one in value.items())
        return f"{{\n{lines}\n}}\n"
    return json.dumps(value)


def named(constants: np.ndarray) -> dict[str, float]:
    """Constants by name, rounded."""
    return {name: float(f"{value:.5g}") for name, value in zip(servers.CONSTANTS, constants[:-1].tolist(), strict=True)}


def summary(frame: pd.DataFrame, columns: dict[str, np.ndarray]) -> pd.DataFrame:
    """Medians of errors, and means of what is inside, by GPU and engine, and of all."""
    engine = frame["backend"] + (" disaggregated" if "roles" in frame else "")
    engine += np.where(frame["speculative"], " speculative", "")
    table = pd.DataFrame({"GPU": frame["gpu"], "engine": engine, **columns})
    numbers = {name: "mean" if name.startswith("inside") else "median" for name in columns}
    grouped = table.groupby(["GPU", "engine"])
    made = grouped.agg(numbers)
    made.insert(0, "rows", grouped.size())
    total = table.agg(numbers)
    made.loc[("all", "all"), :] = [len(table), *total.tolist()]
    return made


def report(
    frame: pd.DataFrame, today: np.ndarray, others: list[tuple[pd.DataFrame, Predict]]
) -> list[pd.DataFrame]:
    """The table: errors of today's roofline, of (A) and (B), what their intervals cover; and those of other rows."""
    start = {"today": np.abs(today / (frame["silicon_tpot_ms"].to_numpy() / 1e3) - 1.0)}
    tables: list[tuple[pd.DataFrame, Predict, dict[str, np.ndarray]]] = [(frame, replayed, start)]
    tables += [(rows, predict, {}) for rows, predict in others]
    for case, unknown in (("A", False), ("B", True)):
        _, fits = left_out(frame, unknown)
        for rows, predicted, columns in tables:
            y, z = (rows[f"silicon_{name}_ms"].to_numpy() / 1e3 for name in ("tpot", "ttft"))
            run = predicted(rows, fits, unknown)
            token, first = run["tpot"].to_numpy(), first_token(rows, run, fits)
            found = np.log(np.column_stack([y / token, z / first]))
            inside, half = servers.coverage(frame, found, unknown, None if rows is frame else rows)
            columns |= {
                f"{case} token": np.abs(token / y - 1.0), f"inside {case}": inside[:, 0].astype(float),
                f"half {case}": half[:, 0], f"{case} first": np.abs(first / z - 1.0),
                f"inside {case} first": inside[:, 1].astype(float), f"half {case} first": half[:, 1],
            }  # fmt: skip
    plain = [(rows, pd.DataFrame(columns)) for rows, _, columns in tables if not rows["speculative"].any()]
    both = pd.concat([columns for _, columns in plain]).drop(columns="today")
    pooled = summary(pd.concat([rows for rows, _ in plain]), {name: both[name].to_numpy() for name in both})
    return [*(summary(rows, columns) for rows, _, columns in tables), pooled.tail(1)]


def simulated(row: pd.Series) -> tuple[float, float]:
    """Mean time a token and to the first token of a row as `hetsim run` has it, of requests after the first of each."""
    server, rules, (clients, prompt, output, room) = row["server"], row["rules"], row["load"]
    known = json.loads(FILE.read_text(encoding="utf-8"))["engines"][server.engine]
    model, groups = architecture(server.model, server.formats).model_dump(exclude_none=True), server.divided.attention

    def spread(most: int) -> int | dict[str, object]:
        if rules.shortest == 1:
            return most
        return {"distribution": "uniform", "low": rules.shortest * most, "high": most}

    service = {
        "kind": "llm", "model": model, "gpu": server.gpu, "tensor_parallel": server.divided.tensor,
        "data_parallel": groups, "expert_parallel": server.divided.expert, "replicas": groups,
        "engine": f"{server.engine}-{known['to']}", "front_end": f"{servers.FRONT_END} s",
        "max_num_seqs": clients - rules.fewer,
        "max_num_batched_tokens": rules.budget, "async_scheduling": rules.late, "scheduler_recv_interval": rules.every,
        "batching": {"name": "continuous", "phases": "mixed" if rules.mixed else "prefill_first"},
        "kv": {"tokens": max(1 << 16, room)}, "memory_share": 1.0,
    }  # fmt: skip
    if rules.held[1]:
        service |= {"batch_wait_max_tokens_ratio": rules.held[0], "batch_wait_timeout_iters": rules.held[1]}
    node = {"gpus": [{"type": server.gpu, "count": server.divided.gpus, "memory": "1 TB"}]}
    scenario = {
        "name": "measured", "seed": 1, "horizon": "10 h", "cluster": {"nodes": [node]},
        "workload": [{
            "arrivals": {"process": "closed", "clients": clients * groups, "think": "0 s"},
            "count": ROUNDS * clients * groups,
            "tokens": {"prompt": spread(prompt), "output": spread(output)}, "service": service,
        }],
    }  # fmt: skip
    tasks = hs.run(scenario).tasks
    return float(tasks["tpot"].mean()), float(tasks["ttft"].mean())


def compared(frame: pd.DataFrame, count: int) -> None:
    """Print how far the replay is from `hetsim run` on rows drawn at random that have enough memory."""
    alone = frame[~frame["saturated"]]
    alone = alone[[room >= clients * (prompt + output) for clients, prompt, output, room in alone["load"]]]
    chosen = alone[alone["batch_size"] <= 128].sample(count, random_state=1)
    known = json.loads(FILE.read_text(encoding="utf-8"))["engines"]
    ratios = []
    for _, row in chosen.iterrows():
        made = kernels(row["server"])
        assert isinstance(made, Kernels)
        steps = made.steps(known[row["backend"]]["constants"])
        run = servers.replay(steps, row["rules"], *row["load"], row["backend"] == "trtllm", servers.FRONT_END)
        tpot, ttft = simulated(row)
        ratios.append((run.tpot / tpot, run.ttft / ttft))
    print("replay over hetsim run, time a token and first token:")
    table = pd.DataFrame(ratios, columns=["token", "first"])
    rules = {"groups": chosen["attention"] > 1, "held": [one.held[1] > 0 for one in chosen["rules"]],
             "prompts first": [not one.mixed for one in chosen["rules"]]}  # fmt: skip
    print(table.assign(**{name: np.array(which, bool) for name, which in rules.items()}).round(3).to_string())
    print(table.describe().round(3).to_string())


def shipped_fits(known: dict[str, dict[str, Any]]) -> dict[str, np.ndarray]:
    """The constants and front end of each engine, as hetsim ships them."""
    given = {engine: {**one["constants"], "front_end": one["front_end"]} for engine, one in known.items()}
    names = [*servers.CONSTANTS, "front_end"]
    least = np.array([0.0] * len(servers.CONSTANTS) + [servers.FRONT_END])
    return {engine: np.array([constants[name] for name in names]) - least for engine, constants in given.items()}


def kept_out(frame: pd.DataFrame, predict: Predict) -> pd.DataFrame:
    """Errors of servers that nothing was fitted to, by what kept them out, GPU and engine."""
    known = json.loads(FILE.read_text(encoding="utf-8"))["engines"]
    fits = dict.fromkeys(frame["gpu"].unique(), shipped_fits(known))
    run = predict(frame, fits)
    y, z = (frame[f"silicon_{name}_ms"].to_numpy() / 1e3 for name in ("tpot", "ttft"))
    bounds = []
    for row in frame.itertuples():
        model = architecture(row.server.model, row.server.formats)
        load = (float(row.isl + row.osl), float(row.batch_size))
        text = f"{row.backend}-{known[row.backend]['to']}"
        one = interval(model, roofline.DEVICES[row.gpu], int(row.gpus), text, load)
        assert one.first is not None
        bounds.append([(one.low, one.high), one.first])
    token, first = run["tpot"].to_numpy(), first_token(frame, run, fits)
    error, (low, high) = np.column_stack([y / token, z / first]), np.moveaxis(np.array(bounds), 2, 0)
    inside, half = ((error >= low) & (error <= high)).astype(float), (high - low) / 2
    gpus = frame["gpu"].isin(["b300", "gb300"])
    why = np.where(frame["model"] == "gpt-oss-120b", "gpt-oss-120b", np.where(gpus, "new GPU", "of a seen group"))
    columns = {
        "token": np.abs(token / y - 1.0), "inside": inside[:, 0], "half": half[:, 0],
        "first": np.abs(first / z - 1.0), "inside first": inside[:, 1], "half first": half[:, 1],
    }  # fmt: skip
    return summary(frame.assign(backend=frame["backend"] + " " + why), columns)


POINTS = ["model", "gpu", "gpus", "engine", "version", "formats", "prompt", "output", "concurrency", "unseen",
          "token_ms", "token_predicted_ms", "first_ms", "first_predicted_ms"]  # fmt: skip


def points(frame: pd.DataFrame, hidden: pd.DataFrame) -> pd.DataFrame:
    """Every predicted server, measured and predicted by constants of servers of other GPUs, or kept out of all fits."""
    _, fits = left_out(frame)
    run = replayed(frame, fits)
    known = json.loads(FILE.read_text(encoding="utf-8"))["engines"]
    given = dict.fromkeys(hidden["gpu"].unique(), shipped_fits(known))
    other = replayed(hidden, given)
    parts = [(frame, run["tpot"], first_token(frame, run, fits), "GPU"),
             (hidden, other["tpot"], first_token(hidden, other, given), "kept out")]  # fmt: skip
    tables = []
    for rows, token, first, unseen in parts:
        formats = ["/".join(server.formats) for server in rows["server"]]
        columns = [rows["model"], rows["gpu"], rows["gpus"], rows["backend"], rows["backend_version"], formats,
                   rows["isl"], rows["osl"], rows["batch_size"], unseen, rows["silicon_tpot_ms"], 1e3 * token,
                   rows["silicon_ttft_ms"], 1e3 * first]  # fmt: skip
        tables.append(pd.DataFrame(dict(zip(POINTS, columns, strict=True))))
    return pd.concat(tables).sort_values(POINTS[:10], kind="stable").reset_index(drop=True)


def askable(rows: pd.DataFrame, refused: dict[str, str]) -> None:
    """Print how many points can be predicted, and why the others cannot; these reasons, or those of agg rows."""
    reasons = dict(refused)
    for name, row in rows[rows["mode"] == "agg"].iterrows():
        server = server_of(row)
        reasons[name] = servers.refusal(server, servers.room_of(server, rules_of(row)), row["isl"] + row["osl"])
    why = rows.index.map(reasons).fillna("")
    points = rows["repeats"].groupby(why).sum()
    print(f"{points['']:,} of {points.sum():,} points askable, {(why == '').sum():,} of {len(rows):,} configurations")
    print("refused:", *(f"{count:,} points: {reason}" for reason, count in points.items() if reason), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheel", required=True, help="the wheel aiconfigurator-core")
    parser.add_argument("--write", action="store_true", help="fit the engines and write engines.json")
    parser.add_argument("--kept-out", action="store_true", help="predict what was kept out, with what is shipped")
    parser.add_argument("--simulate", type=int, metavar="N", help="only compare N rows with `hetsim run`")
    parser.add_argument("--points", type=pathlib.Path, metavar="CSV", help="only write all servers and predictions")
    given = parser.parse_args()
    start = time.process_time()
    rows, apart = rows_of(given.wheel), disaggregated.rows_of(given.wheel)
    print(f"{rows.attrs['rows']:,} rows, {len(rows):,} configurations, {rows['kept_out'].sum():,} kept out")
    print(
        f"{apart['repeats'].sum():,} disaggregated, {len(apart):,} configurations, {apart['kept_out'].sum():,} kept out"
    )
    constants = dict.fromkeys(BUDGET, servers.START)
    plain, shown = ~rows["speculative"], ~rows["kept_out"]
    if given.simulate:
        some = rows[plain & shown].sample(8 * given.simulate, random_state=2)
        compared(prepared(some, constants), given.simulate)
        return
    frame, other = prepared(rows[plain & shown], constants), disaggregated.prepared(apart)
    if given.points:
        table = points(frame, prepared(rows[plain & ~shown], constants))
        table.to_csv(given.points, index=False, float_format="%.5g", lineterminator="\n")
        return
    askable(pd.concat([rows, apart]), other.attrs["refused"])
    if given.write:
        FILE.write_text(written(shipped(frame)), encoding="utf-8")
    pd.set_option("display.width", 200)
    speculative = prepared(rows[~plain & shown], constants)
    others = [(speculative, replayed), (other[~other["kept_out"]], disaggregated.replayed)]
    for table in report(frame, frame["roofline"].to_numpy(), others):
        print(table.round(3).to_string())
    print(f"{time.process_time() - start:.0f} s of processor time")
    if given.kept_out:
        print("\nkept out, with what is shipped:")
        for hidden, predict in ((prepared(rows[plain & ~shown], constants), replayed),
                                (prepared(rows[~plain & ~shown], constants), replayed),
                                (other[other["kept_out"]], disaggregated.replayed)):  # fmt: skip
            print(kept_out(hidden, predict).round(3).to_string())


if __name__ == "__main__":
    main()
