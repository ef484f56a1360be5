"""Selects the records of a block that a catalog follower needs, by their first bytes: most are of users' tables.

A seed replays all WAL since the last checkpoint, so only records that may matter are parsed. These are skipped:

  HEAP, HEAP2, hint images   of files that no mirror tracks
  all others of no interest  to a mirror (`follower.INTEREST`)

but the first record of any xid always passes: only that one can name the top-level transaction.
"""

from collections.abc import Iterator
from struct import Struct

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.follower import INTEREST
from tidemark.model.relation import RelFileLocator
from tidemark.wal.page import RecordBlock
from tidemark.wal.record import BLOCK_ID_MAX, HAS_IMAGE, IMAGE_HAS_HOLE, INFO_MASK, SAME_REL, Record
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_XLOG, xlog
from tidemark.wal.versions import RECORD_HEADER_BYTES, WalFormat

XIDS_MAX = 1 << 20  # remembered; then all are dropped, and the next record of each passes again
_LOCATOR = Struct("<III")
_BLOCK_HEADER_BYTES = 4  # id, flags, data length
_IMAGE_HEADER_BYTES = 5
_HOLE_BYTES = 2


class RecordFilter:
    """Selects the records that `mirrors` may need."""

    def __init__(self, fmt: WalFormat, mirrors: DatabaseMirrors) -> None:
        self._compressed = fmt.image_compressed
        self._mirrors = mirrors
        self._xids: set[int] = set()  # xids with a passed record

    def records(self, block: RecordBlock, stop: int) -> Iterator[Record]:
        """Yield the records before index `stop` that may matter.

        NB: follow each record before the next one is requested: it may change which files are tracked.
        """
        xids = self._xids
        for index in range(stop):
            xid = block.xids[index]
            if xid and xid not in xids:
                if len(xids) >= XIDS_MAX:
                    xids.clear()
                xids.add(xid)
                yield block.record(index)
            elif block.rmgrs[index] in INTEREST and self._matters(block, index):
                yield block.record(index)

    def _matters(self, block: RecordBlock, index: int) -> bool:
        rmgr = block.rmgrs[index]
        if rmgr not in (RM_HEAP, RM_HEAP2) and not (
            rmgr == RM_XLOG and block.infos[index] & INFO_MASK == xlog.FPI_FOR_HINT
        ):
            return True
        locator = self._first_file(block, index)
        return locator is None or self._mirrors.tracks(locator)

    def _first_file(self, block: RecordBlock, index: int) -> RelFileLocator | None:
        """Return the file of a record's first block; None if it has none, or is malformed."""
        data = block.linear
        at = block.offsets[index] + RECORD_HEADER_BYTES
        end = block.offsets[index] + block.lengths[index]
        if at + _BLOCK_HEADER_BYTES + _IMAGE_HEADER_BYTES > end or data[at] > BLOCK_ID_MAX:
            return None
        flags = data[at + 1]
        at += _BLOCK_HEADER_BYTES
        if flags & HAS_IMAGE:
            info = data[at + _IMAGE_HEADER_BYTES - 1]
            at += _IMAGE_HEADER_BYTES
            if info & self._compressed and info & IMAGE_HAS_HOLE:
                at += _HOLE_BYTES
        if flags & SAME_REL or at + _LOCATOR.size > end:
            return None
        return RelFileLocator._make(_LOCATOR.unpack_from(data, at))
