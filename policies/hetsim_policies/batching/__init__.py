"""Policies that form batches of a service's requests, one algorithm a file.

Simple rules:
    serial_greedy     Serial greedy: when the device is idle, everything that waits goes as one batch
    fixed_size        Fixed size: a batch is launched when it is full, or at the end of the stream
    size_or_timeout   Size or timeout: launch a full batch, or one whose first request waited enough
    triton_dynamic    Triton's dynamic batcher: preferred sizes, bounded delay, priority levels

By a model of queue or deadline:
    batopt            BatOpt: wait for the number of requests that a queueing model gives, take all
    smdp              SMDP: a table from queue length to batch size, for weighted response and power
    clipper_aimd      Clipper, additive increase, multiplicative decrease: probe for the batch size
    clipper_quantile  Clipper, quantile regression: largest batch with 99th percentile in the SLO
    nexus             Nexus: the largest batch of which two fit into the SLO, with early drops
    clockwork         Clockwork: no batch that would miss its SLO is launched; most urgent first
    async_linear      Asynchronous linear: upload the next batch just in time, behind the current

Language models:
    continuous        Continuous batching: requests join and leave between steps of a language model
"""
