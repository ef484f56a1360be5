"""What becomes of a change that a handler cannot handle: skipped with a record, or parked. Engine and daemons use it.

Nothing that is stored or logged here was not in front of the handler: batches come after all transforms.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Self

import pyarrow as pa

from tidemark.engine.pool.batch import Batch
from tidemark.engine.pool.poison import ParkedBatch
from tidemark.io.host import failpoints
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log
from tidemark.io.parked.parked_table import ParkedTable
from tidemark.io.process.config import PoisonConfig
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.state import StateStore
from tidemark.model.errors import ConsumerFailed, TidemarkError
from tidemark.model.poison import Poison, PoisonChange, WorkerRaised
from tidemark.model.position import Epoch
from tidemark.runtime.context import CaptureContext
from tidemark.wire.parked import ParkedChange, SkippedChange
from tidemark.wire.state.state_keys import BEGINNING

RETRIES_READ_MAX = 100  # requested changes in memory
RETRY_POLL_S = 1.0  # how often the table is asked for requests, at most
REPLACED = "the database was dropped or left the capture, and another one took its name"  # a reason


class PoisonPoint(Enum):
    """Failpoints around the record of a change that cannot be handled."""

    FOUND = "poison-found"
    RECORDED = "poison-recorded"  # durable, and its group is not confirmed yet
    RETRIED = "poison-retried"  # the handler has handled a parked change, which is still in the table


class PoisonRun(ConsumerFailed):
    """Too many changes failed with no success between them: the consumer itself fails. None of them is confirmed."""

    hint = (
        "correct the consumer or its target, and start again: the changes of this run are delivered again. "
        "poison.in_a_row_max is the limit"
    )


class PoisonUnrecorded(ConsumerFailed):
    """The state could not record what became of changes that fail, or failed: that is no error of the consumer."""

    hint = "correct the cause and start again: the changes are delivered again"


@contextmanager
def recording(place: str) -> Iterator[None]:
    """Raise `PoisonUnrecorded` for an error of the state, which is otherwise taken for one of the consumer."""
    try:
        yield
    except ConsumerFailed:
        raise
    except TidemarkError as error:
        raise PoisonUnrecorded(f"{place}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Suspect:
    """A change that failed alone. It is poison if the handler succeeds afterwards; else the handler may be down."""

    poison: Batch
    reason: str
    error: Exception


class PoisonHandling:
    """The policy for changes that cannot be handled, of one capture. From several threads.

    A change that failed waits for a call of the handler that begins afterwards and succeeds, or for a long silence of
    the stream. Only then it is recorded, and its group may be confirmed: an error of the handler's target is otherwise
    taken for poison, and good changes are lost. After `PoisonRun` nothing is recorded or confirmed, so all that wait
    are delivered again.
    """

    def __init__(self, config: PoisonConfig, store: StateStore, epoch: Epoch, *, metrics: Metrics, log: Log) -> None:
        self.policy = Poison(config.policy)
        self._config = config
        self._store = store
        self._epoch = epoch
        self._metrics = metrics
        self._log = log
        self._clock = SystemClock()
        self._waiting: list[_Suspect] = []  # at most `in_a_row_max`
        self._recorded = 0  # since the start
        self._parked_in_silence = 0  # since the last success: they are in `_recorded`
        self._failed_s = 0.0  # when the last one failed
        self._is_over = False
        self._lock = threading.Lock()

    @classmethod
    def of(cls, config: PoisonConfig, context: CaptureContext, epoch: Epoch) -> Self:
        """Return the handling of a capture."""
        return cls(config, context.store, epoch, metrics=context.metrics, log=context.log)

    @property
    def isolates(self) -> bool:
        """Return whether a change that fails is searched for."""
        return self.policy is not Poison.FAIL

    @property
    def may_confirm(self) -> bool:
        """Return whether all changes that were left out are recorded."""
        return not self._waiting

    @property
    def needs_success(self) -> bool:
        """Return whether changes that failed wait for the next success: at most `in_a_row_max` more may fail."""
        return bool(self._waiting) and not self._is_over

    @property
    def found(self) -> int:
        """How many changes have failed. The caller of the handler reads it before the call, for `handled`."""
        with self._lock:
            return self._recorded + len(self._waiting)

    def handled(self, found: int) -> None:
        """Record the changes that had failed before a call that succeeded. Raise `ParkedFull`, `PoisonUnrecorded`."""
        if not self._waiting and not self._parked_in_silence:
            return
        with self._lock:
            if found >= self._recorded:
                self._parked_in_silence = 0
            self._record_first(0 if self._is_over else max(0, found - self._recorded))

    def settle_silence(self) -> None:
        """Park what waits if nothing has come behind it for `poison.silence_s`; the caller has nothing in hand.

        The confirmed position, and the WAL behind it, otherwise wait for the next change. Nothing is lost if it is the
        target that is down: parked changes can be delivered again. That is why nothing is skipped here.
        """
        if not self._waiting or self.policy is not Poison.PARK or not self._config.silence_s:
            return
        with self._lock:
            if self._is_over or self._clock.monotonic_s() - self._failed_s < self._config.silence_s:
                return
            count = len(self._waiting)
            self._record_first(count)
            self._parked_in_silence += count

    def _record_first(self, count: int) -> None:
        """Record so many of those that wait. The caller has the lock."""
        for suspect in self._waiting[:count]:
            try:
                with recording(f"{suspect.poison.table} at {suspect.poison.position}"):
                    self._record(suspect)
            except ConsumerFailed:
                self._is_over = True
                raise
            self._recorded += 1
            del self._waiting[0]

    def leave_out(self, poison: Batch, error: Exception) -> None:
        """Leave a change out that failed: it waits for the next success. Raise `PoisonRun`."""
        reason = reason_of(error)
        with self._lock:
            in_a_row = len(self._waiting) + self._parked_in_silence
            if self._is_over or in_a_row >= self._config.in_a_row_max:
                self._is_over = True
                raise PoisonRun(
                    f"{in_a_row + 1} changes in a row could not be handled, the last one of {poison.table} "
                    f"at {poison.position}: {reason}"
                ) from error
            self._waiting.append(_Suspect(poison, reason, error))
            self._failed_s = self._clock.monotonic_s()
        failpoints.passed(PoisonPoint.FOUND)

    def _record(self, suspect: _Suspect) -> None:
        poison, reason = suspect.poison, suspect.reason
        number = 0
        if self.policy is Poison.PARK:
            number = self._park(poison, reason, suspect.error)
        else:
            self._skip(poison, reason)
        failpoints.passed(PoisonPoint.RECORDED)
        self._metrics.poison.inc(self.policy.value)
        self._log.error(
            "a change that the consumer cannot handle is left out",
            policy=self.policy.value,
            table=poison.table,
            position=str(poison.position),
            reason=reason,
            **({"number": number} if number else {}),
        )

    def _park(self, poison: Batch, reason: str, error: Exception) -> int:
        change = parked_change(poison, reason, self._epoch, self._clock.wall_us())
        with self._store.transaction(self._epoch) as transaction:
            try:
                return ParkedTable(transaction).park(change, row_bytes(poison), self._config.parked_bytes_max).number
            except ConsumerFailed as full:
                raise full from error

    def _skip(self, poison: Batch, reason: str) -> None:
        op = _op(poison)
        skipped = SkippedChange(self._clock.wall_us(), poison.position, op, poison.database, poison.table, reason)
        with self._store.transaction(self._epoch) as transaction:
            ParkedTable(transaction).skip(skipped)


class ParkedRetries:
    """Hands parked changes over again that `cdcctl parked retry` requested; the table keeps them until that is done."""

    def __init__(self, context: CaptureContext, epoch: Epoch) -> None:
        self._store = context.store
        self._log = context.log
        self._epoch = epoch
        self._clock = SystemClock()
        self._asked_s = -RETRY_POLL_S
        self._has_warned = False  # of damaged changes
        self._due: deque[ParkedBatch] = deque()
        self._taken: set[int] = set()  # by the consumer, which has not ended with them
        self._delivered: set[int] = set()  # of these: handed over and not confirmed yet
        self._lock = threading.Lock()

    @property
    def is_waiting(self) -> bool:
        """Return whether the consumer has changes that it has not confirmed."""
        return bool(self._delivered)

    def next_due(self) -> ParkedBatch | None:
        """Return the next change to deliver again: it was requested, and its group is confirmed."""
        if not self._due:
            self._read_due()
        return self._due.popleft() if self._due else None

    def _read_due(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s < RETRY_POLL_S:
            return
        self._asked_s = now_s
        with self._lock:
            taken = {*self._taken}
        with self._store.reading() as transaction:
            table = ParkedTable(transaction)
            if not table.ledger().requested:
                return
            damaged = table.damaged()
            # A change that is not confirmed yet would come again in the stream after a crash.
            stored, beginning = transaction.delivered(), transaction.get(BEGINNING)
            replaced = () if beginning is None else beginning.replaced
            found = (
                (change, row)
                for change, row in table.requested()
                if stored is not None and change.position <= stored.pointer.position and change.number not in taken
            )
            due = [
                ParkedBatch(change.number, batch_of(change, row, self._epoch))
                for change, row in islice(found, RETRIES_READ_MAX)
            ]
        self._due.extend(each for each in due if each.batch.database_oid not in replaced)
        for each in due:
            if each.batch.database_oid in replaced:
                self._record_failure(each, REPLACED)
        if damaged and not self._has_warned:
            self._has_warned = True
            self._log.error(
                "parked changes are damaged and cannot be retried; see `cdcctl parked list`", count=len(damaged)
            )
        if len(due) == RETRIES_READ_MAX:
            self._asked_s = -RETRY_POLL_S  # there may be more
        with self._lock:
            self._taken |= {each.number for each in self._due}

    def delivered(self, parked: ParkedBatch) -> None:
        """Record that the consumer has handled a change; it is deleted when that is confirmed."""
        with self._lock:
            self._delivered.add(parked.number)

    def confirmed(self) -> None:
        """Delete the changes that the consumer has handled."""
        with self._lock:
            done = {*self._delivered}
        if not done:
            return
        failpoints.passed(PoisonPoint.RETRIED)
        with recording("parked changes that were handled"), self._store.transaction(self._epoch) as transaction:
            ParkedTable(transaction).discard(done)
        with self._lock:
            self._delivered -= done
            self._taken -= done
        self._log.info("parked changes were handled", numbers=", ".join(map(str, sorted(done))))

    def failed(self, parked: ParkedBatch, error: Exception) -> None:
        """Record that a change failed again: it stays parked."""
        self._record_failure(parked, reason_of(error))

    def _record_failure(self, parked: ParkedBatch, reason: str) -> None:
        with recording("a parked change that failed again"), self._store.transaction(self._epoch) as transaction:
            ParkedTable(transaction).record_failure(parked.number, reason)
        with self._lock:
            self._taken.discard(parked.number)
        self._log.warning(
            "a parked change failed again",
            number=parked.number,
            table=parked.batch.table,
            position=str(parked.batch.position),
            reason=reason,
        )


def reason_of(error: Exception) -> str:
    """Return the reason for people. NB: the text of an error of the handler may contain values of rows."""
    if isinstance(error, PoisonChange):
        return error.reason or PoisonChange.__name__
    cause = error.__cause__ if isinstance(error, ConsumerFailed) and error.__cause__ is not None else error
    return cause.kind if isinstance(cause, WorkerRaised) else type(cause).__name__


def parked_change(poison: Batch, reason: str, epoch: Epoch, now_us: int) -> ParkedChange:
    """Return what is stored of a batch with one change, except its row."""
    return ParkedChange(
        number=0,
        position=poison.position,
        op=_op(poison),
        database=poison.database,
        database_oid=poison.database_oid,
        table=poison.table,
        relation=poison.relation,
        key=poison.key,
        columns=poison.columns,
        reason=reason,
        parked_at_us=now_us,
        epoch=epoch,
    )


def row_bytes(poison: Batch) -> bytes:
    """Return the row of a batch with one change, as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, poison.schema) as stream:
        stream.write_batch(poison.arrow)
    stored: bytes = sink.getvalue().to_pybytes()
    return stored


def batch_of(change: ParkedChange, row: bytes, epoch: Epoch) -> Batch:
    """Return the batch of a parked change, with the epoch of the process that hands it over."""
    with pa.ipc.open_stream(row) as stream:
        arrow = stream.read_next_batch()
    described = change.database, change.table, change.relation, change.key, change.columns, epoch
    return Batch(*described, arrow, change.number, change.database_oid)


def _op(poison: Batch) -> str:
    found: str = poison.arrow.column("_op")[0].as_py()
    return found
