"""OutboxRouter: events that an application inserts into an outbox table, under the name of their kind.

The application writes a row in its own transaction: what it is about (`aggregatetype`, `aggregateid`), what happened
(`type`) and the `payload`. The names of the columns are those of Debezium's outbox event router by default.
"""

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.engine.pool.batch import Batch
from tidemark.model.change import AFTER, BEFORE, UNCHANGED, Op
from tidemark.transforms.transform import (
    BadTransform,
    BoundTransform,
    TableShape,
    Transform,
    TransformFailed,
    children,
    rebuilt,
)

TO = "outbox.event.{value}"


class OutboxRouter(Transform):
    """Converts inserts into an outbox table to events; deletes, which empty the table, are left out.

    The batch has the name `to` with the value of `route_by`, the key `key`, and the columns that are named. An update
    ends the engine: an event does not change.
    """

    keeps_tables = False

    def __init__(
        self,
        table: str,
        *,
        route_by: str = "aggregatetype",
        key: str = "aggregateid",
        columns: Sequence[str] = ("id", "type", "payload"),
        to: str = TO,
    ) -> None:
        """`table`: a pattern. `columns`: of the table, that the events have beside the key."""
        super().__init__(tables=table)
        if to.count("{value}") != 1 or to.count("{") != 1:
            raise BadTransform(f"OutboxRouter: to={to!r}: it must have {{value}} once", hint=f"for example {TO!r}")
        self._route_by = route_by
        self._key = key
        self._columns = tuple(columns)
        self._to = to

    def bind(self, shape: TableShape) -> BoundTransform | None:
        """Return the events of the table; raise `BadTransform` if a column is missing."""
        names = (self._key, *(name for name in self._columns if name != self._key))
        for name in (self._route_by, *names):
            if name not in shape.names:
                raise BadTransform(
                    f"OutboxRouter: {shape.table} has no column {name}; its columns are {', '.join(shape.names)}",
                    hint="give route_by=..., key=... and columns=[...] as the table has them",
                )
        at = [shape.names.index(name) for name in names]
        fields = [shape.columns.field(index) for index in at]
        route_at = shape.names.index(self._route_by)
        events = replace(shape.with_columns(fields), key=(self._key,))

        def step(batch: Batch) -> Sequence[Batch]:
            ops = batch.arrow.column("_op")
            if pc.any(pc.equal(ops, Op.UPDATE.value)).as_py():
                raise TransformFailed(
                    f"OutboxRouter: a row of {shape.table} was updated, and an event does not change",
                    hint="insert another row into the outbox table in place of the update",
                )
            rows = batch.arrow.filter(pc.not_equal(ops, Op.DELETE.value))
            if not rows.num_rows:
                return ()
            after = children(rows.column(AFTER))
            sides = {
                BEFORE: pa.nulls(rows.num_rows, events.columns),
                AFTER: rebuilt(rows.column(AFTER), fields, [after[index] for index in at]),
            }
            for side, values in sides.items():
                index = rows.schema.get_field_index(side)
                rows = rows.set_column(index, pa.field(side, events.columns), values)
            unchanged = rows.schema.get_field_index(UNCHANGED)  # inserted rows have all their values
            rows = rows.set_column(unchanged, rows.schema.field(unchanged), pa.nulls(rows.num_rows, pa.binary()))
            routes = after[route_at].cast(pa.string()).dictionary_encode()
            return [
                replace(
                    batch,
                    table=self._to.format(value=value),
                    arrow=rows.filter(pc.equal(routes.indices, number)),
                )
                for number, value in enumerate(routes.dictionary.to_pylist())
            ]

        return BoundTransform(events, step)
