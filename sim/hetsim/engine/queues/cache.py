"""Result caches: an input that was served recently is answered without a device.

Reference: Crankshaw, Wang, Zhou, Franklin, Gonzalez, Stoica, Clipper: A Low-Latency Online Prediction Serving System
(NSDI 2017) and LASER before it (Agarwal et al., WSDM 2014); Clipper evicts by CLOCK.

An input is cached from the end of the batch that served it; concurrent requests for the same input are not merged.
Cost: O(1) per request (CLOCK: amortized).
"""


class Lru:
    """Cache that evicts the least recently used input."""

    def __init__(self, size: int):
        self.size = size
        self._used: dict[int, None] = {}  # the least lately used first

    def holds(self, key: int) -> bool:
        if key not in self._used:
            return False
        del self._used[key]
        self._used[key] = None
        return True

    def add(self, key: int) -> None:
        self._used.pop(key, None)
        if len(self._used) >= self.size:
            del self._used[next(iter(self._used))]
        self._used[key] = None


class ClockCache:
    """Cache that evicts the first input unused since the clock hand last passed it."""

    def __init__(self, size: int):
        self.size = size
        self._place: dict[int, int] = {}
        self._keys: list[int] = []
        self._used: list[bool] = []
        self._hand = 0

    def holds(self, key: int) -> bool:
        if (place := self._place.get(key)) is None:
            return False
        self._used[place] = True
        return True

    def add(self, key: int) -> None:
        if key in self._place:
            return
        if len(self._keys) < self.size:
            self._place[key] = len(self._keys)
            self._keys.append(key)
            self._used.append(False)
            return
        while self._used[self._hand]:
            self._used[self._hand] = False
            self._hand = (self._hand + 1) % self.size
        place = self._hand
        del self._place[self._keys[place]]
        self._keys[place], self._place[key] = key, place
        self._hand = (place + 1) % self.size


Cache = Lru | ClockCache
"""Cache of the results of `size` inputs.  `holds(key)`: True if the input's result is cached; a hit counts as a use.
`add(key)`: store a computed result, and evict another one if the cache is full."""
