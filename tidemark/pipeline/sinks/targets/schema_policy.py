"""The schema policy of a table: whether log and replica follow a change of its columns.

With `fail`, the table is paused before the change: nothing after it is applied, until the operator sets `evolve`. With
`ignore`, the items are reduced to the pinned columns; the table is paused before a change that does not permit that.
"""

from collections.abc import Callable, Sequence

from tidemark.io.process.lake_config import LakeTableConfig, SchemaPolicy
from tidemark.model.change import LogicalMessage, SchemaEvent
from tidemark.model.errors import ConsumerFailed
from tidemark.model.relation import Relation
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.lake.layout import lake_columns, shape_of, source_fields
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.sinks.steps import last_position
from tidemark.pipeline.sinks.targets.pinned_columns import PinnedColumns
from tidemark.pipeline.sinks.waiting import StoredItem
from tidemark.wire.items import relation_of


class SchemaChangeRefused(ConsumerFailed):
    """A change of columns that the schema policy of the table does not permit."""

    hint = "set schema_policy = 'evolve' for it in [[lake.tables]], restart the pipeline, then cdcctl table resume"


Apply = Callable[[Sequence[StoredItem], Recorded | None], LakeTable]


def refusing_changes(
    apply: Apply,
    name: str,
    settings: LakeTableConfig,
    applied: Applied,
    pinned: PinnedColumns | None,
    *,
    is_replica: bool,
) -> Apply:
    """Return `apply` with the check of the schema policy: it applies the items before a refused change, and raises.

    `pinned`: the columns to which items are reduced; None: the policy is another one, or there is no new item.
    """
    where = f"schema_policy = '{settings.schema_policy.value}' in [[lake.tables]], pattern {settings.pattern}"
    if pinned is not None:
        return _reducing(apply, f"{name}: {{}}, and {where}", applied, pinned, is_replica=is_replica)
    if settings.schema_policy is not SchemaPolicy.FAIL:
        return apply

    def apply_before(items: Sequence[StoredItem], recorded: Recorded | None) -> LakeTable:
        for at, (_, item) in enumerate(items):
            change = _change(item) if isinstance(item, SchemaEvent) and item.position > applied.position else ""
            if change:
                if at:
                    apply(items[:at], recorded)
                raise SchemaChangeRefused(f"{name}: {change}, and {where}")
        return apply(items, recorded)

    return apply_before


def _reducing(apply: Apply, message: str, applied: Applied, pinned: PinnedColumns, *, is_replica: bool) -> Apply:
    def apply_reduced(items: Sequence[StoredItem], recorded: Recorded | None) -> LakeTable:
        columns, reduced = pinned, list[StoredItem]()
        for sequence, item in items:
            assert not isinstance(item, LogicalMessage), item
            columns, relation = columns.after(item, applied), relation_of(item)
            assert relation is not None, item
            fault = columns.fault(relation, is_replica=is_replica)
            if not fault:
                reduced.append((sequence, columns.reduced_item(item)))
            elif last_position(item) > applied.position:
                if reduced:
                    apply(reduced, recorded)
                raise SchemaChangeRefused(message.format(fault))
        return apply(reduced, recorded)

    return apply_reduced


def _change(event: SchemaEvent) -> str:
    """Return how an event changes the columns in the lake; "" if it does not."""
    if event.before is None or event.after is None:
        return ""
    old, new = _columns(event.before), _columns(event.after)
    changes = [
        *(f"column {old[number][0]} is dropped" for number in sorted(old.keys() - new.keys())),
        *(f"column {new[number][0]} is added" for number in sorted(new.keys() - old.keys())),
        *(
            f"column {old[number][0]} ({old[number][1]}) becomes {new[number][0]} ({new[number][1]})"
            for number in sorted(old.keys() & new.keys())
            if old[number] != new[number]
        ),
    ]
    return ", ".join(changes)


def _columns(relation: Relation) -> dict[int, tuple[str, str]]:
    """Return names and types of the columns, by number."""
    fields = source_fields(relation, shape_of(relation))
    return {
        column.number: (field.name, str(field.type))
        for column, field in zip(lake_columns(relation), fields, strict=True)
    }
