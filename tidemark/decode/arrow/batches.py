"""Builds columnar batches from row changes of one relation version in two passes: locate all values, build each column.

Rows come as spans of an arena (`RowSpans`), many transactions together: below some hundred rows, the fixed cost of a
batch exceeds the cost of its rows. Rare values (compressed values, and values missing from old tuples) are appended to
the arena first, so that the kernels read from one buffer only. A few rows are built in one call, in memory that is
reused (`SmallBatches`).
"""

from array import array

import pyarrow as pa

from tidemark.decode.arrow import batch_body
from tidemark.decode.arrow.batch_body import META_BUFFERS, META_NODES
from tidemark.decode.arrow.batch_message import BatchMessage
from tidemark.decode.arrow.batch_shapes import batch_shape
from tidemark.decode.arrow.column_plans import ColumnPlan
from tidemark.decode.arrow.column_values import NONE_MISSING, BadCell, TooLong, put
from tidemark.decode.arrow.located_tuples import Side, TupleLocator
from tidemark.decode.arrow.small_batch import COLUMN_BYTES, HEAD_BYTES, ROW_BYTES, SmallBatches
from tidemark.decode.datum import deforming
from tidemark.decode.datum.deforming import Location
from tidemark.decode.types.codec import ArrowValue, Dialect
from tidemark.decode.types.registry import UTF8
from tidemark.model.change import ChangeBatch, RowsMessage
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation

ABSENT = -1  # offset of an absent tuple
CELLS_MAX = 4 << 20  # located at once, 16 bytes each: rows times columns of a batch
EXPANDED_BYTES_MAX = 256 << 20  # decompressed bytes at which a batch is split; a single row may be larger


class RowSpans:
    """Row changes of one relation version in stream order: the locations of their tuples, and arrays of attributes.

    The arena may also contain tuples of other relations.
    """

    __slots__ = (
        "before_kind",
        "commit_lsn",
        "commit_time_us",
        "data",
        "lsn",
        "new_at",
        "new_length",
        "old_at",
        "old_length",
        "op",
        "ordinal",
        "origin",
        "timeline",
        "xid",
    )

    def __init__(self, data: bytearray, count: int = 0) -> None:
        """Allocate `count` rows whose tuples are in `data`."""
        self.data = data
        self.op = bytearray(count)  # the letter of an Op
        self.before_kind = bytearray(count)
        self.timeline = array("i", [0]) * count
        self.commit_lsn = array("q", [0]) * count
        self.ordinal = array("q", [0]) * count
        self.origin = array("i", [0]) * count
        self.lsn = array("q", [0]) * count
        self.xid = array("q", [0]) * count  # top-level
        self.commit_time_us = array("q", [0]) * count  # since 1970-01-01 UTC
        self.new_at = array("q", [0]) * count
        self.new_length = array("q", [0]) * count
        self.old_at = array("q", [0]) * count
        self.old_length = array("q", [0]) * count

    def __len__(self) -> int:
        return len(self.op)

    def part(self, start: int, stop: int) -> "RowSpans":
        """Return the rows from `start` to `stop`, in the same arena."""
        if (start, stop) == (0, len(self)):
            return self
        part = RowSpans(self.data)
        part.op = self.op[start:stop]
        part.before_kind = self.before_kind[start:stop]
        part.timeline = self.timeline[start:stop]
        part.commit_lsn = self.commit_lsn[start:stop]
        part.ordinal = self.ordinal[start:stop]
        part.origin = self.origin[start:stop]
        part.lsn = self.lsn[start:stop]
        part.xid = self.xid[start:stop]
        part.commit_time_us = self.commit_time_us[start:stop]
        part.new_at = self.new_at[start:stop]
        part.new_length = self.new_length[start:stop]
        part.old_at = self.old_at[start:stop]
        part.old_length = self.old_length[start:stop]
        return part


class BatchBuilder:
    """Builds the batches of one relation version; construction is cheap if its shape is cached."""

    __slots__ = ("_database", "_locator", "_relation", "_rows_max", "_shape", "_small")

    def __init__(
        self,
        database: Oid,
        relation: Relation,
        dialect: Dialect = UTF8,
        *,
        small: SmallBatches | None = None,
        cells_max: int = CELLS_MAX,
        expanded_bytes_max: int = EXPANDED_BYTES_MAX,
    ) -> None:
        """`small`: the memory of small batches, shared by builders; None: each batch is built in memory of its size."""
        self._small = small
        self._database = database
        self._relation = relation
        self._shape = batch_shape(relation, dialect)
        self._rows_max = max(1, cells_max // max(1, len(self._shape.missing)))
        self._locator = TupleLocator(relation, self._shape, expanded_bytes_max)

    @property
    def struct_type(self) -> pa.StructType:
        """Return the Arrow type of a row."""
        return self._shape.struct_type

    def build(self, rows: RowSpans, first: int = 0, end_row: int | None = None) -> list[ChangeBatch]:
        """Return the batches of `rows`, or of those from `first` to `end_row`.

        One, unless there are too many values or too many decompressed bytes.
        """
        last = len(rows) if end_row is None else end_row
        if self._small is not None and self._shape.small is not None:
            if self._small.rows is not rows:
                self._small.hold(rows)
            message = self._small.message(self._shape.small, rows.data, first, last)
            if message is not None:
                return [ChangeBatch(self._database, self._relation, self._described(message, rows, first, last))]
        made: list[ChangeBatch] = []
        pending = [(start, min(start + self._rows_max, last)) for start in range(first, last, self._rows_max)]
        pending.reverse()
        end = len(rows.data)
        while pending:
            start, stop = pending.pop()
            try:
                made.append(ChangeBatch(self._database, self._relation, self._batch(rows.part(start, stop))))
            except TooLong as error:
                if stop - start == 1:
                    raise InternalError(f"{self._relation.qualified_name}: a value's text is over 2 GB") from error
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
            del rows.data[end:]
        return made

    def _described(self, message: bytes | pa.Buffer, rows: RowSpans, start: int, stop: int) -> RowsMessage:
        timelines, lsns, ordinals, last = rows.timeline, rows.commit_lsn, rows.ordinal, stop - 1
        bounds = timelines[start], lsns[start], ordinals[start], timelines[last], lsns[last], ordinals[last]
        return RowsMessage(self._shape.schema, message, stop - start, bounds)

    def _batch(self, rows: RowSpans) -> RowsMessage:
        """Return the record batch of all rows."""
        before = self._locator.side(rows.data, rows.lsn, rows.old_at, rows.old_length)
        after = self._locator.side(rows.data, rows.lsn, rows.new_at, rows.new_length)
        if before.any_tuple and after.kinds[deforming.EXTERNAL]:
            after.byte_count += batch_body.fill_unchanged(
                after.locations, after.sizes, before.locations, before.sizes, after.absent, after.kinds
            )
        count, form, plan = len(rows), self._shape.form, self._shape.plan
        external = after.kinds[deforming.EXTERNAL]
        space = count * (ROW_BYTES + (len(plan.codecs) >> 3 if external else 0)) + HEAD_BYTES
        message = BatchMessage(form, space + _side_bytes(before, plan) + _side_bytes(after, plan))
        message.at = batch_body.put_rows(
            rows.op,
            rows.timeline,
            rows.commit_lsn,
            rows.ordinal,
            rows.lsn,
            rows.xid,
            rows.commit_time_us,
            rows.origin,
            rows.before_kind,
            external,
            message.out,
            message.offsets,
            message.words,
            form.nodes,
            form.buffers,
            message.body,
            message.at,
        )
        message.at = batch_body.put_unchanged(
            after.locations,
            after.at,
            len(plan.codecs),
            external,
            before.any_tuple,
            message.out,
            message.offsets,
            message.words,
            form.nodes,
            form.buffers,
            message.body,
            message.at,
        )
        nodes, buffers = form.nodes + 2 * META_NODES, form.buffers + 2 * META_BUFFERS
        self._put(before, message, nodes, buffers)
        self._put(after, message, nodes + 2 * len(plan.levels), buffers + 2 * len(plan.units))
        return self._described(message.finish(count), rows, 0, count)

    def _put(self, side: Side, message: BatchMessage, nodes: int, buffers: int) -> None:
        """Put a struct of the columns; NULL for rows without a tuple."""
        message.require(side.rows + 1 << 4)
        if not side.any_tuple:
            message.at = batch_body.put_nothing(
                self._shape.plan.levels,
                self._shape.plan.units,
                side.rows,
                message.out,
                message.words,
                nodes,
                buffers,
                message.body,
                message.at,
            )
            return
        message.at = batch_body.put_validity(
            side.at, side.nulls, message.out, message.words, nodes, buffers, message.body, message.at
        )
        missing = self._missing_values(side) if self._shape.texts and side.kinds[deforming.MISSING] else NONE_MISSING
        try:
            put(self._shape.plan, side, message, nodes=nodes, buffers=buffers, missing=missing)
        except BadCell as bad:
            raise self._locator.bad(side, bad.row, bad, bad.slot) from bad

    def _missing_values(self, side: Side) -> dict[int, ArrowValue]:
        """Return the missing values known only as text, for columns that were added after a tuple was written."""
        return {
            slot: self._shape.plan.codecs[slot].parse_text(text)
            for slot, text in self._shape.texts.items()
            if deforming.fill_missing(side.locations, side.sizes, slot * side.rows, side.rows, Location.MISSING, 0)
        }


def _side_bytes(side: Side, plan: ColumnPlan) -> int:
    """Return the approximate size of the columns."""
    if not side.any_tuple:
        return side.rows + 1 << 4
    return side.rows * (plan.row_bytes + 1) + side.byte_count + len(plan.codecs) * COLUMN_BYTES
