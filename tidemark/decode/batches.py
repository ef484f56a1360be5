"""Row changes of one relation version to columnar batches, in two passes: locate all values, then build each column.

Rows come as spans of an arena (`RowSpans`), many transactions together: below some hundred rows a batch the fixed cost
of a batch outweighs its rows. What is rare in a batch (compressed values, values missing from old tuples) is put behind
the arena's end first, so that the kernels know one place to look in.
"""

from array import array

import numpy as np
import pyarrow as pa

from tidemark.decode import places
from tidemark.decode.codecs.codec import Codec, Dialect
from tidemark.decode.codecs.registry import UTF8, arrow_struct, column_codec
from tidemark.decode.column_arrays import BadCell, Cells, TooLong, build, objects, zeros
from tidemark.decode.places import DONE
from tidemark.decode.tuples import Datum, TupleLayout, deform
from tidemark.decode.varlena import PLAIN_HEADER_BYTES, BadDatum, decompress
from tidemark.model.change import AFTER, BEFORE, ChangeBatch, batch_schema
from tidemark.model.errors import CorruptWal, InternalError
from tidemark.model.lsn import Oid, format_lsn
from tidemark.model.relation import Relation

ABSENT = -1  # offset of a tuple that is not there
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
    """Builds the batches of one relation version; worth keeping as long as the version is in use."""

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
        self._layout = TupleLayout.of(relation)
        self._codecs: list[Codec] = [column_codec(column, dialect) for column in relation.live_columns]
        live = [index for index, column in enumerate(relation.columns) if not column.dropped]
        self._missing: list[Datum] = [self._layout.missing[index] for index in live]
        self._slots = array("i", [-1] * len(relation.columns))
        for slot, index in enumerate(live):
            self._slots[index] = slot
        self._lengths = array("i", self._layout.lengths)
        self._aligns = array("i", self._layout.aligns)
        self.struct_type: pa.StructType = arrow_struct(relation, dialect)
        self._schema: pa.Schema = batch_schema(self.struct_type)
        self._rows_max = max(1, cells_max // max(1, len(live)))
        self._expanded_bytes_max = expanded_bytes_max

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

    def _batch(self, rows: RowSpans) -> pa.RecordBatch:
        """Return the record batch of all rows."""
        sides = {}
        for name, at, length in (
            (BEFORE, rows.old_at, rows.old_length),
            (AFTER, rows.new_at, rows.new_length),
        ):
            side = _Side(rows.data, rows.lsn, at, length, len(self._codecs))
            if side.any_tuple:
                self._locate(side)
                self._expand(side)
            sides[name] = side
        count = len(rows)
        each = np.arange(count + 1, dtype=np.int32)  # one byte a row
        letters = [None, pa.py_buffer(each), pa.py_buffer(rows.op)]
        meta = [
            pa.Array.from_buffers(pa.string(), count, letters, null_count=0),
            _plain(pa.int32(), rows.timeline),
            _plain(pa.int64(), rows.commit_lsn),
            _plain(pa.int64(), rows.ordinal),
            _plain(pa.int64(), rows.lsn),
            _plain(pa.int64(), rows.xid),
            _plain(pa.timestamp("us", tz="UTC"), rows.commit_time_us),
            _plain(pa.int32(), rows.origin),
            _plain(pa.int8(), rows.before_kind),
            sides[AFTER].unchanged(),
        ]
        structs = [self._struct(sides[name]) for name in (BEFORE, AFTER)]
        return pa.RecordBatch.from_arrays(meta + structs, schema=self._schema)

    def _locate(self, side: "_Side") -> None:
        odd = places.locate(
            side.data,
            side.at,
            side.length,
            self._lengths,
            self._aligns,
            self._slots,
            side.places,
            side.sizes,
            side.absent,
            side.kinds,
        )
        if odd == DONE:
            return
        try:
            deform(bytes(side.data[side.at[odd] : side.at[odd] + side.length[odd]]), self._layout)
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
        for slot, missing in enumerate(self._missing if side.kinds[places.MISSING] else ()):
            if isinstance(missing, bytes):
                place = end + len(expanded)
                filled = places.fill_missing(side.places, side.sizes, slot * side.rows, side.rows, place, len(missing))
                if filled:
                    expanded += missing
                    side.absent[slot] -= filled
        side.data += expanded

    def _struct(self, side: "_Side") -> pa.StructArray:
        if not side.any_tuple:
            return pa.nulls(side.rows, self.struct_type)
        children = [self._column(side, slot) for slot in range(len(self._codecs))]
        return pa.Array.from_buffers(
            self.struct_type,
            side.rows,
            [pa.py_buffer(side.validity) if side.nulls else None],
            null_count=side.nulls,
            children=children,
        )

    def _column(self, side: "_Side", slot: int) -> pa.Array:
        codec = self._codecs[slot]
        cells = Cells(side.data, side.places, side.sizes, slot * side.rows, side.rows, absent=side.absent[slot])
        missing = self._missing[slot]
        # NB: a missing value that is known by its text alone has no payload that a kernel could take.
        try:
            if isinstance(missing, str) and cells.any_missing():
                return objects(codec, cells, codec.parse_text(missing))
            return build(codec, cells)
        except BadCell as bad:
            raise self._bad(side, bad.row, bad, slot) from bad


class _Side:
    """The old or the new tuples of some rows, and where their values are."""

    __slots__ = (
        "absent",
        "at",
        "data",
        "kinds",
        "length",
        "lsn",
        "nulls",
        "places",
        "rows",
        "sizes",
        "slots",
        "validity",
    )

    def __init__(self, data: bytearray, lsn: "array[int]", at: "array[int]", length: "array[int]", slots: int) -> None:
        self.data = data
        self.lsn = lsn
        self.at = at
        self.length = length
        self.rows = len(at)
        self.slots = slots
        self.validity = bytearray(self.rows + 7 >> 3)
        self.nulls = places.present(at, 0, self.rows, self.validity)
        cells = self.rows * slots if self.any_tuple else 0
        self.places = zeros("q", cells)
        self.sizes = zeros("q", cells)
        self.absent = zeros("q", slots)
        self.kinds = zeros("q", places.KINDS)

    @property
    def any_tuple(self) -> bool:
        """Tell if there is anything to locate."""
        return self.nulls < self.rows

    def unchanged(self) -> pa.Array:
        """Return the bitmaps of the columns that are external, NULL for rows without one."""
        if not self.kinds[places.EXTERNAL]:
            return pa.nulls(self.rows, pa.binary())
        validity = bytearray(self.rows + 7 >> 3)
        offsets = zeros("i", self.rows + 1)
        bitmaps = bytearray(self.rows * (self.slots + 7 >> 3))
        places.mark_unchanged(self.places, self.at, self.slots, bitmaps, offsets, validity)
        return pa.Array.from_buffers(
            pa.binary(), self.rows, [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(bitmaps)]
        )


def _plain(arrow_type: pa.DataType, values: "array[int] | bytearray") -> pa.Array:
    """Return a column without NULLs over values that are laid out already."""
    return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(values)])
