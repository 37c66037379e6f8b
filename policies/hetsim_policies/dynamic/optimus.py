"""Optimus: the next GPU goes to the job with the greatest cut in remaining time.

Decides the size of elastic jobs, and when they are resized.  Every job first gets its least size, the shortest first;
then sizes grow where the time saved, over the GPUs added, is greatest.
Reference: Peng et al., Optimus: An Efficient Dynamic Resource Scheduler for Deep Learning Clusters (2018), its
marginal gains; the online fit of convergence and speed curves is replaced by the estimates.  Several types of GPU are
an extension (`hetsim_policies.dynamic.common.elastic`).
Weakness: long jobs save most, so they grow first, and short ones wait for nothing but their least size.
Cost: see `hetsim_policies.dynamic.common.elastic`.
"""

from __future__ import annotations

from hetsim_policies.dynamic.common.elastic import Elastic, GrowthStep


class Optimus(Elastic):
    """Greatest saving of time a GPU.

    interval: running jobs are resized at most once in it.
    """

    def gain(self, step: GrowthStep, left: float) -> float:
        now, then = self.speed(step.task, step.here), self.speed(step.task, step.there)
        return (left / now - left / then) / step.more
