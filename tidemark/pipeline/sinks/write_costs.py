"""From how many bytes on a run of rows is given to executors: where they are as fast as the driver, as measured.

Both ways cost a fixed time and a time for each byte; both are fitted to the last runs. The driver's fixed time is a
commit; that of executors is also a job of Spark, which pays off only if their time for a byte is less. These times
depend on the rows, the store and the cluster, and change while the pipeline runs.
"""

from collections.abc import Sequence
from enum import StrEnum
from threading import Lock

MIB = 1 << 20
BYTES_START = 8 * MIB
BYTES_MIN = 2 * MIB  # smaller ones are hardly worth a file of their own
BYTES_MAX = 32 * MIB  # half of a portion: a large table is still measured on executors, if they were slow before
MEASURED_BYTES_MIN = 1 * MIB  # smaller runs say nothing about the time of a byte, and would displace those that do
TIMES_MAX = 4  # a run counts at most so many times as long as expected: executors start slowly, a store may not answer
WEIGHT_OF_START = 0.02  # of each of the two runs with which a line begins
KEPT = 15 / 16  # of the weight of earlier runs, with each new one


class RunWriter(StrEnum):
    """Who writes the files of a run."""

    DRIVER = "driver"
    EXECUTORS = "executors"


class CostLine:
    """The time of a run by its bytes: a line through the last ones, of which newer ones count more.

    It begins with two runs that are never forgotten, of no bytes and of `BYTES_START`: a single size has no line.
    """

    def __init__(self, fixed_s: float, start_s: float) -> None:
        """Begin with the seconds of a run of no bytes, and of one of `BYTES_START`."""
        self._first = [(0.0, fixed_s), (float(BYTES_START), start_s)]
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # of weights, bytes, seconds, bytes squared, bytes times seconds

    def record(self, byte_count: int, seconds: float) -> None:
        """Add a run."""
        self._sums = _added([KEPT * one for one in self._sums], byte_count, seconds, 1.0)

    def seconds(self, byte_count: int) -> float:
        """Return the expected time of a run."""
        weight, x, y, xx, xy = self._sums
        for bytes_of, seconds_of in self._first:
            weight, x, y, xx, xy = _added((weight, x, y, xx, xy), bytes_of, seconds_of, WEIGHT_OF_START)
        slope = max(0.0, (weight * xy - x * y) / (weight * xx - x * x))
        return max(0.0, (y - slope * x) / weight) + slope * byte_count


def _added(sums: Sequence[float], x: float, y: float, weight: float) -> tuple[float, float, float, float, float]:
    of_all, sum_x, sum_y, sum_xx, sum_xy = sums
    wx = weight * x
    return of_all + weight, sum_x + wx, sum_y + weight * y, sum_xx + wx * x, sum_xy + wx * y


class WriteCosts:
    """The measured costs of both ways, and the threshold that follows from them; used by several threads."""

    def __init__(self) -> None:
        # A log of narrow rows on a local disk, and the executors of the same host (docs/performance.md).
        self._lines = {RunWriter.DRIVER: CostLine(0.03, 0.25), RunWriter.EXECUTORS: CostLine(0.15, 0.25)}
        self._lock = Lock()

    def record(self, writer: RunWriter, byte_count: int, seconds: float) -> None:
        """Record how long the write of a run took."""
        if byte_count >= MEASURED_BYTES_MIN:
            with self._lock:
                line = self._lines[writer]
                line.record(byte_count, min(seconds, TIMES_MAX * line.seconds(byte_count)))

    @property
    def threshold_bytes(self) -> int:
        """Return the least bytes of a run that executors write as fast as the driver, between two bounds."""
        with self._lock:
            gains = {
                size: self._lines[RunWriter.DRIVER].seconds(size) - self._lines[RunWriter.EXECUTORS].seconds(size)
                for size in (BYTES_MIN, BYTES_MAX)
            }
        least, most = gains[BYTES_MIN], gains[BYTES_MAX]
        if most <= 0:
            return BYTES_MAX
        if least >= 0:
            return BYTES_MIN
        return BYTES_MIN + round((BYTES_MAX - BYTES_MIN) * -least / (most - least))
