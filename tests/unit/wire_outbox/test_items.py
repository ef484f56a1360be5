"""Items of a group are decoded from their bytes unchanged."""

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.forged import groups
from tidemark.model.change import (
    ChangeBatch,
    CopyBoundary,
    GroupItem,
    PartitionChange,
    PartitionEvent,
    RewriteBoundary,
    TableCount,
    Truncation,
)
from tidemark.model.lsn import Lsn, Oid, Xid
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.items import decode_item, decode_transactions, encode_item, encode_transactions
from tidemark.wire.outbox import encode_group
from tidemark.wire.relations import decode_relation, encode_relation
from tidemark.wire.values import ValueKind

RELATION = groups.relation(missing=b"\xff\x00\x80")
EVENTS: list[GroupItem] = [
    groups.schema_event(100, RELATION),
    RewriteBoundary(groups.position(7, 2), Lsn(5), Oid(5), Xid(9), RELATION, begin=True),
    Truncation(groups.position(7, 3), Lsn(5), Oid(5), Xid(9), RELATION, cascade=True, restart_identity=False),
    RewriteBoundary(groups.position(7, 2), Lsn(5), Oid(5), Xid(9), RELATION, begin=True, partition=Oid(77)),
    PartitionEvent(groups.position(7, 3), Lsn(5), Oid(5), Xid(9), PartitionChange.ATTACH, RELATION, RELATION),
    CopyBoundary(groups.position(7, 4), Oid(5), RELATION, 2, begin=False, snapshot="10:20:11,12"),
    groups.message(9, b"\x00\xff\x01"),
    replace(groups.message(9, b"x"), origin=65535),
    groups.message(9, b"", prefix="caf\udce9"),  # bytes that are not UTF-8
]


@pytest.mark.parametrize("item", EVENTS, ids=lambda item: type(item).__name__)
def test_an_event_is_read_as_it_was_written(item: GroupItem) -> None:
    kind, payload = encode_item(item)
    assert decode_item(kind, bytes(payload)) == item


def test_a_batch_is_read_as_it_was_written_with_relation_and_database() -> None:
    batch = groups.batch(100, [1, 2, 3], of=RELATION)
    kind, payload = encode_item(batch)
    back = decode_item(kind, bytes(payload))
    assert isinstance(back, ChangeBatch)
    assert kind is ValueKind.BATCH
    assert (back.database, back.relation, back.rows) == (batch.database, RELATION, batch.rows)


def test_names_that_are_not_valid_in_their_encoding_are_reported_with_replacements() -> None:
    odd = replace(RELATION, name="caf\udce9", namespace="s\udcff")
    payload = encode_relation(odd)
    assert decode_relation(payload) == replace(RELATION, name="caf\ufffd", namespace="s\ufffd")
    assert payload == encode_relation(decode_relation(payload))


def test_transactions_are_read_as_they_were_written() -> None:
    ends = (groups.end(100), replace(groups.end(200), tables=(TableCount(Oid(7), "public", "account", 3),)))
    assert decode_transactions(encode_transactions(ends)) == ends


def test_a_relation_version_has_the_same_bytes_in_every_process() -> None:
    program = (
        "from tests.support.forged.groups import relation\n"
        "from tidemark.wire.items import encode_relation\n"
        "import sys; sys.stdout.buffer.write(encode_relation(relation()))"
    )
    other = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60).stdout
    assert other == encode_relation(groups.relation())
    assert decode_relation(other) == groups.relation()
    assert hash(decode_relation(other)) == hash(groups.relation())


@pytest.mark.parametrize("kind", list(ValueKind))
@pytest.mark.parametrize("payload", [b"", b"{", b"[{}]", b"\x00" * 20, b"\xff" * 50])
def test_garbage_is_a_damaged_value(kind: ValueKind, payload: bytes) -> None:
    with pytest.raises(DamagedValue):
        decode_item(kind, payload)


def test_a_group_without_items_has_no_values() -> None:
    assert encode_group(groups.group(100, [])).values == ()
