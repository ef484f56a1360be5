"""Makes the parts that decode the WAL of a capture: framer, decoder and group builder, as of its start."""

from tidemark.decode.catalog.databases import MappedDialects
from tidemark.decode.catalog.history import Base
from tidemark.decode.groups.delivery_filter import nothing_copied
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.groups.left_tables import LeftTables
from tidemark.decode.transactions.decoder import Decoder, OnMarker
from tidemark.io.host.spill import SpillFolder
from tidemark.io.state.history_files import HistoryWriter
from tidemark.model.lsn import Lsn
from tidemark.model.position import Pointer
from tidemark.model.snapshot import parse_visibility
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_reader import WalReader
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.first_copy.copies import Copies, left_tables
from tidemark.runtime.replay.history_start import enter_open
from tidemark.wal.page import Framer
from tidemark.wal.versions import wal_format
from tidemark.wire.state.values import Beginning


def new_reader(
    context: CaptureContext,
    settings: CaptureSettings,
    history: HistoryWriter,
    *,
    base: Base,
    beginning: Beginning,
    start: Pointer,
    on_marker: OnMarker | None,
) -> WalReader:
    """Return a reader that decodes from the restart LSN of `start`, with the catalogs of `base`.

    Its timeline is that of the delivered position until the first WAL: earlier runs have passed the forks before it.
    """
    identity, store = context.store.identity, context.store
    fmt, timeline = wal_format(base.major), start.position.timeline
    framer = Framer(
        fmt,
        system_identifier=identity.system_identifier,
        segment_bytes=identity.segment_bytes,
        timeline=timeline,
        start_lsn=start.restart_lsn,
    )
    decoder = Decoder(
        fmt,
        timeline,
        base.mirrors,
        next_xid=base.next_xid,
        memory_bytes=settings.decode.memory_bytes,
        spill=SpillFolder(store.folder.spill),
        complete_from=beginning.complete_from,
        from_lsn=Lsn(start.position.commit_lsn + 1),
        on_marker=on_marker,
    )
    enter_open(decoder.transactions, base, start.restart_lsn, requested=True)
    view, selection = store.view(), settings.select.selection()
    copies = Copies(view)
    left = left_tables(store, view, base.mirrors, selection.root_of)
    base.mirrors.follow_left({database for database, _ in left})
    builder = GroupBuilder(
        MappedDialects(base.mirrors, beginning.types, base.major),
        selected=selection.selects,
        root_of=selection.root_of,
        excluded=selection.excluded_origins(),
        selects_message=selection.selects_message,
        counting=settings.deliver.transactions,
        copied=copies.have if copies.snapshots else nothing_copied,
        copied_by=copies.snapshots,
        after=start.position,
        behind=parse_visibility(beginning.snapshot) if beginning.snapshot else None,
        left=LeftTables(left),
        rows_max=settings.deliver.group_rows_max,
        bytes_max=settings.deliver.group_bytes_max,
    )
    decoder.select_only(builder.selects)
    return WalReader(
        framer,
        decoder,
        builder,
        history,
        base.mirrors,
        check_fork=copies.check_fork,
        base_distance_bytes_max=settings.history.base_every_bytes,
        metrics=context.metrics,
        log=context.log,
    )
