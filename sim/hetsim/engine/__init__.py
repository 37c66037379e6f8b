"""The engine: simulates one run by means of an event heap in SimPy's order.

Subpackages from the lowest to the highest; each imports only earlier subpackages (contract in `pyproject.toml`):
kernel, resources, flight, queues, core, launching, language, residents, views, control.  Above them, `parts` assembles
a run, `fork` and `imagined` copy it, `foresight` copies one replica of a language model, and `simulation` drives the
run.
"""
