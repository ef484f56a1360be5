"""Row changes as the server's own pgoutput sends them (protocol version 1, text), by SQL on a slot.

Messages: https://www.postgresql.org/docs/15/protocol-logicalrep-message-formats.html
"""

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, Self

from tests.support.servers.postgres import Cluster, sql

SLOT = PUBLICATION = "second_opinion"
UNCHANGED = object()
Row = dict[str, object]  # text by column, or None, or UNCHANGED

_U8, _U16, _U32 = Struct(">B"), Struct(">H"), Struct(">I")
_COLUMN_TYPE_BYTES = 8  # OID and modifier


class RowChange(NamedTuple):
    """One row, or one table that was truncated."""

    op: str
    table: str
    old: Row | None
    new: Row | None


class _MessageReader:
    """Reads one message sequentially."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 0

    def read(self, size: int) -> bytes:
        content = self._message[self._at : self._at + size]
        assert len(content) == size, "a message ends early"
        self._at += size
        return content

    def number(self, of: Struct) -> int:
        return int(of.unpack(self.read(of.size))[0])

    def letter(self) -> str:
        return chr(self.number(_U8))

    def name(self) -> str:
        end = self._message.index(b"\0", self._at)
        return self.read(end + 1 - self._at)[:-1].decode()

    @property
    def is_over(self) -> bool:
        return self._at == len(self._message)


@dataclass(frozen=True)
class _RelationMessage:
    name: str
    columns: list[str]


class PgOutput:
    """A slot and a publication of all tables; changes of partitions have the names of their roots."""

    def __init__(self, cluster: Cluster, database: str) -> None:
        self._cluster = cluster
        self._database = database
        self._relations: dict[int, _RelationMessage] = {}
        with cluster.connect(database) as session:
            sql(session, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES WITH (publish_via_partition_root = true)")
            sql(session, f"SELECT pg_create_logical_replication_slot('{SLOT}', 'pgoutput')")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.sql(f"SELECT pg_drop_replication_slot('{SLOT}')", self._database)

    def changes(self) -> list[RowChange]:
        """Return the changes committed since the last call."""
        messages = self._cluster.sql(
            f"SELECT data FROM pg_logical_slot_get_binary_changes('{SLOT}', NULL, NULL,"
            f" 'proto_version', '1', 'publication_names', '{PUBLICATION}')",
            self._database,
        )
        return [change for (data,) in messages for change in self._parsed(_MessageReader(bytes(data)))]

    def _parsed(self, message: _MessageReader) -> list[RowChange]:
        kind = message.letter()
        if kind == "R":
            self._describe(message)
        elif kind == "T":
            count = message.number(_U32)
            message.read(_U8.size)  # options
            return [RowChange("t", self._relations[message.number(_U32)].name, None, None) for _ in range(count)]
        elif kind in "IUD":
            relation = self._relations[message.number(_U32)]
            sides: dict[str, Row] = {}
            while not message.is_over:
                side = message.letter()
                sides[side] = _row(message, relation)
            return [RowChange(kind.lower(), relation.name, sides.get("K", sides.get("O")), sides.get("N"))]
        else:
            assert kind in "BCOY", kind  # begin, commit, origin, type
        return []

    def _describe(self, message: _MessageReader) -> None:
        oid = message.number(_U32)
        _namespace, name = message.name(), message.name()
        message.read(_U8.size)  # replica identity
        columns = []
        for _ in range(message.number(_U16)):
            message.read(_U8.size)  # flags
            columns.append(message.name())
            message.read(_COLUMN_TYPE_BYTES)
        self._relations[oid] = _RelationMessage(name, columns)


def _row(message: _MessageReader, relation: _RelationMessage) -> Row:
    assert message.number(_U16) == len(relation.columns)
    row: Row = {}
    for column in relation.columns:
        match message.letter():
            case "n":
                row[column] = None
            case "u":
                row[column] = UNCHANGED
            case "t":
                row[column] = message.read(message.number(_U32)).decode()
            case other:
                raise AssertionError(other)
    return row
