"""The seed: catalog mirrors that are exact at one LSN, from ordinary SELECTs and the WAL since the last checkpoint.

The steps and the reasons: docs/design/catalog.md. In short, in this order:

  R0, N0   redo LSN and next xid of the last checkpoint; WAL from R0 is replayed from here on, all the time
  wait     until every transaction older than N0 has ended: all that is open now has all of its WAL after R0
  SELECT   the catalogs of each database, each under one snapshot
  L2       the flush LSN once all that those snapshots saw is flushed; the replay stops before the first record there
  merge    SQL's rows, unless WAL has written the tuple's location: the mirrors are exact at L2
  X2       the xid after the last one that WAL before L2 contains: all WAL of transactions from X2 on is after L2

A transaction older than X2 cannot be delivered whole, so the changes begin where all of those have ended:
`wait_for_start` waits for that and returns the snapshot S2. Exactly what S2 does not see is delivered. NB: a commit
record can be before the LSN at which S2 was taken while S2 still sees the transaction running: it is delivered.

On a standby the same holds, with its last restartpoint for the checkpoint and the replayed LSN for the flush LSN. A
record's effects may be seen while it is being replayed, before L2 has moved over it; it is then the first record to be
decoded, so nothing is resolved before the mirrors have it. S2 is the replayed LSN once the older ones have ended: a
standby's snapshot does not show which transactions run, and its commits become visible in the order of WAL.

Needs a LOGIN REPLICATION role with CONNECT. Writes one empty message into WAL of a primary, to have it flushed.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.follower import CatalogFollower
from tidemark.decode.catalog.record_filter import RecordFilter
from tidemark.decode.catalog.redo import SeedOvertaken
from tidemark.decode.catalog.seeding import seed
from tidemark.decode.transactions.decoder import Decoder
from tidemark.decode.transactions.ports import SpillPort
from tidemark.io.node.node import Node, NodeFacts, RedoPoint
from tidemark.io.node.node_errors import LockTimedOut, RecoveryConflict, WalRemoved
from tidemark.io.node.replication import TimelineEnd, WalStream
from tidemark.io.node.seed import FILES_ATTEMPTS_MAX, FileRows, SeedSession, being_rewritten
from tidemark.io.node.uncaptured_seed import VisitingSession, uncaptured_databases, untouched_template
from tidemark.model.errors import CorruptWal, NodeUnreachable
from tidemark.model.lsn import XID_MASK, FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.snapshot import ReplayedSnapshot, Snapshot, Visibility
from tidemark.runtime.seed.older_transactions import Waiting
from tidemark.runtime.seed.seed_observer import SeedObserver, SilentObserver
from tidemark.runtime.seed.wait_times import WAIT_S_DEFAULT
from tidemark.wal.page import Framer, Invalid, NeedMore, RecordBlock
from tidemark.wal.segments import WalSlice
from tidemark.wal.versions import PAGE_BYTES, WalFormat, wal_format

ATTEMPTS_MAX = 5  # at a seed that is invalidated by a rewrite of a catalog or by a standby's replay
# Attempts at a seed whose WAL the node removes. Each begins at the checkpoint after which the last one's WAL was
# removed, so it has the time of a whole checkpoint cycle: some attempts fail on a node with frequent checkpoints.
REMOVED_ATTEMPTS_MAX = 20
POLL_S = 0.1  # between checks of the oldest transaction; also the time to wait for WAL
_REMOVED_HINT = (
    "the node removes WAL faster than the catalogs are read: raise wal_keep_size (or max_wal_size) on it until "
    "the command has ended, or try again when it writes less"
)
SelectDatabases = Callable[[Node], Sequence[str]]
FollowsDatabase = Callable[[str], bool]


def no_other_database(_database: str) -> bool:
    """Follow no uncaptured database."""
    return False


@dataclass(frozen=True, slots=True)
class Seed:
    """Mirrors that are exact at `lsn`, where the search for the next record begins."""

    node: NodeFacts
    format: WalFormat
    timeline: TimelineId
    lsn: Lsn
    mirrors: DatabaseMirrors
    databases: Mapping[Oid, str]  # the requested ones
    complete_from: FullXid  # all WAL of transactions from this one on is after `lsn`
    top_of: Mapping[Xid, Xid]  # of subtransactions that are open at `lsn`


def read_seed(
    dsn: str,
    databases: Sequence[str] | SelectDatabases = (),
    *,
    follows: FollowsDatabase = no_other_database,
    wait_s: float = WAIT_S_DEFAULT,
    observer: SeedObserver | None = None,
) -> Seed:
    """Return mirrors of `databases` (none: that of the DSN); waits for older transactions, up to `wait_s`.

    With a function in their place, which chooses among the existing ones, mirrors of the templates are added, and of
    databases that `follows` accepts: a database that is created later, or renamed into the selection, can be followed.
    """
    observed = observer or SilentObserver()
    failed = removed = 0
    while True:
        try:
            if callable(databases):
                return _attempt_all(dsn, databases, follows, wait_s, observed)
            return _attempt(dsn, databases, wait_s, observed)
        except WalRemoved as error:
            removed += 1
            if removed == REMOVED_ATTEMPTS_MAX:
                raise WalRemoved(str(error), hint=_REMOVED_HINT) from error
            observed.repeating(error, removed, REMOVED_ATTEMPTS_MAX)
        except (SeedOvertaken, RecoveryConflict, LockTimedOut) as error:
            failed += 1
            if failed == ATTEMPTS_MAX:
                raise
            observed.repeating(error, failed, ATTEMPTS_MAX)


def wait_for_start(
    node: Node, seed: Seed, *, wait_s: float = WAIT_S_DEFAULT, observer: SeedObserver | None = None
) -> Visibility:
    """Wait until the transactions older than the seed have ended; return the snapshot S2 after which changes begin."""
    snapshot = _wait_for_older(node, seed.complete_from, wait_s, observer or SilentObserver(), time.sleep)
    return begin_behind(node, snapshot, seed.complete_from)


def begin_behind(node: Node, snapshot: Snapshot, complete_from: FullXid) -> Visibility:
    """Return S2; `snapshot` has shown that all transactions older than `complete_from` have ended."""
    return ReplayedSnapshot(complete_from, node.flush_lsn()) if node.is_in_recovery() else snapshot


def decoder_of(seed: Seed, *, memory_bytes: int, spill: SpillPort | None = None) -> Decoder:
    """Return a decoder that continues at the end of the seed."""
    decoder = Decoder(
        seed.format,
        seed.timeline,
        seed.mirrors,
        next_xid=seed.complete_from,
        memory_bytes=memory_bytes,
        spill=spill,
        complete_from=seed.complete_from,
    )
    for xid, top_xid in seed.top_of.items():
        decoder.transactions.enter_partial(xid, top_xid, seed.lsn)
    return decoder


def _attempt_all(
    dsn: str, select: SelectDatabases, follows: FollowsDatabase, wait_s: float, observer: SeedObserver
) -> Seed:
    with Node(dsn) as node:
        wanted = select(node)
    seed = _attempt(dsn, wanted, wait_s, observer, follows)
    coming = seed.mirrors.shared.being_created()
    with Node(dsn) as node:
        missed = set(select(node)) - set(seed.databases.values())
    if coming or missed:
        names = ", ".join([*(row.name for row in coming), *sorted(missed)])
        raise SeedOvertaken(f"databases were created during the seed: {names}")
    return seed


def _attempt(
    dsn: str,
    databases: Sequence[str],
    wait_s: float,
    observer: SeedObserver,
    follows: FollowsDatabase | None = None,
) -> Seed:
    with ExitStack() as stack:
        wanted: Sequence[str | None] = databases or (None,)
        nodes = [stack.enter_context(Node(dsn, database)) for database in wanted]
        first = nodes[0]
        facts = first.check_fitness()
        for node in nodes[1:]:
            node.check_same_node(facts.system_identifier)
        redo = first.redo_point()
        fmt = wal_format(facts.major)
        next_xid = Xid(redo.next_xid & 0xFFFFFFFF)
        own, *others = [SeedSession(node) for node in nodes]
        mirrors = [own.begin(fmt, next_xid, None)]
        shared = mirrors[0].shared
        mirrors += [session.begin(fmt, next_xid, shared) for session in others]
        sessions: list[SeedSession | VisitingSession] = [own, *others]
        if follows is not None:
            for other in uncaptured_databases(dsn, first, databases, follows):
                mirror = other.begin_if_allowed(fmt, next_xid, shared)
                if mirror is not None:
                    sessions.append(other)
                    mirrors.append(mirror)
        replay = stack.enter_context(_NodeReplay(dsn, facts, redo, DatabaseMirrors(mirrors), observer))
        _wait_for_older(first, redo.next_xid, wait_s, observer, replay.follow)
        answers = [session.read(mirror, replay.follow) for session, mirror in zip(sessions, mirrors, strict=True)]
        end_lsn, files = _end(first, sessions)
        lsn = replay.run_to(end_lsn)
        for session, mirror, answer, current in zip(sessions, mirrors, answers, files, strict=True):
            seed.merge(mirror, answer)
            session.check_files(mirror, current)
        if follows is not None:
            mirrors += untouched_template(first, sessions, mirrors)
        names = {mirror.database: node.facts().database for mirror, node in zip(mirrors, nodes, strict=False)}
        return Seed(
            node=facts,
            format=fmt,
            timeline=replay.timeline,
            lsn=lsn,
            mirrors=DatabaseMirrors(mirrors, lambda row: row.oid in names),
            databases=names,
            complete_from=replay.next_xid,
            top_of=dict(replay.follower.top_of),
        )


def _end(node: Node, sessions: Sequence[SeedSession | VisitingSession]) -> tuple[Lsn, list[FileRows]]:
    """Return L2, and the files of the catalogs there: equal before and after, since a rewrite may be in progress."""
    files = [session.files() for session in sessions]
    for _ in range(FILES_ATTEMPTS_MAX):
        end_lsn = node.flush_all()
        if files == (files := [session.files() for session in sessions]):
            return end_lsn, files
    raise being_rewritten(node)


def _wait_for_older(
    node: Node, below: FullXid, wait_s: float, observer: SeedObserver, meanwhile: Callable[[float], None]
) -> Snapshot:
    """Wait until no transaction older than `below` is open; return the snapshot that showed it."""
    waiting = Waiting(below, wait_s, observer)
    while (snapshot := waiting.poll(node)) is None:
        meanwhile(POLL_S)
    return snapshot


def next_xid_after(next_xid: FullXid, block: RecordBlock, stop: int) -> FullXid:
    """Return the next xid after the records before index `stop`; before them it was `next_xid`."""
    distances = {(xid - next_xid) & XID_MASK for xid in set(block.xids[:stop]) if xid}
    ahead = [distance for distance in distances if distance <= XID_MASK >> 1]
    return FullXid(next_xid + max(ahead) + 1) if ahead else next_xid


class _NodeReplay:
    """WAL from the redo LSN on, followed by the mirrors; connects again if the server closes the connection."""

    def __init__(
        self, dsn: str, facts: NodeFacts, redo: RedoPoint, mirrors: DatabaseMirrors, observer: SeedObserver
    ) -> None:
        fmt = wal_format(facts.major)
        self.follower = CatalogFollower(fmt, mirrors)
        self._filter = RecordFilter(fmt, mirrors)
        self._dsn = dsn
        self._facts = facts
        self.timeline = redo.timeline  # of the received WAL
        self.next_xid = redo.next_xid  # after all followed records
        self._framer = Framer(
            fmt,
            system_identifier=facts.system_identifier,
            segment_bytes=facts.segment_bytes,
            timeline=redo.timeline,
            start_lsn=redo.redo_lsn,
        )
        self._observer = observer
        self._start_lsn = self._end_lsn = redo.redo_lsn  # the known range to replay
        self._lsn = redo.redo_lsn  # of the first record that is not followed yet
        self._next_lsn = Lsn(redo.redo_lsn // PAGE_BYTES * PAGE_BYTES)  # of the first byte that is not received yet
        self._stream = self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stream.close()

    def follow(self, wait_s: float = 0.0) -> None:
        """Follow the received WAL, and WAL that arrives within `wait_s`."""
        deadline = time.monotonic() + wait_s
        while self._receive(max(0.0, deadline - time.monotonic()), None):
            pass

    def run_to(self, end_lsn: Lsn) -> Lsn:
        """Follow all records that begin before `end_lsn`; return where the search for the next one begins."""
        self._end_lsn = end_lsn
        while self._next_lsn < end_lsn:
            self._receive(POLL_S, end_lsn)
        return self._lsn

    def _connect(self) -> WalStream:
        stream = WalStream(self._dsn)
        try:
            identity = stream.identify(self._facts.system_identifier)
            self._end_lsn = max(self._end_lsn, identity.flush_lsn)
            self._start(stream)
        except BaseException:
            stream.close()
            raise
        return stream

    def _start(self, stream: WalStream) -> None:
        """Stream from the next byte on, along the node's timelines: the checkpoint may be older than a promotion."""
        while (ended := stream.start(self._next_lsn, self.timeline)) is not None:
            self._switch(ended)

    def _switch(self, ended: TimelineEnd) -> None:
        if ended.next_start_lsn < self._next_lsn:  # part of a record was sent
            raise NodeUnreachable("the node was promoted during the seed", hint="run the seed again")
        self.timeline = ended.next_timeline
        self._framer.follow(self.timeline)

    def _receive(self, wait_s: float, stop_lsn: Lsn | None) -> bool:
        """Receive one event; return whether there was one."""
        try:
            event = self._stream.read(wait_s)
        except NodeUnreachable:
            # A long query kept us from answering the walsender in time. If the node is gone, this raises.
            self._stream.close()
            self._stream = self._connect()
            return False
        if isinstance(event, TimelineEnd):
            self._switch(event)
            self._start(self._stream)
        if isinstance(event, WalSlice):
            self._follow(event, stop_lsn)
            self._end_lsn = max(self._end_lsn, event.end_lsn)
            self._observer.replaying(self._start_lsn, event.end_lsn, self._end_lsn)
        return event is not None

    def _follow(self, wal_slice: WalSlice, stop_lsn: Lsn | None) -> None:
        self._framer.feed(wal_slice.start_lsn, wal_slice.data)
        self._next_lsn = wal_slice.end_lsn
        while not isinstance(block := self._framer.next_block(), NeedMore):
            if isinstance(block, Invalid):
                raise CorruptWal(f"the stream: {block}")
            stop = len(block) if stop_lsn is None else bisect_left(block.lsns, stop_lsn, 0, len(block))
            for record in self._filter.records(block, stop):
                self.follower.follow(record)
            self.next_xid = next_xid_after(self.next_xid, block, stop)
            if stop:
                self._lsn = Lsn(block.ends[stop - 1])
            if stop < len(block):
                return
