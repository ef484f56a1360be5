"""The consumer in front of a pool: groups of the stream become batches for it, and finished groups are confirmed.

The bytes that are unfinished, and those that are not confirmed, have one bound. At the bound the application thread
waits for the pool, and what is finished is confirmed whatever the commit policy says. The queue fills, then the ring.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidemark.engine.offset_update import OffsetsHook
from tidemark.engine.pool.batch import Batch
from tidemark.engine.pool.commit_policy import CommitPolicy, Finished
from tidemark.engine.pool.dispatch import Order
from tidemark.engine.pool.stop_condition import StopSearch, StopWhen
from tidemark.engine.ports import GroupPart
from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log
from tidemark.model.change import (
    ChangeBatch,
    ChangeGroup,
    CopyBoundary,
    EngineEvent,
    GroupItem,
    SchemaEvent,
    TransactionBoundary,
)
from tidemark.model.lsn import Oid
from tidemark.model.position import Epoch, Partition, Pointer
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.plugins.transaction_boundaries import TransactionBoundaries
from tidemark.runtime.pool.handler_pool import PartPool
from tidemark.runtime.pool.keys import NO_LANE, RowIndexes, lanes_of, rows_at, sections_of
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, RetriedChange
from tidemark.runtime.pool.pool_parts import PoolPart
from tidemark.transforms.plan import TransformPlans
from tidemark.transforms.source_form import event_without_constants, without_constants
from tidemark.wire.state.event_logs import Loss, Rewind

FLUSH_S = 1.0  # for the last position: the application thread asks for it every 0.2 s while something is unconfirmed
FLUSH_POLL_S = 0.01
_ONLY_LANE = 0


class _PendingGroup(NamedTuple):
    group: ChangeGroup | None  # None: a parked change, which moves no position
    part: ChangeGroup | None  # what is delivered of it; None: a parked change
    changes_upto: int  # of all groups since the start, this one included


class PoolConsumer:
    """Implements `PoisonConsumer` and `OffsetsConsumer` of `tidemark.engine.ports` for a pool of handlers."""

    def __init__(
        self,
        pool: PartPool[PoolPart],
        *,
        order: Order,
        lane_count: int,
        commit: CommitPolicy,
        bytes_max: int,
        databases: Mapping[Oid, str],
        takes_events: bool,
        plans: TransformPlans | None,
        processing: Processing,
        poison: PoisonHandling,
        retries: ParkedRetries | None,
        log: Log,
        update_offsets: OffsetsHook | None = None,
        stop_when: StopWhen | None = None,
        on_notice: Callable[[Loss | Rewind], None] | None = None,
    ) -> None:
        """`databases`: the known names. `takes_events`: the application has a callback for `EngineEvent`.

        `plans`: of the transforms, if there are any. `processing`: what the handler takes. `poison`, `retries`: what
        becomes of a change that it cannot handle; `retries` is None: parked changes stay parked.
        `update_offsets`: the hook of commit rounds. `stop_when`: where it ends by itself. `on_notice`: called for
        losses and rewinds.
        """
        self.update_offsets = update_offsets
        self._on_notice = on_notice
        self.is_paused = False  # set by another thread: no group is taken, and what is finished is confirmed
        self.is_held = False  # likewise, before another capture continues; a change that failed gets its next success
        self.confirms_at_once = False  # set by another thread: without regard to the policy
        self.confirmed: Pointer | None = None  # the last one that was returned for confirmation
        self._pool = pool
        self._order = order
        self._lane_count = lane_count
        self._commit = commit
        self._bytes_max = bytes_max
        self._databases = dict(databases)
        self._takes_events = takes_events
        self.plans = plans
        self._processing = processing
        self._poison = poison
        self._retries = retries
        self._log = log
        self._clock = SystemClock()
        self._since_s = self._clock.monotonic_s()
        self._search = StopSearch(stop_when)
        self._has_ended = False
        self._last: Pointer | None = None  # of the last group, or of the start
        self._epoch: Epoch | None = None
        self._pending: deque[_PendingGroup] = deque()
        self._pending_bytes = 0
        self._boundaries = TransactionBoundaries()
        self._submitted_units = self._confirmed_units = 0
        self._submitted_changes = self._confirmed_changes = 0
        self._numbers = count()
        self._left_out: set[type] = set()
        self._is_last = threading.Event()
        self._taking = threading.Lock()  # held while groups or parked changes are taken

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Keep the fencing token. A capture that continues an earlier one begins where that was confirmed."""
        del partition
        self._epoch, self._last, self.confirmed = epoch, start, None
        self._is_last.clear()

    def on_loss(self, loss: Loss) -> None:
        """Report a loss to the application."""
        self._notice(loss)

    def on_rewind(self, rewind: Rewind) -> None:
        """Report a rewind to the application."""
        self._notice(rewind)

    def _notice(self, event: Loss | Rewind) -> None:
        if self._on_notice is not None:
            self._on_notice(event)

    def on_schema(self, event: SchemaEvent) -> None:
        """Check that the transforms fit the version: each batch has its relation, and needs no more."""
        if self.plans is None or event.after is None:
            return
        database = self._database(event.database)
        if event.before is None:
            self.plans.plan(database, event.after)
        else:
            self.plans.check_change(database, event.before, event.after)

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool | ChangeGroup | GroupPart:
        """Give groups to the pool up to the bound; confirm what is finished if that is due."""
        with self._taking:
            for group in groups if not self.takes_nothing else ():
                if not self._submit(group) or (self._pending_bytes > self._bytes_max and not self.needs_more):
                    break
        self._has_ended = self._search.is_over  # NB: after its last part was submitted
        return self._due() or False

    def on_revoked(self, partition: Partition) -> bool | ChangeGroup | GroupPart | None:
        """Confirm what is finished: the pool has ended."""
        del partition
        self.flush()
        return self._due()

    @property
    def needs_more(self) -> bool:
        """Return whether a change that failed waits for the next success."""
        return self._poison.needs_success

    def isolate(self, error: Exception) -> bool:
        """Return false: the pool isolates changes, and no call here raises an error of the handler."""
        del error
        return False

    def retry_parked(self) -> bool:
        """Hand a parked change over again, alone, with everything before it finished. It confirms itself."""
        with self._taking:
            return self._retry_parked()

    def _retry_parked(self) -> bool:
        is_waiting = self.is_paused or self.is_held
        parked = None if is_waiting or self._retries is None else self._retries.next_due()
        if parked is None or self._retries is None:
            return False
        retried = RetriedChange(parked, self._processing, self._retries)
        if not self._pool.submit([(retried, None)], parked.batch.arrow.nbytes):
            return False
        self._submitted_units += 1
        self._pending.append(_PendingGroup(None, None, self._submitted_changes))
        self._pool.wait_below(self._bytes_max)
        return True

    @property
    def is_retrying(self) -> bool:
        """Return false: changes that are delivered again confirm themselves."""
        return False

    def alive(self) -> bool:
        """Return true: the engine checks the pool."""
        return True

    def stop(self) -> None:
        """Do nothing: the engine ends the pool first."""

    @property
    def takes_nothing(self) -> bool:
        """Return whether no further group is taken: it is paused or held, or the condition to stop is met."""
        return self._has_ended or self.is_paused or (self.is_held and not self.needs_more)

    @property
    def is_complete(self) -> bool:
        """Return whether it has ended, and everything before that is finished."""
        return self._has_ended and self._pool.settled_units == self._submitted_units

    def is_at_rest(self, progress: Progress) -> bool:
        """Return whether all that it took is finished, confirmed and stored, and it takes nothing while it is held.

        Another thread calls it. `progress`: of the capture.
        """
        if not self._taking.acquire(blocking=False):
            return False
        self._taking.release()  # NB: whoever takes it now sees that the consumer is held
        is_finished = self._pool.settled_units == self._submitted_units == self._confirmed_units
        return is_finished and self._is_stored(progress)

    def finish_kept(self) -> None:
        """Let the application finish what it keeps, without waiting for it. From any thread."""
        self._pool.flush()

    def flush(self) -> None:
        """Confirm at the next call whatever is finished, without regard to the policy. From any thread."""
        self._is_last.set()

    @property
    def is_flushed(self) -> bool:
        """Return whether everything that is finished, and may be confirmed, has been returned for confirmation."""
        return self._confirmed_units == self._pool.settled_units or not self._poison.may_confirm

    def store_finished(self, progress: Progress, until_s: float) -> None:
        """Wait until the position of all that is finished is stored, at most until a time of the monotonic clock.

        Another thread calls it when the pool has ended.
        """
        self.flush()
        until_s = min(until_s, self._clock.monotonic_s() + FLUSH_S)
        stepping = threading.Event()
        while self._clock.monotonic_s() < until_s and not (self.is_flushed and self._is_stored(progress)):
            stepping.wait(FLUSH_POLL_S)

    def _is_stored(self, progress: Progress) -> bool:
        last, stored = self.confirmed, progress.confirmed
        return last is None or (stored is not None and stored.position >= last.position)

    def _submit(self, group: ChangeGroup) -> bool:
        self._databases.update({oid: known.name for oid, known in group.databases.items()})
        delivered = self._first_part(group)
        if delivered is None:
            return False
        items = self._boundaries.around(delivered) if self._takes_events else delivered.items
        parts = [part for item in items for part in self._parts(item)]
        if not self._pool.submit(parts, group.byte_count):
            return False
        self._submitted_units += 1
        self._submitted_changes += sum(len(part) if isinstance(part, Batch | PendingBatch) else 1 for part, _ in parts)
        self._pending.append(_PendingGroup(group, delivered, self._submitted_changes))
        self._pending_bytes += group.byte_count
        self._pool.wait_below(self._bytes_max)
        return not self._search.is_over

    def _first_part(self, group: ChangeGroup) -> ChangeGroup | None:
        """Return what is delivered of a group: all of it, unless the engine stops in it."""
        before, self._last = self._last, group.last
        if before is None or group.last.position == before.position:
            return group  # of a first copy
        return self._search.first_part(group, before, self._databases)

    def _due(self) -> ChangeGroup | GroupPart | None:
        """Return the last group of the finished prefix, if it is to be confirmed now."""
        finished = self._pool.settled_units - self._confirmed_units
        if finished and finished == self._submitted_units - self._confirmed_units:
            self._poison.settle_silence()
        if not finished or not self._poison.may_confirm:  # NB: in this order, because a handler thread changes both
            return None
        changes_upto = self._pending[finished - 1].changes_upto
        changes = changes_upto - self._confirmed_changes
        now_s = self._clock.monotonic_s()
        is_due = (
            changes == 0  # the position moves, and nothing would be repeated
            or self._is_last.is_set()
            or self.is_paused
            or self.is_held
            or self.confirms_at_once
            or self._pending_bytes > self._bytes_max
            or self._commit.is_due(Finished(now_s - self._since_s, changes))
        )
        if not is_due:
            return None
        units = [self._pending.popleft() for _ in range(finished)]
        confirmed = [(each.group, each.part) for each in units if each.group is not None and each.part is not None]
        self._pending_bytes -= sum(group.byte_count for group, _ in confirmed)
        self._confirmed_units += finished
        self._confirmed_changes = changes_upto
        if not confirmed:
            return None
        self._since_s = now_s
        group, part = confirmed[-1]
        self.confirmed = part.last
        return group if part is group else GroupPart(group, part)

    def _parts(self, item: GroupItem | TransactionBoundary) -> Iterator[tuple[PoolPart, Hashable | None]]:
        """Yield an item's parts, each with its lane."""
        if not isinstance(item, ChangeBatch):
            if self._takes_events:
                yield (item if self.plans is None else event_without_constants(item)), None
            else:
                self._warn_once(item)
            return
        rows = item.rows
        match self._order:
            case Order.TOTAL:
                yield self._batch(item, rows), _ONLY_LANE
            case Order.NONE:
                yield self._batch(item, rows), next(self._numbers)
            case Order.BY_KEY:
                yield from self._parts_by_key(item, rows)

    def _parts_by_key(self, item: ChangeBatch, rows: pa.RecordBatch) -> Iterator[tuple[PoolPart, Hashable | None]]:
        lanes = lanes_of(rows, item.relation, self._lane_count)
        for start, end in sections_of(lanes):
            section, own = rows.slice(start, end - start), lanes[start:end]
            found: Sequence[int] = (np.flatnonzero(np.bincount(own - NO_LANE)) + NO_LANE).tolist()
            for lane in found:
                chosen = None if len(found) == 1 else np.flatnonzero(own == lane)
                yield self._batch(item, section, chosen), None if lane == NO_LANE else lane

    def _batch(self, item: ChangeBatch, rows: pa.RecordBatch, chosen: RowIndexes | None = None) -> Batch | PendingBatch:
        """Return the batch of some rows, or of those of them that are `chosen`."""
        assert self._epoch is not None, "it was never assigned"
        database = self._database(item.database)
        plan, relation = None, item.relation
        if self.plans is not None:
            plan, relation = self.plans.plan(database, relation), without_constants(relation)
        batch = Batch.of(database, relation, self._epoch, rows, item.database)
        if self._processing.is_plain and not self._poison.isolates and (plan is None or not plan.steps):
            return batch if chosen is None else batch.with_rows(rows_at(rows, chosen))
        return PendingBatch(batch, plan, self._processing, self._poison, chosen)

    def _database(self, oid: Oid) -> str:
        return self._databases.get(oid, str(oid))

    def _warn_once(self, item: EngineEvent) -> None:
        removes_nothing = isinstance(item, CopyBoundary) and not (item.begin and item.generation > 1)
        if removes_nothing or isinstance(item, SchemaEvent | TransactionBoundary):
            return
        if type(item) not in self._left_out:
            self._left_out.add(type(item))
            self._log.warning("an event is left out: the handler has no on_event", kind=type(item).__name__)
