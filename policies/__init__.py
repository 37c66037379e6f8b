"""The policies that ship, by kind and name; each is loaded when it is used.

`sim.registry` reads this table and adds what other packages register.
"""

CATALOGUE: dict[str, dict[str, str]] = {
    "scheduler": {},
    "placement": {},
    "admission": {},
    "batching": {},
}
