"""`python -m pyspark_tidemark.earlier_changes`: the program behind `cdcctl table add`; prints one JSON object.

    STATE ARCHIVE LAKE CONFIG READER TABLE FROM SPILL BACKUP

CONFIG: the configuration of the daemons, or empty. FROM: an LSN or a time. SPILL: a folder for large transactions.
BACKUP: a base backup for the rows of the replica, or empty.

It is here because it decodes with `tidemark.runtime` and writes tables of `tidemark.pipeline`.
"""

import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pyspark_tidemark.backed_up_table import write_backed_up_table
from pyspark_tidemark.held_lake import HeldLake, LakePlaces, held_lake
from tidemark.io.backup.backup import open_backup
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.failpoints import arm_from_environment
from tidemark.io.process.lake_config import Written
from tidemark.model.commit_time import USECS_PER_DAY, CommitTime, parse_lsn_or_time
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, Oid, format_lsn
from tidemark.model.position import NO_SEQUENCE, Position
from tidemark.model.relation import Relation
from tidemark.model.table_name import TableName
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.earlier.earlier_changes import AddedChanges, EarlierChanges, LogUnfit
from tidemark.pipeline.earlier.new_log import NewLog, new_log
from tidemark.pipeline.earlier.whole_replica import LAST_ORDINAL, WholeReplica
from tidemark.pipeline.failpoints import EarlierFailpoint, Failpoint
from tidemark.pipeline.lake.layout import constants_of
from tidemark.pipeline.lake.positions.positions import Positions
from tidemark.pipeline.lake.positions.table_position import TableId, TablePosition, TableState
from tidemark.pipeline.lake.report import NoTable, OpenedLake
from tidemark.pipeline.replay.program import ReplayReport, exit_at_once, run
from tidemark.pipeline.replay.refusal import ReplayRefused
from tidemark.pipeline.replay.result_target import FolderTarget
from tidemark.pipeline.sinks.steps import Delivered
from tidemark.runtime.replay.offline import WAIT_FOR_SEGMENT, ends_early
from tidemark.runtime.seed.copy_plan import is_changed_selection
from tidemark.wire.state.copy_progress import CopyPhase

EXPIRING = (
    "{rows} of the rows are older than log_keep_days = {days}: the pipeline deletes them; to keep them, set "
    "log_keep_days = 0, or more days, for the table in [[lake.tables]] before you start it"
)


class NothingEarlier(ConfigError):
    """The log of a table begins before the requested changes."""

    hint = "give an earlier LSN or time as --from"


class NotSelectedYet(ConfigError):
    """The lake does not have all changes of a table since it was selected."""


@dataclass(frozen=True, slots=True)
class EarlierAdditions:
    """Additions to the logs of a lake that no pipeline writes meanwhile."""

    lake: HeldLake
    positions: Positions

    def table(self, name: str) -> TablePosition | NewLog:
        """Return a table; for a selected one without a change in the lake, its new log.

        Raise `NoTable`, `NotSelectedYet` or `LogUnfit`.
        """
        missing: NoTable | None = None
        try:
            known = OpenedLake(self.lake.root).find(name)
        except NoTable as error:
            missing = error
        captured = self.lake.found.capture.captured_tables()
        if missing is None and (known.database, known.relation) in captured:
            if known.state is TableState.COPYING:
                self._check_copied((known.database, known.relation), name)
            return known
        wanted = TableName.parse(name)  # of a dropped table another one may have the name
        new = {of: each for of, each in captured.items() if self._is_called(of, each, wanted)}
        if len(new) != 1:
            if missing is not None:
                raise missing
            if known.state is TableState.DROPPED:
                return known
            raise NotSelectedYet(
                f"{name} is not selected under its own name by the configuration",
                hint="name the configuration of the daemons with --config",
            )
        ((of, relation),) = new.items()
        return self._new_log(of, relation, name)

    def _new_log(self, of: TableId, relation: Relation, name: str) -> NewLog:
        delivered = self._delivered(of[0], relation)
        if self.lake.wal.config.lake.settings_of(delivered.qualified_name).write is Written.REPLICA:
            raise LogUnfit(
                f"{name} has no log in the lake: write = 'replica' in [[lake.tables]]",
                hint="set write = 'both' or 'log' for it, or let the replica come from a first copy",
            )
        self._check_copied(of, name)
        return new_log(
            self.lake.root,
            self.positions,
            of,
            delivered,
            self._contains(name),
            identity=self.lake.wal.view.identity,
            databases=self.lake.databases,
            shapes=self.lake.shapes,
            config=self.lake.wal.config.lake,
        )

    def _check_copied(self, of: TableId, name: str) -> None:
        """Raise `NotSelectedYet` if the lake gets the first copy of a table later.

        NB: that hides the changes until its snapshot, so they would be missing between the added ones and the copy.
        """
        copy = self.lake.wal.view.copies.get(of)
        if copy is not None and (copy.is_open or (copy.phase is CopyPhase.DONE and copy.generation)):
            raise NotSelectedYet(
                f"{name}: its first copy is not complete in the lake",
                hint="let the copy end, and the pipeline write it; then stop the pipeline and repeat this command",
            )

    def add(self, to: TablePosition | NewLog, begin: Lsn | CommitTime, backup: Path | None) -> ReplayReport:
        """Add the earlier changes of a table from `begin` on, and make its replica whole; return the report."""
        table = to.table if isinstance(to, NewLog) else to
        self.lake.check_settings(table)
        settings = self.lake.wal.config.lake.settings_of(table.qualified_name)
        keep_us = settings.log_keep_days * USECS_PER_DAY
        earlier = EarlierChanges(
            self.lake.root,
            self.lake.wal.view.identity.capture,
            self.positions,
            to,
            shapes=self.lake.shapes,
            constants=constants_of,
            dialects=self.lake.databases.dialects,
            expires_before_us=SystemClock().wall_us() - keep_us if keep_us else 0,
        )
        added = self._add(earlier, table, begin)
        database = self.lake.databases.get(table.database, str(table.database))
        identity = self.lake.wal.view.identity
        whole = WholeReplica(self.lake.root, identity, database, self.positions, earlier.table, settings)
        make = whole.from_log if backup is None else partial(self._from_backup, table, backup)
        obstacle, rows, final = whole.obstacle(), 0, earlier.table
        if not obstacle and (added.rows or earlier.was_committed or backup or table.replica_version < 0):
            try:
                final, rows = whole.replaced(make, through=None if backup is None else self._end_of_transaction)
            except ReplayRefused as error:
                obstacle = str(error)
        earlier.record(final)
        source = "the log" if backup is None else "the base backup"
        replica = f"unchanged: {obstacle}" if obstacle else f"all rows, from {source}" if rows else "unchanged"
        first = "" if added.first is None else format_lsn(added.first.commit_lsn)
        changes: ReplayReport = {"table": table.qualified_name, "first": first, "rows": added.rows}
        if added.expiring:
            changes["expiring_rows"] = added.expiring
            changes["warning"] = EXPIRING.format(rows=added.expiring, days=settings.log_keep_days)
        return changes | {"files": added.files, "replica": replica, "replica_rows": rows}

    def _add(self, earlier: EarlierChanges, table: TablePosition, begin: Lsn | CommitTime) -> AddedChanges:
        wal = self.lake.wal
        from_lsn = wal.begin_lsn(begin)
        if from_lsn >= earlier.end.commit_lsn:
            if earlier.was_committed:
                return earlier.complete()
            raise NothingEarlier(f"{table.qualified_name}: its log begins at {earlier.end}")
        if wal.archive.last_lsn() < earlier.end.commit_lsn:
            raise ends_early(wal.archive, wal.archive.last_lsn(), earlier.end.commit_lsn, hint=WAIT_FOR_SEGMENT)
        interrupted_lsn = earlier.interrupted_lsn
        if interrupted_lsn is not None:  # its events are recorded
            from_lsn = min(from_lsn, interrupted_lsn)
        earlier.begin(from_lsn)
        for group in wal.groups((table.database, table.relation), from_lsn, earlier.end):
            self.lake.hold.check_idle()
            earlier.add([Delivered(NO_SEQUENCE, item) for item in self.lake.items(group, table.database)])
        self.lake.hold.check()
        return earlier.complete()

    @property
    def _end_of_transaction(self) -> Position:
        """Return the end of the last transaction in the lake, which may have a part of it: a backup shows it whole."""
        return replace(self.positions.applied.position, ordinal=LAST_ORDINAL)

    def _from_backup(self, table: TablePosition, backup: Path, to: FolderTarget) -> int:
        """Write the rows that a table has at the end of the lake, by the pages of a base backup and archived WAL."""
        if self.lake.transforms.plans is not None:
            raise ReplayRefused(
                "rows of a base backup do not pass the transforms of the configuration",
                hint="copy the table with copy.base_backup, or with a SELECT",
            )
        name = TableName(table.namespace, table.name, self.lake.databases.get(table.database))
        moment = Lsn(self.positions.applied.position.commit_lsn + 1)
        with open_backup(backup) as opened:
            archive, types = self.lake.wal.archive, self.lake.databases.types
            _, rows = write_backed_up_table(opened, archive, name, moment, to=to, types=types)
        return rows

    def _delivered(self, database: Oid, relation: Relation) -> Relation:
        """Return the version of a table after the transforms."""
        return relation if self.lake.transforms.plans is None else self.lake.transforms.version(database, relation)

    def _is_called(self, of: TableId, relation: Relation, wanted: TableName) -> bool:
        is_there = wanted.database in (None, self.lake.databases.get(of[0]))
        is_new = of not in self.positions.recorded
        return is_there and is_new and (relation.namespace, relation.name) == (wanted.schema, wanted.table)

    def _contains(self, name: str) -> Applied:
        """Return up to where the lake has all changes, with the table selected; raise `NotSelectedYet`."""
        view, config, applied = self.lake.wal.view, self.lake.wal.config, self.positions.applied
        if is_changed_selection(config.select, config.copy, view):
            raise NotSelectedYet(
                f"{name} is selected by the configuration, and the daemons have not run with it yet",
                hint="restart the daemons with this configuration, or name the one that they have with --config",
            )
        if self.positions.outbox not in ("", self.lake.found.outbox.outbox_id):
            raise NotSelectedYet(
                f"{self.lake.root} has nothing of the present outbox of the capture, which continues another one",
                hint="start the pipeline, and let it write what the outbox has; then stop it and repeat this command",
            )
        if applied.sequence == self.lake.found.outbox.head() and view.delivered is not None:
            return replace(applied, position=max(applied.position, view.delivered.pointer.position))
        assert view.fingerprint is not None, "the selection is that of the daemons"
        if applied.position.commit_lsn < view.fingerprint.seen_lsn:
            raise NotSelectedYet(
                f"{name} was selected after {applied.position}, up to which the lake has all changes",
                hint="start the pipeline, and let it write what the outbox has; then stop it and repeat this command",
            )
        return applied


def _added(*arguments: str) -> ReplayReport:
    state, archive, lake, config, reader, name, begin, spill, backup = arguments
    places = LakePlaces(Path(state), Path(archive), lake, Path(config) if config else None, reader, Path(spill))
    moment = parse_lsn_or_time(begin)
    with held_lake(places) as held:
        additions = EarlierAdditions(held, Positions(lake, held.found.outbox.identity))
        return additions.add(additions.table(name), moment, Path(backup) if backup else None)


if __name__ == "__main__":
    arm_from_environment(Failpoint, EarlierFailpoint)
    exit_at_once(run(partial(_added, *sys.argv[1:])))
