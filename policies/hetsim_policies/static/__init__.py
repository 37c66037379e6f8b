"""Policies that plan before the clock starts, one algorithm a file.

Lists, task by task:
    graham                List scheduling: an idle device takes the first listed task that can run on it
    mct                   Minimum completion time: one task after the other to its earliest lane
    rounds                Rounds of one task each: the task that is complete first goes, then again
    load_balance          Load balancing: each task goes to the lane with least projected load per speed
    prioritized           Priorities: tasks in a given order, each in the first interval without conflict
    greedy_best_fit       Greedy best fit by memory and compute: most demanding first, in tightest places

Task graphs:
    insertion             Insertion planners: one task after the other, into gaps (HEFT, CPOP, PEFT)

CPUs and GPUs, with a guarantee:
    dual_approximation    Dual approximation for independent tasks on m CPUs and k GPUs, by bisection
    greedy_dual           Greedy dual approximation: for a guess λ, fill accelerators by speed-up
    moldable_dual         Dual approximation for parallel tasks: minimum work within a guess, then list
    balanced_makespan     Balanced makespan: favorite types first, then the overloaded type gives tasks
    clb2c                 Centralized load balancing for two clusters: from both ends of a speed-up list
    hlp                   Heterogeneous linear program: a relaxed program, then list scheduling
    lst                   Lenstra, Shmoys, Tardos: a vertex of the deadline linear program, rounded

Programs:
    linear_program        The relaxed assignment program: split over types, then rounded to whole tasks
    integer_program       The integer assignment program: R||Cmax of independent sequential tasks
    column_pricing        Column pricing: an integer program over few pairs, chosen by LP prices
    constraint_program    Constraint programming: types and times, optimal within limits (CP-SAT)
    convex_energy         Minimum energy before a deadline: lanes and frequencies from a convex program

Search:
    random_search         Searches from planners' schedules: genetic algorithm, annealing, local search
    constraint_injection  Constraint injection: a linear program assigns, an optimizer adds constraints

Plans made elsewhere:
    replay                A static plan, replayed: each task's mode and place in the order of devices
    as_planned            Any scheduler as a plan: rehearse it on the estimates, then follow what it did
"""
