"""What a group builder needs of each relation version whose rows it collects, found by the version's number.

A commit's rows name their versions by number. Looking up relations, dialects, routes and shapes of batches again would
cost more than building a batch of one row.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tidemark.decode.arrow.batch_costs import batch_bytes
from tidemark.decode.arrow.batch_shapes import SHAPES_KEPT
from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.arrow.small_batch import SmallBatches
from tidemark.decode.groups.group_rows import GroupRows
from tidemark.decode.groups.partitions import PartitionRoutes
from tidemark.decode.transactions.reorder_buffer.rowlog import RelationVersions
from tidemark.decode.types.codec import Dialect
from tidemark.model.change import ChangeBatch
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation


class _Version(NamedTuple):
    """A relation version whose rows are delivered."""

    table: tuple[Oid, Oid]  # database and relation under which its rows are delivered
    builder: BatchBuilder
    batch_bytes: int
    is_routed: bool  # its batches are not delivered as they are built


class VersionBuilders:
    """Builds the batches of collected rows."""

    def __init__(
        self, dialects: Mapping[Oid, Dialect], routes: PartitionRoutes, selects: Callable[[Relation], bool]
    ) -> None:
        self._dialects = dialects
        self._routes = routes
        self._selects = selects
        self._small = SmallBatches()
        self._numbered_by: RelationVersions | None = None
        self._known: dict[int, _Version] = {}  # by number in `_numbered_by`

    def build(self, collected: GroupRows) -> tuple[list[list[ChangeBatch]], int, int]:
        """Return the batches of each table that is delivered, the number of their rows, and their fixed size."""
        made: dict[tuple[Oid, Oid], list[ChangeBatch]] = {}
        row_count = byte_count = 0
        versions = collected.versions
        if versions is not self._numbered_by:
            self._numbered_by, self._known = versions, {}
        rows, ranges = collected.by_version(self._selects)
        for number, start, stop in ranges:
            version = self._known.get(number) or self._describe(versions, number)
            batches = version.builder.build(rows, start, stop)
            if version.is_routed:
                batches = self._routes.batches(batches)
            row_count += stop - start
            byte_count += version.batch_bytes
            if (others := made.get(version.table)) is None:
                made[version.table] = batches
            else:
                others.extend(batches)
        rows.data = bytearray()  # NB: the rows are held until the next group, and its arena may be another one
        if len(self._known) > SHAPES_KEPT:  # NB: a builder keeps its shape, and the cache of shapes is bounded
            self._known.clear()
        return list(made.values()), row_count, byte_count

    def _describe(self, versions: RelationVersions, number: int) -> _Version:
        database, relation = versions.databases[number], versions.relations[number]
        target = self._routes.target(relation)
        version = self._known[number] = _Version(
            table=(database, target.oid),
            builder=BatchBuilder(database, relation, self._dialects[database], small=self._small),
            batch_bytes=batch_bytes(relation),
            is_routed=target.has_partition_rows or bool(relation.ancestors),
        )
        return version
