"""Commit rounds of a consumer with the hook `update_offsets`: one call of the hook for each transaction (U04, U13).

A round begins when the transaction of the last one is durable; confirmations that arrive meanwhile are in the next one.
So the hook sees exactly what would be stored, and only the newest position (U05). It runs in the application thread,
like all calls into the consumer.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from tidemark.engine.offset_update import OffsetLimits, OffsetsHook, PartitionOffsets, updated_offsets
from tidemark.io.host.logs import Log
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Oid
from tidemark.model.position import Partition, Pointer, Position
from tidemark.runtime.delivery.confirming import Confirming
from tidemark.runtime.delivery.liveness import Liveness
from tidemark.wire.state.copy_progress import CopyProgress


class ConfirmedGroup(NamedTuple):
    """A group as a transaction stores it: with the items that the state records, and without all others."""

    group: ChangeGroup
    copying: tuple[Oid, Oid, CopyProgress] | None  # the progress of a first copy, with its database and relation
    has_records: bool  # the state records more of it than its position
    added: PartitionOffsets | None = None  # of partitions that the hook added


class OffsetRounds:
    """Stands in front of `Confirming`, with the same calls."""

    def __init__(
        self,
        confirming: Confirming[ConfirmedGroup],
        hook: OffsetsHook,
        liveness: Liveness,
        *,
        own: Partition,
        unacknowledged: Callable[[], Position | None],
        log: Log,
    ) -> None:
        """`own`: the partition of the capture. `unacknowledged`: the first change that is not acknowledged."""
        self._confirming = confirming
        self._hook = hook
        self._liveness = liveness
        self._own = own
        self._unacknowledged = unacknowledged
        self._log = log
        self._added: PartitionOffsets = {}
        self._waiting: list[ConfirmedGroup] = []
        self._waiting_bytes = 0
        self._warned: set[Partition] = set()

    def begin(self, added: PartitionOffsets) -> None:
        """Start with the stored positions of added partitions."""
        self._added = added

    def confirm(self, confirmed: Sequence[ConfirmedGroup], byte_count: int) -> None:
        """Add to the next round, and begin it if the last one is durable."""
        self._waiting += confirmed
        self._waiting_bytes += byte_count
        self.advance()

    def advance(self) -> None:
        """Begin the next round if the last one is durable."""
        if self._waiting and self._confirming.is_durable:
            self._begin_round()

    @property
    def is_durable(self) -> bool:
        """Return whether no round waits, and the last one is durable."""
        return not self._waiting and self._confirming.is_durable

    @property
    def byte_count(self) -> int:
        """Bytes that are confirmed and not yet durable."""
        return self._waiting_bytes + self._confirming.byte_count

    def check(self) -> None:
        """Raise the error that keeps confirmations from being stored."""
        self._confirming.check()

    def wait(self, bytes_max: int = -1) -> None:
        """Wait until at most `bytes_max` are not durable, by default until all are durable."""
        if self._waiting:
            self._confirming.wait()
            self._begin_round()
        self._confirming.wait(bytes_max)

    def close(self) -> None:
        """Store all confirmations, and end."""
        try:
            self.wait()
        finally:
            self._confirming.close()

    def abandon(self, error: BaseException, wait_s: float) -> None:
        """Store nothing more: a hook that is running, or called later, has no effect."""
        self._confirming.abandon(error, wait_s)

    def _begin_round(self) -> None:
        self._confirming.check()
        confirmed, self._waiting = self._waiting, []
        byte_count, self._waiting_bytes = self._waiting_bytes, 0
        last = confirmed[-1]
        pointer = last.group.last
        limits = OffsetLimits(self._own, pointer.position, self._added, self._unacknowledged())
        try:
            with self._liveness.calling("update_offsets"):
                answer = self._hook(limits.positions)
            update = updated_offsets(limits, answer)
        except BaseException as error:
            self._confirming.abandon(error, 0.0)  # a later round would skip what this one has to store
            raise
        self._warn_once(update.dropped)
        if update.position != pointer.position:
            # NB: the restart LSN of the acknowledged position: decoding from there misses nothing behind a later one.
            last = last._replace(group=replace(last.group, last=Pointer(update.position, pointer.restart_lsn)))
        if update.added != self._added:
            self._added = update.added
            last = last._replace(added=update.added)
        self._confirming.confirm([*confirmed[:-1], last], byte_count)

    def _warn_once(self, dropped: frozenset[Partition]) -> None:
        for partition in sorted(dropped - self._warned):
            self._log.warning(
                "update_offsets omitted a partition; its position stays stored",
                system_identifier=partition.system_identifier,
                database=partition.database,
            )
        self._warned |= dropped
