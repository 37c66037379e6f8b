"""Placements with a file of their own; the others are in `hetsim_policies.placements`.

Fragmentation and packing:
    fgd             Fragmentation gradient descent: a task goes where it adds least to the fragmentation of GPUs
    gpu_packing     GPU packing: fractions first on GPUs in use, then on idle GPUs of nodes in use, and idle nodes
                    last
    gpu_clustering  GPU clustering: tasks that ask for the same share of GPUs go on the same nodes
    resources       Placements that weigh all resources of a node at once: `dot_product`, `pack` and `spread`

Gangs, and networks:
    gangs           Placements of gangs: on the fewest nodes (`consolidate`), within the fastest part of the cluster
                    (`topology`)
    racks           Placements of jobs over several nodes by racks, and by the load on their links
"""
