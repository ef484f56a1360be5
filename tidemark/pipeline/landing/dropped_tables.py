"""Removes the tables that were dropped at the source some time ago (`dropped_keep_days`), beside the stream.

    the stream            maintenance            the stream                       maintenance         the stream
    offers due tables ->  checks the folder ->   removes the row, and names   ->  deletes files  ->   names the folder
                                                 the folder as leaving                                no longer

`_positions` is written by the stream alone. A folder is handed to maintenance once: after its files are deleted,
another table may get it. NB: the pipeline of another host may have deleted them meanwhile, and given the folder to
another table. No file is therefore deleted after another writer wrote `_positions`, until the lake is opened again.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import passed
from tidemark.io.host.logs import Log
from tidemark.io.process.lake_config import LakeConfig
from tidemark.model.commit_time import USECS_PER_DAY
from tidemark.pipeline.delta_log.commits import has_commit
from tidemark.pipeline.delta_log.lineage import TableDiverged, TableStopped
from tidemark.pipeline.failpoints import MaintenanceFailpoint
from tidemark.pipeline.lake.folders import LOG, REPLICA
from tidemark.pipeline.lake.positions.leaving import LeavingFolder
from tidemark.pipeline.lake.positions.positions import FOLDER, Positions
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition
from tidemark.pipeline.landing.folder_removal import LEAVING_MAX, checked_folder, delete_files
from tidemark.pipeline.sinks.lake import Lake

OFFER_S = 60.0  # between two searches for due tables: all dropped tables are looked at
RECORDED_AT_ONCE = 32  # results


@dataclass(slots=True)
class RemovalResults:
    """What the stream must record: tables that may be removed, and folders that are gone."""

    checked: list[tuple[TablePosition, LeavingFolder]] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


class DroppedTables:
    """The removals of one lake: `offer` and `record` are for the stream, `step` for one other thread."""

    def __init__(self, root: str, capture: str, config: LakeConfig, log: Log) -> None:
        self._root = root
        self._capture = capture
        self._config = config
        self._log = log
        self._clock = SystemClock()
        self._lock = threading.Lock()  # of the next five
        self._due: deque[TablePosition] = deque()
        self._leaving: deque[LeavingFolder] = deque()
        self._failed: deque[LeavingFolder] = deque()  # which are tried again once there is nothing else to do
        self._results = RemovalResults()
        self._positions: Positions | None = None  # of the lake that was offered last
        self._handed: set[str] = set()  # leaving folders that the other thread has
        self._offered_s = -OFFER_S
        self._refused: dict[TableId, TablePosition] = {}
        self._checked: list[str] = []  # since `take_checked`; of the other thread alone

    @property
    def has_work(self) -> bool:
        """Return whether a step has something to do."""
        return bool(self._due or self._leaving or self._failed)

    def offer(self, lake: Lake) -> None:
        """Let the other thread delete leaving folders, and at intervals check the tables that are due."""
        positions = lake.positions
        if positions is not self._positions:
            self._begin(positions)
        new = [one for one in positions.deletable if one.folder not in self._handed]
        self._handed.update(one.folder for one in new)
        now_s, due = time.monotonic(), None
        if now_s - self._offered_s >= OFFER_S and self._has_rule:
            self._offered_s = now_s
            due = list(self._found_due(lake))
        with self._lock:
            self._leaving.extend(new)
            if due is not None:
                checked = {id(table) for table, _ in self._results.checked}
                self._due = deque(table for table in due if id(table) not in checked)

    def _begin(self, positions: Positions) -> None:
        """Begin again with a lake that was opened: what it names is leaving, and nothing else."""
        with self._lock:
            self._positions, self._results = positions, RemovalResults()
            self._due.clear()
            self._leaving.clear()
            self._failed.clear()
        self._handed.clear()
        self._offered_s = -OFFER_S

    @property
    def _has_rule(self) -> bool:
        return any(one.dropped_keep_days for one in self._config.tables)

    def _found_due(self, lake: Lake) -> Iterator[TablePosition]:
        now_us, room = self._clock.wall_us(), LEAVING_MAX - len(lake.positions.leaving)
        for table in lake.positions.at_rest():
            is_refused = self._refused.get((table.database, table.relation)) is table
            if room and not is_refused and is_due(self._config, table, now_us):
                room -= 1
                yield table

    def record(self, lake: Lake) -> bool:
        """Let the next write of `_positions` record the results; return whether there are some.

        While there is more work, it waits for results of several tables, as each record is a commit.
        """
        if lake.positions is not self._positions:
            return False  # the results are those of a lake that was opened before
        with self._lock:
            if (self._due or self._leaving) and len(self._results.checked) + len(self._results.gone) < RECORDED_AT_ONCE:
                return False
            results, self._results = self._results, RemovalResults()
        for table, leaving in results.checked:
            lake.begin_removal(table, leaving)
        for folder in results.gone:
            lake.end_removal(folder)
            self._handed.discard(folder)
        return bool(results.checked or results.gone)

    def step(self, files_max: int) -> bool:
        """Delete some files, or check a table; return False if another writer wrote `_positions`."""
        with self._lock:
            if not (self._due or self._leaving):
                self._leaving, self._failed = self._failed, self._leaving
            positions = self._positions
            leaving = self._leaving[0] if self._leaving else None
            table = self._due.popleft() if self._due and leaving is None else None
        if leaving is not None:
            assert positions is not None, leaving
            if has_commit(f"{self._root}/{FOLDER}", positions.written_version + 1):
                return False  # NB: or it is one that the stream makes at this moment
            self._delete(leaving, files_max)
        elif table is not None:
            self._check(table)
        return True

    def take_checked(self) -> list[str]:
        """Return the Delta tables that were checked since the last call: folders below the root.

        NB: a later commit of maintenance would count as one of another writer.
        """
        checked, self._checked = self._checked, []
        return checked

    def _check(self, table: TablePosition) -> None:
        try:
            leaving = checked_folder(self._root, self._capture, table)
        except (TableDiverged, TableStopped) as error:
            self._refused[table.database, table.relation] = table
            self._log.warning("a dropped table is kept", **_names(table), reason=str(error))
            return
        passed(MaintenanceFailpoint.DROPPED_CHECKED)
        self._log.info("a dropped table is removed", **_names(table))
        self._checked += [f"{table.folder}/{name}" for name in (LOG, REPLICA)]
        with self._lock:
            self._results.checked.append((table, leaving))

    def _delete(self, leaving: LeavingFolder, files_max: int) -> None:
        try:
            is_gone = delete_files(self._root, leaving, files_max)
        except TableDiverged as error:
            self._log.warning("the folder of a dropped table is left", folder=leaving.folder, reason=str(error))
            is_gone = True
        except Exception:
            self._end(leaving, is_gone=False)
            raise
        if is_gone:
            passed(MaintenanceFailpoint.DROPPED_DELETED)
            self._end(leaving, is_gone=True)

    def _end(self, leaving: LeavingFolder, *, is_gone: bool) -> None:
        """End the work on a folder for now, unless the lake was opened again meanwhile."""
        with self._lock:
            if not self._leaving or self._leaving[0] is not leaving:
                return
            self._leaving.popleft()
            if is_gone:
                self._results.gone.append(leaving.folder)
            else:
                self._failed.append(leaving)


def is_due(config: LakeConfig, table: TablePosition, now_us: int) -> bool:
    """Return whether a dropped table has been kept for long enough; `now_us`: since 1970."""
    days = config.settings_of(table.qualified_name).dropped_keep_days if table.dropped_us else 0
    return bool(days) and now_us - table.dropped_us >= days * USECS_PER_DAY


def _names(table: TablePosition) -> dict[str, str]:
    return {"table": table.qualified_name, "folder": table.folder}
