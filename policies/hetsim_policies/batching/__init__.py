"""Policies that form batches of a service's requests, one algorithm a file.

Simple rules:
    serial_greedy     Serial greedy: when the device is idle, everything that waits goes as one batch
    fixed_size        Fixed size: a batch is launched when it is full, or at the end of the stream
    size_or_timeout   Size or timeout: a batch goes when it is full, or when its first request has waited for so long
    triton_dynamic    Triton's dynamic batcher: preferred sizes, a bounded delay, priority levels, and limits and
                      timeouts of each level

By a model of queue or deadline:
    batopt            BatOpt: a queueing model says how many requests to wait for; batches take all that wait from
                      then on
    smdp              SMDP: a table from queue length to batch size that minimizes weighted response and power, from a
                      decision process
    clipper_aimd      Clipper, additive increase and multiplicative decrease: the largest batch that stays within the
                      SLO is felt for
    clipper_quantile  Clipper, quantile regression: largest batch with 99th percentile in the SLO
    nexus             Nexus: the largest batch of which two fit into the SLO, and requests that would hold it up are
                      dropped early
    clockwork         Clockwork: no batch that would miss its SLO is launched; most urgent first
    async_linear      Asynchronous linear: the next batch is uploaded while the current one computes, just in time

Language models:
    continuous        Continuous batching: requests join and leave a running batch between any two steps of a language
                      model
"""
