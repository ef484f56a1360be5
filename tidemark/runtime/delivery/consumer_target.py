"""A custom consumer (I34, I35) as the target of the application thread.

The position and the progress of a first copy move after `on_events` returned true: at least once. A separate thread
(`confirming`) makes them durable (`stored_confirmations`), so that the next changes need not wait for the disk unless
`deliver.confirm_ms` is 0. Meanwhile the position is in a file that survives a kill of this process (`ConfirmedFile`).
The file has the position alone: a confirmation of which the state records more, such as DDL, is durable before later
ones are accepted.
The bytes that were offered and not confirmed, and the bytes that were confirmed and are not durable, are bounded. At
the bound the target polls the consumer again, or waits for the disk, and offers nothing more.

A call of `on_events` that raises is repeated within a bound, with the same events: a transient error of the consumer's
target is no reason to leave realtime.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import NamedTuple

from tidemark.engine.ports import (
    DrainedConsumer,
    GroupConsumer,
    GroupPart,
    OffsetsConsumer,
    PausingConsumer,
    PoisonConsumer,
)
from tidemark.engine.progress import Progress
from tidemark.engine.retry import RetryPolicy
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log, describe_error
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.confirmed_file import ConfirmedFile
from tidemark.io.state.history_files import HistoryWriter
from tidemark.io.state.state import StateStore
from tidemark.model.change import ChangeGroup, GroupItem
from tidemark.model.errors import ConsumerFailed, Disposition, TidemarkError
from tidemark.model.position import Epoch, Partition, Position
from tidemark.runtime.context import Stopped
from tidemark.runtime.delivery.announced_versions import AnnouncedVersions
from tidemark.runtime.delivery.confirming import Confirming
from tidemark.runtime.delivery.delivery import RECORDED, SPACE_WAIT_FIRST_S, SPACE_WAIT_MAX_S, CopyKeep, GroupRecord
from tidemark.runtime.delivery.liveness import ConsumerRaised, Liveness
from tidemark.runtime.delivery.notices import report_events
from tidemark.runtime.delivery.offset_rounds import ConfirmedGroup, OffsetRounds
from tidemark.runtime.delivery.stored_confirmations import StoredConfirmations
from tidemark.wire.state.state_keys import ADDED_POSITIONS, IDENTITY

ABANDON_S = 5.0  # for a transaction of two syncs that is running when a stop abandons the consumer
REFUSALS_MAX = 50  # times that a consumer may be offered groups and accept none


class _Offered(NamedTuple):
    """A group on its way to the consumer, and the progress of a first copy once it is confirmed."""

    group: ChangeGroup
    copying: CopyKeep | None = None

    def without_rows(self) -> ConfirmedGroup:
        """Return the part that the state needs: rows are not kept until that is durable."""
        group = self.group
        recorded: list[GroupItem] = []
        for item in group.items:  # NB: a comprehension would be a call, for each commit
            if isinstance(item, RECORDED):
                recorded.append(item)  # noqa: PERF401
        ends, databases = group.transactions, group.databases
        bare = ChangeGroup(group.first, group.last, recorded, ends, 0, group.byte_count, (), databases)
        has_records = bool(recorded or databases or self.copying)
        return ConfirmedGroup(bare, self.copying, has_records)


class ConsumerTarget:
    """At least once, confirmed by the consumer itself."""

    counts = True

    def __init__(
        self,
        consumer: GroupConsumer,
        store: StateStore,
        epoch: Epoch,
        *,
        history: HistoryWriter,
        records: Sequence[GroupRecord],
        unconfirmed_bytes_max: int,
        confirm_s: float,
        progress: Progress,
        stopping: threading.Event,
        retry: RetryPolicy,
        metrics: Metrics,
        log: Log,
        liveness: Liveness | None = None,
    ) -> None:
        """`liveness`: the watch on the consumer; it ends before the consumer. `retry`: how often it may fail.

        `confirm_s`: how long a confirmation may wait for its transaction; 0: it is durable before the next group.
        """
        self._consumer = consumer
        self._isolating = consumer if isinstance(consumer, PoisonConsumer) else None
        self._pausing = consumer if isinstance(consumer, PausingConsumer) else None
        self._liveness = liveness or Liveness(consumer, alive_s=inf, hang_s=inf)
        self._store = store
        self._epoch = epoch
        self._unconfirmed_bytes_max = unconfirmed_bytes_max
        self._confirms_each = confirm_s == 0
        self._progress = progress
        self._stopping = stopping
        self._retry = retry
        self._metrics = metrics
        self._log = log
        self._clock = SystemClock()
        self._announced = AnnouncedVersions(consumer)
        self._waiting: deque[_Offered] = deque()
        self._announced_count = 0  # of the waiting ones, from the first one on: reset after an error
        self._accepted: list[_Offered] = []
        self._unconfirmed_bytes = 0  # of the accepted ones
        self._partition = Partition(store.identity.system_identifier)
        self._stored = StoredConfirmations(store, epoch, history=history, records=records, progress=progress, log=log)
        confirming = Confirming(self._stored.make_durable, confirm_s)
        hook = consumer.update_offsets if isinstance(consumer, OffsetsConsumer) else None
        self._rounds = hook and OffsetRounds(
            confirming,
            hook,
            self._liveness,
            own=self._partition,
            unacknowledged=self._first_unacknowledged,
            log=log,
        )
        self._confirming = self._rounds or confirming
        self._file: ConfirmedFile | None = None

    def begin(self) -> None:
        """Assign the partition to the consumer."""
        self._stored.begin()
        with self._store.reading() as transaction:
            added = transaction.get(ADDED_POSITIONS) if self._rounds is not None else None
            identity = transaction.get(IDENTITY)
        assert identity is not None, "an opened state has one"
        if self._rounds is not None:  # a position is stored together with those that the hook added, or not at all
            self._rounds.begin({} if added is None else added.by_partition)
        else:
            self._file = ConfirmedFile.create(self._store.folder, identity.outbox_id, self._epoch)
        with self._liveness.calling("on_assigned"):
            self._consumer.on_assigned(self._partition, self._epoch, self._store.marks().start)
        report_events(self._consumer, self._store, self._epoch, self._liveness)

    def deliver(self, group: ChangeGroup) -> None:
        """Offer a group until the consumer has accepted it and its confirmations are within the bound."""
        if self._isolating is not None:
            self._retry_parked()
        self._offer_until_accepted(_Offered(group))

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        """Offer a group of a first copy; its position is not one of the stream's."""
        start = self._progress.delivered
        assert start is not None, "a first copy comes after the base"
        if progress[-1].begins:
            self._stored.begin_copy(progress, group.last.position)
        self._offer_until_accepted(_Offered(replace(group, last=start), progress))
        self._confirming.wait()  # the progress of the copy is read from the state

    def idle(self) -> bool:
        """Poll for a confirmation of accepted groups."""
        self._confirming.check()
        is_waiting = self._retry_parked()
        if self._accepted or is_waiting:
            self._offer()
        if self._rounds is not None:
            self._rounds.advance()
        return bool(self._accepted) or is_waiting or self.has_round

    @property
    def has_round(self) -> bool:
        """Return whether a commit round waits for the end of the last one, or is not durable."""
        return self._rounds is not None and not self._rounds.is_durable

    def close(self) -> None:
        """Revoke the partition, make all confirmations so far durable, and stop the consumer."""
        self._liveness.stop()
        try:
            try:
                with self._liveness.calling("on_revoked"):
                    confirmed = self._consumer.on_revoked(self._partition)
                self._confirm(confirmed)
            finally:
                self._confirming.close()
        finally:
            if self._file is not None:
                self._file.close()
            with self._liveness.calling("stop"):
                self._consumer.stop()

    def drain(self, within_s: float) -> None:
        """Let a consumer with a pool finish and confirm what it has. From another thread, before the stop."""
        if isinstance(self._consumer, DrainedConsumer):
            self._consumer.drain(within_s, self._progress)

    def abandon(self) -> None:
        """Accept no more confirmations: the capture has stopped without the consumer."""
        late = ConsumerFailed(
            "the call of the consumer ended after the stop", hint="its unconfirmed changes are delivered again"
        )
        self._confirming.abandon(late, ABANDON_S)

    def _offer_until_accepted(self, offered: _Offered) -> None:
        if self._confirms_each:
            self._confirming.wait()
        self._confirming.check()
        self._waiting.append(offered)
        refusals = 0
        while self._waiting or (self._unconfirmed_bytes > self._unconfirmed_bytes_max and not self._needs_more):
            if self._offer():
                refusals = 0
                if self._confirming.byte_count > self._unconfirmed_bytes_max:
                    self._confirming.wait(self._unconfirmed_bytes_max)
                continue
            refusals = 1 if self._pausing is not None and self._pausing.takes_nothing else refusals + 1
            if refusals > REFUSALS_MAX:
                raise ConsumerFailed(
                    f"the consumer was offered changes {refusals} times, and neither read nor confirmed any",
                    hint="on_delivery has to read the changes that it is given, and to confirm them in the end",
                )
            if self._stopping.wait(min(SPACE_WAIT_MAX_S, SPACE_WAIT_FIRST_S * refusals)):
                raise Stopped

    @property
    def _needs_more(self) -> bool:
        """Return whether the consumer can confirm only after more changes."""
        return self._isolating is not None and self._isolating.needs_more

    def _offer(self) -> bool:
        """Call the consumer until it returns; return whether it accepted or confirmed anything."""
        before = len(self._waiting)
        while True:
            accepted_before = len(self._accepted)
            try:
                confirmed = self._call()
            except TidemarkError as error:
                self._requeue(accepted_before)
                self._wait_to_retry(error)
            else:
                break
        if self._retry.backoff.failures:
            self._retry.succeeded()
        return self._confirm(confirmed) or len(self._waiting) < before

    def _call(self) -> bool | ChangeGroup | GroupPart:
        with self._liveness.calling("on_events"):
            alive = self._consumer.alive()
            confirmed = alive and self._consumer.on_events(self._draw())
        if not alive:
            raise ConsumerFailed("the consumer reports that it is not alive")
        return confirmed

    def _requeue(self, accepted_before: int) -> None:
        """Queue a call's groups again, in order; `accepted_before`: how many were accepted before it."""
        failed = self._accepted[accepted_before:]
        del self._accepted[accepted_before:]
        self._waiting.extendleft(reversed(failed))
        self._announced_count += len(failed)
        self._unconfirmed_bytes -= sum(offered.group.byte_count for offered in failed)

    def _wait_to_retry(self, error: TidemarkError) -> None:
        """Wait until the consumer may be called again; raise `error` if a retry is useless, or was tried enough."""
        is_transient = isinstance(error, ConsumerRaised) or error.disposition is Disposition.RETRY
        delay_s = self._retry.failed(self._clock.monotonic_s()) if is_transient else None
        if delay_s is None:
            if self._isolates(error):
                self._retry.succeeded()
                return
            raise error
        self._metrics.errors.inc()
        self._log.warning(
            "the consumer failed; offering the same changes again", retry_s=delay_s, **describe_error(error)
        )
        if self._stopping.wait(delay_s):
            raise Stopped from error

    def _isolates(self, error: TidemarkError) -> bool:
        """Let the consumer leave out a change that it cannot handle; return whether it continues."""
        cause = error.__cause__ if isinstance(error, ConsumerRaised) else error
        if self._isolating is None or not isinstance(cause, Exception):
            return False
        with self._liveness.calling("isolate"):
            return self._isolating.isolate(cause)

    def _retry_parked(self) -> bool:
        """Let the consumer process parked changes again; return whether it has yet to confirm one."""
        if self._isolating is None:
            return False
        has_more = True
        while has_more and not self._stopping.is_set():
            with self._liveness.calling("retry_parked"):
                has_more = self._isolating.retry_parked()
        return self._isolating.is_retrying

    def _confirm(self, answer: bool | ChangeGroup | GroupPart | None) -> bool:  # noqa: FBT001 - the answer of a consumer
        """Confirm what the consumer's answer names; return whether that is anything."""
        if not answer or not self._accepted:
            return False
        confirmed: list[_Offered] = self._accepted
        left: list[_Offered] = []
        left_bytes = 0
        if not isinstance(answer, bool):
            left = confirmed[self._number(answer) :]
            left_bytes = sum(offered.group.byte_count for offered in left)
            confirmed = confirmed[: len(confirmed) - len(left)]
        if isinstance(answer, GroupPart):
            confirmed[-1] = confirmed[-1]._replace(group=answer.part)
            left.insert(0, _Offered(replace(answer.whole, first=answer.part.last.position, byte_count=0)))
        confirmed_bytes = self._unconfirmed_bytes - left_bytes
        self._accepted, self._unconfirmed_bytes = left, left_bytes
        bare, has_records = list[ConfirmedGroup](), self._stored.parked_upto is not None
        for offered in confirmed:  # NB: as above
            bare.append(offered.without_rows())
            has_records = has_records or bare[-1].has_records
        self._confirming.confirm(bare, confirmed_bytes)
        if self._file is not None and has_records:
            self._confirming.wait()
        elif self._file is not None:
            assert self._progress.delivered is not None, "a capture has a start"
            self._file.write(self._progress.delivered.position, bare[-1].group.last.position)
        return True

    def _first_unacknowledged(self) -> Position | None:
        """Return the position of the first change that is delivered and not acknowledged."""
        first = next(chain(self._accepted, self._waiting), None)
        return None if first is None or first.copying is not None else first.group.first

    def _number(self, answer: ChangeGroup | GroupPart) -> int:
        """Return the number of a group among the accepted ones, from 1."""
        group = answer.whole if isinstance(answer, GroupPart) else answer
        for number, offered in enumerate(self._accepted, 1):
            if offered.group is group:
                return number
        raise ConsumerFailed(
            "the consumer confirmed a group that is confirmed already, or that it has not read",
            hint="the consumer may confirm all that it has read, nothing, or up to a group that it has read",
        )

    def _draw(self) -> Iterator[ChangeGroup]:
        while self._waiting:
            if self._announced_count:
                self._announced_count -= 1
            else:
                self._announced.announce(self._waiting[0].group)
            offered = self._waiting.popleft()
            self._accepted.append(offered)
            self._unconfirmed_bytes += offered.group.byte_count
            yield offered.group
