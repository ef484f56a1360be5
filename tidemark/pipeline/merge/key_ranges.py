"""The range of keys in each data file, by the statistics in the Delta log, and which files can contain a key.

A file contains a key only if every key column's value is between the file's bounds. Statistics may be missing, rounded
(decimals as floating-point numbers, times to milliseconds) or truncated (text); a bound is therefore widened, and a
file without trustworthy bounds of a column can contain every value. So can every file contain a NaN, which statistics
leave out, and every file with NULLs or with an unknown number of them a NULL.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.lake.files.file_list import statistic
from tidemark.pipeline.merge.keys import Indexes, filled

Flags = npt.NDArray[np.bool_]
_End = tuple[tuple[int, object], ...]
Axis = npt.NDArray[np.int64] | npt.NDArray[np.float64] | npt.NDArray[np.object_]
_EXACT_DIGITS = 15  # a decimal with at most so many survives as a floating-point number, as which delta-rs prints it
_FLOAT_ERROR = Decimal("1e-15")  # the relative error of other decimals
_PRINTED_DIGITS = 19  # delta-rs prints at most so many, so a bound with more is exact
_LONG_MIN, _LONG_MAX = Decimal(-(1 << 63)), Decimal((1 << 63) - 1)  # which delta-rs prints for whole numbers beyond
_MILLISECOND_US = 1000
_TIME_US_MAX = 1 << 61  # beyond it lies only infinity
_ZERO = Decimal(0)
_EXACT = Context(prec=80)  # NB: Python's default context rounds to 28 digits; a decimal of the lake has up to 38
_COMPLETE_TEXT = 32  # characters: a shorter bound is not truncated, by any writer
_SUPPLEMENTARY = "\U00010000"  # the first character that JSON may escape as a surrogate pair
_LAST = "\U0010ffff"  # greater than every character that a truncated maximum can lack


def _axis(values: pa.ChunkedArray) -> Axis | None:
    """Return values that numpy orders as PostgreSQL's type; None for a type without statistics. NULL is any value."""
    kind = values.type
    if pa.types.is_string(kind):
        return _objects(filled(values, "").to_pylist())
    if pa.types.is_decimal(kind):
        return _objects(value or _ZERO for value in values.to_pylist())
    if pa.types.is_floating(kind):
        return np.asarray(filled(values.cast(pa.float64()), 0.0).to_numpy(), np.float64)
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif not pa.types.is_timestamp(kind) and not pa.types.is_integer(kind):
        return None
    return np.asarray(filled(values.cast(pa.int64()), 0).to_numpy(), np.int64)


def _special(values: pa.ChunkedArray) -> Flags:
    """Return which values are not on the axis: NULL and NaN."""
    if not values.null_count and not pa.types.is_floating(values.type):
        return np.zeros(len(values), np.bool_)
    unknown = pc.is_nan(values) if pa.types.is_floating(values.type) else values.is_null()
    return np.asarray(pc.fill_null(unknown, fill_value=True).to_numpy(), np.bool_)


class SoughtKeys:
    """Keys to find, and their order by the first column."""

    def __init__(self, keys: pa.Table) -> None:
        """`keys` are comparable."""
        self.keys = keys
        self.axes = [_axis(values) for values in keys.columns]
        self.special = [_special(values) for values in keys.columns]
        first, plain = self.axes[0], np.flatnonzero(~self.special[0])
        self.apart = np.flatnonzero(self.special[0])  # keys whose first column is NULL or NaN
        self.order = plain if first is None else plain[np.argsort(first[plain], kind="stable")]
        self.sorted = np.zeros(0) if first is None else first[self.order]  # then no file has known bounds


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRange:
    """The bounds of one column in each file."""

    least: Axis
    most: Axis
    known: Flags  # the bounds can be trusted
    single: Flags  # the file has one value only
    differ: Flags  # the bounds differ by more than statistics are rounded; those of truncated text may be equal
    special: Flags  # the file can contain NULL or NaN


class KeyRanges:
    """The bounds of the key columns in each file."""

    def __init__(self, added: pa.Table, key: Sequence[pa.Field], partition: Collection[str] = ()) -> None:
        """Read the statistics of `added`, the snapshot's add actions; a column of `partition` has one value a file."""
        self.count = added.num_rows
        self.columns = [_column_range(added, field, is_partition=field.name in partition) for field in key]
        first = self.columns[0]
        low, high = (first.least, first.most) if first is not None else (np.zeros(self.count), np.zeros(self.count))
        known = first.known if first is not None else np.zeros(self.count, np.bool_)
        self.known, self.least, self.most = known, low, high
        self.separable = np.zeros(self.count, np.bool_)  # the bounds differ: an order of files is possible
        self.begins, self.ends = self._intervals()
        self._by_begin = np.flatnonzero(known)[np.argsort(self.begins[known], kind="stable")]
        self.order = np.concatenate([self._by_begin, np.flatnonzero(~known)])
        self.ranks = dict(zip(self.order.tolist(), range(self.count), strict=True))

    def _intervals(self) -> tuple[Indexes, Indexes]:
        """Return where each file with known bounds begins and ends in the order of whole keys."""
        begins, ends = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        known = np.flatnonzero(self.known)
        if len(self.columns) == 1:
            _, ranks = np.unique(np.concatenate([self.least[known], self.most[known]]), return_inverse=True)
            begins[known], ends[known] = ranks[: len(known)], ranks[len(known) :]
            # Keys are distinct, so equal minima are truncated ones.
            self.separable[known] = np.bincount(begins[known], minlength=len(ranks))[begins[known]] == 1
            return begins, ends
        found = [self._interval(int(file)) for file in known]
        numbers = {end: number for number, end in enumerate(sorted({end for pair in found for end in pair}))}
        for file, (begin, end) in zip(known, found, strict=True):
            begins[file], ends[file] = numbers[begin], numbers[end]
        return begins, ends

    def _interval(self, file: int) -> tuple[_End, _End]:
        """Return the bounds of whole keys: a further column counts only if the columns before it have one value."""
        begin: list[tuple[int, object]] = []
        end: list[tuple[int, object]] = []
        for column in self.columns:
            if column is None or not column.known[file]:
                break
            begin.append((0, column.least[file]))
            end.append((0, column.least[file] if column.single[file] else column.most[file]))
            if not column.single[file]:
                # Sorted together, files whose bounds do not differ would have the same bounds again.
                self.separable[file] = column.differ[file]
                break
        return tuple(begin), (*end, (1, None))  # a shorter tuple is less; (1, None) is greater than every value

    def ranks_before(self, sought: SoughtKeys, indexes: Indexes) -> tuple[int, int]:
        """Return the ranks of the last files that begin before the least and the greatest of some keys; -1: none."""
        axis = sought.axes[0]
        if axis is None or sought.special[0][indexes].any():
            return -1, -1
        ends = np.array([axis[indexes].min(), axis[indexes].max()], axis.dtype)
        low, high = np.searchsorted(self.least[self._by_begin], ends, "right").tolist()
        return int(low) - 1, int(high) - 1

    def ranks_of(self, sought: SoughtKeys) -> Indexes:
        """Return for each key the rank of the last file that begins before it; 0 if none does, or if none is known."""
        axis = sought.axes[0]
        if axis is None or not len(self._by_begin):
            return np.zeros(sought.keys.num_rows, np.int64)
        return np.maximum(np.searchsorted(self.least[self._by_begin], axis, "right") - 1, 0)

    def inside(self, sought: SoughtKeys) -> dict[int, Indexes]:
        """Return the files that can contain sought keys, in key order, and the indexes of these keys."""
        begin = np.zeros(self.count, np.int64)
        end = np.full(self.count, len(sought.order), np.int64)
        first = self.columns[0]
        begin[self.known] = np.searchsorted(sought.sorted, self.least[self.known], "left")
        end[self.known] = np.searchsorted(sought.sorted, self.most[self.known], "right")
        has_special = first.special if first is not None else np.ones(self.count, np.bool_)
        found = {}
        for file in self.order[(begin < end)[self.order] | (has_special[self.order] & bool(len(sought.apart)))]:
            indexes = sought.order[begin[file] : end[file]]
            if has_special[file]:
                indexes = np.concatenate([indexes, sought.apart])
            indexes = self._within(int(file), sought, indexes)
            if len(indexes):
                found[int(file)] = indexes
        return found

    def _within(self, file: int, sought: SoughtKeys, indexes: Indexes) -> Indexes:
        """Reduce `indexes` by the ranges of the further key columns."""
        for column, axis, special in zip(self.columns[1:], sought.axes[1:], sought.special[1:], strict=True):
            if column is None:
                continue
            assert axis is not None, "both depend on the type"
            values, is_special = axis[indexes], special[indexes]
            fits = (values >= column.least[file]) & (values <= column.most[file]) if column.known[file] else True
            indexes = indexes[(fits & ~is_special) | (is_special & column.special[file])]
        return indexes


def _column_range(added: pa.Table, field: pa.Field, *, is_partition: bool) -> ColumnRange | None:
    least, most = statistic(added, "min", field), statistic(added, "max", field)
    nulls = statistic(added, "null_count", pa.field(field.name, pa.int64()))
    special = np.asarray(pc.fill_null(pc.not_equal(nulls, 0), fill_value=True).to_numpy(), np.bool_)
    if pa.types.is_floating(field.type):
        special = np.ones(added.num_rows, np.bool_)
    low, high = _axis(least), _axis(most)
    if low is None:
        return None
    assert high is not None, "both depend on the type"
    known = ~(_special(least) | _special(most))
    single = known & np.asarray(low == high, np.bool_)
    differ = np.asarray(high > low + _MILLISECOND_US if pa.types.is_timestamp(field.type) else low != high, np.bool_)
    if pa.types.is_string(field.type) and not is_partition:
        single &= np.array([len(value) < _COMPLETE_TEXT for value in high], np.bool_)
    low, high, known = _widened(field.type, low, high, known)
    return ColumnRange(low, high, known, single, differ, special)


def _widened(kind: pa.DataType, low: Axis, high: Axis, known: Flags) -> tuple[Axis, Axis, Flags]:
    if pa.types.is_string(kind):
        known &= np.array(
            [_is_exact(first) and _is_exact(last) for first, last in zip(low, high, strict=True)], np.bool_
        )
        return low, _objects(value + _LAST for value in high), known
    if pa.types.is_decimal(kind):
        if kind.precision <= _EXACT_DIGITS:
            return low, high, known
        return _objects(map(_lower, low)), _objects(map(_upper, high)), known
    if pa.types.is_timestamp(kind):
        return low, np.minimum(high, _TIME_US_MAX) + _MILLISECOND_US, known & (high < _TIME_US_MAX)
    return low, high, known


def _is_exact(text: str) -> bool:
    """Return whether a reader gets a bound as it was written: delta-rs joins escaped surrogate pairs wrongly."""
    return max(text, default="") < _SUPPLEMENTARY


def _lower(bound: Decimal) -> Decimal:
    return Decimal("-Infinity") if bound == _LONG_MIN else _EXACT.subtract(bound, _error(bound))


def _upper(bound: Decimal) -> Decimal:
    return Decimal("Infinity") if bound == _LONG_MAX else _EXACT.add(bound, _error(bound))


def _error(bound: Decimal) -> Decimal:
    """Return the possible error of a bound: delta-rs prints a floating-point number or a 64-bit integer."""
    digits = len(bound.normalize(_EXACT).as_tuple().digits)
    return _EXACT.multiply(bound.copy_abs(), _FLOAT_ERROR) if digits <= _PRINTED_DIGITS else _ZERO


def _objects(values: Iterable[object]) -> npt.NDArray[np.object_]:
    return np.array(list(values), np.object_)
