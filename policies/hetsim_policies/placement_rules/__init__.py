"""Placements with a file of their own; others are in `hetsim_policies.placements`.

Fragmentation and packing:
    fgd             Fragmentation gradient descent: a task goes where it adds least fragmentation
    gpu_packing     GPU packing: fractions on used GPUs, then idle GPUs of used nodes, idle nodes
    gpu_clustering  GPU clustering: tasks that ask for the same share of GPUs go on the same nodes
    resources       Placements that weigh all resources of a node: `dot_product`, `pack`, `spread`

Gangs, and networks:
    gangs           Placements of gangs: on the fewest nodes (`consolidate`), or by `topology`
    racks           Placements of jobs over several nodes by racks, and by the load on their links
"""
