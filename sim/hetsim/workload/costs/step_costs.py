"""Steps of a language model from figures of its architecture and its GPUs.

Each kernel of a step is bound by arithmetic or by memory (Williams, Waterman and Patterson, Roofline, CACM 2009), and
reaches a share of the peak, its efficiency.  With tensor parallelism each of `devices` GPUs has its part of every
matrix, and each layer adds up partial results twice; a ring moves 2 (n - 1) / n of them over each link (Shoeybi et al.,
Megatron-LM, 2019).  Work is thought to be divided evenly, and experts to be chosen evenly and independently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hetsim.model.cluster import NO_KEY
from hetsim.model.step_times import RooflineSteps
from hetsim.workload.costs.architectures import CONTEXT, Architecture
from hetsim.workload.costs.roofline import Peak

if TYPE_CHECKING:
    from hetsim.model.units import Fraction, Seconds


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the peaks that kernels reach, and times that no data sheet states.

    The shares are medians of what was fitted to published measurements (docs/llm.md says how far off they are).
    """

    memory: Fraction = 0.75
    """Share of the memory bandwidth that is reached when weights, keys and values are read."""
    compute: Fraction = 0.6
    """Share of the peak of the matrix units reached when tokens are multiplied with weights."""
    attention: Fraction = 0.3
    """Share of that peak that attention reaches while prompts are read."""
    link: Fraction = 0.6
    """Share of the bandwidth between the GPUs that is reached."""
    link_latency: Seconds = 10e-6
    """Time once for each sum over the GPUs, of which a layer has two."""
    host: Seconds = 0.0
    """Time in which the host issues the kernels of a step, which is no shorter."""
    fixed: float = field(default=0.0, metadata=NO_KEY)


def roofline_steps(model: Architecture, gpu: Peak, devices: int, reached: Efficiency) -> RooflineSteps:
    """Step times of a model on some GPUs of a node; needs `matrix_flops` and `link`."""
    assert gpu.matrix_flops is not None
    read = 1.0 / (devices * gpu.bandwidth * reached.memory)
    peak = devices * gpu.matrix_flops
    fast = gpu.matrix_peak(model.number_format.arithmetic)
    assert fast is not None
    multiply = 2.0 / (devices * fast * reached.compute)
    attends = peak * reached.attention
    # A token of context in that of `CONTEXT`: read, or computed where latent attention is bound by it.
    scored = sum(one.decode_operations * one.share(CONTEXT) for one in model.attentions)
    latency = per_token = 0.0
    if devices > 1:
        assert gpu.link is not None
        sums = 2 * model.layers
        latency = sums * reached.link_latency
        per_token = sums * model.hidden * 2.0 * 2.0 * (devices - 1) / devices / (gpu.link * reached.link)
    return RooflineSteps(
        fixed=reached.fixed, host=reached.host, weights=model.dense_bytes * read,
        experts=model.experts * model.expert * model.expert_width * read,
        expert_share=model.active_experts / model.experts,
        per_token=(model.active_parameters - model.head + model.state_operations / 2) * multiply,
        per_answer=model.head * 2.0 / (peak * reached.compute),
        per_context_token=max(model.read(devices) * read, scored / attends),
        per_pair=model.operations_per_pair / attends, link_latency=latency, link_per_token=per_token,
    )  # fmt: skip
