"""`cdcctl table recopy --cancel`: removes requests that have not begun, by the names with which they were made.

The tables may be dropped already. A copy that a sidecar is about to start is postponed within seconds or begins: until
then the command repeats the request.
"""

import time
from collections.abc import Sequence

from tidemark.io.state.locking.locks import AlreadyRunning, RoleLock
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConfigError
from tidemark.model.mode import Role
from tidemark.model.table_name import TableName
from tidemark.runtime.first_copy.recopying import cancel_recopies
from tidemark.wire.recopies import RecopyStep, TableKey, encode_cancellation, recopies_by_table, step_of
from tidemark_ctl.requests.waiting import POLL_S, Echo, NotComplete, WaitReport
from tidemark_ctl.views.embedded import embedded_engine
from tidemark_ctl.views.processes import process_now, send_request


class NothingToCancel(ConfigError):
    """A name without an open request, or whose copy has begun."""

    hint = "`cdcctl status` shows the requests under recopy"


class RecopyCancellation:
    """One cancellation by an operator."""

    def __init__(
        self, store: StateStore, names: Sequence[TableName], *, watchdog_s: float, deadline_s: float, echo: Echo
    ) -> None:
        self._store = store
        self._watchdog_s = watchdog_s
        self._deadline_s = deadline_s
        self._end_s = time.monotonic() + deadline_s
        self._echo = echo
        self._wait_report = WaitReport(echo)
        self._keys = [key for name in names for key in self._requested(name)]

    def cancel(self) -> None:
        """Remove the requests; raise an error if a copy has begun."""
        while steps := self._steps():
            if RecopyStep.COPYING in steps.values():
                names = ", ".join(self._name(key) for key, step in steps.items() if step is RecopyStep.COPYING)
                raise NothingToCancel(
                    f"the copy of {names} has begun", hint="wait for its end: readers need its last row"
                )
            self._cancel(tuple(steps))
            if not self._steps():
                break
            waiting = "waiting: the sidecar is about to begin or postpone the copy"
            if time.monotonic() >= self._end_s:
                raise NotComplete(
                    f"not cancelled after {self._deadline_s:g} s", hint="run the command again: nothing was changed"
                )
            self._wait_report.report("queued", waiting)
            time.sleep(POLL_S)
        self._echo("cancelled")

    def _cancel(self, keys: Sequence[TableKey]) -> None:
        if process_now(self._store, Role.SIDECAR, self._watchdog_s).is_running:
            if embedded_engine(self._store) is not None:  # it has no socket
                cancel_recopies(self._store, keys, is_copying=True)
                return
            send_request(self._store.folder, Role.SIDECAR, "recopy-cancel", encode_cancellation(keys))
            return
        try:
            with RoleLock.acquire(self._store.folder, Role.SIDECAR.value):
                cancel_recopies(self._store, keys, is_copying=False)
        except AlreadyRunning:
            return  # a sidecar was started meanwhile; the caller asks it

    def _requested(self, name: TableName) -> list[TableKey]:
        requests = recopies_by_table(self._store.recopies())
        wanted = (name.schema, name.table)
        found = []
        for key, request in requests.items():
            of = TableName.parse(request.name)
            if (of.schema, of.table) == wanted and name.database in (None, of.database):
                found.append(key)
        if not found:
            raise NothingToCancel(f"no copy of {name} is requested")
        return found

    def _steps(self) -> dict[TableKey, RecopyStep]:
        """Return the steps of the remaining requests."""
        requests = recopies_by_table(self._store.recopies())
        steps = {key: step_of(requests[key], self._store.copy(*key)) for key in self._keys if key in requests}
        return {key: step for key, step in steps.items() if step not in (RecopyStep.DONE, RecopyStep.ENDED)}

    def _name(self, key: TableKey) -> str:
        return recopies_by_table(self._store.recopies())[key].name
