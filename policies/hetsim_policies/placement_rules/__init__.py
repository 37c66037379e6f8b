"""Placements with their own files; others are in `hetsim_policies.placements`.

Fragmentation and packing:
    fgd        Fragmentation gradient descent: a task goes where it adds least fragmentation
    resources  Placements that weigh free and total resources: `dot_product`, `pack`, `spread`, `gpu_packing`, ...

Gangs, and networks:
    gangs      Placements of gangs: on the fewest nodes, by topology, or by racks and their links
"""
