"""The application thread: hands groups to the target and records how far it came.

For the outbox the data and the delivered position are one LMDB transaction. For a consumer of one's own the position,
and how far a first copy is, follow once `on_events` returned true: at least once. Either way the journal is made
durable first, the transaction notes how far and checks the epoch, and a full outbox is waited for: then the queue
fills, then the ring, and capture pauses.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple, Protocol

from tidemark.engine.ports import Consumer
from tidemark.engine.progress import Progress
from tidemark.io.clock import SystemClock
from tidemark.io.disk import StateFull
from tidemark.io.history_files import HistoryWriter
from tidemark.io.logs import Log
from tidemark.io.metrics import Metrics
from tidemark.io.state import StateStore
from tidemark.io.state_transaction import StateTransaction
from tidemark.model.change import ChangeBatch, ChangeGroup, SchemaChange, SchemaEffect, SchemaEvent
from tidemark.model.errors import ConsumerFailed
from tidemark.model.lsn import Oid, Xid
from tidemark.model.position import Epoch, Partition
from tidemark.model.relation import Relation
from tidemark.runtime.handoff import Handoff
from tidemark.runtime.liveness import Liveness
from tidemark.runtime.whole_tables import WholeTables
from tidemark.wire.outbox import EncodedGroup, encode_group
from tidemark.wire.state import CONFIRMED, CopyProgress, OutboxLedger, Watermark

TAKE_S = 0.2  # how soon a stop is noticed, and how often readers are looked at while nothing is delivered
ROOM_FIRST_S = 0.02
ROOM_MAX_S = 1.0
STALE_READERS_S = 5.0  # how often slots of killed readers are freed
UNTAKEN_MAX = 50  # times that a consumer may be offered groups and take none
US_PER_S = 1_000_000
Note = Callable[[StateTransaction], None]  # puts more into the transaction that stores a group
CopyKeep = tuple[Oid, Oid, CopyProgress]  # database, relation, how far its first copy is
Announced = dict[tuple[Oid, Oid], Relation]  # the version that the consumer knows, by database and relation


class Target(Protocol):
    """Where groups go; all calls come from the application thread."""

    counts: bool  # what it takes counts as delivered

    def begin(self) -> None:
        """Make ready: called once, first of all."""

    def deliver(self, group: ChangeGroup) -> None:
        """Take a group; its position is durable when this returns, or later if the target says so itself."""

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Take a group of a first copy, which moves no position; how far the copy is gets durable as one does."""

    def idle(self) -> None:
        """Do what is to be done while there is nothing to deliver."""

    def close(self) -> None:
        """Let go."""


class Stopped(Exception):
    """The capture stops: what was to be delivered comes again after the restart."""


class OutboxTarget:
    """The built-in consumer: groups into the outbox, in the delivered position's own transaction."""

    counts = True

    def __init__(
        self,
        store: StateStore,
        epoch: Epoch,
        *,
        history: HistoryWriter,
        whole: WholeTables,
        progress: Progress,
        metrics: Metrics,
        log: Log,
        stopping: threading.Event,
    ) -> None:
        self._store = store
        self._epoch = epoch
        self._history = history
        self._whole = whole
        self._progress = progress
        self._metrics = metrics
        self._log = log
        self._stopping = stopping
        self._clock = SystemClock()
        self._cleared_s = 0.0

    def begin(self) -> None:
        """Do nothing: the outbox is always ready."""

    def deliver(self, group: ChangeGroup) -> None:
        """Store a group; wait while the outbox is full."""

        def note(moving: StateTransaction) -> None:
            moving.rely_on_journal(self._history.durable_lsn)
            self._whole.note(moving, [group])
            moving.learn_databases(group.databases)

        self._store_group(encode_group(group), note)

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Store a group of a first copy, and how far the copy is, in one transaction."""
        encoded = replace(encode_group(group), moves_delivered=False)
        self._store_group(encoded, lambda moving: moving.put_copy(*progress))

    def idle(self) -> None:
        """Move confirmed and trim, if readers confirmed meanwhile."""
        self._clear_stale_readers()
        marks = self._store.marks()
        held = min((reader.held for reader in marks.readers.values()), default=marks.ledger.trimmed)
        trimmable = min((reader.trimmable for reader in marks.readers.values()), default=marks.ledger.trimmed)
        if trimmable > marks.ledger.trimmed or held > (marks.confirmed.sequence if marks.confirmed else 0):
            self._settle()

    def close(self) -> None:
        """Do nothing: the state is its opener's."""

    def _store_group(self, encoded: EncodedGroup, note: Note) -> None:
        wait_s = ROOM_FIRST_S
        while True:
            try:
                with self._store.transaction(self._epoch) as moving:
                    ledger = moving.settle()
                    delivered = moving.deliver(encoded)
                    note(moving)
                    confirmed = moving.confirmed()
            except StateFull as full:
                self._wait_for_room(full, wait_s)
                wait_s = min(ROOM_MAX_S, wait_s * 2)
            else:
                if encoded.moves_delivered:
                    self._progress.deliver(delivered.pointer)
                self._report(ledger, confirmed)
                return

    def _wait_for_room(self, full: StateFull, wait_s: float) -> None:
        if wait_s == ROOM_FIRST_S:
            self._metrics.outbox_full.inc()
            self._log.warning("outbox is full, delivery waits", reason=str(full))
        self._clear_stale_readers()
        # Pages freed by one transaction are usable from the next but one on: trim, then something small, then write.
        self._settle()
        self._settle()
        if self._stopping.wait(wait_s):
            raise Stopped

    def _settle(self) -> None:
        with self._store.transaction(self._epoch) as moving:
            ledger, confirmed = moving.settle(), moving.confirmed()
        self._report(ledger, confirmed)

    def _report(self, ledger: OutboxLedger, confirmed: Watermark | None) -> None:
        self._metrics.outbox_used.set(ledger.byte_count)
        self._metrics.reader_lag.set(ledger.head - (confirmed.sequence if confirmed else ledger.trimmed))
        if confirmed is not None and self._progress.confirmed != confirmed.pointer:
            self._progress.confirm(confirmed.pointer)

    def _clear_stale_readers(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._cleared_s >= STALE_READERS_S:
            self._store.environment.clear_stale_readers()
            self._cleared_s = now_s


class _Offered(NamedTuple):
    """A group on its way to the consumer, and how far a first copy is once it is confirmed."""

    group: ChangeGroup
    copying: CopyKeep | None = None


class ConsumerTarget:
    """A consumer of one's own (I34, I35): at least once, confirmed by its own word."""

    counts = True

    def __init__(
        self,
        consumer: Consumer,
        store: StateStore,
        epoch: Epoch,
        *,
        history: HistoryWriter,
        whole: WholeTables,
        unconfirmed_bytes_max: int,
        progress: Progress,
        stopping: threading.Event,
        liveness: Liveness | None = None,
    ) -> None:
        """`liveness`: who watches the consumer; ended before the consumer is."""
        self._consumer = consumer
        self._liveness = liveness or Liveness(consumer, alive_s=inf, hang_s=inf)
        self._store = store
        self._epoch = epoch
        self._history = history
        self._whole = whole
        self._unconfirmed_bytes_max = unconfirmed_bytes_max
        self._progress = progress
        self._stopping = stopping
        self._announced: Announced = {}
        self._waiting: deque[_Offered] = deque()
        self._taken: list[_Offered] = []
        self._partition = Partition(store.identity.system_identifier)

    def begin(self) -> None:
        """Give the partition to the consumer."""
        with self._liveness.calling("on_assigned"):
            self._consumer.on_assigned(self._partition, self._epoch, self._store.marks().start)

    def deliver(self, group: ChangeGroup) -> None:
        """Offer a group, and again until the consumer took it and is not too far ahead of what it confirmed."""
        self._offer_until_taken(_Offered(group))

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Offer a group of a first copy; its position stays out of the stream's."""
        start = self._progress.delivered
        assert start is not None, "a first copy comes after the base"
        if progress[-1].begins:
            # A generation is used up once it was offered: killed before it confirmed, the next one is a greater one.
            with self._store.transaction(self._epoch) as moving:
                moving.put_copy(*progress)
        self._offer_until_taken(_Offered(replace(group, last=start), progress))

    def idle(self) -> None:
        """Ask for a confirmation of what was taken."""
        if self._taken:
            self._offer()

    def close(self) -> None:
        """Take the partition back and stop the consumer."""
        self._liveness.stop()
        try:
            with self._liveness.calling("on_revoked"):
                self._consumer.on_revoked(self._partition)
        finally:
            with self._liveness.calling("stop"):
                self._consumer.stop()

    @property
    def _unconfirmed_bytes(self) -> int:
        return sum(offered.group.byte_count for offered in self._taken)

    def _offer_until_taken(self, offered: _Offered) -> None:
        self._waiting.append(offered)
        refused = 0
        while self._waiting or self._unconfirmed_bytes > self._unconfirmed_bytes_max:
            if self._offer():
                refused = 0
                continue
            refused += 1
            if refused > UNTAKEN_MAX:
                raise ConsumerFailed(
                    f"the consumer was offered changes {refused} times and neither took nor confirmed any",
                    hint="on_events has to draw from its iterator, and to return true at times",
                )
            if self._stopping.wait(min(ROOM_MAX_S, ROOM_FIRST_S * refused)):
                raise Stopped

    def _offer(self) -> bool:
        """Call the consumer once; tell if it took or confirmed anything."""
        before = len(self._waiting)
        with self._liveness.calling("on_events"):
            alive = self._consumer.alive()
            confirmed = alive and self._consumer.on_events(self._draw())
        if not alive:
            raise ConsumerFailed("the consumer says that it is not alive")
        if confirmed and self._taken:
            self._confirm()
            self._taken.clear()
            return True
        return len(self._waiting) < before

    def _draw(self) -> Iterator[ChangeGroup]:
        while self._waiting:
            self._announce(self._waiting[0].group)
            offered = self._waiting.popleft()
            self._taken.append(offered)
            yield offered.group

    def _announce(self, group: ChangeGroup) -> None:
        for item in group.items:
            if isinstance(item, SchemaEvent):
                self._consumer.on_schema(item)
                described = item.after or item.before
                assert described is not None, item
                self._announced[item.database, described.oid] = described
            elif isinstance(item, ChangeBatch):
                key = (item.database, item.relation.oid)
                if self._announced.get(key) != item.relation:
                    self._announced[key] = item.relation
                    self._consumer.on_schema(_introduction(group, item))

    def _confirm(self) -> None:
        last = self._taken[-1].group
        latest = max((end.commit_time_us for end in last.transactions), default=0)
        with self._store.transaction(self._epoch) as moving:
            for offered in self._taken:
                if offered.copying is not None:
                    moving.put_copy(*offered.copying)
            moving.rely_on_journal(self._history.durable_lsn)
            self._whole.note(moving, [offered.group for offered in self._taken])
            for offered in self._taken:
                moving.learn_databases(offered.group.databases)
            delivered = moving.deliver(EncodedGroup(last.last, latest, ()))
            moving.put(CONFIRMED, delivered)
        self._progress.deliver(delivered.pointer)
        self._progress.confirm(delivered.pointer)


def _introduction(group: ChangeGroup, batch: ChangeBatch) -> SchemaEvent:
    """Tell a consumer of a relation version that it has not seen since it started."""
    lsn = group.first.commit_lsn
    return SchemaEvent(
        position=group.first,
        lsn=lsn,
        database=batch.database,
        xid=Xid(0),
        change=SchemaChange.CREATE,
        effect=SchemaEffect.METADATA,
        before=None,
        after=batch.relation,
    )


class ApplicationThread:
    """Takes groups from the queue to the target; runs all callbacks of the user."""

    def __init__(
        self,
        handoff: Handoff,
        target: Target,
        history: HistoryWriter,
        *,
        prelude: Callable[[], None],
        metrics: Metrics,
        stopping: threading.Event,
    ) -> None:
        """`prelude` runs first, in the same thread: the first copy."""
        self.error: BaseException | None = None
        self.prelude_is_over = threading.Event()
        self._prelude = prelude
        self._handoff = handoff
        self._target = target
        self._history = history
        self._metrics = metrics
        self._stopping = stopping
        self._clock = SystemClock()
        self._thread = threading.Thread(target=self._run, name="application", daemon=True)

    def start(self) -> None:
        """Start delivering."""
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the batch in hand; tell if the thread has ended."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._target.begin()
            self._prelude()
            self.prelude_is_over.set()
            while not self._stopping.is_set():
                group = self._handoff.take(TAKE_S)
                if group is None:
                    self._target.idle()
                else:
                    self._deliver(group)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the one place: whatever it is, the capture ends with it
            self.error = error
        finally:
            self._close()

    def _deliver(self, group: ChangeGroup) -> None:
        began_s = self._clock.monotonic_s()
        self._history.sync()
        self._target.deliver(group)
        self._metrics.queue_used.set(self._handoff.byte_count)
        if not self._target.counts:
            return
        self._metrics.delivery_seconds.observe(self._clock.monotonic_s() - began_s)
        self._metrics.groups.inc()
        self._metrics.rows.inc(group.row_count)
        self._metrics.transactions.inc(len(group.transactions))
        now_us = self._clock.wall_us()
        for end in group.transactions:
            self._metrics.lag_seconds.observe(max(0, now_us - end.commit_time_us) / US_PER_S)

    def _close(self) -> None:
        try:
            self._target.close()
        except BaseException as error:  # noqa: BLE001 - the first error is the one to tell
            self.error = self.error or error
