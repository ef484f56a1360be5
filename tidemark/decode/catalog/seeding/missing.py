"""Values of `attmissingval` as a seed gets them from SQL: text, in an array that we construct.

The real value is an array of one element of the column's type. SQL returns only its text, so a seed makes an array of
one text; its lower bound is 0, which the server never writes there, and so marks it as ours. The real one comes with
the first page image; it is the same value, since that of a column never changes.

The name of an OID may change, for example of an enum label or a table: for such a value the seed has the OID itself.
"""

import struct
from dataclasses import replace

from tidemark.model.relation import Relation

TEXT_OID = 25
OID_OID = 26
_SEED_LOWER_BOUND = 0
_HEAD = struct.Struct("<IiiIiii")  # varlena headers of 4 bytes have the length in the high 30 bits: array, then element


def missing_from_text(text: bytes) -> bytes:
    """Return the array datum for a missing value whose text is `text`."""
    total = _HEAD.size + len(text)
    return _HEAD.pack(total << 2, 1, 0, TEXT_OID, 1, _SEED_LOWER_BOUND, (4 + len(text)) << 2) + text


def missing_from_oid(oid: int) -> bytes:
    """Return the array datum for a missing value that is an OID."""
    value = oid.to_bytes(4, "little")
    head = _HEAD.size - len(value)
    return _HEAD.pack(_HEAD.size << 2, 1, 0, OID_OID, 1, _SEED_LOWER_BOUND, 0)[:head] + value


def is_from_seed(datum: bytes | None) -> bool:
    """Return whether `datum` was made by `missing_from_text` or `missing_from_oid`."""
    if datum is None or len(datum) < _HEAD.size or datum[0] & 3:
        return False
    _total, dimensions, _offset, element, _count, lower_bound, _text = _HEAD.unpack_from(datum)
    return dimensions == 1 and element in (TEXT_OID, OID_OID) and lower_bound == _SEED_LOWER_BOUND


def is_same_version(version: Relation, other: Relation) -> bool:
    """Return whether two descriptions are equal, apart from a seed's missing value that the real one replaced."""
    if len(version.columns) != len(other.columns):
        return False
    if version == other:
        return True
    if not any(is_from_seed(column.missing) for column in version.columns):
        return False
    columns = [
        replace(column, missing=there.missing) if is_from_seed(column.missing) and there.missing else column
        for column, there in zip(version.columns, other.columns, strict=True)
    ]
    return replace(version, columns=tuple(columns)) == other
