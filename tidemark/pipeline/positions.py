"""The positions table: how far every table of the lake is, and where a new checkpoint starts.

It is written last in every batch, so it never says more than the tables hold. One row stands for each table, with its
present name, its folder and the versions of log and replica that belong together, and one, with relation 0, for the
messages of each database. The row of database 0 stands for all: everything up to it is in the lake, in quiet tables
too. The commit carries that as application transactions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum

import pyarrow as pa

from tidemark.model.errors import ConfigError
from tidemark.model.lsn import INVALID_OID, Lsn, Oid, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.held import Held
from tidemark.pipeline.lake import KEEP_HOURS, LakeTable
from tidemark.wire.state import Identity

FOLDER = "_positions"
SCHEMA = pa.schema(
    [
        pa.field("database", pa.int64()),
        pa.field("relation", pa.int64()),
        pa.field("namespace", pa.string()),
        pa.field("name", pa.string()),
        pa.field("folder", pa.string()),  # below the lake's root
        pa.field("state", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("timeline", pa.int32()),
        pa.field("commit_lsn", pa.int64()),
        pa.field("ordinal", pa.int64()),
        pa.field("generation", pa.int64()),
        pa.field("log_version", pa.int64()),  # of the Delta tables; -1: there is none
        pa.field("replica_version", pa.int64()),
        pa.field("outbox", pa.string()),
        pa.field("capture", pa.string()),
        pa.field("system_identifier", pa.string()),  # an unsigned 64-bit number
    ]
)
_VACUUM_EVERY = 500  # commits; each leaves one small file behind


class LakeTaken(ConfigError):
    """A lake with another capture's tables."""

    hint = "give each capture a lake of its own; that of a cluster made anew (initdb, pg_upgrade) is another one, too"


class TableState(Enum):
    """What a table's replica is."""

    LIVE = "live"
    COPYING = "copying"  # the first copy has not come to its end
    BLOCKED = "blocked"  # changes that do not say which row they mean: log only
    DROPPED = "dropped"  # at the source; log and replica are kept


@dataclass(frozen=True, slots=True)
class TablePosition:
    """How far one table is."""

    database: Oid
    relation: Oid
    namespace: str
    name: str
    folder: str
    state: TableState
    sequence: Sequence
    position: Position
    generation: int
    log_version: int
    replica_version: int

    def row(self) -> dict[str, object]:
        """Return the table's own part of its row."""
        fields = asdict(self)
        del fields["position"]
        at = self.position
        return {
            **fields,
            "state": self.state.value,
            "timeline": at.timeline,
            "commit_lsn": at.commit_lsn,
            "ordinal": at.ordinal,
        }


TableId = tuple[Oid, Oid]
"""Database and relation."""


class Positions:
    """The positions table as last written; raises `LakeTaken` for a lake that is not `identity`'s."""

    def __init__(self, root: str, identity: Identity, keep_hours: int = KEEP_HOURS) -> None:
        self._keep_hours = keep_hours
        self._table = LakeTable(f"{root}/{FOLDER}", f"tidemark:{identity.capture}:positions")
        self._owner = {"capture": identity.capture, "system_identifier": str(identity.system_identifier)}
        self.tables: dict[TableId, TablePosition] = {}
        self.outbox = ""
        rows = self._table.scan().read_all().to_pylist() if self._table.exists else []
        for row in rows:
            if any(row[name] != own for name, own in self._owner.items()):
                owner = f"capture {row['capture']!r} of the cluster {row['system_identifier']}"
                raise LakeTaken(
                    f"{root} has the tables of {owner}, not of {identity.capture!r} of {identity.system_identifier}"
                )
            self.outbox = row["outbox"]
            if row["database"] != INVALID_OID:
                self.tables[Oid(row["database"]), Oid(row["relation"])] = _parse(row)

    @property
    def held(self) -> Held:
        """Return what the whole lake holds."""
        return self._table.held

    @property
    def version(self) -> int:
        """Return the version of the table itself."""
        return self._table.version

    def write(self, outbox: str, touched: Iterable[TablePosition], held: Held) -> None:
        """Record that `touched` tables are where they are and that all tables hold `held`."""
        tables = {**self.tables, **{(table.database, table.relation): table for table in touched}}
        whole = TablePosition(
            INVALID_OID, INVALID_OID, "", "", "", TableState.LIVE, held.sequence, held.position, 0, -1, -1
        )
        rows = [{**table.row(), **self._owner, "outbox": outbox} for table in (whole, *tables.values())]
        self._make()
        self._table.overwrite(pa.Table.from_pylist(rows, schema=SCHEMA), held)
        self.tables, self.outbox = tables, outbox
        if self._table.version % _VACUUM_EVERY == 0:
            self._table.forget_files(self._keep_hours)

    def lake_id(self) -> str:
        """Return what tells this lake from all others, also from one that stood in its place before."""
        self._make()
        return str(self._table.delta.metadata().id)

    def _make(self) -> None:
        if not self._table.exists:
            self._table.create(SCHEMA, self._table.held)


def _parse(row: Mapping[str, object]) -> TablePosition:
    def number(name: str) -> int:
        value = row[name]
        assert isinstance(value, int), name
        return value

    return TablePosition(
        Oid(number("database")),
        Oid(number("relation")),
        str(row["namespace"]),
        str(row["name"]),
        str(row["folder"]),
        TableState(row["state"]),
        Sequence(number("sequence")),
        Position(TimelineId(number("timeline")), Lsn(number("commit_lsn")), number("ordinal")),
        number("generation"),
        number("log_version"),
        number("replica_version"),
    )
