"""A target without Spark: reads values from the outbox in batches, stores and confirms them, as Spark's driver does.

It sometimes forgets a batch that it has not confirmed and reads it again, as a restarted driver does.
"""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tests.support.faults.chaos.verdict import NOWHERE, AcceptedItem, check_accepted, check_replicas
from tests.support.oracles.log_oracle import LogTally, ServerLog
from tests.support.servers.postgres import Cluster
from tidemark.io.host.disk import StateFull
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch
from tidemark.model.position import Position, Sequence
from tidemark.runtime.recovery.rebuild import LakeInventory
from tidemark.wire.outbox import OutboxValue
from tidemark.wire.state.values import Identity
from tidemark.wire.values import ValueKind

READER = "chaos"
BATCH_BYTES = 256 << 10
POLL_S = 0.02
END_S = 120.0
FORGETS = 0.03  # of all batches


class OutboxConsumer:
    """Reads from `start` to `close`."""

    def __init__(self, folder: StateFolder, seed: int) -> None:
        self.accepted: list[AcceptedItem] = []
        self.confirmed = Sequence(0)
        self._folder = folder
        self._dice = random.Random(f"{seed} consumer")
        self._paused = threading.Event()
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._after = NOWHERE  # up to here values came from an outbox that is lost
        self._thread = threading.Thread()

    def start(self) -> None:
        """Register, and begin to read."""
        with OutboxReader.open(self._folder) as outbox:
            self.confirmed = outbox.register(READER).applied
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Stop reading for a while."""
        self._paused.set()

    def resume(self) -> None:
        """Read again."""
        self._paused.clear()

    def check(self) -> None:
        """Raise the error that ended the reader."""
        if self._error is not None:
            raise AssertionError("the target found the outbox broken") from self._error

    def contains_all(self) -> bool:
        """Return whether all delivered changes are here."""
        with OutboxReader.open(self._folder) as outbox:
            return self.confirmed == outbox.head()

    def contains_any(self) -> bool:
        """Return whether any change is here."""
        return bool(self.accepted)

    def leave(self) -> None:
        """End; remember the last sequence."""
        self.close()
        self._after = self.accepted[-1].group_end if self.accepted else NOWHERE

    def inventory(self, _identity: Identity) -> LakeInventory | None:
        """Return the last sequence; no table is copied into this target."""
        return LakeInventory(self.confirmed)

    def rejoin(self) -> None:
        """Begin to read from the new outbox; drop duplicates."""
        self._stopping.clear()
        self.start()

    def verdict(self, server: ServerLog, node: Cluster) -> LogTally:
        """Check that it received the source's changes, each once."""
        tally = check_accepted(server, self.accepted)
        check_replicas(node, self.accepted)
        return tally

    def close(self) -> None:
        """End."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(END_S)

    def _run(self) -> None:
        try:
            with OutboxReader.open(self._folder) as outbox:
                while not self._stopping.is_set():
                    if self._paused.is_set() or not self._read_batch(outbox):
                        time.sleep(POLL_S)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self._error = error

    def _read_batch(self, outbox: OutboxReader) -> bool:
        after = self.confirmed
        upto = outbox.plan(after, BATCH_BYTES)
        if upto == after:
            return False
        values = list(outbox.read(after, upto))
        if self._dice.random() < FORGETS:
            return True
        try:
            outbox.confirm(READER, upto, after)  # one batch behind: Spark may request it again
        except StateFull:
            return False
        self.accepted += _items(values, self._after)
        self.confirmed = upto
        return True


def _items(values: list[OutboxValue], after: Position) -> Iterator[AcceptedItem]:
    for value in values:
        if value.header.kind is not ValueKind.TRANSACTIONS and value.header.last > after:
            item = value.item()
            if isinstance(item, ChangeBatch):
                item = replace(item, given=_rows_behind(item.rows, after))
            yield AcceptedItem(item, value.header.pointer.position, after)


def _rows_behind(rows: pa.RecordBatch, after: Position) -> pa.RecordBatch:
    commit_lsn, ordinal = rows.column("_commit_lsn"), rows.column("_ordinal")
    in_last = pc.and_(pc.equal(commit_lsn, after.commit_lsn), pc.greater(ordinal, after.ordinal))
    return rows.filter(pc.or_(pc.greater(commit_lsn, after.commit_lsn), in_last))
