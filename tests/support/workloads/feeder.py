"""A process that delivers to a real outbox as the sidecar does: the same changes for the same seed, every time.

python -m tests.support.workloads.feeder STATE SEED GROUPS [SECONDS BETWEEN GROUPS]
"""

import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.lakes.lakes import IDENTITY, position_after
from tests.support.lakes.scripted_table import DATABASE, RELATION, TEST_TIMELINE, ScriptedTable, act
from tidemark.io.host.disk import StateFull
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch, ChangeGroup, LogicalMessage, TransactionEnd
from tidemark.model.lsn import FullXid, Lsn, Oid, Xid
from tidemark.model.position import NO_SEQUENCE, Pointer
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.pipeline.lake.layout import position_of
from tidemark.pipeline.sinks.steps import TableItem
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.process_log import Owner

OUTBOX_BYTES = 16 << 20
SPACE_WAIT_S = 120.0
SPACE_POLL_S = 0.02
TABLES = 3
ROW_ACTIONS = ("insert", "insert", "insert", "update", "update", "keep", "delete", "move", "move and keep")
RARE_ACTIONS = ("truncate", "add", "add constant", "drop", "rename", "retype", "widen")
RARE = 0.004  # of all actions
KEYS = 300
ACTIONS_PER_TRANSACTION = 30


class RandomTables:
    """Some tables and random changes of them; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lsn = 10_000
        self._step = 0
        self._reported: dict[Oid, int] = {}
        self.tables = [ScriptedTable(oid=Oid(RELATION + n), name=f"table {n}", lsn=self._lsn) for n in range(TABLES)]

    def groups(self, count: int) -> Iterator[ChangeGroup]:
        """Continue the changes and yield `count` groups, some of which end inside a transaction."""
        waiting: list[TableItem] = []
        for _ in range(count):
            while not waiting or self._chance.random() < 0.5:
                waiting += self._transaction()
            cut = self._chance.randint(1, len(waiting))
            yield group_of(waiting[:cut])
            waiting = waiting[cut:]
        if waiting:
            yield group_of(waiting)

    def _transaction(self) -> list[TableItem]:
        chance, table = self._chance, self._chance.choice(self.tables)
        self._lsn += 100
        table.commit(self._lsn)
        for _ in range(chance.randint(1, ACTIONS_PER_TRANSACTION)):
            self._step += 1
            action = chance.choice(RARE_ACTIONS if chance.random() < RARE else ROW_ACTIONS)
            act(table, action, chance.randrange(KEYS), self._step)
        table.cut()
        reported = self._reported.get(table.oid, 0)
        self._reported[table.oid] = len(table.items)
        return table.items[reported:]


def group_of(items: Sequence[TableItem | LogicalMessage]) -> ChangeGroup:
    """Return a group in which one transaction ends."""
    first, last = items[0], position_after(items[-1])
    end = TransactionEnd(
        Xid(7), FullXid(7), TEST_TIMELINE, Lsn(1), last.commit_lsn, last.commit_lsn, time.time_ns() // 1000, DATABASE, 1
    )
    rows = sum(item.rows.num_rows for item in items if isinstance(item, ChangeBatch))
    start = position_of(first.rows, 0) if isinstance(first, ChangeBatch) else first.position
    return ChangeGroup(start, Pointer(last, Lsn(1)), items, (end,), rows, rows)


def make_state(
    root: Path, outbox: str = "0a0b", after: OutboxSequence = NO_SEQUENCE, bytes_max: int = OUTBOX_BYTES
) -> None:
    """Create a state folder with an empty outbox."""
    identity = replace(IDENTITY, outbox_id=outbox, outbox_bytes_max=bytes_max)
    StateStore.create(StateFolder(root), identity, numbers_after=after).close()


def feed(root: Path, groups: Iterable[ChangeGroup], pause_s: float = 0.0) -> None:
    """Deliver `groups`, waiting while the outbox is full."""
    with StateStore.open(StateFolder(root)) as store:
        epoch = store.begin_epoch(Owner("sidecar", "host", "boot", 1, 1))
        for group in groups:
            encoded = encode_group(group)
            deadline = time.monotonic() + SPACE_WAIT_S
            while True:
                try:
                    with store.transaction(epoch) as transaction:
                        transaction.apply_confirmations(wanted_bytes=encoded.byte_count)
                        transaction.deliver(encoded)
                    break
                except StateFull:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(SPACE_POLL_S)
            time.sleep(pause_s)


if __name__ == "__main__":
    feed(Path(sys.argv[1]), RandomTables(int(sys.argv[2])).groups(int(sys.argv[3])), float((sys.argv[4:] or ["0"])[0]))
