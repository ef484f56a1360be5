"""Delta tables that stay open between two batches: opening one costs more than all else in a small batch.

A table may be used again only if its commit log is as its last write left it: the last commit is the same file, there
is no later one, and, on a local file system, no file was added to the folder or removed. Otherwise the table is opened
and checked again, and so it is after each checkpoint, when opening costs least. So a lost file that the times of the
folder do not show is detected as well.
"""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import TYPE_CHECKING

from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_BEHIND
from tidemark.pipeline.delta_log.commits import has_commit, log_stamp
from tidemark.pipeline.delta_log.lineage import Recorded
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.lake.tables.table_properties import NO_PROPERTIES
from tidemark.pipeline.lake.tables.writable_table import writable_table
from tidemark.pipeline.storage.stores import store_of

if TYPE_CHECKING:
    from tidemark.pipeline.storage.lake_store import Stamp

KEPT_MAX = 2048  # a log and a replica of 1,000 tables; each needs 0.03 MB, and 0.7 MB with 2,000 files


class KeptTables:
    """The open tables of one lake, by URI; used by several threads, each for other tables."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, tuple[LakeTable, Stamp]] = OrderedDict()
        self._lock = Lock()

    def open(
        self, uri: str, app: str, recorded: Recorded | None, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> LakeTable:
        """Return the kept table if it is as it was; otherwise open the table. It is no longer kept."""
        with self._lock:
            table, stamp = self._tables.pop(uri, (None, ()))
        if (
            table is not None
            and table.recorded == recorded
            and table.access == store_of(uri).access()  # else its credentials were renewed
            and log_stamp(uri, table.version) == stamp
            and not has_commit(uri, table.version + 1)
        ):
            table.begin_batch(properties)
            return table
        return writable_table(uri, app, recorded, properties=properties, checkpoint_every=CHECKPOINT_BEHIND)

    def close(self, uri: str) -> None:
        """Keep the table no longer."""
        with self._lock:
            self._tables.pop(uri, None)

    def keep(self, table: LakeTable) -> None:
        """Keep a table whose last write succeeded."""
        if not table.exists or table.has_new_checkpoint:
            return
        stamp = table.stamp
        if not stamp:
            return
        with self._lock:
            self._tables[table.uri] = table, stamp
            if len(self._tables) > KEPT_MAX:
                self._tables.popitem(last=False)
