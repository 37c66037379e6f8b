"""How fast requests to language models are simulated: `python -m benchmarks.language [--quick]`.

From the arrivals to the record of the run, one replica: steps that only decode are jumped over, so what counts is
requests, not tokens.  Seconds are those of the process, so that others on the machine disturb little.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.measure import Row, parser_of, show

STEP = {"fixed": "8 ms", "per_sequence": "0.03 ms", "per_prompt_token": "0.03 ms", "per_context_token": "15 ns"}
FIGURES = {
    "model": "llama-3-8b", "gpu": "a100-80gb", "tensor_parallel": 1, "kv": {}, "step": {"roofline": {"host": "9 ms"}},
}  # fmt: skip
FAIR = {"name": "continuous", "order": "vtc"}
CASES: dict[str, tuple[float, str, dict[str, Any]]] = {
    "3/s, chunks of 512": (3, "80 GB", {"max_num_batched_tokens": 512}),
    "10/s, chunks of 512": (10, "80 GB", {"max_num_batched_tokens": 512}),
    "20/s, chunks of 512": (20, "80 GB", {"max_num_batched_tokens": 512}),
    "20/s, steps from figures": (20, "80 GB", {"max_num_batched_tokens": 512, **FIGURES}),
    "20/s, whole prompts first": (20, "80 GB", {"batching": {"name": "continuous", "phases": "prefill_first"}}),
    "20/s, fair among 100 clients": (20, "80 GB", {"max_num_batched_tokens": 512, "batching": FAIR}),
    "60/s, 64 at a time, fair": (60, "80 GB", {"max_num_batched_tokens": 512, "max_num_seqs": 64, "batching": FAIR}),
    "20/s, memory short, recompute": (20, "19 GB", {"max_num_batched_tokens": 512}),
    "20/s, memory short, swap": (20, "19 GB", {"max_num_batched_tokens": 512, "preemption": "swap"}),
}


def scenario(rate: float, memory: str, service: dict[str, Any], requests: int) -> dict[str, Any]:
    """Prompts of 500 tokens and answers of 200 on average, both lognormal."""
    means = {"prompt": 500, "output": 200}
    lengths = {key: {"distribution": "lognormal", "mean": mean, "cv": 1} for key, mean in means.items()}
    model = {"kind": "llm", "model": "16 GB", "kv": {"per_token": "131 kB"}, "step": STEP, **service}
    return {
        "name": "language",
        "cluster": {"nodes": {"gpus": {"type": "a100", "count": 1, "memory": memory, "pcie": {"upload": "20 GB/s"}}}},
        "workload": [
            {
                "name": "chat",
                "service": model,
                "tokens": lengths,
                "users": {"count": 100, "zipf": 1},
                "arrivals": {"process": "poisson", "rate": f"{rate}/s"},
                "count": requests,
            }
        ],
    }


def case(name: str, requests: int, repetitions: int) -> Row:
    from hetsim.engine.simulation import Simulation
    from hetsim.scenario.scenario import load

    loaded = load(scenario(*CASES[name], requests))
    spent, stops, tokens = [], 0, 0
    for _ in range(repetitions):
        run = loaded.build()
        gc.collect()
        begun = time.process_time()
        record = Simulation(run).run()
        spent.append(time.process_time() - begun)
        stops = 0 if record.preemptions is None else int(record.preemptions.sum())
        tokens = int(sum(run.tasks.extra[key].sum() for key in ("prompt_tokens", "output_tokens")))
    seconds = statistics.median(spent)
    found = f"{requests / seconds:,.0f} requests/s, {tokens / seconds / 1e6:.0f} million tokens/s"
    more = f", {stops / requests:.2f} preemptions each" if stops else ""
    return Row(name, found + more, "≥ 20,000 requests/s", requests / seconds >= 20_000)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser_of("language", __doc__).parse_args(arguments)
    for name in CASES:
        show(case(name, *((1_000, 1) if options.quick else (50_000, 3))))


if __name__ == "__main__":
    main()
