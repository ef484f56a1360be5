"""Keys of the state. Every key begins with its scope, (capture, partition).

    scope   = length of the capture's name (u8), name, system identifier (u64), database (u32; 0: all)
    outbox  = scope, sequence (u64), chunk (u16)
    others  = scope, and a name or number

All integers are big-endian, so that LMDB's byte order is the order of numbers.
"""

import struct
from dataclasses import dataclass, field
from typing import Self

from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Oid, SystemIdentifier
from tidemark.model.position import Partition, Sequence

CAPTURE_NAME_BYTES_MAX = 63  # as PostgreSQL's identifiers; far below LMDB's 511 bytes a key
_PARTITION = struct.Struct(">QI")
_SLOT = struct.Struct(">QH")
_NUMBER = struct.Struct(">I")
CHUNK_MAX = 0xFFFF
LAST_NUMBER = 0xFFFFFFFF
SEQUENCE_MAX = Sequence((1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Scope:
    """The owner of a key: a capture and a partition. Outbox and position belong to the whole capture."""

    capture: str
    partition: Partition
    prefix: bytes = field(init=False, repr=False, compare=False)  # with which every key of this scope begins

    def __post_init__(self) -> None:
        name = self.capture.encode()
        if not 0 < len(name) <= CAPTURE_NAME_BYTES_MAX:
            raise ConfigError(f"a capture's name has 1 to {CAPTURE_NAME_BYTES_MAX} bytes: {self.capture!r}")
        owner = _PARTITION.pack(self.partition.system_identifier, self.partition.database)
        object.__setattr__(self, "prefix", bytes([len(name)]) + name + owner)

    @classmethod
    def parse(cls, key: bytes) -> tuple[Self, bytes]:
        """Return the scope of `key` and what follows it."""
        end = 1 + key[0]
        system_identifier, database = _PARTITION.unpack_from(key, end)
        partition = Partition(SystemIdentifier(system_identifier), Oid(database))
        return cls(key[1:end].decode(), partition), key[end + _PARTITION.size :]


def named(scope: Scope, name: str) -> bytes:
    """Return the key of the value with this name."""
    return scope.prefix + name.encode()


def numbered(scope: Scope, number: int) -> bytes:
    """Return the key of the value with this number (schema versions, relations)."""
    return scope.prefix + _NUMBER.pack(number)


def parse_number(scope: Scope, key: bytes) -> int | None:
    """Return the number of a key of `numbered`; None for a key of another scope."""
    return int.from_bytes(key[len(scope.prefix) :]) if key.startswith(scope.prefix) else None


def slot(scope: Scope, sequence: Sequence, chunk: int) -> bytes:
    """Return the key of one chunk of an outbox value."""
    return scope.prefix + _SLOT.pack(sequence, chunk)


def parse_slot(scope: Scope, key: bytes) -> tuple[Sequence, int] | None:
    """Return sequence and chunk of an outbox key; None if `key` belongs to another scope."""
    prefix = scope.prefix
    if len(key) != len(prefix) + _SLOT.size or not key.startswith(prefix):
        return None
    sequence, chunk = _SLOT.unpack_from(key, len(prefix))
    return Sequence(sequence), chunk


def table_text(database: Oid, relation: Oid) -> str:
    """Return how keys and values of the state name a table: `DATABASE/RELATION`."""
    return f"{database}/{relation}"


def parse_table(text: str) -> tuple[Oid, Oid]:
    """Return the database and the relation of what `table_text` returned."""
    database, _, relation = text.partition("/")
    return Oid(int(database)), Oid(int(relation))
