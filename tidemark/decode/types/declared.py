"""The declared type of a column, as `format_type` prints it (format_type.c): the type's name with its modifier.

The fields of an interval (`interval day to second`) are not printed. A type of a user prints its name only.
"""

from tidemark.decode.types.families.numeric import TYPMOD_HEADER
from tidemark.decode.types.registry import NUMERIC
from tidemark.model.relation import Column, TypeDescription

_CHARACTERS = frozenset({1042, 1043})  # bpchar, varchar
_BITS = frozenset({1560, 1562})
_TIMES = frozenset({1083, 1114, 1184, 1266})
_INTERVAL = 1186
_INTERVAL_PRECISION_MASK = 0xFFFF  # all bits: no precision; the fields are above it (timestamp.h)
_SCALE_SIGN = 0x400


def declared_type(column: Column) -> str:
    """Return the type of a live column."""
    assert column.type is not None, column
    return _printed(column.type, column.typmod)


def _printed(described: TypeDescription, typmod: int) -> str:
    name = described.display_name
    if typmod < 0:
        return name
    if described.element is not None and name.endswith("[]"):
        return f"{_printed(described.element, typmod)}[]"
    modifier = _modifier(described.oid, typmod)
    first, blank, others = name.partition(" ")
    if described.oid in _TIMES:  # timestamp(3) without time zone
        return f"{first}{modifier}{blank}{others}"
    return f"{name}{modifier}"


def _modifier(oid: int, typmod: int) -> str:
    if oid == NUMERIC and typmod >= TYPMOD_HEADER:
        declared = typmod - TYPMOD_HEADER
        return f"({declared >> 16},{((declared & 0x7FF) ^ _SCALE_SIGN) - _SCALE_SIGN})"
    if oid in _CHARACTERS:
        return f"({typmod - TYPMOD_HEADER})"
    if oid in _BITS or oid in _TIMES:
        return f"({typmod})"
    precision = typmod & _INTERVAL_PRECISION_MASK
    return f"({precision})" if oid == _INTERVAL and precision != _INTERVAL_PRECISION_MASK else ""
