"""The first copy: rows that existed before the capture began, delivered to the outbox before the stream (P22).

The tables are copied one after the other (`table_copy`). The first plan lists them under one snapshot for each
database. Changes that it shows of tables that it does not list are not delivered (`Copies`): another table may have the
name by now, and its copy would come before them. The same applies to a listed table that is dropped before something of
it was delivered.

After a kill or an abort the table is copied again under a new snapshot and a greater generation, so that sinks empty it
first. Only a generation's end confirms that its rows are the whole table. `tidemark.runtime.seed.copy_planning` plans
which tables are due.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TypeVar

from tidemark.engine.retry import Backoff
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.node.copy_source import SnapshotUnclear, TableChanging
from tidemark.io.node.database_names import database_names
from tidemark.io.node.node import Blocker, Node
from tidemark.io.node.node_errors import ConnectionRejected, DataUnreadable, RecoveryConflict
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.model.errors import Disposition, NodeUnfit, NodeUnreachable, TidemarkError
from tidemark.model.lsn import FullXid, Lsn, Oid
from tidemark.model.position import Epoch
from tidemark.runtime.context import Stopped
from tidemark.runtime.first_copy.copy_feeding import Deliver
from tidemark.runtime.first_copy.copy_settings import CopySettings
from tidemark.runtime.first_copy.recopying import fail, not_begun, older_wait_s, postpone
from tidemark.runtime.first_copy.table_copy import TableCopy
from tidemark.runtime.seed.copy_plan import CopyTask, StartTable, is_requested_alone, selection_reported
from tidemark.runtime.seed.copy_planning import plan_copies
from tidemark.runtime.seed.copy_sessions import CopySessions
from tidemark.runtime.seed.older_transactions import OlderTransactions, Waiting
from tidemark.wire.recopies import TableKey
from tidemark.wire.state.copy_progress import CopyPhase, Fingerprint
from tidemark.wire.state.state_keys import FINGERPRINT
from tidemark.wire.state.values import Beginning

CONFLICTS_MAX = 10  # with a standby's replay, in a row without a table in between
FAILURES_MAX = 10  # of the node at a table's rows, in the same way
WAIT_POLL_S = 0.1
Result = TypeVar("Result")


class RequestsPostponed(NodeUnreachable):
    """All due copies are requested and have not begun; they were postponed, and the stream continues."""


class CopyConflicts(NodeUnfit):
    """A standby cancels the reading of a table again and again, to continue its replay."""

    hint = "set hot_standby_feedback = on at the standby, or raise its max_standby_streaming_delay, for the copy"


class TableUnreadable(NodeUnfit):
    """A table whose rows the node itself cannot return, at any attempt."""

    hint = "see the log of the node; correct the row, or exclude the table"


class FirstCopy:
    """Plans which tables are to be copied, and copies them one after the other."""

    def __init__(
        self,
        settings: CopySettings,
        store: StateStore,
        epoch: Epoch,
        beginning: Beginning,
        deliver: Deliver,
        *,
        fills_outbox: bool,
        databases: Mapping[Oid, str],
        at_start: Callable[[], Mapping[TableKey, StartTable]],
        metrics: Metrics,
        log: Log,
        stopping: threading.Event,
    ) -> None:
        """Copy for a capture, as of its start.

        `fills_outbox`: the state records of which tables something was delivered. `databases`: their names there.
        `at_start`: return all tables there.
        """
        self._settings = settings
        self._store = store
        self._epoch = epoch
        self._beginning = beginning
        self._fills_outbox = fills_outbox
        self._databases = databases
        self._at_start = at_start
        self._metrics = metrics
        self._log = log
        self._stopping = stopping
        self._sessions = CopySessions(settings.dsn, store.identity)
        self._table_copy = TableCopy(
            settings,
            store,
            epoch,
            beginning,
            deliver,
            sessions=self._sessions,
            metrics=metrics,
            log=log,
            stopping=stopping,
        )
        self._clock = SystemClock()
        self._conflicts = self._failures = 0  # since the last table that was copied

    def run(self) -> None:
        """Plan and copy all; wait for a node that is down, and copy the current table again.

        Requested copies that have not begun do not wait for the node: they are postponed.
        """
        with closing(self._sessions):
            try:
                self._run_all()
            except RequestsPostponed as error:
                self._metrics.copy_tables_left.set(0)
                self._log.warning("requested copies wait", **describe_error(error))
                return
        self._log.info("first copy done")

    def _run_all(self) -> None:
        tasks = self._trying(self._plan)
        self._metrics.copy_tables_left.set(len(tasks))
        while tasks:
            try:
                self._trying(lambda: self._run(tasks))
            except (CopyConflicts, TableUnreadable) as error:
                self._give_up(tasks, error)

    def _trying(self, attempt: Callable[[], Result]) -> Result:
        backoff = Backoff(self._settings.retry.first_s, self._settings.retry.max_s)
        while True:
            try:
                return attempt()
            except TidemarkError as error:
                self._sessions.close()
                if _is_without_connection(error):
                    self._postpone(error)
                if error.disposition is not Disposition.RETRY or isinstance(error, RequestsPostponed):
                    raise
                self._count(error)
                self._metrics.errors.inc()
                delay_s = backoff.failed(self._clock.monotonic_s())
                self._log.warning("first copy interrupted", retry_s=delay_s, **describe_error(error))
                if self._stopping.wait(delay_s):
                    raise Stopped from error

    def _postpone(self, error: TidemarkError) -> None:
        """Postpone all and raise `RequestsPostponed`, if all due copies are requested and have not begun."""
        requested, settings = not_begun(self._store), self._settings
        if requested and is_requested_alone(settings.select, settings.copy, self._store.view(), requested):
            postpone(self._store, self._epoch, requested)
            raise RequestsPostponed(str(error), hint=f"{error.hint}; meanwhile the stream continues") from error

    def _count(self, error: TidemarkError) -> None:
        """Raise an error that has repeated so often that another attempt is useless."""
        self._conflicts += isinstance(error, RecoveryConflict)
        self._failures += isinstance(error, DataUnreadable)
        if self._conflicts > CONFLICTS_MAX:
            raise CopyConflicts(
                f"{CONFLICTS_MAX} attempts to read a table were cancelled by the standby: {error}"
            ) from error
        if self._failures > FAILURES_MAX:
            raise TableUnreadable(f"{FAILURES_MAX} attempts to read a table failed: {error}") from error

    def _plan(self) -> list[CopyTask]:
        """Return the tables to be copied, and record them: a kill does not change the plan."""
        node, settings = self._sessions.node(), self._settings
        # Changes of a transaction older than the seed are not streamed: they must exist when the tables are read.
        self._wait_for(node, self._beginning.complete_from, settings.older_wait_s)
        plan = plan_copies(
            settings.select,
            settings.copy,
            self._store.view(),
            self._sessions,
            not_begun(self._store),
            delivered=self._store.latest_versions() if self._fills_outbox else None,
            databases=self._databases,
            at_start=self._at_start(),
        )
        after_lsn = node.insert_lsn()
        timeline, seen_lsn = node.flushed()
        moves = {
            # NB: an open one has yet to get its snapshot.
            key: progress if progress.is_open else replace(progress, seen_lsn=seen_lsn, timeline=timeline)
            for key, progress in plan.moves.items()
        }
        moves |= {key: replace(moves[key], after_lsn=after_lsn) for key in plan.later}
        found = Fingerprint(selection_reported(settings.select, settings.copy), seen_lsn, timeline, plan.shown)
        with self._store.transaction(self._epoch) as transaction:
            for key, progress in moves.items():
                transaction.put_copy(*key, progress)
            for key in plan.forgotten:
                transaction.drop_copy(*key)
            if plan.is_of_all:
                transaction.put(FINGERPRINT, found)
        self._log.info("first copy planned", tables=len(plan.tasks), later=len(plan.later))
        self._fail(plan.denied)
        return plan.tasks

    def _run(self, tasks: list[CopyTask]) -> None:
        """Copy the tables of `tasks` and remove them from it."""
        node = self._sessions.node()
        node.check_fitness()
        timeline = node.timeline()
        lx = self._wait_for_older(node, tasks)
        names = self._leave_databases(node, tasks)
        self._sessions.leave_node()
        while tasks:
            task = tasks[0]
            try:
                self._table_copy.copy(self._sessions.source(task.database, names[task.database]), task, timeline, lx)
            except ConnectionRejected:
                raise
            except NodeUnfit as error:
                self._give_up(tasks, error)
            else:
                self._remove_first(tasks)

    def _give_up(self, tasks: list[CopyTask], error: NodeUnfit) -> None:
        """Fail the request for the current table; raise `error` if there is none, or if its copy has begun."""
        key = (tasks[0].database, tasks[0].relation)
        if key not in not_begun(self._store):
            raise error
        self._sessions.close()
        self._fail({key: str(error)})
        self._remove_first(tasks)

    def _remove_first(self, tasks: list[CopyTask]) -> None:
        tasks.pop(0)
        self._conflicts = self._failures = 0
        self._metrics.copy_tables_left.set(len(tasks))

    def _leave_databases(self, node: Node, tasks: list[CopyTask]) -> dict[Oid, str]:
        """Return the databases' present names; remove tables of dropped or unselected databases from `tasks`."""
        names = database_names(node, {task.database for task in tasks})
        for task in list(tasks):
            name = names.get(task.database)
            if name is None or not self._settings.select.selection().selects_database(name):
                phase = CopyPhase.DONE if name is None else CopyPhase.LEFT
                key = (task.database, task.relation)
                self._table_copy.finish(key, node.flushed(), replace(self._table_copy.recorded(key), phase=phase))
                tasks.remove(task)
        return names

    def _fail(self, reasons: Mapping[TableKey, str]) -> None:
        """End requests for tables that cannot be copied; their copies are unchanged, and the stream continues."""
        if not reasons:
            return
        fail(self._store, self._epoch, reasons)
        for (_, relation), reason in reasons.items():
            self._metrics.recopies_failed.inc()
            hint = "cdcctl status names the table: fix the cause, then request the copy again with cdcctl table recopy"
            self._log.error("requested copy failed", relation_oid=relation, reason=reason, hint=hint)

    def _wait_for_older(self, node: Node, tasks: list[CopyTask]) -> Lsn:
        """Return the LSN from which older transactions were waited for; may raise `RequestsPostponed`."""
        lx, wait_s = node.flush_lsn(), self._settings.older_wait_s
        requested = not_begun(self._store)
        may_wait = all((task.database, task.relation) in requested for task in tasks)
        try:
            self._wait_for(node, node.snapshot().xmax, min(wait_s, older_wait_s(self._store)) if may_wait else wait_s)
        except OlderTransactions as error:
            if not may_wait:
                raise
            postpone(self._store, self._epoch, requested)
            raise RequestsPostponed(str(error), hint="end them; meanwhile the stream continues") from error
        return lx

    def _wait_for(self, node: Node, below: FullXid, wait_s: float) -> None:
        waiting = Waiting(below, wait_s, self)
        while waiting.poll(node) is None:
            self._sessions.leave_source()  # no session stays in a database during this wait
            if self._stopping.wait(WAIT_POLL_S):
                raise Stopped

    def waiting(self, blockers: Sequence[Blocker], waited_s: float) -> None:
        """Report the transactions for which the copy waits."""
        names = [str(blocker) for blocker in blockers]
        self._log.info("first copy waits for older transactions", transactions=names, waited_s=round(waited_s, 1))


def _is_without_connection(error: TidemarkError) -> bool:
    """Return whether an error is of the connection to the node, and not of a table and its rows."""
    of_table = (RecoveryConflict, DataUnreadable, TableChanging, SnapshotUnclear, RequestsPostponed)
    return isinstance(error, ConnectionRejected | NodeUnreachable) and not isinstance(error, of_table)
