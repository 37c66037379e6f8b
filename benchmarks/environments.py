"""Steps a second of environments in one process: `python -m benchmarks.environments [--quick]`.

64 runs of `mm16` (`gymnasium.make_vec`) and a single one, where the first possible action is taken; rewards are not
normalized.  A step has engine, observation, reward and mask; the choice of the actions is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.measure import Row, bare_callbacks, chosen, in_turns, median_ratio, parser_of, print_table

CALLBACKS = 100_000
MANY = 64


def made(number: int) -> Any:
    """The environments, in the middle of their first episodes."""
    import gymnasium

    env = gymnasium.make_vec("hetsim.learning:hetsim/Scheduling-v0", number, scenario="mm16", normalize=None)
    _, env.told = env.reset(seed=0)
    seconds(env, 50)
    return env


def seconds(env: Any, steps: int) -> float:
    """Processor time of some steps of all environments, as if each were one of one environment."""
    spent = 0.0
    for _ in range(steps):
        actions = env.told["action_mask"].argmax(axis=1)
        began = time.process_time()
        *_, env.told = env.step(actions)
        spent += time.process_time() - began
    return spent / (steps * env.num_envs)


def figures(steps: int, repetitions: int) -> Iterator[Row]:
    """One environment, and many."""
    import hetsim

    envs = {"one": made(1), "many": made(MANY)}
    turns: dict[str, Callable[[], float]] = {
        "one": partial(seconds, envs["one"], steps * 8), "many": partial(seconds, envs["many"], steps),
    }  # fmt: skip
    spent = in_turns(repetitions, bare=partial(bare_callbacks, CALLBACKS), **turns)
    for name, env in envs.items():
        events = CALLBACKS / median_ratio(spent["bare"], spent[name])
        rate = 1 / sorted(spent[name])[repetitions // 2]
        aim = name == "many" and hetsim.__build__ == "compiled"
        text = f"{rate:,.0f} steps/s, {events:.0f} bare events a step"
        figure = f"{env.num_envs} in one process ({hetsim.__build__})"
        yield Row(figure, text, "≥ 30,000 steps/s" if aim else "", rate >= 30_000 if aim else None)


FIGURES = {"environments": figures}


def main() -> None:
    parser = parser_of("environments", __doc__, FIGURES)
    options = parser.parse_args()
    steps, repetitions = (5, 2) if options.quick else (100, 9)
    names = chosen(parser, FIGURES, options.only)
    print_table({name: partial(FIGURES[name], steps, repetitions) for name in FIGURES}, names, options.quick)


if __name__ == "__main__":
    main()
