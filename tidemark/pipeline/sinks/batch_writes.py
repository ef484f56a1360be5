"""Writes the logs and replicas of a batch by a small pool of threads, which take turns (`storage.turns`)."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from tidemark.model.change import ChangeBatch
from tidemark.model.lsn import Oid
from tidemark.pipeline.delta_log.applied import Applied
from tidemark.pipeline.lake.positions.table_position import TableId
from tidemark.pipeline.sinks.lake_batch import SplitBatch
from tidemark.pipeline.sinks.table_writes import TableWrites, WriteTarget
from tidemark.pipeline.sinks.targets.targets import Outcome, paused_outcome
from tidemark.pipeline.storage.turns import Turns

TARGETS_AT_ONCE = 4
SMALL_TARGETS_AT_ONCE = 8  # of which one computes: a small write waits for the disk as long as it computes, or longer
SMALL_ROWS = 10_000  # of a table in a batch: more take long in PyArrow, which needs no interpreter


@dataclass(frozen=True, slots=True)
class BatchOutcomes:
    """What the writes of a batch have reached."""

    tables: Mapping[TableId, tuple[Outcome, Outcome]]  # of log and replica
    messages: Mapping[Oid, Outcome]

    def __iter__(self) -> Iterator[Outcome]:
        """Return the outcomes of all targets."""
        for log, replica in self.tables.values():
            yield from (log, replica)
        yield from self.messages.values()

    def with_paused(self, lagging: Mapping[str, str], upto: Applied) -> "BatchOutcomes":
        """Return the outcomes with the `lagging` targets paused after `upto`; by URI, each with the reason."""

        def paused(outcome: Outcome) -> Outcome:
            reason = lagging.get(outcome.table.uri) if outcome.table is not None else None
            return outcome if reason is None else paused_outcome(outcome, reason, upto)

        return BatchOutcomes(
            {of: (paused(log), paused(replica)) for of, (log, replica) in self.tables.items()},
            {of: paused(log) for of, log in self.messages.items()},
        )


def write_batch(writes: TableWrites, split: SplitBatch, write: WriteTarget, since: Applied) -> BatchOutcomes:
    """Write every table of a batch that begins after `since`."""
    threads, turns = _turns_for(split)

    def in_turn(write_target: Callable[[], Outcome]) -> Outcome:
        with turns.held():
            return write_target()

    with ThreadPoolExecutor(threads, "tidemark-target") as pool:

        def submit(write_target: Callable[[], Outcome]) -> Future[Outcome]:
            return pool.submit(in_turn, write_target)

        tables = {
            of: (
                submit(partial(writes.log, of, items, write)),
                submit(partial(writes.replica, of, items, write, since)),
            )
            for of, items in split.tables.items()
        }
        messages = {of: submit(partial(writes.messages, of, items, write)) for of, items in split.messages.items()}
        return BatchOutcomes(
            {of: (log.result(), replica.result()) for of, (log, replica) in tables.items()},
            {of: log.result() for of, log in messages.items()},
        )


def _turns_for(split: SplitBatch) -> tuple[int, Turns]:
    """Return by how many threads a batch is written, and their turns."""
    rows = (
        sum(one.item.row_count for one in items if isinstance(one.item, ChangeBatch)) for items in split.tables.values()
    )
    is_small = max(rows, default=0) <= SMALL_ROWS
    return (SMALL_TARGETS_AT_ONCE, Turns(1)) if is_small else (TARGETS_AT_ONCE, Turns(TARGETS_AT_ONCE))
