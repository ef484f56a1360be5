"""Identifiers of server objects: `tid`, `pg_lsn`, snapshots, and OIDs that are printed as names (PG 16)."""

import struct

import pyarrow as pa

from tidemark.decode.datum.varlena import BadDatum
from tidemark.decode.types.codec import ArrowValue, ColumnKind, Dialect, ObjectNames, TextCodec, unpack_exactly
from tidemark.decode.types.families.numbers import IntegerCodec
from tidemark.model.lsn import Oid

_TID = struct.Struct("<HHH")  # BlockIdData's two halves, the high one first; offset
_LSN = struct.Struct("<II")  # the low half first
_SNAPSHOT = struct.Struct("<IQQ")  # nxip, xmin, xmax
NO_OBJECT = "-"  # most of these types print this for 0


class TidCodec(TextCodec):
    """`tid`: block and offset."""

    def text(self, payload: bytes) -> str:
        """Return both in parentheses."""
        high, low, offset = unpack_exactly(_TID, payload)
        return f"({high << 16 | low},{offset})"


class LsnCodec(TextCodec):
    """`pg_lsn`."""

    def text(self, payload: bytes) -> str:
        """Return both halves in hexadecimal."""
        low, high = unpack_exactly(_LSN, payload)
        return f"{high:X}/{low:X}"


class SnapshotCodec(TextCodec):
    """`pg_snapshot` and `txid_snapshot`: the running transactions."""

    def text(self, payload: bytes) -> str:
        """Return xmin, xmax and the running xids between them."""
        if len(payload) < _SNAPSHOT.size:
            raise BadDatum(f"snapshot of {len(payload)} bytes is cut off")
        count, xmin, xmax = _SNAPSHOT.unpack_from(payload)
        if _SNAPSHOT.size + count * 8 != len(payload):
            raise BadDatum(f"snapshot of {count} transactions in {len(payload)} bytes")
        running = struct.unpack_from(f"<{count}Q", payload, _SNAPSHOT.size)
        return f"{xmin}:{xmax}:{','.join(map(str, running))}"


class ObjectNameCodec(IntegerCodec):
    """`regproc` and similar types: an OID, which the server prints as a name that is not in WAL."""

    note = "the OID; the name is not in WAL"
    has_name = False

    def __init__(self) -> None:
        super().__init__("<I", pa.int64(), ColumnKind.UNSIGNED4)

    def parse_text(self, text: str) -> ArrowValue:
        """Return the OID; NULL for a name, as in a default from before the capture."""
        if text == NO_OBJECT:
            return 0
        return int(text) if text.isdecimal() else None


class CatalogNameCodec(ObjectNameCodec):
    """`regclass`, `regtype` and `regnamespace`: names that are in the tracked catalogs."""

    note = "the OID; the text form has the name"

    def __init__(self, kind: Oid, names: ObjectNames | None) -> None:
        super().__init__()
        self._kind = kind
        self._names = names
        self.has_name = names is not None

    @classmethod
    def of(cls, kind: int, dialect: Dialect) -> "CatalogNameCodec":
        """Return the codec of the type with that OID."""
        return cls(Oid(kind), dialect.names)

    def text(self, payload: bytes) -> str:
        """Return the name, if names are known."""
        oid = self.arrow_value(payload)
        if self._names is None:
            return str(oid)
        return self._names.name(self._kind, Oid(oid)) if oid else NO_OBJECT
