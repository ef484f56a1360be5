"""Finds our newest marker before a fork in the node's WAL or the archive, segment by segment backwards.

The marker has the confirmed pointer of that time and the LSN at which decoding for it begins. That LSN is usually so
near that its WAL still exists when the WAL of the last catalog base is removed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from tidemark.engine.dead_branch import DeadBranch, precedes
from tidemark.io.archive.archive import ArchiveFolder, read_between
from tidemark.io.node.replication import WalStream
from tidemark.io.process.config import Config
from tidemark.io.process.marker_key import load_marker_key
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError, CorruptWal, NodeUnreachable, WalGap
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.model.mode import Stage
from tidemark.model.position import Pointer
from tidemark.wal.page import Framer, Invalid, NeedMore
from tidemark.wal.rmgr import RM_LOGICALMSG, message
from tidemark.wal.segments import TimelineHistory, WalSlice, segment_of, segment_start
from tidemark.wire.marker import Ignored, Instance, Marker, MarkerKind, read_marker

SEGMENTS_MAX = 64  # 1 GiB of WAL in segments of the default size
EMPTY_READS_MAX = 30
SILENCE_S = 1.0
ReadWal = Callable[[Lsn, Lsn], Iterator[WalSlice]]  # reads a range; raises `WalGap` if it was removed
_INTEREST = frozenset({RM_LOGICALMSG})


def newest_marked(
    config: Config, store: StateStore, history: TimelineHistory, branch: DeadBranch, sources: Sequence[ReadWal]
) -> Pointer | None:
    """Return the pointer of the newest marker before the branch; None if no source has one.

    A marker of an earlier dead branch is skipped: readers confirm changes that were delivered from it behind its fork.
    """
    identity = store.identity
    instance, key = Instance(identity.system_identifier, identity.capture), load_marker_key(config, store.folder)
    last = segment_of(Lsn(branch.fork_lsn - 1), identity.segment_bytes)
    for read in sources:
        with suppress(WalGap, CorruptWal, ConfigError):  # if a segment is missing, the earlier ones are not useful
            for number in range(last, max(0, last - SEGMENTS_MAX), -1):
                start_lsn = segment_start(number, identity.segment_bytes)
                end_lsn = min(branch.fork_lsn, segment_start(number + 1, identity.segment_bytes))
                framer = Framer(system_identifier=identity.system_identifier, segment_bytes=identity.segment_bytes)
                markers = (
                    read_marker(content, instance, key) for content in _contents(framer, read(start_lsn, end_lsn))
                )
                pointers = [
                    pointer
                    for marker in markers
                    if (pointer := _confirmed_pointer(marker, history, branch)) is not None
                ]
                if pointers:
                    return pointers[-1]
    return None


def sources_of(config: Config, store: StateStore, stage: Stage, history: TimelineHistory) -> Sequence[ReadWal]:
    """Return the sources of WAL in this stage, the more probable one first."""
    archive = [partial(_from_archive, config, store, history)] if config.has_archive else []
    return [partial(_from_node, config, store, history), *archive] if stage is Stage.REALTIME else archive


def _from_archive(
    config: Config, store: StateStore, history: TimelineHistory, start_lsn: Lsn, end_lsn: Lsn
) -> Iterator[WalSlice]:
    archive = ArchiveFolder(Path(config.archive.folder), complete_only=True, of=store.identity.system_identifier)
    archive.history = history  # NB: the archive may contain later timelines of other servers
    return read_between(archive, start_lsn, end_lsn)


def _from_node(
    config: Config, store: StateStore, history: TimelineHistory, start_lsn: Lsn, end_lsn: Lsn
) -> Iterator[WalSlice]:
    with closing(WalStream(config.capture.dsn)) as stream:
        stream.identify(store.identity.system_identifier)
        stream.start(start_lsn, history.timeline_at(start_lsn))
        empty_reads = 0
        while stream.received_lsn < end_lsn:
            event = stream.read(SILENCE_S)
            empty_reads += event is None
            if empty_reads > EMPTY_READS_MAX:
                raise NodeUnreachable(f"{stream.where} sends no WAL from {format_lsn(stream.received_lsn)} on")
            if isinstance(event, WalSlice):
                yield replace(event, data=memoryview(event.data)[: end_lsn - event.start_lsn])


def _confirmed_pointer(marker: Marker | Ignored, history: TimelineHistory, branch: DeadBranch) -> Pointer | None:
    """Return the pointer of a marker if it precedes the branch."""
    if isinstance(marker, Ignored) or marker.kind is MarkerKind.CHECK or marker.pointer is None:
        return None
    return marker.pointer if precedes(history, marker.pointer.position, branch) else None


def _contents(framer: Framer, pieces: Iterator[WalSlice]) -> Iterator[bytes]:
    """Yield the contents of all messages under our prefix; stop at invalid WAL."""
    for piece in pieces:
        framer.follow(piece.timeline)
        framer.feed(piece.start_lsn, piece.data)
        while not isinstance(block := framer.next_block(), NeedMore):
            if isinstance(block, Invalid):
                return
            for record in block.records(_INTEREST):
                found = message.parse(record)
                if found is not None and found.prefix == MARKER_PREFIX.encode():
                    yield found.content
