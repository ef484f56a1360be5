"""Builds batches of a first copy from lines of COPY ... TO STDOUT, in text format and UTF-8; they equal the stream's.

A batch is written into one message, like the stream's (`arrow.batches`); a value that is zero or NULL in every row is
stored once. The settings of the copying session must be those of the reference session (`types.codec`).
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.decode.arrow.batch_body import (
    META_BUFFERS,
    META_NODES,
    UNCHANGED_BUFFER,
    UNCHANGED_NODE,
    put_buffer,
    put_node,
    put_nothing,
)
from tidemark.decode.arrow.batch_columns import STEP
from tidemark.decode.arrow.batch_message import BatchMessage, padded
from tidemark.decode.arrow.batch_shapes import batch_shape
from tidemark.decode.arrow.column_values import zeros
from tidemark.decode.copy.copied_lines import ColumnTarget, CopiedLines, WrongFieldCount, put_column
from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import Dialect
from tidemark.decode.types.registry import UTF8
from tidemark.model.change import META_FIELDS, ChangeBatch, Op, RowsMessage
from tidemark.model.lsn import Oid
from tidemark.model.position import Position
from tidemark.model.relation import Relation

DELIMITER = b"\t"
META_BYTES = 48  # upper bound of a row's metadata
META_WIDTHS = {
    field.name: 1 if pa.types.is_string(field.type) else field.type.bit_width // 8 for field in META_FIELDS[:-1]
}


class CopyBatchBuilder:
    """Builds the batches of one relation's first copy."""

    def __init__(self, database: Oid, relation: Relation, dialect: Dialect = UTF8) -> None:
        self._database = database
        self._relation = relation
        self._shape = batch_shape(relation, dialect)
        self._ends = zeros(0)  # reused by all batches: allocating memory costs more than filling it

    def build(self, lines: bytes | bytearray, count: int, first: Position, time_us: int) -> ChangeBatch:
        """Return the batch of the `count` rows of `lines` (live columns in order), at positions from `first` on."""
        form, plan = self._shape.form, self._shape.plan
        parsed = self._parsed(lines, count, first)
        message = BatchMessage(form, (count + 1) * (META_BYTES + plan.row_bytes) + parsed.text_bytes)
        self._put_meta(message, count, first, time_us)
        nodes = form.nodes + 2 * (META_NODES + len(plan.levels))
        buffers = form.buffers + 2 * (META_BUFFERS + len(plan.units))
        put_node(message.words, nodes, count, 0)
        put_buffer(message.words, buffers, message.at - message.body, 0)
        for column, codec in enumerate(plan.codecs):
            node, buffer = plan.numbers[column * STEP + 1 : column * STEP + 3]
            put_column(codec, parsed, column, ColumnTarget(message, nodes + 2 * node, buffers + 2 * buffer))
        place, last_ordinal = (first.timeline, first.commit_lsn), first.ordinal + count - 1
        bounds = *place, first.ordinal, *place, last_ordinal
        rows = RowsMessage(self._shape.schema, message.finish(count), count, bounds)
        return ChangeBatch(self._database, self._relation, rows)

    def _put_meta(self, message: BatchMessage, count: int, first: Position, time_us: int) -> None:
        """Put the rows' metadata and the side that no row has; all columns that are zero or NULL share their bytes."""
        form, plan, words, begin = self._shape.form, self._shape.plan, message.words, message.at
        nodes, buffers = form.nodes + 2 * META_NODES, form.buffers + 2 * META_BUFFERS
        end = put_nothing(plan.levels, plan.units, count, message.out, words, nodes, buffers, message.body, begin)
        message.at = max(end, begin + (count + 1) * 8)
        message.out[end : message.at] = bytes(message.at - end)
        offsets = _put_values(message, count + 1, "i4", np.arange(count + 1))
        filled = {
            "_op": _put_values(message, count, "u1", ord(Op.COPY.value)),
            "_tli": _put_values(message, count, "i4", first.timeline),
            "_commit_lsn": _put_values(message, count, "i8", first.commit_lsn),
            "_ordinal": _put_values(message, count, "i8", np.arange(first.ordinal, first.ordinal + count)),
            "_commit_time": _put_values(message, count, "i8", time_us),
        }
        filled["_lsn"] = filled["_commit_lsn"]
        put_buffer(words, form.buffers + 2, offsets - message.body, (count + 1) * 4)
        for index, (name, width) in enumerate(META_WIDTHS.items()):
            put_node(words, form.nodes + 2 * index, count, 0)
            put_buffer(words, form.buffers + 2 * (2 * index + (index > 0)), 0, 0)  # no NULLs
            offset = filled.get(name, begin) - message.body
            put_buffer(words, form.buffers + 2 * (2 * index + 2), offset, count * width)
        unchanged = form.buffers + 2 * UNCHANGED_BUFFER
        put_node(words, form.nodes + 2 * UNCHANGED_NODE, count, count)
        for buffer, size in enumerate((count + 7 >> 3, (count + 1) * 4, 0)):
            put_buffer(words, unchanged + 2 * buffer, begin - message.body, size)

    def _parsed(self, lines: bytes | bytearray, count: int, first: Position) -> CopiedLines:
        """Split the lines into fields; name the row that has too many or too few columns."""
        columns = len(self._shape.plan.codecs)
        if count * columns > len(self._ends):
            self._ends = zeros(count * columns)
        try:
            return CopiedLines(lines if columns else b"", count, columns, self._ends)
        except WrongFieldCount as error:
            fields = bytes(lines).split(b"\n")[error.row].count(DELIMITER) + 1
            raise BadDatum(
                f"{self._relation.qualified_name}: copied row {first.ordinal + error.row} has {fields} fields, "
                f"not {columns}",
                hint="the table changed during the copy: copy it again",
            ) from None


def _put_values(message: BatchMessage, count: int, of: str, values: "int | npt.NDArray[np.int64]") -> int:
    """Write `count` integers, or one integer `count` times; return their offset."""
    begin, size = message.at, count * np.dtype(of).itemsize
    message.at += padded(size)
    message.out[begin + size : message.at] = bytes(message.at - begin - size)
    np.frombuffer(message.out, of, count, begin)[:] = values
    return begin
