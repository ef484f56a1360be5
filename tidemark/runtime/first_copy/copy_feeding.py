"""Delivers the rows of one table: between a begin and an end that state the generation.

Only the end confirms that the rows are the whole table. A generation that was not ended is begun again as the next one,
so that sinks empty the table first.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from tidemark.io.host.logs import Log
from tidemark.io.node.copy_source import TableSnapshot
from tidemark.io.process.metrics import Metrics
from tidemark.model.change import ChangeBatch, ChangeGroup, CopyBoundary, GroupItem
from tidemark.model.lsn import Lsn, Oid
from tidemark.model.position import Pointer, Position
from tidemark.model.relation import KnownDatabase
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress

GENERATION_SHIFT = 40  # ordinals of a generation follow those of all before it, also at an equal LX
Deliver = Callable[[ChangeGroup, tuple[Oid, Oid, CopyProgress]], None]
NO_DATABASES: Mapping[Oid, KnownDatabase] = {}
BuiltBatch = tuple[Position, ChangeBatch, int]  # with its first position, and its bytes


class CopyFeeding:
    """Passes rows to a target."""

    def __init__(self, deliver: Deliver, metrics: Metrics, log: Log) -> None:
        self._deliver = deliver
        self._metrics = metrics
        self._log = log

    def feed(
        self,
        key: TableKey,
        position: Position,
        generation: int,
        snapshot: TableSnapshot,
        *,
        built: Iterator[BuiltBatch],
        whole: Callable[[], None],
        database: KnownDatabase | None = None,
    ) -> None:
        """Deliver the rows of a table; `whole` raises an error if they are not all of it.

        database: by its present name, which the stream may not have reached; None: not known.
        """
        foremost = next(built, None)
        if foremost is None:
            whole()  # nothing is delivered of a table that could not be read
        progress = CopyProgress(
            CopyPhase.COPYING,
            generation,
            snapshot.snapshot,
            position.commit_lsn,
            seen_lsn=snapshot.seen_lsn,
            timeline=snapshot.timeline,
        )
        begin = CopyBoundary(
            position,
            key[0],
            snapshot.relation,
            generation,
            True,
            snapshot.snapshot,
            snapshot.comments,
            seen_lsn=snapshot.seen_lsn,
            seen_time_us=snapshot.seen_time_us,
        )
        databases = NO_DATABASES if database is None else {key[0]: database}
        self._hand_over(position, [begin], 0, 0, (*key, progress), databases=databases)
        for first, batch, byte_count in chain([] if foremost is None else [foremost], built):
            count = batch.rows.num_rows
            progress = replace(progress, row_count=progress.row_count + count)
            last = replace(position, ordinal=position.ordinal + progress.row_count)
            self._hand_over(last, [batch], count, byte_count, (*key, progress), first=first)
            self._metrics.copy_rows.inc(count)
        whole()
        last = replace(position, ordinal=position.ordinal + 1 + progress.row_count)
        done = replace(progress, phase=CopyPhase.DONE)
        self._hand_over(last, [replace(begin, position=last, begin=False, comments=None)], 0, 0, (*key, done))
        self._log.info(
            "table copied",
            table=begin.relation.qualified_name,
            relation_oid=key[1],
            rows=progress.row_count,
            generation=generation,
        )

    def _hand_over(
        self,
        last: Position,
        items: list[GroupItem],
        rows: int,
        byte_count: int,
        progress: tuple[Oid, Oid, CopyProgress],
        *,
        first: Position | None = None,
        databases: Mapping[Oid, KnownDatabase] = NO_DATABASES,
    ) -> None:
        # The restart LSN is the stream's: a copied row is never where a restart begins.
        pointer = Pointer(last, Lsn(0))
        self._deliver(ChangeGroup(first or last, pointer, items, (), rows, byte_count, databases=databases), progress)
