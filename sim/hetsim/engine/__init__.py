"""The engine: a heap in SimPy's order keeps time; what is hot is a timer there.

Rooms, from the floor up; each imports those before it only (the contract is in `pyproject.toml`): kernel, resources,
flight, queues, core, launching, language, views, control.  Above them `parts` puts a run together, `fork` and
`imagined` copy it, `foresight` copies one replica of a language model, `rehearsal` tries plans out, and `simulation`
drives it.
"""
