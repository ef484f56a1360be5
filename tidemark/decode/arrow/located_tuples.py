"""Locates the values of some rows' tuples: the first of the two passes.

Compressed values and values missing from old tuples are appended, decompressed, to the arena of the tuples, so that the
loops of the second pass read from one buffer only.
"""

from typing import TYPE_CHECKING

from tidemark.decode.arrow import batch_body
from tidemark.decode.arrow.batch_shapes import BatchShape
from tidemark.decode.arrow.column_values import Located, TooLong, zeros
from tidemark.decode.datum import deforming
from tidemark.decode.datum.deforming import DONE
from tidemark.decode.datum.tuples import deform
from tidemark.decode.datum.varlena import PLAIN_HEADER_BYTES, BadDatum, decompress
from tidemark.model.errors import CorruptWal, InternalError
from tidemark.model.lsn import format_lsn
from tidemark.model.relation import Relation

if TYPE_CHECKING:
    from array import array


class Side(Located):
    """The old or the new tuples of some rows, and the locations of their values."""

    __slots__ = ("any_tuple", "at", "byte_count", "kinds", "length", "lsn", "nulls")

    def __init__(self, data: bytearray, lsn: "array[int]", at: "array[int]", length: "array[int]", slots: int) -> None:
        byte_count = zeros(1)
        self.nulls = batch_body.survey(at, length, byte_count)
        self.any_tuple = self.nulls < len(at)
        self.byte_count = byte_count[0]  # size of the tuples, and of the values appended for them
        self.lsn = lsn
        self.at = at
        self.length = length
        self.kinds = zeros(deforming.KINDS)
        super().__init__(data, len(at), slots, located=self.any_tuple)


class TupleLocator:
    """Locates the values of tuples of one relation version."""

    __slots__ = ("_expanded_bytes_max", "_relation", "_shape")

    def __init__(self, relation: Relation, shape: BatchShape, expanded_bytes_max: int) -> None:
        """Where decompressed values exceed `expanded_bytes_max`, `side` raises TooLong: use fewer rows."""
        self._relation = relation
        self._shape = shape
        self._expanded_bytes_max = expanded_bytes_max

    def side(self, data: bytearray, lsn: "array[int]", at: "array[int]", length: "array[int]") -> Side:
        """Locate the values of tuples in `data`; `lsn` has the LSNs of the rows' records."""
        side = Side(data, lsn, at, length, len(self._shape.missing))
        if side.any_tuple:
            self._locate(side)
            self._expand(side)
        return side

    def missing_text(self, slot: int) -> str | None:
        """Return the value of a live column for tuples older than it, if only its text is known."""
        return self._shape.texts.get(slot)

    def _locate(self, side: Side) -> None:
        odd = deforming.locate(
            side.data,
            side.at,
            side.length,
            self._shape.lengths,
            self._shape.aligns,
            self._shape.slots,
            side.locations,
            side.sizes,
            side.absent,
            side.kinds,
        )
        if odd == DONE:
            return
        try:
            deform(bytes(side.data[side.at[odd] : side.at[odd] + side.length[odd]]), self._shape.layout)
        except CorruptWal as error:
            raise self.bad(side, odd, error) from error
        raise InternalError(
            f"{self._relation.qualified_name}: the column kernel rejects a tuple that the value-level parser accepts"
        )

    def bad(self, side: Side, row: int, error: Exception, slot: int | None = None) -> BadDatum:
        """Return `error` with relation, record and column."""
        column = "" if slot is None else f"column {self._relation.live_columns[slot].name!r}: "
        bad = BadDatum(f"{self._relation.qualified_name}, record at {format_lsn(side.lsn[row])}: {column}{error}")
        bad.lsn = side.lsn[row]
        return bad

    def _expand(self, side: Side) -> None:
        """Append decompressed and missing values to the arena, until the batch is built."""
        expanded = bytearray()
        end = len(side.data)
        cell = deforming.next_compressed(side.locations, side.sizes, 0) if side.kinds[deforming.COMPRESSED] else DONE
        while cell != DONE:
            location = side.locations[cell]
            try:
                payload = decompress(bytes(side.data[location + PLAIN_HEADER_BYTES : location - side.sizes[cell]]))
            except CorruptWal as error:
                raise self.bad(side, cell % side.rows, error, cell // side.rows) from error
            side.locations[cell] = end + len(expanded)
            side.sizes[cell] = len(payload)
            expanded += payload
            if len(expanded) > self._expanded_bytes_max and side.rows > 1:
                raise TooLong
            cell = deforming.next_compressed(side.locations, side.sizes, cell + 1)
        for slot, missing in enumerate(self._shape.missing if side.kinds[deforming.MISSING] else ()):
            if isinstance(missing, bytes):
                location = end + len(expanded)
                filled = deforming.fill_missing(
                    side.locations, side.sizes, slot * side.rows, side.rows, location, len(missing)
                )
                if filled:
                    expanded += missing
                    side.absent[slot] -= filled
                    side.byte_count += filled * len(missing)
        side.byte_count += len(expanded)
        side.data += expanded
