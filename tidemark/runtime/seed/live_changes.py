"""The whole path from a node's stream to changes, for a caller that has only a DSN and a fresh seed.

It needs no state and keeps none.
"""

import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from tidemark.decode.transactions.decoder import Decoded, DecodedRun
from tidemark.decode.transactions.ports import SpillPort
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun, singly
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.io.node.node import Node
from tidemark.model.errors import NodeUnfit, NodeUnreachable
from tidemark.model.lsn import FullXid, Lsn
from tidemark.model.snapshot import Visibility
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, WalDecoding
from tidemark.runtime.seed.older_transactions import Waiting
from tidemark.runtime.seed.seed_observer import SeedObserver, SilentObserver
from tidemark.runtime.seed.seeding import POLL_S, Seed, begin_behind, decoder_of
from tidemark.runtime.seed.steady_stream import SteadyStream
from tidemark.runtime.seed.wait_times import WAIT_S_DEFAULT
from tidemark.wal.page import Framer

BUFFERED_BYTES_MAX = 256 << 20  # of commits before S2 is known


class BufferFull(NodeUnfit):
    """While older transactions were waited for, more changes committed than can be buffered."""

    hint = "end the older transactions first, or start at a quieter time"


class LiveChanges:
    """The changes of a running node from a new seed on, without any state, as `tail` shows them.

    The first change is the first commit that the snapshot S2 does not show (see `seeding`). Until S2 is known, commits
    are buffered, up to `BUFFERED_BYTES_MAX`. A broken connection is made again; that is safe, because a server never
    sends WAL that a crash could remove.
    """

    def __init__(
        self,
        dsn: str,
        seed: Seed,
        *,
        memory_bytes: int = MEMORY_BYTES_DEFAULT,
        spill: SpillPort | None = None,
        wait_s: float = WAIT_S_DEFAULT,
        observer: SeedObserver | None = None,
        on_disconnect: Callable[[NodeUnreachable], None] | None = None,
    ) -> None:
        self.seed = seed
        self.snapshot: Visibility | None = None  # S2
        self._dsn = dsn
        self._waiting = Waiting(seed.complete_from, wait_s, observer or SilentObserver())
        self._polled_s = 0.0
        self._stream = SteadyStream(
            dsn, seed.node.system_identifier, seed.lsn, seed.timeline, on_disconnect=on_disconnect
        )
        self.begin_lsn = Lsn(0)  # of messages outside transactions
        self._buffered: list[DecodedRun] = []
        self._buffered_bytes = 0
        framer = Framer(
            seed.format,
            system_identifier=seed.node.system_identifier,
            segment_bytes=seed.node.segment_bytes,
            timeline=seed.timeline,
            start_lsn=seed.lsn,
        )
        decoder = decoder_of(seed, memory_bytes=memory_bytes, spill=spill)
        self.decoding = WalDecoding(framer, decoder, seed.timeline)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def decoded_lsn(self) -> Lsn:
        """End of the last record that was decoded."""
        return self.decoding.decoder.decoded_lsn

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def read(self, wait_s: float) -> Iterator[Decoded]:
        """Yield what the next slice of WAL completes, one by one; nothing if none arrives within `wait_s`."""
        return singly(self.read_runs(wait_s))

    def read_runs(self, wait_s: float) -> Iterator[DecodedRun]:
        """Do the same, but yield small transactions in runs."""
        if self.snapshot is None:
            yield from self._find_start()
        wal_slice = self._stream.read(wait_s)
        if wal_slice is None:
            return
        for decoded in self.decoding.feed_runs(wal_slice):
            if self.snapshot is None:
                self._buffer(decoded)
            else:
                yield from self._in_range(decoded, self.snapshot)

    def _find_start(self) -> Iterator[DecodedRun]:
        """Check whether S2 is available; if so, yield the buffered changes that S2 does not show."""
        now_s = time.monotonic()
        if now_s - self._polled_s < POLL_S:
            return
        self._polled_s = now_s
        with Node(self._dsn, next(iter(self.seed.databases.values()))) as node:
            snapshot = self._waiting.poll(node)
            if snapshot is None:
                return
            self.begin_lsn = node.insert_lsn()
            self.snapshot = begin_behind(node, snapshot, self.seed.complete_from)
        buffered, self._buffered, self._buffered_bytes = self._buffered, [], 0
        for decoded in buffered:
            yield from self._in_range(decoded, self.snapshot)

    def _buffer(self, decoded: DecodedRun) -> None:
        self._buffered.append(decoded)
        if isinstance(decoded, CommittedRun | CommittedTransaction):
            self._buffered_bytes += decoded.byte_count
        else:
            self._buffered_bytes += len(decoded.content)
        if self._buffered_bytes > BUFFERED_BYTES_MAX:
            raise BufferFull(f"over {BUFFERED_BYTES_MAX} bytes of changes committed while older transactions were open")

    def _in_range(self, decoded: DecodedRun, snapshot: Visibility) -> Iterator[DecodedRun]:
        """Yield the parts of `decoded` that the snapshot does not show; release the rest."""
        if isinstance(decoded, CommittedRun):
            oldest, first_lsn = FullXid(min(decoded.ends.full_xids)), Lsn(decoded.ends.commit_lsns[0])
            if snapshot.shows_none_from(oldest, first_lsn):
                yield decoded
                return
        for found in singly((decoded,)):
            if not isinstance(found, CommittedTransaction):
                if found.lsn >= self.begin_lsn:
                    yield found
            elif snapshot.shows(found.end.full_xid, found.end.commit_lsn):
                found.release()
            else:
                yield found
