"""When a catalog base is written, and which of the kept bases are removed again.

A base saves its readers the WAL between the base before it and the place that they want: starts of ranges, of executors
and of maps of transactions. It costs the decode thread time, and disk. So a base is due once the processor time that
decoding took since the last one, times the number of readers expected there, is as much as writing one takes. Both are
measured in this process: a database of ten thousand tables has far rarer bases than one of ten. Neither distance nor
disk is left to a measurement alone: each has a bound.
"""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from tidemark.model.lsn import Lsn

EXPECTED_READERS = 0.02  # of the WAL between two bases: writing bases takes 2 % of the time of decoding at most
DISTANCE_BYTES_MIN = 16 << 20  # a segment: nothing is read in smaller units
WAL_BYTES_PER_BASE_BYTE = 32  # at least: bases need 3 % of the disk of the WAL that they make readable
ESTIMATED_S_PER_BASE_BYTE = 1e-7  # 10,000 tables: 2.2 MB in 0.2 s; until the first base of this process is measured
BASES_MAX = 256
BASE_BYTES_MAX = 256 << 20  # of all bases


class SavedBase(Protocol):
    """A base that is kept."""

    @property
    def lsn(self) -> Lsn:
        """Where the catalogs are as it has them."""

    @property
    def byte_count(self) -> int:
        """Its size."""


Saved = TypeVar("Saved", bound=SavedBase)


class BaseSchedule:
    """The costs since the newest base. Times are arguments: the processor time that decoding has used so far."""

    def __init__(self, bases: Sequence[SavedBase], distance_bytes_max: int) -> None:
        self._distance_bytes_max = distance_bytes_max
        self._newest_lsn = 0
        self._byte_count = 0
        self._write_s = 0.0
        self._measured_from: tuple[Lsn, float] | None = None
        self.restart(bases)

    def restart(self, bases: Sequence[SavedBase]) -> None:
        """Continue from the newest of the bases that are left."""
        newest = max(bases, key=lambda base: base.lsn, default=None)
        self._newest_lsn = 0 if newest is None else newest.lsn
        if newest is not None and newest.byte_count != self._byte_count:
            self._byte_count = newest.byte_count
            self._write_s = newest.byte_count * ESTIMATED_S_PER_BASE_BYTE

    def is_due(self, decoded_lsn: Lsn, decode_s: float) -> bool:
        """Return whether a base is written now."""
        if self._measured_from is None:
            self._measured_from = decoded_lsn, decode_s
        distance = decoded_lsn - self._newest_lsn
        if distance >= self._distance_bytes_max:
            return True
        if distance < max(DISTANCE_BYTES_MIN, WAL_BYTES_PER_BASE_BYTE * self._byte_count):
            return False
        from_lsn, from_s = self._measured_from
        if decoded_lsn - from_lsn < DISTANCE_BYTES_MIN:
            return False
        s_per_byte = (decode_s - from_s) / (decoded_lsn - from_lsn)
        return EXPECTED_READERS * s_per_byte * distance >= self._write_s

    def record_base(self, base: SavedBase, write_s: float, decode_s: float) -> None:
        """Count from a base that took `write_s` of processor time to write."""
        self._newest_lsn = base.lsn
        self._byte_count = base.byte_count
        self._write_s = write_s
        self._measured_from = base.lsn, decode_s

    def surplus(self, bases: Sequence[Saved]) -> list[Saved]:
        """Return the bases to remove, so that few and small ones remain: the older WAL is, the farther apart they are.

        First and newest base remain, and so does one whose neighbours are farther apart than the greatest distance.
        """
        kept = sorted(bases, key=lambda base: base.lsn)
        removed: list[Saved] = []
        while len(kept) > BASES_MAX or sum(base.byte_count for base in kept) > BASE_BYTES_MAX:
            end_lsn = kept[-1].lsn
            gaps = [
                ((after.lsn - before.lsn) / (end_lsn - before.lsn), number)
                for number, (before, after) in enumerate(zip(kept, kept[2:], strict=False), start=1)
                if after.lsn - before.lsn <= self._distance_bytes_max
            ]
            if not gaps:
                break
            removed.append(kept.pop(min(gaps)[1]))
        return removed
