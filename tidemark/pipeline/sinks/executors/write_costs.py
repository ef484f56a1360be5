"""From how many bytes on a run of rows is given to executors: where they are as fast as the driver, as measured.

The bytes of an append are those of the run. Those of a merge are also those of the files that it rewrites: their number
depends on how the changes are strewn over the table, more than on the changes (docs/performance.md).

Both ways cost a fixed time and a time for each byte; both are fitted to the last runs. The driver's fixed time is a
commit; that of executors is also a job of Spark, which pays off only if their time for a byte is less. These times
depend on the rows, the store and the cluster, and change while the pipeline runs.

Each time is that of reading the run from the outbox, writing its files and the commit. Executors read a run as part of
their job. The driver reads the runs of several tables together, before or while it writes, so this time is measured
apart, by its bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock

from tidemark.pipeline.lake.positions.table_position import TableId

MIB = 1 << 20
BYTES_START = 8 * MIB
BYTES_MIN = 2 * MIB  # smaller ones are hardly worth a separate file
BYTES_MAX = 32 * MIB  # half of a portion: a large table is still measured on executors, if they were slow before
MEASURED_BYTES_MIN = 1 * MIB  # smaller runs say nothing about the time of a byte, and would displace those that do
CHANGES_BYTES_MIN = 256 << 10  # of a run that is merged, however many files it rewrites
TIMES_MAX = 4  # a run counts at most so many times as long as expected: executors start slowly, a store may not answer
WEIGHT_OF_START = 0.02  # of each of the two runs with which a line begins
KEPT = 15 / 16  # of the weight of earlier runs, with each new one


class RunWriter(StrEnum):
    """Who writes the files of a run."""

    DRIVER = "driver"
    EXECUTORS = "executors"


@dataclass(frozen=True, slots=True)
class CostRange:
    """Where the threshold of one kind of write begins and stays, and the seconds that are expected at first.

    `driver_s` and `executors_s`: of a run of no bytes, and of one of `start` bytes.
    """

    start: int
    least: int
    most: int
    driver_s: tuple[float, float]
    executors_s: tuple[float, float]


# A log of narrow rows on a local disk, and the executors of the same host (docs/performance.md).
APPENDS = CostRange(BYTES_START, BYTES_MIN, BYTES_MAX, (0.03, 0.25), (0.15, 0.25))
# A replica of narrow rows there, in CPU seconds: 0.075 for a MiB in both ways, and 1.7 for the jobs. They pay if
# several executors work side by side; two are as fast as the driver at about `start`. The least: the driver merges as
# much in the time of the jobs alone. The most: it merges as much in ten seconds.
MERGES = CostRange(64 * MIB, 24 * MIB, 128 * MIB, (0.05, 4.8), (1.7, 4.8))
READS_S = (0.005, 0.08)  # of no bytes, and of `BYTES_START`, from an outbox server with TLS (docs/performance.md)


class CostLine:
    """The time of a run by its bytes: a line through the last ones, of which newer ones count more.

    It begins with two runs that are never forgotten, of no bytes and of `start_bytes`: a single size has no line.
    """

    def __init__(self, fixed_s: float, start_s: float, start_bytes: int = BYTES_START) -> None:
        """Begin with the seconds of a run of no bytes, and of one of `start_bytes`."""
        self._first = [(0.0, fixed_s), (float(start_bytes), start_s)]
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

    def __init__(self, of: CostRange = APPENDS) -> None:
        self._of = of
        self._lines = {
            RunWriter.DRIVER: CostLine(*of.driver_s, of.start),
            RunWriter.EXECUTORS: CostLine(*of.executors_s, of.start),
        }
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
        low, high = self._of.least, self._of.most
        with self._lock:
            gains = {
                size: self._lines[RunWriter.DRIVER].seconds(size) - self._lines[RunWriter.EXECUTORS].seconds(size)
                for size in (low, high)
            }
        least, most = gains[low], gains[high]
        if most <= 0:
            return high
        if least >= 0:
            return low
        return low + round((high - low) * -least / (most - least))


class ReadCosts:
    """The measured time in which this process reads values from the outbox; used by several threads."""

    def __init__(self) -> None:
        self._line = CostLine(*READS_S)
        self._lock = Lock()

    def record(self, byte_count: int, seconds: float) -> None:
        """Record a read of values."""
        if byte_count >= MEASURED_BYTES_MIN:
            with self._lock:
                self._line.record(byte_count, min(seconds, TIMES_MAX * self._line.seconds(byte_count)))

    def seconds(self, byte_count: int) -> float:
        """Return the expected time of a read."""
        with self._lock:
            return self._line.seconds(byte_count)


class MergeCosts:
    """The same of merges, and by replica how many bytes of files were rewritten for a byte of changes."""

    def __init__(self) -> None:
        self._costs = WriteCosts(MERGES)
        self._rewritten: dict[TableId, float] = {}  # by the last merge

    def record(self, writer: RunWriter, table: TableId, byte_count: int, file_bytes: int, seconds: float) -> None:
        """Record a merge of `byte_count` bytes of changes that rewrote `file_bytes` of files."""
        self._rewritten[table] = file_bytes / max(1, byte_count)
        self._costs.record(writer, byte_count + file_bytes, seconds)

    def pays(self, table: TableId, byte_count: int, file_bytes: int | None) -> bool:
        """Return whether executors merge as fast; `file_bytes`: of the files to rewrite, None: as the last time."""
        expected = byte_count * self._rewritten.get(table, 0.0) if file_bytes is None else file_bytes
        return byte_count + expected >= self._costs.threshold_bytes

    def changes_min(self, table: TableId) -> int | None:
        """Return the least bytes of changes of a table whose merge pays; None: no merge of it was measured."""
        rewritten = self._rewritten.get(table)
        if rewritten is None:
            return None
        return max(CHANGES_BYTES_MIN, round(self._costs.threshold_bytes / (1 + rewritten)))
