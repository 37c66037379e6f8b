"""Policies that plan before the clock starts, one algorithm a file.

Lists, task by task:
    graham                List scheduling: whenever a device is idle, it takes the first task of a list that is there
                          and can run on it
    mct                   Minimum completion time: one task after the other goes where it will be complete first
    rounds                Rounds of one task each, which goes where it is complete first: min-min, max-min, sufferage
    load_balance          Load balancing: each task goes to the lane with least projected load per speed
    prioritized           Priorities: one task after the other, in an order of its own, gets the first interval
                          without a conflict
    greedy_best_fit       Greedy best fit by memory and compute: the most demanding task first, each where it leaves
                          the least room over

Task graphs:
    insertion             One task after the other where it is complete first, into a gap if one is long enough:
                          HEFT, CPOP, PEFT

CPUs and GPUs, with a guarantee:
    dual_approximation    Dual approximation for independent tasks on m CPUs and k GPUs: guess the makespan, bisect on
                          the guess
    greedy_dual           Greedy dual approximation: for a guess λ, fill the accelerators by speed-up, or prove that λ
                          is impossible
    moldable_dual         Dual approximation for parallel tasks: guess the makespan, take the least work that fits it,
                          then list
    balanced_makespan     Balanced makespan: every task on its favorite type, then the overloaded type gives away
                          what it is least good at
    clb2c                 Centralized load balancing for two clusters: from both ends of the list sorted by speed-up
    hlp                   Heterogeneous linear program: a relaxed program says on which type each task runs, list
                          scheduling says when
    lst                   Lenstra, Shmoys, Tardos: the least deadline a linear program allows, and a vertex of it,
                          rounded

Programs:
    linear_program        The assignment program, relaxed and rounded: tasks may be split over types of device, then
                          each is put whole
    integer_program       The assignment program in whole tasks: the least makespan of independent sequential tasks on
                          unlike lanes (R||Cmax)
    column_pricing        Column pricing: an integer program over the few pairs of task and lane that the linear
                          program's prices allow
    constraint_program    Constraint programming: which type, when, proven optimal where the solver gets that far
                          (CP-SAT of OR-tools)
    convex_energy         Least energy before a deadline: a lane for every task and one frequency for every device,
                          from a convex program

Search:
    local_search          Local search on the simulated makespan: the best plan of several planners, changed where the
                          engine says it helps
    random_search         Search at random from a fast planner's schedule: a genetic algorithm and simulated annealing
    constraint_injection  Constraint injection: a linear program assigns; a separate optimizer tells it, by a
                          constraint tree, what it misses

Plans made elsewhere:
    replay                A static plan, replayed: for every task a mode and a place in the order of named devices
    as_planned            Any scheduler as a plan: it runs on the estimates before the clock starts, and what it did
                          there is followed
"""
