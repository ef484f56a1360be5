"""Arrow columns as JSON, by compiled loops: an object for each value only in rare forms.

Both JSON renderings use it for integers, text, floats, instants, bytes and lists.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.decode.datum.deforming import IntView
from tidemark.decode.render import line_text, value_text
from tidemark.decode.render.column_texts import ColumnTexts, Int64Array, TextColumn

NULL = b"null"
SECOND_UNITS = {"s": (1, 0), "ms": (1000, 3), "us": (1_000_000, 6), "ns": (1_000_000_000, 9)}
DATE = (0, 0)
PYTHONS_NOTATION = (-4, 16, 2)  # no exponent from 1e-4 on and below 1e16; an exponent has two digits
ARROWS_NOTATION = (-6, 10, 1)
SINGLE, DOUBLE = (23, (1 << 8) - 1), (52, (1 << 11) - 1)  # bits of the mantissa, greatest exponent

Form: TypeAlias = Callable[[pa.Array], TextColumn]
RowKernel = Callable[[int, int, int, IntView, IntView, int], int]
"""A kernel with its values: first, row, rows, out, offsets, base (see `value_text`)."""
OfBytes = Callable[[IntView, IntView, IntView, int, int, int, int, IntView, IntView, int], int]
"""A kernel whose values are bytes."""
Number = TypeVar("Number", np.int8, np.int32, np.int64, np.uint32, np.uint64, np.float32, np.float64)


class KernelColumn(NamedTuple):
    """A column that a kernel writes."""

    kernel: RowKernel

    def put(self, texts: ColumnTexts, first: int, rows: int) -> int:
        """Write the texts of some rows; return the index of their first offset."""
        return texts.add(rows, partial(self.kernel, first))


class FormattedColumn(NamedTuple):
    """A column of a rare form, whose JSON is written value by value."""

    column: pa.Array
    form: Callable[[object], str]

    def put(self, texts: ColumnTexts, first: int, rows: int) -> int:
        """Write the texts of some rows; return the index of their first offset."""
        values = self.column.slice(first, rows).to_pylist()
        return texts.add_texts([NULL if value is None else self.form(value).encode() for value in values])


class Lists(NamedTuple):
    """A column of lists, whose elements are a column."""

    ends: IntView
    validity: tuple[IntView, int]
    elements: TextColumn

    def put(self, texts: ColumnTexts, first: int, rows: int) -> int:
        """Write the texts of some rows; return the index of their first offset."""
        begin, end = self.ends[first], self.ends[first + rows]
        elements = self.elements.put(texts, begin, end - begin)
        return KernelColumn(partial(line_text.write_lists, self.ends, elements, *self.validity)).put(texts, first, rows)


def validity(column: pa.Array) -> tuple[IntView, int]:
    """Return the validity bitmap, empty if all rows have a value, and its first bit."""
    bitmap = column.buffers()[0] if column.null_count else None
    return (memoryview(b"") if bitmap is None else memoryview(bitmap).cast("B")), column.offset


def fixed(column: pa.Array, kind: type[Number]) -> npt.NDArray[Number]:
    """Return the values of a column of numbers; those of NULL rows are arbitrary."""
    return np.frombuffer(column.buffers()[1] or b"", kind)[column.offset : column.offset + len(column)]


def _integers(column: pa.Array) -> Int64Array:
    return fixed(column, column.type.to_pandas_dtype()).astype(np.int64, copy=False)


def integers(column: pa.Array) -> TextColumn:
    """Return integers as numbers."""
    return int64_column(_integers(column), validity(column))


def int64_column(values: Int64Array, valid: tuple[IntView, int] = (memoryview(b""), 0)) -> TextColumn:
    """Return integers of a numpy array as numbers."""
    return KernelColumn(partial(value_text.write_integers, values.data, *valid))


def lsns(values: Int64Array) -> TextColumn:
    """Return LSNs as PostgreSQL prints them, without quotes."""
    return KernelColumn(
        partial(
            value_text.write_lsns,
            values.data,
        )
    )


def booleans(column: pa.Array) -> TextColumn:
    """Return true and false."""
    bits = memoryview(column.buffers()[1] or b"").cast("B")
    return KernelColumn(partial(value_text.write_booleans, bits, column.offset, *validity(column)))


def _ends(column: pa.Array, offsets: pa.Buffer) -> IntView:
    # NB: a column without rows may have no buffer
    return (np.frombuffer(offsets, np.int32)[column.offset :] if len(column) else np.zeros(1, np.int32)).data


def _of_bytes(kernel: OfBytes, column: pa.Array) -> TextColumn:
    _, offsets, data = column.buffers()
    ends = _ends(column, offsets)
    return KernelColumn(partial(kernel, ends, memoryview(data or b"").cast("B"), *validity(column)))


strings: Form = partial(_of_bytes, value_text.write_strings)
base64: Form = partial(_of_bytes, value_text.write_base64)
in_hex: Form = partial(_of_bytes, value_text.write_hex)
numeric_texts: Form = partial(_of_bytes, value_text.write_numeric_texts)


def decimals(column: pa.Array) -> TextColumn:
    """Return decimals as text, as PostgreSQL prints them: without an exponent."""
    words = np.frombuffer(column.buffers()[1] or b"", np.uint64)[2 * column.offset :]
    return KernelColumn(partial(value_text.write_decimals, words.data, column.type.scale, *validity(column)))


def instants(column: pa.Array) -> TextColumn:
    """Return timestamps in ISO form, with a Z if they are in UTC."""
    values = fixed(column, np.int64)
    second, digits = SECOND_UNITS[column.type.unit]
    zoned = bool(column.type.tz)
    return KernelColumn(partial(value_text.write_instants, values.data, second, digits, zoned, *validity(column)))


def instants_of(usecs: Int64Array, digits: int) -> TextColumn:
    """Return microseconds since 1970 as UTC in ISO form, with 6 or no fractional digits."""
    second = SECOND_UNITS["us"][0]
    return KernelColumn(partial(value_text.write_instants, usecs.data, second, digits, True, memoryview(b""), 0))


def dates(column: pa.Array) -> TextColumn:
    """Return dates in ISO form."""
    values = fixed(column, np.int32).astype(np.int64)
    return KernelColumn(partial(value_text.write_instants, values.data, *DATE, 0, *validity(column)))


def days(column: pa.Array) -> TextColumn:
    """Return dates as days since 1970-01-01."""
    return int64_column(fixed(column, np.int32).astype(np.int64), validity(column))


@cache
def powers() -> IntView:
    """Return the powers of ten for writing floats."""
    return np.frombuffer(line_text.powers_of_ten(), np.uint64).data


def _floats(column: pa.Array, notation: tuple[int, int, int]) -> TextColumn:
    if pa.types.is_float32(column.type):
        values, form = fixed(column, np.uint32).astype(np.uint64), SINGLE
    else:
        values, form = fixed(column, np.uint64), DOUBLE
    return KernelColumn(partial(line_text.write_floats, values.data, *form, *notation, powers(), *validity(column)))


def floats(column: pa.Array) -> TextColumn:
    """Return floats with the fewest digits that read back as the same number; NaN and infinities as text."""
    return _floats(column, ARROWS_NOTATION)


def plain_floats(column: pa.Array) -> TextColumn:
    """Return the digits of `floats`, with an exponent where Python prints one for a double."""
    return _floats(column, PYTHONS_NOTATION)


def lists(column: pa.Array, of_values: Form) -> TextColumn:
    """Return lists as arrays; `of_values` writes their elements."""
    return Lists(_ends(column, column.buffers()[1]), validity(column), of_values(column.values))
