"""Heartbeats have positions behind everything that was delivered, and before everything that follows."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.forged_records import Wal
from tests.support.forged.groups import DATABASE, position, relation
from tidemark import DebeziumJson
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.decode.types.codec import Dialect
from tidemark.engine.progress import Progress
from tidemark.engine.ring import Ring
from tidemark.model.change import ChangeGroup, LogicalMessage
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.message_prefix import HEARTBEAT_PREFIX
from tidemark.model.position import Pointer, Position
from tidemark.runtime.capture.decode_thread import DecodeThread
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.heartbeats import with_heartbeats
from tidemark.runtime.capture.stream_lease import StreamLease
from tidemark.runtime.capture.wal_reader import WalReader

pytestmark = pytest.mark.feature("U18")
DATABASES = [Oid(5), Oid(16384)]
RECORD_BYTES = 8  # records begin at multiples of it
NUMBERS = st.integers(min_value=1, max_value=1 << 20)


def idle(lsn: int) -> ChangeGroup:
    here = position(lsn)
    return ChangeGroup(here, Pointer(here, Lsn(lsn - 4)), (), (), 0, 0)


@given(NUMBERS, NUMBERS, st.integers(min_value=0, max_value=1 << 40))
def test_positions_grow_between_what_was_delivered_and_the_next_record(
    decoded: int, delivered: int, ordinal: int
) -> None:
    after = position(min(decoded, delivered) * RECORD_BYTES, ordinal)
    group = with_heartbeats(idle(decoded * RECORD_BYTES), after, DATABASES, 7)
    assert group is not None
    positions = [item.position for item in group.items if isinstance(item, LogicalMessage)]
    assert [after, *positions] == sorted({after, *positions})
    assert positions[-1] == group.last.position < position((decoded + 1) * RECORD_BYTES)
    assert group.last.restart_lsn == decoded * RECORD_BYTES - 4
    assert group.first == positions[0]
    following = with_heartbeats(idle(decoded * RECORD_BYTES), group.last.position, DATABASES, 8)
    assert following is not None
    assert following.first > group.last.position


def test_there_are_none_while_a_transaction_may_have_further_changes_and_without_databases() -> None:
    assert with_heartbeats(idle(800), position(808, 3), DATABASES, 7) is None
    assert with_heartbeats(idle(800), position(800, 3), DATABASES, 7) is not None
    assert with_heartbeats(idle(800), position(800, 3), [], 7) is None
    other = replace(position(100), timeline=TimelineId(2))
    assert with_heartbeats(idle(800), other, DATABASES, 7) is None


def test_each_is_a_message_of_its_database_with_the_time_and_a_heartbeat_for_debezium() -> None:
    group = with_heartbeats(idle(800), position(100), DATABASES, 1_700_000_000_000_001)
    assert group is not None
    messages = [item for item in group.items if isinstance(item, LogicalMessage)]
    assert [(each.database, each.prefix, each.transactional) for each in messages] == [
        (database, HEARTBEAT_PREFIX, False) for database in DATABASES
    ]
    assert json.loads(messages[0].content) == {"time_us": 1_700_000_000_000_001}
    assert DebeziumJson().event_records(messages[0], "app", 9_000_000) == [DebeziumJson().heartbeat(9_000_000)]


class BuiltReader(WalReader):
    """A reader of forged WAL of which nothing is selected."""

    def __init__(self, wal: Wal) -> None:
        self.cpu_s = 0.0
        self.builder = GroupBuilder({DATABASE: Dialect()}, selects_message=lambda _: False)
        self._wal = wal
        self._added = 0

    def add(self) -> None:
        """Add the transactions since the last call."""
        for transaction in self._wal.out[self._added :]:
            assert isinstance(transaction, CommittedTransaction)
            assert list(self.builder.add_transaction(transaction)) == []
        self._added = len(self._wal.out)

    @property
    def is_collecting(self) -> bool:
        return self.builder.byte_count > 0

    @property
    def last_record_lsn(self) -> Lsn:
        return self._wal.decoder.last_lsn

    def flush(self, *, also_empty: bool) -> ChangeGroup | None:
        return self.builder.flush() if self.builder.byte_count or also_empty else None

    def idle_group(self) -> ChangeGroup:
        return idle(self.last_record_lsn)

    def heartbeat_group(self, after: Position) -> ChangeGroup | None:
        return with_heartbeats(self.idle_group(), after, [DATABASE], 7)

    def repeat_databases(self, group: ChangeGroup) -> None:
        del group


def test_ends_of_transactions_without_changes_come_before_a_heartbeat_and_are_not_kept() -> None:
    wal = Wal(relation())
    reader, lease, progress = BuiltReader(wal), StreamLease(), Progress()
    thread = DecodeThread(
        Ring(1 << 20, Lsn(8192)),
        lease,
        reader,
        GroupQueue(1 << 16, lease.woken),
        delivered=position(8),
        progress=progress,
        idle_pointer_s=1000.0,
        heartbeat_s=1e-9,
    )
    reached = position(8)
    beats = 0
    for xid in range(701, 721):
        wal.message(b"other", b"x", xid=xid)
        wal.commit(xid)
        reader.add()
        progress.hear(reader.last_record_lsn)
        for _ in range(2):
            group = thread._record_group(thread._idle_group() or reader.idle_group())  # noqa: SLF001 - without its thread
            assert group.last.position > reached
            reached = group.last.position
            beats += len(group.items)
        assert reader.builder.flush() is None
    assert beats == 20
