"""Measured bus bandwidth of a link by the size of a collective."""

import math
from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True)
class BandwidthCurve:
    """Measured bus bandwidth of a collective by bytes per rank, in ascending order.

    Between two sizes the logarithm of the bandwidth is linear in the logarithm of the size.  Below the first size a
    collective takes the time of the first size; above the last size it has the last bandwidth.  Latencies are included.
    """

    sizes: tuple[float, ...]
    rates: tuple[float, ...]

    @property
    def top(self) -> float:
        """Highest bandwidth of the curve: the rate of the link."""
        return self.rates[-1]

    def rate(self, size: float) -> float:
        """Return the bus bandwidth of a collective with this number of bytes."""
        sizes, rates = self.sizes, self.rates
        if size <= sizes[0]:
            return rates[0] * size / sizes[0] if size > 0 else rates[0]
        if size >= sizes[-1]:
            return rates[-1]
        place = bisect_right(sizes, size)
        below, above = sizes[place - 1], sizes[place]
        share = math.log(size / below) / math.log(above / below)
        return rates[place - 1] * (rates[place] / rates[place - 1]) ** share

    def excess(self, size: float) -> float:
        """Return the seconds per byte at this size minus those at the top bandwidth."""
        return 1 / self.rate(size) - 1 / self.top if size > 0 else 0.0
