"""Which commits a snapshot on a standby shows: those that were replayed before it was taken.

A standby's snapshot does not show which transactions run (`tidemark.model.snapshot`), but commits become visible there
in the order of WAL, so an LSN is enough. The replayed LSN a moment before the snapshot and a moment after it are known.
NB: a record is visible before the replayed LSN has moved over it, so the record that begins at the later LSN belongs to
the window, too. A window without a commit in it is equivalent to its beginning; whether the snapshot saw a commit in
the window is unknown, and another snapshot has to be taken.
"""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from tidemark.io.node.node import NodeFacts
from tidemark.io.node.replication import TimelineEnd, WalStream
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.rmgr import RM_XACT, xact
from tidemark.wal.segments import WalSlice
from tidemark.wal.versions import PAGE_BYTES

READ_S = 1.0
UNDER_WAY_S = 1.0  # a commit is replayed in less; used where the end of its replay cannot be observed
_COMMITS = (xact.COMMIT, xact.COMMIT_PREPARED)


@dataclass(frozen=True, slots=True)
class ReplayWindow:
    """The records replayed while a snapshot was taken: those that begin in [start_lsn, end_lsn]."""

    start_lsn: Lsn
    end_lsn: Lsn
    received_lsn: Lsn | None  # end of the WAL streamed to the standby, queried after `end_lsn`; None: it never streamed

    def holds_commit(self, dsn: str, facts: NodeFacts) -> bool:
        """Return whether the window contains a commit."""
        with closing(WalStream(dsn)) as stream:
            here = stream.identify(facts.system_identifier)
            if here.flush_lsn <= self.end_lsn and (self.received_lsn is None or self.received_lsn < self.end_lsn):
                # It replays from an archive and sends replayed WAL only: the next record may be in progress.
                time.sleep(UNDER_WAY_S)
                here = stream.identify(facts.system_identifier)
            framer = Framer(
                stream.format,
                system_identifier=facts.system_identifier,
                segment_bytes=facts.segment_bytes,
                timeline=here.timeline,
                start_lsn=self.start_lsn,
            )
            if stream.start(Lsn(self.start_lsn // PAGE_BYTES * PAGE_BYTES), here.timeline) is not None:
                return True  # the standby changes to another timeline: the answer is unknown
            for block in _blocks(stream, framer, here.flush_lsn):
                for index in range(len(block)):
                    if _is_commit(block, index):
                        return True
                    if block.lsns[index] >= self.end_lsn:
                        return False
        return False


def _blocks(stream: WalStream, framer: Framer, end_lsn: Lsn) -> Iterator[RecordBlock]:
    """Yield the records that are complete at `end_lsn`."""
    while stream.received_lsn < end_lsn:
        event = stream.read(READ_S)
        if isinstance(event, WalSlice):
            framer.feed(event.start_lsn, event.data)
            while not isinstance(block := framer.next_block(), NeedMore):
                if isinstance(block, Invalid):
                    raise CorruptWal(f"the stream: {block}")
                yield block
        elif isinstance(event, TimelineEnd):
            return


def _is_commit(block: RecordBlock, index: int) -> bool:
    return block.rmgrs[index] == RM_XACT and block.infos[index] & xact.OPCODE_MASK in _COMMITS
