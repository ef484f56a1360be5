"""Applies an event between two runs of changes to a replica: a copy, a truncation, a rewrite by DDL, a new version.

Rows rewritten by DDL are staged in a Delta table beside the replica until the rewrite ends: then one commit replaces
rows and columns together, and no reader sees a part of it. A change of layout without a rewrite is made from the
replica's own rows, also in one commit. The replica of a dropped table remains unchanged.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.io.host.failpoints import passed
from tidemark.model.change import (
    CopyBoundary,
    PartitionChange,
    PartitionEvent,
    RewriteBoundary,
    SchemaChange,
    SchemaEffect,
    SchemaEvent,
    Truncation,
)
from tidemark.model.position import NO_SEQUENCE
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.failpoints import Failpoint
from tidemark.pipeline.lake.deletion_marks import DELETED, marks_after
from tidemark.pipeline.lake.layout import table_comment
from tidemark.pipeline.lake.tables.delta_sql import quoted
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_upkeep import forget_files
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.sinks.replica.replica_layout import ReplicaLayout
from tidemark.pipeline.sinks.rows.replica_rows import kept_by, of_partition, with_kept
from tidemark.pipeline.sinks.rows.rerendering import rerenderings
from tidemark.pipeline.sinks.steps import EventStep

REWRITE = "rewrite"


class ReplicaEvents:
    """The events of one replica."""

    def __init__(self, uri: str, app: str, layout: ReplicaLayout) -> None:
        self._uri = uri
        self._app = app
        self._layout = layout

    def staging_table(self) -> LakeTable:
        """Return the table that stores rewritten rows until the rewrite ends."""
        return writable_table(f"{self._uri}-{REWRITE}", f"{self._app}-{REWRITE}")

    def apply(self, table: LakeTable, step: EventStep) -> None:
        """Apply an event in one commit."""
        event = step.event
        applied = replace(table.applied, sequence=step.sequence, position=event.position)
        match event:
            case Truncation():
                self._layout.reshape(table, event.relation, table.applied)
                if event.partition:
                    self._delete(table, event.relation, of_partition(event.relation, event.partition), applied)
                else:
                    self._delete(table, event.relation, None, replace(applied, blocked=False))
            case PartitionEvent(change=PartitionChange.DETACH | PartitionChange.DROP) if table.exists:
                self._delete(table, event.relation, of_partition(event.relation, event.partition.oid), applied)
            case CopyBoundary():
                self._bound_copy(table, event, applied)
            case RewriteBoundary():
                self._bound_rewrite(table, event, applied)
            case SchemaEvent(change=SchemaChange.CREATE, after=Relation() as relation) if _is_made_empty(event):
                # NB: an existing table that was unlogged for a while: its deletions in that time are not in WAL.
                self._make_empty(table, relation, replace(applied, blocked=False))
            case SchemaEvent(after=Relation() as relation) if event.effect is not SchemaEffect.REWRITE:
                self._layout.redeclare(table, event.before, relation)
                self._layout.reshape(table, relation, applied, rerenderings(event.before, relation))
            case _:  # a rewrite changes columns and rows together; a dropped table stays unchanged
                return
        passed(Failpoint.REPLICA_CHANGED)

    def _delete(self, table: LakeTable, relation: Relation, where: str | None, applied: Applied) -> None:
        """Delete the rows that match the SQL condition `where`, or all; or mark them as deleted."""
        if not self._layout.keeps_deleted:
            table.delete(where, applied)
            return
        self._layout.reshape(table, relation, table.applied)
        live = f"NOT {quoted(DELETED)}"
        table.update(marks_after(applied.position), f"{live} AND {where}" if where else live, applied)

    def _make_empty(self, table: LakeTable, relation: Relation, applied: Applied) -> None:
        if self._layout.keeps_deleted and table.exists:
            self._delete(table, relation, None, applied)
        else:
            columns, partition = self._layout.columns(table, relation), self._layout.partition(relation)
            empty_table(table, columns, applied, partition)

    def _bound_copy(self, table: LakeTable, event: CopyBoundary, applied: Applied) -> None:
        copying = replace(
            applied,
            generation=event.generation,
            copy_sequence=applied.sequence if event.begin else NO_SEQUENCE,
            blocked=False,
        )
        if table.exists and not event.begin:
            table.append(table.schema.empty_table(), copying)
            return
        columns = self._layout.copied_columns(table, event.relation, event.comments)
        partition = self._layout.partition(event.relation)
        if not table.exists:
            table.create(columns, copying, table_comment(event.comments), partition=partition)
            return
        if event.comments is not None:
            table.describe((), table_comment(event.comments))
        table.overwrite(columns.empty_table(), copying, partition=partition)

    def _bound_rewrite(self, table: LakeTable, event: RewriteBoundary, applied: Applied) -> None:
        aside = self.staging_table()
        if event.begin:
            if event.position > aside.applied.position:
                empty_table(aside, self._layout.columns(table, event.relation), applied)
            return
        partition = self._layout.partition(event.relation)
        if not table.exists:
            table.create(aside.schema, table.applied, partition=partition)
        kept = kept_by(event, keeps_deleted=self._layout.keeps_deleted)
        rows = aside.scan() if kept is None else with_kept(table, aside, kept)
        if not event.partition:
            table.overwrite(rows, replace(applied, blocked=False), partition=partition)
        elif not table.applied.blocked:
            table.overwrite(rows, applied, partition=partition)
        passed(Failpoint.REWRITE_ENDED)
        empty_table(aside, aside.schema, applied)
        forget_files(aside)


def _is_made_empty(event: SchemaEvent) -> bool:
    """Return whether a created table is empty, apart from the rows that follow."""
    return event.effect is SchemaEffect.METADATA and not event.brings_rows


def empty_table(table: LakeTable, schema: pa.Schema, applied: Applied, partition: Sequence[str] = ()) -> None:
    """Leave a table without rows, with the columns of `schema`."""
    if table.exists:
        table.overwrite(schema.empty_table(), applied, partition=partition)
    else:
        table.create(schema, applied, partition=partition)
