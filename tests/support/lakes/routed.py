"""Changes of partitions under their roots' names, in a separate lake, compared with SQL on the roots."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from deltalake import DeltaTable
from psycopg import sql as quoting

from tests.support.lakes.group_collector import GroupCollector
from tests.support.lakes.lakes import IDENTITY
from tests.support.servers.postgres import Cluster
from tidemark.engine.selection import Selection
from tidemark.model.change import ChangeGroup, CopyBoundary, GroupItem, LogicalMessage
from tidemark.model.position import Sequence
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch, LakeItem

ROOTS = ("public.r*",)


@dataclass
class Routing(GroupCollector):
    """Tidemark's decoder of a database; partitions' changes are collected under the roots that match `ROOTS`."""

    selection: Selection = field(default_factory=lambda: Selection(partition_roots=ROOTS))
    rows_max: int = 60
    items: list[GroupItem] = field(default_factory=list)  # all so far
    _sequence: int = 0

    def news(self) -> list[GroupItem]:
        """Read up to now; return the items since the last call."""
        return self._record(self.catch_up())

    def _record(self, groups: list[ChangeGroup]) -> list[GroupItem]:
        items = (item for group in groups for item in group.items)
        found: list[GroupItem] = [item for item in items if not isinstance(item, LogicalMessage)]
        self.items += found
        return found

    def feed(self, root: Path, known: Lake | None = None) -> list[GroupItem]:
        """Read up to now, write the items into `known` or a newly opened lake, a value each; return the items."""
        groups = self.catch_up()
        for group in groups:
            items: list[LakeItem] = []
            for item in group.items:
                if isinstance(item, (LogicalMessage, CopyBoundary)):
                    continue
                self._sequence += 1
                items.append((Sequence(self._sequence), item))
            if items:
                # Opened again each time, as after a restart; then written once more, which must change nothing.
                for _ in range(2):
                    lake = known or Lake(str(root), replace(IDENTITY), shape_of, constants_of)
                    lake.apply(LakeBatch("outbox-1", Sequence(self._sequence), group.last.position, items))
        return self._record(groups)


def source_rows(cluster: Cluster, database: str, root: str) -> list[str]:
    """Return the rows of a partitioned table with their partitions' OIDs, sorted."""
    with cluster.connect(database) as session:
        names = [
            str(name)
            for (name,) in session.execute(
                "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
                " ORDER BY attnum",
                (f"public.{root}",),
            ).fetchall()
        ]
        columns = quoting.SQL(", ").join(map(quoting.Identifier, [*names, "tableoid"]))
        query = quoting.SQL("SELECT {} FROM {}").format(columns, quoting.Identifier("public", root))
        rows = session.execute(query).fetchall()
    return sorted(repr(dict(zip([*names, "tableoid"], row, strict=True))) for row in rows)


def lake_rows(root: Path, table: str) -> list[str]:
    """Return a replica's rows, sorted."""
    (folder,) = root.glob(f"*/public/{table}")
    return sorted(map(repr, DeltaTable(str(folder / "replica")).to_pyarrow_table().to_pylist()))
