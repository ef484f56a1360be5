"""Row changes of one relation version to columnar batches, in two passes: locate all values, then build each column.

Rows come as spans of an arena (`RowSpans`), many transactions together: below some hundred rows a batch the fixed cost
of a batch outweighs its rows. What is rare in a batch (compressed values, values missing from old tuples) is put behind
the arena's end first, so that the kernels know one place to look in.
"""

from array import array

import pyarrow as pa

from tidemark.decode import batch_body, places
from tidemark.decode.batch_body import META_BUFFERS, META_NODES
from tidemark.decode.batch_message import BatchMessage
from tidemark.decode.batch_shapes import batch_shape
from tidemark.decode.codecs.codec import ArrowValue, Dialect
from tidemark.decode.codecs.registry import UTF8
from tidemark.decode.column_plans import ColumnPlan
from tidemark.decode.column_values import NONE_MISSING, BadCell, Located, TooLong, put, zeros
from tidemark.decode.places import DONE, Place
from tidemark.decode.tuples import deform
from tidemark.decode.varlena import PLAIN_HEADER_BYTES, BadDatum, decompress
from tidemark.model.change import ChangeBatch, RowsMessage
from tidemark.model.errors import CorruptWal, InternalError
from tidemark.model.lsn import Oid, format_lsn
from tidemark.model.relation import Relation

ABSENT = -1  # offset of a tuple that is not there
ROW_BYTES = 64  # of what a row says of itself, and more than that
HEAD_BYTES = 160  # by which the buffers of that are aligned
COLUMN_BYTES = 24  # by which a column's are
CELLS_MAX = 4 << 20  # located at once, 16 bytes each: rows of a batch times columns
EXPANDED_BYTES_MAX = 256 << 20  # decompressed in a batch, before it is split; a single row may be larger


class RowSpans:
    """Row changes of one relation version in stream order: where their tuples are, and an array an attribute.

    Others' tuples may stand in the arena as well.
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
        """Have room for `count` rows, whose tuples are in `data`."""
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
    """Builds the batches of one relation version; costs little where its shape is kept."""

    __slots__ = ("_database", "_expanded_bytes_max", "_relation", "_rows_max", "_shape")

    def __init__(
        self,
        database: Oid,
        relation: Relation,
        dialect: Dialect = UTF8,
        *,
        cells_max: int = CELLS_MAX,
        expanded_bytes_max: int = EXPANDED_BYTES_MAX,
    ) -> None:
        self._database = database
        self._relation = relation
        self._shape = batch_shape(relation, dialect)
        self._rows_max = max(1, cells_max // max(1, len(self._shape.missing)))
        self._expanded_bytes_max = expanded_bytes_max

    @property
    def struct_type(self) -> pa.StructType:
        """Return the Arrow type of a row."""
        return self._shape.struct_type

    def build(self, rows: RowSpans) -> list[ChangeBatch]:
        """Return the batches of `rows`: one, unless columns or decompressed bytes are too many for one."""
        made: list[ChangeBatch] = []
        pending = [(start, min(start + self._rows_max, len(rows))) for start in range(0, len(rows), self._rows_max)]
        pending.reverse()
        end = len(rows.data)
        while pending:
            start, stop = pending.pop()
            try:
                made.append(ChangeBatch(self._database, self._relation, self._batch(rows.part(start, stop))))
            except TooLong as error:
                if stop - start == 1:
                    raise InternalError(f"{self._relation.qualified_name}: a value prints over 2 GB") from error
                middle = (start + stop) // 2
                pending += [(middle, stop), (start, middle)]
            del rows.data[end:]
        return made

    def _batch(self, rows: RowSpans) -> RowsMessage:
        """Return the record batch of all rows."""
        before = self._side(rows, rows.old_at, rows.old_length)
        after = self._side(rows, rows.new_at, rows.new_length)
        count, form, plan = len(rows), self._shape.form, self._shape.plan
        external = after.kinds[places.EXTERNAL]
        room = count * (ROW_BYTES + (len(plan.codecs) >> 3 if external else 0)) + HEAD_BYTES
        message = BatchMessage(form, room + before.room(plan) + after.room(plan))
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
            message.out,
            message.offsets,
            message.words,
            form.nodes,
            form.buffers,
            message.body,
            message.at,
        )
        message.at = batch_body.put_unchanged(
            after.places,
            after.at,
            len(plan.codecs),
            external,
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
        return RowsMessage(self._shape.schema, message.finish(count))

    def _side(self, rows: RowSpans, at: "array[int]", length: "array[int]") -> "_Side":
        side = _Side(rows.data, rows.lsn, at, length, len(self._shape.plan.codecs))
        if side.any_tuple:
            self._locate(side)
            self._expand(side)
        return side

    def _locate(self, side: "_Side") -> None:
        odd = places.locate(
            side.data,
            side.at,
            side.length,
            self._shape.lengths,
            self._shape.aligns,
            self._shape.slots,
            side.places,
            side.sizes,
            side.absent,
            side.kinds,
        )
        if odd == DONE:
            return
        try:
            deform(bytes(side.data[side.at[odd] : side.at[odd] + side.length[odd]]), self._shape.layout)
        except CorruptWal as error:
            raise self._bad(side, odd, error) from error
        raise InternalError(f"{self._relation.qualified_name}: the two ways to find its columns disagree")

    def _bad(self, side: "_Side", row: int, error: Exception, slot: int | None = None) -> BadDatum:
        """Say where `error` was met."""
        column = "" if slot is None else f"column {self._relation.live_columns[slot].name!r}: "
        bad = BadDatum(f"{self._relation.qualified_name}, record at {format_lsn(side.lsn[row])}: {column}{error}")
        bad.lsn = side.lsn[row]
        return bad

    def _expand(self, side: "_Side") -> None:
        """Put decompressed and missing values behind the arena's end, until the batch is built."""
        expanded = bytearray()
        end = len(side.data)
        cell = places.next_compressed(side.places, side.sizes, 0) if side.kinds[places.COMPRESSED] else DONE
        while cell != DONE:
            place = side.places[cell]
            try:
                payload = decompress(bytes(side.data[place + PLAIN_HEADER_BYTES : place - side.sizes[cell]]))
            except CorruptWal as error:
                raise self._bad(side, cell % side.rows, error, cell // side.rows) from error
            side.places[cell] = end + len(expanded)
            side.sizes[cell] = len(payload)
            expanded += payload
            if len(expanded) > self._expanded_bytes_max and side.rows > 1:
                raise TooLong
            cell = places.next_compressed(side.places, side.sizes, cell + 1)
        for slot, missing in enumerate(self._shape.missing if side.kinds[places.MISSING] else ()):
            if isinstance(missing, bytes):
                place = end + len(expanded)
                filled = places.fill_missing(side.places, side.sizes, slot * side.rows, side.rows, place, len(missing))
                if filled:
                    expanded += missing
                    side.absent[slot] -= filled
                    side.byte_count += filled * len(missing)
        side.byte_count += len(expanded)
        side.data += expanded

    def _put(self, side: "_Side", message: BatchMessage, nodes: int, buffers: int) -> None:
        """Put a struct of the columns, or NULLs if there is no tuple."""
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
        missing = self._missing_values(side) if self._shape.texts and side.kinds[places.MISSING] else NONE_MISSING
        try:
            put(self._shape.plan, side, message, nodes=nodes, buffers=buffers, missing=missing)
        except BadCell as bad:
            raise self._bad(side, bad.row, bad, bad.slot) from bad

    def _missing_values(self, side: "_Side") -> dict[int, ArrowValue]:
        """Return the missing values that are known by their text, of columns that are younger than a tuple."""
        return {
            slot: self._shape.plan.codecs[slot].parse_text(text)
            for slot, text in self._shape.texts.items()
            if places.fill_missing(side.places, side.sizes, slot * side.rows, side.rows, Place.MISSING, 0)
        }


class _Side(Located):
    """The old or the new tuples of some rows, and where their values are."""

    __slots__ = ("any_tuple", "at", "byte_count", "kinds", "length", "lsn", "nulls")

    def __init__(self, data: bytearray, lsn: "array[int]", at: "array[int]", length: "array[int]", slots: int) -> None:
        byte_count = zeros(1)
        self.nulls = batch_body.survey(at, length, byte_count)
        self.any_tuple = self.nulls < len(at)
        self.byte_count = byte_count[0]  # of tuples, and of values that are put in their place
        self.lsn = lsn
        self.at = at
        self.length = length
        self.kinds = zeros(places.KINDS)
        super().__init__(data, len(at), slots, located=self.any_tuple)

    def room(self, plan: ColumnPlan) -> int:
        """Return how many bytes the columns take, about."""
        if not self.any_tuple:
            return self.rows + 1 << 4
        return self.rows * (plan.row_bytes + 1) + self.byte_count + len(plan.codecs) * COLUMN_BYTES
