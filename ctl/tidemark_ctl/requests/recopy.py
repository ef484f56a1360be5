"""`cdcctl table recopy`: makes the request durable, and waits until they are copied.

The request goes through the sidecar's control socket, or is written under the sidecar's lock if no sidecar runs. An
engine has no socket, and reads the requests from its state repeatedly: beside it the command writes the request itself.
The command reads the remaining steps from the state repeatedly, so any process may do them, after any number of kills.
"""

import time
from collections.abc import Sequence

from tidemark.io.host.clock import SystemClock
from tidemark.io.state.locking.locks import AlreadyRunning, RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateMarks
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.model.mode import Role, Stage
from tidemark.runtime.first_copy.recopying import request_recopies
from tidemark.runtime.first_copy.table_finder import present_lsn
from tidemark.wire.recopies import (
    RecopyStep,
    RequestedTable,
    TableKey,
    decode_generations,
    encode_request,
    recopies_by_table,
    step_of,
)
from tidemark.wire.state.copy_progress import Recopy
from tidemark_ctl.requests.waiting import POLL_S, Echo, NotComplete, WaitReport
from tidemark_ctl.views.embedded import START_HINT, embedded_engine
from tidemark_ctl.views.processes import process_now, send_request
from tidemark_ctl.views.render import Tree


class TableRecopy:
    """One request by an operator."""

    def __init__(
        self,
        store: StateStore,
        dsn: str,
        requested: Sequence[RequestedTable],
        *,
        watchdog_s: float,
        deadline_s: float,
        echo: Echo,
    ) -> None:
        self._store = store
        self._dsn = dsn
        self._watchdog_s = watchdog_s
        self._requested = requested
        self._deadline_s = deadline_s
        self._end_s = time.monotonic() + deadline_s
        self._echo = echo
        self._wait_report = WaitReport(echo)
        self._generations: dict[TableKey, int] = {}
        self._is_embedded = embedded_engine(store) is not None
        self._deliverer = "engine" if self._is_embedded else "sidecar"

    def request(self) -> None:
        """Make the request durable."""
        after_lsn = present_lsn(self._dsn)
        content = encode_request(self._requested, after_lsn)
        while not self._generations:
            if not process_now(self._store, Role.SIDECAR, self._watchdog_s).is_running:
                self._request_under_lock(after_lsn)
                continue
            if self._is_embedded:
                self._write_request(after_lsn)
                continue
            answer = send_request(self._store.folder, Role.SIDECAR, "recopy", content)
            if answer is not None:
                self._generations = decode_generations(answer)
                continue
            silent = "the sidecar does not answer at its socket: waiting until it answers"
            self._check_time(silent)
            self._wait_report.report("silent", silent)
            time.sleep(POLL_S)
        stage = self._store.marks().stage
        if stage is not Stage.REALTIME:
            self._echo(f"requested; the stage is {stage.value}: the tables are copied after the return to realtime")

    def _request_under_lock(self, after_lsn: Lsn) -> None:
        try:
            with RoleLock.acquire(self._store.folder, Role.SIDECAR.value):
                self._write_request(after_lsn)
        except AlreadyRunning:
            return  # a sidecar was started meanwhile; the caller asks it
        self._echo(f"requested; the {self._deliverer} does not run: the tables are copied when it is started")

    def _write_request(self, after_lsn: Lsn) -> None:
        wall_us = SystemClock().wall_us()
        self._generations = request_recopies(self._store, self._requested, after_lsn, wall_us)

    def wait(self) -> None:
        """Wait until all tables are copied; raise `NotComplete` if that cannot happen."""
        while left := self._left():
            marks = self._store.marks()
            about, missing = self._missing(marks, left)
            sidecar = process_now(self._store, Role.SIDECAR, self._watchdog_s)
            if not sidecar.is_running:
                start = START_HINT if self._is_embedded else sidecar.start_hint
                raise NotComplete(
                    f"{len(left)} tables have not been copied, and the {self._deliverer} does not run",
                    hint=f"the request is kept; {start}",
                )
            self._check_time(missing)
            self._wait_report.report(about, missing)
            time.sleep(POLL_S)
        ended = [table.name for table in self._requested if self._step(table.key) is RecopyStep.ENDED]
        failed = {table.name: why for table in self._requested if (why := self._failure(table.key))}
        if failed:
            raise NotComplete(
                "; ".join(f"the copy of {name} failed: {why}" for name, why in failed.items()),
                hint="the stream continues and the table is unchanged; fix the cause, then request the copy again",
            )
        if ended:
            raise NotComplete(
                f"not copied because they were dropped, are no longer selected, or were cancelled: {', '.join(ended)}",
                hint="check that they exist and are selected, then request the copy again",
            )

    def tree(self) -> dict[str, Tree]:
        """Return the progress of each table."""
        tables: dict[str, Tree] = {}
        for table in self._requested:
            copy = self._store.copy(*table.key)
            tables[table.name] = {
                "step": self._step(table.key).value,
                "generation": copy.generation if copy is not None else None,
                "rows": copy.row_count if copy is not None else None,
            }
        return {"stage": self._store.marks().stage.value, "tables": tables}

    def _left(self) -> list[RequestedTable]:
        return [table for table in self._requested if not self._step(table.key).is_over]

    def _step(self, key: TableKey) -> RecopyStep:
        # NB: read the request first: it is removed after the copy's end.
        kept = recopies_by_table(self._store.recopies()).get(key)
        gone = Recopy("", 0, Lsn(0), self._generations[key], is_queued=True)
        return step_of(kept or gone, self._store.copy(*key))

    def _failure(self, key: TableKey) -> str:
        request = recopies_by_table(self._store.recopies()).get(key)
        return request.failed if request is not None and self._step(key) is RecopyStep.FAILED else ""

    def _missing(self, marks: StateMarks, left: Sequence[RequestedTable]) -> tuple[str, str]:
        """Return what the request waits for, as a keyword and as a sentence."""
        first = left[0]
        step, copy = self._step(first.key), self._store.copy(*first.key)
        others = f"; {len(left) - 1} more" if len(left) > 1 else ""
        if step is RecopyStep.COPYING and copy is not None:
            return f"copying {first.name}", f"copying {first.name}: {copy.row_count} rows{others}"
        if step is RecopyStep.QUEUED:
            return f"queued {first.name}", f"waiting for the copy of {first.name} to begin{others}"
        if marks.stage is not Stage.REALTIME:
            how = "; switch it on with `cdcctl realtime on`" if marks.stage is Stage.HELD else ""
            return "stage", f"waiting for the return to realtime: the stage is {marks.stage.value}{how}"
        answer = send_request(self._store.folder, Role.SIDECAR, "status") or {}
        if isinstance(why := answer.get("recopy_waits_for"), str):
            return f"sidecar: {why}", f"waiting: {why}"
        request = recopies_by_table(self._store.recopies()).get(first.key)
        delivered = marks.delivered.pointer.position if marks.delivered is not None else None
        until = format_lsn(request.after_lsn) if request is not None else "the request"
        return "stream", f"waiting until the stream, which is at {delivered}, has passed {until}"

    def _check_time(self, missing: str) -> None:
        if time.monotonic() >= self._end_s:
            message = f"the tables were not copied within {self._deadline_s:g} s: {missing}"
            raise NotComplete(
                message, hint="the request is kept: run the same command to wait again; see `cdcctl status`"
            )
