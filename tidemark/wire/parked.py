"""Parked and skipped changes as the state has them.

A parked change is an envelope with the length of a header, the header (JSON), and its row: an Arrow IPC
stream with one record batch, as it was after all transforms. `cdcctl parked` shows headers.
"""

import struct
from dataclasses import dataclass

from tidemark.model.lsn import Oid
from tidemark.model.position import Epoch, Position
from tidemark.model.relation import Column, Relation
from tidemark.wire.envelope import DamagedValue, seal, unseal
from tidemark.wire.json_form import JsonForm, JsonMismatch

PARKED_FORMAT_VERSION = 1
SKIPPED_KEPT = 100
_LENGTH = struct.Struct(">I")
_NAME = "parked change"


@dataclass(frozen=True, slots=True)
class ParkedChange:
    """A change that a handler could not handle, without its values."""

    number: int  # for people, from 1; never used again
    position: Position
    op: str  # one letter of `Op`
    database: str
    database_oid: Oid
    table: str  # after transforms
    relation: Relation  # the version in the source; with transforms: no constants
    key: tuple[str, ...]
    columns: tuple[Column, ...]  # after transforms
    reason: str  # the type of the handler's error, or the reason that it gave
    parked_at_us: int  # wall clock
    epoch: Epoch  # in which it was parked
    failures: int = 1  # how often it was handed over, with all retries
    is_requested: bool = False  # `cdcctl parked retry`: to be handed over again


@dataclass(frozen=True, slots=True)
class ParkedLedger:
    """The extent of the table of parked changes."""

    last_number: int = 0  # that was given to a change
    count: int = 0
    byte_count: int = 0
    requested: int = 0  # changes that are to be handed over again


@dataclass(frozen=True, slots=True)
class SkippedChange:
    """A change that a consumer could not handle, and that was left out (`poison.policy = "skip"`)."""

    at_us: int  # wall clock
    position: Position
    op: str
    database: str
    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class SkipLog:
    """The latest changes that were left out, oldest first."""

    kept: tuple[SkippedChange, ...] = ()
    count: int = 0  # total

    def with_one_more(self, skipped: SkippedChange) -> "SkipLog":
        """Return the log with another change; one that is delivered again after a crash is in it already."""
        places = {(each.position, each.database, each.table) for each in self.kept}
        if (skipped.position, skipped.database, skipped.table) in places:
            return self
        return SkipLog((*self.kept, skipped)[-SKIPPED_KEPT:], self.count + 1)


_HEADER: JsonForm[tuple[ParkedChange]] = JsonForm(tuple[ParkedChange])


def encode_parked(change: ParkedChange, row: bytes) -> bytes:
    """Return the stored value."""
    header = _HEADER.write((change,))
    return seal(_LENGTH.pack(len(header)) + header + row, PARKED_FORMAT_VERSION)


def decode_parked(stored: bytes) -> tuple[ParkedChange, bytes]:
    """Return the change and its row. Raise `DamagedValue`."""
    payload = unseal(_NAME, stored, PARKED_FORMAT_VERSION)
    if len(payload) < _LENGTH.size:
        raise DamagedValue(_NAME, f"{len(payload)} bytes are too few")
    start = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
    if start > len(payload):
        raise DamagedValue(_NAME, "the header is cut off")
    try:
        return _HEADER.read(payload[_LENGTH.size : start])[0], payload[start:]
    except JsonMismatch as error:
        raise DamagedValue(_NAME, f"invalid JSON: {error}") from error
