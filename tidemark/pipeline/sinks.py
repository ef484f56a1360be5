"""A batch of outbox values into the lake: each table its log and then its replica, the positions last.

    <lake>/<database>/<oid>-<first name>/{log,replica}    <lake>/<database>/messages    <lake>/_positions

A folder keeps the name that its table and database had at first; present names stand in the positions table.

Every target guards itself, so a kill anywhere is harmless: what is asked for again is left out where it is held.
Tables go through a small pool of threads, since each costs some tens of milliseconds and most of that is waiting.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tidemark.decode.codecs.codec import Dialect
from tidemark.decode.codecs.registry import UTF8
from tidemark.io.failpoints import passed
from tidemark.model.change import LogicalMessage, SchemaChange, SchemaEvent
from tidemark.model.lsn import INVALID_OID, Oid
from tidemark.model.position import Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.changelog import ChangeLog
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake import LakeTable
from tidemark.pipeline.layout import Constants, Shapes
from tidemark.pipeline.messages import FOLDER as MESSAGES
from tidemark.pipeline.messages import append_messages
from tidemark.pipeline.positions import Positions, TableId, TablePosition, TableState
from tidemark.pipeline.replica import Replica
from tidemark.pipeline.steps import Delivered, TableItem
from tidemark.wire.items import relation_of
from tidemark.wire.state import Identity

TABLES_AT_ONCE = 4
COMPACT_EVERY = 100  # commits of one table
LOG_KEEP_HOURS = 168  # files that compaction replaced, for readers of older versions
REPLICA_KEEP_HOURS = 1  # each merge replaces whole files: a week of them may be a thousand times the table
PARTITIONED = "p"  # pg_class.relkind
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,62}")
_NAME_LENGTH = 80  # of a folder; the OID before it is what tells tables apart


LakeItem = tuple[OutboxSequence, TableItem | LogicalMessage]
"""An item and the outbox value that it came in."""


@dataclass(frozen=True, slots=True, eq=False)
class LakeBatch:
    """Whole groups of the outbox, in order."""

    outbox: str
    end: OutboxSequence
    position: Position  # of the last group
    items: Sequence[LakeItem]


@dataclass(slots=True, eq=False)
class _Split:
    tables: dict[TableId, list[Delivered]] = field(default_factory=dict)
    messages: dict[Oid, list[tuple[OutboxSequence, LogicalMessage]]] = field(default_factory=dict)


class Lake:
    """All targets of one capture."""

    def __init__(
        self,
        root: str,
        identity: Identity,
        shapes: Shapes,
        constants: Constants,
        databases: Mapping[Oid, str] | None = None,
        *,
        dialects: Mapping[Oid, Dialect] | None = None,
    ) -> None:
        """`databases` are their names, one without a name is called by its OID; one without a dialect has UTF-8's."""
        self.root = root.rstrip("/")
        self.capture = identity.capture
        self._databases = databases or {}
        self._dialects = dialects or {}
        self.positions = Positions(self.root, identity)
        self._shapes = shapes
        self._constants = constants

    def apply(self, batch: LakeBatch) -> None:
        """Bring every table up to the end of `batch`, and say so in the positions table."""
        passed(Failpoint.BATCH_RECEIVED)
        split = _split(batch.items)
        jobs: list[Callable[[], TablePosition]] = [
            *(lambda table=table, items=items: self._table(table, items) for table, items in split.tables.items()),
            *(lambda of=of, items=items: self._messages(of, items) for of, items in split.messages.items()),
        ]
        with ThreadPoolExecutor(TABLES_AT_ONCE, "tidemark-table") as pool:
            touched = [done.result() for done in [pool.submit(job) for job in jobs]]
        passed(Failpoint.TABLES_DONE)
        held = replace(self.positions.held, sequence=batch.end, position=batch.position)
        if held.position < self.positions.held.position:
            held = replace(held, position=self.positions.held.position)
        self.positions.write(batch.outbox, touched, held)
        passed(Failpoint.POSITIONS_WRITTEN)

    def _table(self, table: TableId, items: Sequence[Delivered]) -> TablePosition:
        known = self.positions.tables.get(table)
        relation = _latest(items)
        folder = known.folder if known else f"{self._database(table[0])}/{folder_of(_first(items))}"
        app = f"tidemark:{self.capture}:{table[0]}.{table[1]}"
        log = ChangeLog(f"{self.root}/{folder}/log", f"{app}:log", self._shapes).apply(items)
        uri = f"{self.root}/{folder}/replica"
        dialect = self._dialects.get(table[0], UTF8)
        replica = Replica(uri, f"{app}:replica", self._shapes, self._constants, dialect).apply(items)
        for written, keep_hours in ((log, LOG_KEEP_HOURS), (replica, REPLICA_KEEP_HOURS)):
            if written.has_passed(COMPACT_EVERY):
                written.compact(keep_hours)
        held = max(log.held, replica.held, key=lambda held: held.position)
        return TablePosition(
            database=table[0],
            relation=table[1],
            namespace=relation.namespace,
            name=relation.name,
            folder=folder,
            state=_state(items, replica, known),
            sequence=held.sequence,
            position=held.position,
            generation=held.generation,
            log_version=log.version,
            replica_version=replica.version,
        )

    def _messages(self, database: Oid, messages: Sequence[tuple[OutboxSequence, LogicalMessage]]) -> TablePosition:
        known = self.positions.tables.get((database, INVALID_OID))
        folder = known.folder if known else f"{self._database(database)}/{MESSAGES}"
        app = f"tidemark:{self.capture}:{database}:{MESSAGES}"
        log = append_messages(f"{self.root}/{folder}", app, messages)
        if log.has_passed(COMPACT_EVERY):
            log.compact(LOG_KEEP_HOURS)
        return TablePosition(
            database=database,
            relation=INVALID_OID,
            namespace="",
            name=MESSAGES,
            folder=folder,
            state=TableState.LIVE,
            sequence=log.held.sequence,
            position=log.held.position,
            generation=0,
            log_version=log.version,
            replica_version=-1,
        )

    def _database(self, database: Oid) -> str:
        # Three forms that never meet, nor the positions table's: an OID, a plain name, any other name with its OID.
        name = self._databases.get(database)
        if name is None:
            return str(database)
        return name if _PLAIN.fullmatch(name) else f"{_safe(name)}-{database}"


def folder_of(relation: Relation) -> str:
    """Return the folder of a table that is met for the first time, below its database's."""
    return f"{relation.oid}-{_safe(relation.qualified_name)}"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:_NAME_LENGTH]


def _split(items: Sequence[LakeItem]) -> _Split:
    split = _Split()
    for sequence, item in items:
        if isinstance(item, LogicalMessage):
            split.messages.setdefault(item.database, []).append((sequence, item))
            continue
        relation = relation_of(item)
        assert relation is not None, item
        if relation.kind == PARTITIONED and not relation.gathers_partitions:
            continue  # its rows are its partitions'
        split.tables.setdefault((item.database, relation.oid), []).append(Delivered(sequence, item))
    return split


def _first(items: Sequence[Delivered]) -> Relation:
    first = items[0].item
    relation = first.before or first.after if isinstance(first, SchemaEvent) else first.relation
    assert relation is not None, first
    return relation


def _latest(items: Sequence[Delivered]) -> Relation:
    relation = relation_of(items[-1].item)
    assert relation is not None, items[-1]
    return relation


def _state(items: Sequence[Delivered], replica: LakeTable, known: TablePosition | None) -> TableState:
    # A table that turns unlogged and back is dropped and created under one OID.
    told = [i.item.change for i in items if isinstance(i.item, SchemaEvent)]
    born_or_gone = [change for change in told if change is not SchemaChange.ALTER]
    if born_or_gone[-1:] == [SchemaChange.DROP] or (not born_or_gone and known and known.state is TableState.DROPPED):
        return TableState.DROPPED
    if replica.held.blocked:
        return TableState.BLOCKED
    return TableState.COPYING if replica.held.copy_sequence else TableState.LIVE
