"""Heartbeats have positions behind everything that was delivered, and before everything that follows."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.groups import position
from tidemark import DebeziumJson
from tidemark.model.change import ChangeGroup, LogicalMessage
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.message_prefix import HEARTBEAT_PREFIX
from tidemark.model.position import Pointer
from tidemark.runtime.capture.heartbeats import with_heartbeats

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
