"""The rows of one table, with its own types."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import google_crc32c
import pyarrow as pa

from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import (
    ChangeBatch,
    GroupItem,
    LogicalMessage,
    PartitionChange,
    PartitionEvent,
    RewriteBoundary,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.emptied import dropped_partition, emptying
from tidemark.model.message_prefix import REWIND_PREFIX
from tidemark.model.position import Sequence
from tidemark.model.relation import Relation
from tidemark.pipeline.lake.layout import VERSIONS_KEPT
from tidemark.pipeline.source.options import Evolution
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.pipeline.source.rows.exact_values import UnfitValues
from tidemark.pipeline.source.rows.query_table import columns_of
from tidemark.pipeline.source.rows.row_form import RowForm
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.values import NO_SCHEMA_VERSION, ValueHeader, ValueKind

RECORD_ALIGNMENT = 8  # MAXALIGN of every supported server
EARLIER_VALUES = (
    "they were written before the type of the column changed: a stream with schemaEvolution=restart reads them in the "
    "columns that they had, and ends where these change; columns=raw has every value as it was written"
)
BATCH_ROWS = 65_536  # rows of small values are joined up to this number
# Values of these kinds have a row of the query, or may have one: only some of the latter remove earlier rows.
_WITH_ROWS = frozenset(ValueKind) - {ValueKind.MESSAGE, ValueKind.TRANSACTIONS}


@dataclass(frozen=True)
class RowContents:
    """The rows of a table in the columns of `form`; `given` are those of the table that the caller chose, if any."""

    form: RowForm
    evolution: Evolution
    given: frozenset[str] | None = None
    _is_member: dict[SchemaVersion, bool] = field(default_factory=dict, compare=False)
    _misfits: dict[SchemaVersion, str | None] = field(default_factory=dict, compare=False)

    @property
    def columns_id(self) -> str:
        """Return a checksum of the names and types of the query's columns."""
        return _columns_id(self.form.wanted)

    def change_from(self, outbox: OutboxPort, columns_id: str) -> str:
        """Return how the columns differ from those that `columns_id` identifies; "" if no version has these."""
        table = self.form.table
        for database, relation in reversed(outbox.relations().values()):
            if not table.contains(database, relation, outbox.beginning):
                continue
            former = replace(table, columns=columns_of(relation, table.types))
            fields = self.form.fields_of(former)
            chosen = [one for one in fields if one.name in self.form.wanted.names]
            if columns_id in (_columns_id(fields), _columns_id(chosen)):
                return ", ".join(former.differences_to(table.columns, self.given))
        return ""

    def wants(self, outbox: OutboxPort, header: ValueHeader) -> bool:
        """Return whether the value has rows of the table, or may remove earlier ones."""
        return header.kind in _WITH_ROWS and self._contains(outbox, header)

    def misfit(self, outbox: OutboxPort, header: ValueHeader) -> str | None:
        """Return how the columns of a version that came after the query was loaded differ from those of the query."""
        version, table = header.schema_version, self.form.table
        if version <= table.newest or self.evolution is Evolution.IGNORE or not self._contains(outbox, header):
            return None
        if version not in self._misfits:
            if len(self._misfits) >= VERSIONS_KEPT:
                self._misfits.clear()
            relation = outbox.relation(version)
            differences = table.differences(relation, self.given)
            text = f"{relation.qualified_name}: {', '.join(differences)}" if differences else None
            self._misfits[version] = text
        return self._misfits[version]

    def gap(self, outbox: OutboxPort, header: ValueHeader) -> str | None:
        """Return why the table does not follow from the rows, from a value on; None: it follows, or gaps are ignored.

        Its capture ends, or begins without its rows. Or the form lacks what shows it: the rows that were rewritten when
        the table was logged again, or the timelines, without which changes of an abandoned one seem to be later than
        those that replace it.
        """
        if self.evolution is Evolution.IGNORE:
            return None
        if header.kind is ValueKind.SCHEMA:
            event = _item(outbox, header)
            assert isinstance(event, SchemaEvent), header.kind
            return self._missing(outbox, event, header.sequence)
        if header.kind is ValueKind.REWRITE and not self.form.is_complete and self._contains(outbox, header):
            return self._unseen_partition(outbox, header)
        if header.kind is ValueKind.MESSAGE and not self.form.is_complete and _is_of_capture(header):
            message = _item(outbox, header)
            assert isinstance(message, LogicalMessage), header.kind
            is_of_table = header.database in {database for database, _ in self.form.table.members}
            if message.prefix == REWIND_PREFIX and is_of_table:
                names = ", ".join(self.form.table.names)
                return f"changes of {names} before value {header.sequence} of the outbox were given up (cdcctl rewind)"
        return None

    def _missing(self, outbox: OutboxPort, event: SchemaEvent, sequence: Sequence) -> str | None:
        begins = event.capture is CaptureChange.BEGINS and event.is_of_capture
        if event.capture is CaptureChange.ENDS:
            relation = event.before
        else:
            relation = event.after if begins or self._lacks_rows(event) else None
        if relation is None or not self.form.table.contains(event.database, relation, outbox.beginning):
            return None
        if begins:
            return f"rows and changes of {relation.qualified_name} before value {sequence} of the outbox are missing"
        return _missing_from(relation, sequence)

    def _unseen_partition(self, outbox: OutboxPort, header: ValueHeader) -> str | None:
        """Return the gap if the rewritten rows are all that the stream has of a partition that is logged again."""
        boundary = _item(outbox, header)
        assert isinstance(boundary, RewriteBoundary), header.kind
        if not boundary.begin or header.sequence == header.group_first:
            return None
        (value,) = outbox.read(Sequence(header.sequence - 2), Sequence(header.sequence - 1))
        match value.item():
            case PartitionEvent(change=PartitionChange.CREATE, partition=made) if made.oid == boundary.partition:
                return _missing_from(boundary.relation, header.sequence)
            case _:
                return None

    def read(self, outbox: OutboxPort, after: Sequence, upto: Sequence) -> Iterator[pa.RecordBatch]:
        """Yield the rows of (after, upto], those of small values together."""
        waiting: list[pa.RecordBatch] = []
        row_count = 0
        for value in outbox.read(after, upto, lambda header: self.wants(outbox, header)):
            rows = self._rows(value.item(), value.header)
            if rows is None:
                continue
            if waiting and row_count + len(rows) > BATCH_ROWS:
                yield _joined(waiting)
                waiting, row_count = [], 0
            waiting.append(rows)
            row_count += len(rows)
        if waiting:
            yield _joined(waiting)

    def _rows(self, item: GroupItem, header: ValueHeader) -> pa.RecordBatch | None:
        if isinstance(item, ChangeBatch):
            try:
                return self.form.rows(item, header.sequence)
            except UnfitValues as error:
                if header.schema_version > self.form.table.newest:
                    raise
                raise UnfitValues(str(error), hint=EARLIER_VALUES) from error
        emptied = self._emptying(item)
        return None if emptied is None else self.form.truncation(emptied, header.sequence)

    def _emptying(self, item: GroupItem) -> Truncation | None:
        """Return the TRUNCATE that the query shows for an item that removes earlier rows."""
        if isinstance(item, SchemaEvent):
            if self._lacks_rows(item):
                return None  # the earlier rows are better than none
            if item.before is not None and self.form.table.has_partition(item.database, item.before):
                return dropped_partition(item)
        if isinstance(item, RewriteBoundary) and not self.form.is_complete:
            return None  # as above
        return emptying(item)

    def _lacks_rows(self, event: SchemaEvent) -> bool:
        """Return whether a table was created with rewritten rows, which the form does not have."""
        is_rewritten = event.change is SchemaChange.CREATE and event.effect is SchemaEffect.REWRITE
        return is_rewritten and not self.form.is_complete

    def _contains(self, outbox: OutboxPort, header: ValueHeader) -> bool:
        version = header.schema_version
        if version == NO_SCHEMA_VERSION:
            return False
        if version not in self._is_member:
            if len(self._is_member) >= VERSIONS_KEPT:
                self._is_member.clear()
            self._is_member[version] = self.form.table.contains(
                header.database, outbox.relation(version), outbox.beginning
            )
        return self._is_member[version]


def _columns_id(fields: Iterable[pa.Field]) -> str:
    text = json.dumps([(one.name, str(one.type)) for one in fields])
    return f"{google_crc32c.value(text.encode()):08x}"


def _item(outbox: OutboxPort, header: ValueHeader) -> GroupItem:
    (value,) = outbox.read(Sequence(header.sequence - 1), header.sequence)
    return value.item()


def _missing_from(relation: Relation, sequence: Sequence) -> str:
    return f"changes of {relation.qualified_name} are missing from value {sequence} of the outbox on"


def _is_of_capture(message: ValueHeader) -> bool:
    """Return whether the capture made a message, and not the source: records begin at multiples of 8."""
    return message.first.commit_lsn % RECORD_ALIGNMENT != 0


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
