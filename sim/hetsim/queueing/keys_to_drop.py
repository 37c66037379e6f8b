"""Finds keys to remove so that a queueing model can predict a scenario."""

from collections.abc import Iterable
from typing import Any

from hetsim.errors import HetsimError
from hetsim.queueing.facts import Match
from hetsim.queueing.matching import match
from hetsim.scenario.scenario import Scenario, from_document

MAX_TRIALS = 8  # sets of keys that are tried, at most: each trial builds the scenario

Drop = tuple[tuple[str, ...], Match]  # keys to remove, and the match without them


def keys_to_drop(scenario: Scenario, refused: Match) -> Drop | None:
    """Find the fewest keys without which a scenario has a prediction.

    refused: the match of the complete scenario, which has no prediction. The search removes the key of a failed
    assumption; if other assumptions fail, it removes one of their keys, too, and so on.  Each set of keys is tested by
    loading and matching the scenario without these keys (at most 8 sets).
    Returns: the keys with the match without them; None if no valid scenario with a prediction remains.
    """
    tried = {frozenset[str]()}
    queue: list[Drop] = [((), refused)]
    for dropped, failing in queue:  # which grows
        for key in dict.fromkeys(one.key for one in failing.failed if one.key and not one.soft):
            keys = (*dropped, key)
            if frozenset(keys) in tried or len(tried) > MAX_TRIALS:
                continue
            tried.add(frozenset(keys))
            other = _without(scenario, keys)
            if other is not None and other.rows:
                return keys, other
            queue += [(keys, other)] if other is not None else []  # else a scenario needs the key
    return None


def _without(scenario: Scenario, keys: Iterable[str]) -> Match | None:
    document = scenario.document.copy()
    if not all(_remove(document.data, key.split(".")) for key in keys):
        return None
    try:
        return match(from_document(document, scenario.base))
    except HetsimError:
        return None


def _remove(here: Any, parts: list[str]) -> bool:
    """Remove a key, from all entries if the path has no list index; False if absent."""
    if isinstance(here, list):
        if not parts[0].isdigit():
            return sum(_remove(one, parts) for one in here) > 0
        return int(parts[0]) < len(here) and len(parts) > 1 and _remove(here[int(parts[0])], parts[1:])
    if not isinstance(here, dict):
        return False
    if parts[0] == "0" and len(parts) > 1 and "0" not in here:
        return _remove(here, parts[1:])  # one entry may stand without the list around it
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))  # `gpu_time.a100` is one key
    key = next((name for name in names if name in here), "")
    rest = parts[key.count(".") + 1 :]
    return bool(key) and (_remove(here[key], rest) if rest else here.pop(key, key) is not key)
