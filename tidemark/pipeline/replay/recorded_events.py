"""The events of one table, as `_events` of its lake has them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.decode.types.codec import Dialect
from tidemark.model.change import CopyBoundary, PartitionEvent, RewriteBoundary, SchemaEvent, Truncation
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.replay.refusal import reading
from tidemark.pipeline.sinks.log.event_record import FOLDER, EventKind
from tidemark.pipeline.sinks.steps import TableEvent
from tidemark.wire.items import decode_item, relation_of
from tidemark.wire.relations import decode_relation
from tidemark.wire.values import ValueKind

_VALUES = {
    EventKind.SCHEMA: ValueKind.SCHEMA,
    EventKind.PARTITION: ValueKind.PARTITION,
    EventKind.REWRITE: ValueKind.REWRITE,
    EventKind.TRUNCATION: ValueKind.TRUNCATION,
    EventKind.COPY: ValueKind.COPY,
}
_EVENTS = SchemaEvent | PartitionEvent | RewriteBoundary | Truncation | CopyBoundary


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event, or (None) the relation version that changes have from a position on."""

    position: Position
    event: TableEvent | None
    relation: Relation
    is_reduced: bool | None = None  # whether the log lacks columns from here on; None: as before

    @property
    def begins_copy(self) -> bool:
        """Return whether it is the begin of a copy."""
        return isinstance(self.event, CopyBoundary) and self.event.begin

    @property
    def kind(self) -> str:
        """Return the name of the event in messages."""
        return "TRUNCATE" if isinstance(self.event, Truncation) else "DDL"

    @property
    def time_us(self) -> int:
        """Return the time of its transaction; 0: no transaction wrote it."""
        return self.event.commit_time_us if self.event and not isinstance(self.event, CopyBoundary) else 0


class RecordedEvents:
    """The events of a table in order, and what its versions are in Arrow."""

    def __init__(self, root: str, of: TableId, upto: Position) -> None:
        """Read the events up to a position; later ones may be recorded before the log has the changes."""
        uri = f"{root}/{FOLDER}"
        table = LakeTable(uri, "")
        self.events: list[RecordedEvent] = []
        self._shapes: dict[Relation, pa.StructType] = {}
        self._constants: dict[Relation, Mapping[int, pa.Scalar]] = {}
        if not table.exists:
            return
        mine = (pc.field("database") == of[0]) & (pc.field("relation") == of[1])
        found: dict[tuple[Position, str, str], RecordedEvent] = {}
        with reading(uri):
            rows = [row for batch in table.scan(where=mine) for row in batch.to_pylist()]
        for row in rows:
            at = Position(TimelineId(row["_tli"]), Lsn(row["_commit_lsn"]), row["_ordinal"])
            if at > upto:
                continue
            recorded = self._parse(at, EventKind(row["kind"]), row["item"])
            known = found.setdefault((at, row["kind"], row["item"]), recorded)
            if row["columns"] is not None:
                self._describe(recorded.relation, row["columns"], row["constants"])
                is_reduced = bool(known.is_reduced or row.get("is_reduced"))
                found[at, row["kind"], row["item"]] = replace(known, is_reduced=is_reduced)
        # NB: a version precedes the rows at its position, and a copy that begins again has the generation to tell.
        self.events = sorted(found.values(), key=_order)

    def shape(self, relation: Relation) -> pa.StructType:
        """Return the live columns of a version in Arrow."""
        return self._shapes.get(relation) or shape_of(relation)

    def constants(self, relation: Relation, _dialect: Dialect) -> Mapping[int, pa.Scalar]:
        """Return the values of columns in rows that are older than the column, by number."""
        return self._constants.get(relation, {})

    def first_reduced(self, base: RecordedEvent, before: Position | None) -> RecordedEvent | None:
        """Return the event at or after `base` from which on the log lacks columns of the table; None: it has all."""
        is_reduced, is_reached = False, False
        for recorded in self.events:
            if before is not None and recorded.position >= before:
                break
            if recorded.is_reduced is not None:
                is_reduced = recorded.is_reduced
            elif recorded.begins_copy:
                is_reduced = False
            is_reached = is_reached or recorded == base
            if is_reached and is_reduced:
                return recorded
        return None

    def between(self, after: Position, before: Position | None) -> Iterator[RecordedEvent]:
        """Yield the events after a position, before another one (None: all)."""
        for recorded in self.events:
            if recorded.position > after and (before is None or recorded.position < before):
                yield recorded

    def _parse(self, position: Position, kind: EventKind, item: str) -> RecordedEvent:
        if kind is EventKind.VERSION:
            return RecordedEvent(position, None, decode_relation(item.encode()))
        event = decode_item(_VALUES[kind], item.encode())
        relation = relation_of(event)
        if not isinstance(event, _EVENTS) or relation is None:
            raise InternalError(f"{FOLDER} has a {kind.value} at {position} that is none")
        return RecordedEvent(position, event, relation)

    def _describe(self, relation: Relation, columns: bytes, constants: bytes | None) -> None:
        with pa.ipc.open_stream(columns) as stream:
            self._shapes[relation] = pa.struct(list(stream.schema))
        if constants is not None:
            with pa.ipc.open_stream(constants) as stream:
                row = stream.read_next_batch()
            self._constants[relation] = {
                int(name): column[0] for name, column in zip(row.schema.names, row.columns, strict=True)
            }


def _order(recorded: RecordedEvent) -> tuple[Position, int, bool]:
    event = recorded.event
    generation = event.generation if isinstance(event, CopyBoundary) else 0
    return recorded.position, generation, event is not None
