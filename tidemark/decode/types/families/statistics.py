"""Extended statistics, as in `pg_statistic_ext_data`: counts and degrees of groups of columns (PG 16).

Both are a magic number, a version, the number of items (`mvdistinct.c`, `dependencies.c`), then for each item a double
and the columns' numbers. The third kind, `pg_mcv_list`, is printed as its bytes.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import TextCodec

DISTINCT_MAGIC = 0xA352BFA4  # STATS_NDISTINCT_MAGIC
DEPENDENCIES_MAGIC = 0xB4549A2C  # STATS_DEPS_MAGIC
VERSION = 1
_HEAD = struct.Struct("<III")
_DISTINCT = struct.Struct("<di")  # count, number of columns
_DEPENDENCY = struct.Struct("<dh")


class _Coefficient(NamedTuple):
    """A number for a group of columns."""

    value: float
    columns: Sequence[int]


def _items(payload: bytes, magic: int, item: struct.Struct) -> Iterator[_Coefficient]:
    if len(payload) < _HEAD.size or _HEAD.unpack_from(payload)[:2] != (magic, VERSION):
        raise BadDatum(f"no statistics: {payload[: _HEAD.size].hex()}")
    at = _HEAD.size
    try:
        for _ in range(_HEAD.unpack_from(payload)[2]):
            value, count = item.unpack_from(payload, at)
            columns = struct.Struct(f"<{count}h")
            yield _Coefficient(value, columns.unpack_from(payload, at + item.size))
            at += item.size + columns.size
    except struct.error:
        raise BadDatum(f"statistics end in the middle: {len(payload)} bytes") from None


class DistinctCodec(TextCodec):
    """`pg_ndistinct`: the number of distinct values."""

    def text(self, payload: bytes) -> str:
        """Return a text in the form of a JSON object."""
        coefficients = []
        for value, columns in _items(payload, DISTINCT_MAGIC, _DISTINCT):
            if not math.isfinite(value):
                raise BadDatum(f"{value} different values")
            coefficients.append(f'"{", ".join(map(str, columns))}": {math.trunc(value)}')
        return f"{{{', '.join(coefficients)}}}"


class DependenciesCodec(TextCodec):
    """`pg_dependencies`: the degree to which the other columns determine the last one."""

    def text(self, payload: bytes) -> str:
        """Return a text in the form of a JSON object."""
        pairs = (
            f'"{", ".join(map(str, columns[:-1]))} => {columns[-1]}": {value:f}'
            for value, columns in _items(payload, DEPENDENCIES_MAGIC, _DEPENDENCY)
            if columns
        )
        return f"{{{', '.join(pairs)}}}"
