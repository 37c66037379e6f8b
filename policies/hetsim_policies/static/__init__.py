"""Policies that plan before the run starts, one family of algorithms per file.

Lists, task by task:
    lists                 Lists: tasks in an order, each assigned to a device once
    greedy_best_fit       Greedy best fit by memory and compute: most demanding first, in tightest places
    insertion             Insertion planners: one task after the other, into gaps (HEFT, CPOP, PEFT, ...)

CPUs and GPUs, with a guarantee:
    dual_approximation    Dual approximation for independent tasks on m CPUs and k GPUs, by bisection
    two_sides             Independent tasks on two types of device, by the ratio of their times
    vertices              Linear programs whose vertices split few tasks, which are then made whole

Programs:
    programs              Assignment programs: relaxed and rounded, or solved for whole tasks
    convex_energy         Minimum energy before a deadline: devices and frequencies from a convex program

Search:
    random_search         Searches from planners' schedules: genetic algorithm, annealing, local search
    constraint_injection  Constraint injection: a linear program assigns, an optimizer adds constraints

Plans made elsewhere:
    recorded              Plans made elsewhere: from a file, or by the rehearsal of a scheduler
"""
