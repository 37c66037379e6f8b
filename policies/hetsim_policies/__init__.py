"""The policies that ship, by kind and name; each is loaded when it is used.

`hetsim.registry` reads this table and adds what other packages register.
"""

from hetsim.model.files import package_table

CATALOGUE: dict[str, dict[str, str]] = package_table(__file__, "catalogue.yaml")
