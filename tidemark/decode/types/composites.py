"""Rows as values (`HeapTupleHeader`, `record_out`, PG 16): a heap tuple behind the row type's OID.

A value has the columns that the type had when it was written; it is printed with the type's current columns: a column
added since is NULL (or has the default with which it was added), a dropped one is omitted.
"""

from collections.abc import Sequence

from tidemark.decode.datum.tuples import Datum, TupleLayout, deform
from tidemark.decode.datum.varlena import BadDatum, ExternalPointer
from tidemark.decode.types.codec import Codec, TextCodec
from tidemark.decode.types.quoting import ROW_SPECIAL, quoted_part
from tidemark.model.relation import Column

PACKED_AT = 14  # datum_typmod, datum_typeid and t_ctid precede the packed tuple


class CompositeCodec(TextCodec):
    """A composite type, or a table's row type; `codecs` are those of its live columns."""

    note = 'as PostgreSQL prints it: `(1,"x y",)`'

    def __init__(self, columns: Sequence[Column], codecs: Sequence[Codec]) -> None:
        self._layout = TupleLayout.of_columns(columns)
        live = [index for index, column in enumerate(columns) if not column.dropped]
        self._parts = list(zip(live, codecs, strict=True))

    def text(self, payload: bytes) -> str:
        """Return the columns in parentheses, nothing for NULL."""
        if len(payload) < PACKED_AT:
            raise BadDatum(f"row of {len(payload)} bytes is cut off")
        values = deform(payload[PACKED_AT:], self._layout)
        return f"({','.join(_part(codec, values[index]) for index, codec in self._parts)})"


def _part(codec: Codec, value: Datum) -> str:
    if value is None:
        return ""
    if isinstance(value, ExternalPointer):
        raise BadDatum("pointer into a TOAST table inside a row")
    return quoted_part(value if isinstance(value, str) else codec.text(value), ROW_SPECIAL)
