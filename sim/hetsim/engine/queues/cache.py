"""Result caches: an input that was served recently is answered without a device.

Reference: Crankshaw, Wang, Zhou, Franklin, Gonzalez, Stoica, Clipper: A Low-Latency Online Prediction Serving System
(NSDI 2017) and LASER before it (Agarwal et al., WSDM 2014); Clipper evicts by CLOCK.

An input is cached from the end of the batch that served it; concurrent requests for the same input are not merged.
Cost: O(1) per request (CLOCK: amortized).
"""

from collections import OrderedDict


class Cache:
    """Results of `size` inputs; evicts the least recently used one."""

    def __init__(self, size: int):
        self.size = size
        self._used: OrderedDict[int, bool] = OrderedDict()  # the next to evict first

    def holds(self, key: int) -> bool:
        """Return True if the input's result is cached, which counts as a use."""
        if is_cached := key in self._used:
            self._used.move_to_end(key)
        return is_cached

    def add(self, key: int) -> None:
        """Store a computed result; evict another one if the cache is full."""
        self._used[key] = True
        self._used.move_to_end(key)
        if len(self._used) > self.size:
            self._used.popitem(last=False)


class ClockCache(Cache):
    """Cache that evicts the first input unused since the clock hand last passed it.

    The hand is at the first input; one that it passes moves to the end.
    """

    def holds(self, key: int) -> bool:
        if is_cached := key in self._used:
            self._used[key] = True
        return is_cached

    def add(self, key: int) -> None:
        if key in self._used:
            return
        while len(self._used) >= self.size:
            first, used = self._used.popitem(last=False)
            if used:
                self._used[first] = False
        self._used[key] = False
