"""A fixed batch as Debezium records with schemas, and the file with what Java's classes make of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from tests.support.samples.changed_rows import SampleRow, batch_of, customers, with_full_identity
from tidemark import (
    DebeziumJson,
    EngineEvent,
    LogicalMessage,
    Position,
    TableCount,
    TransactionBoundary,
    TransactionEnd,
    Truncation,
)
from tidemark.model.lsn import FullXid, Lsn, Oid, TimelineId, Xid

RECORDED = Path(__file__).parents[2] / "corpus" / "envelopes.jsonl"
NOW_NS = 1_700_000_000_123_456_789
TABLE = with_full_identity(customers())
ANN = {
    "id": 1,
    "name": "Ann",
    "email": 'a"n@x.org\n',
    "total": None,
    "born": 7000,
    "tags": ["one", None],
    "score": 0.5,
    "since": 1_600_000_000_000_001,
    "vip": True,
}
ROWS: list[SampleRow] = [
    ("i", None, ANN),
    ("u", ANN, {**ANN, "name": "Bea", "tags": None}),
    ("u", ANN, {**ANN, "id": 2}),
    ("d", {**ANN, "id": 2}, None),
    ("c", None, {"id": 3}),
]

END = TransactionEnd(
    xid=Xid(700),
    full_xid=FullXid(700),
    timeline=TimelineId(1),
    first_lsn=Lsn(90),
    commit_lsn=Lsn(100),
    end_lsn=Lsn(108),
    commit_time_us=1_700_000_000_000_001,
    database=Oid(5),
    item_count=3,
    tables=(TableCount(Oid(16385), "public", "customers", 2), TableCount(Oid(16386), "public", "o'rders\n", 1)),
)
AT = Position(TimelineId(1), Lsn(100), 0)
EVENTS: list[EngineEvent] = [
    TransactionBoundary(AT, True, (END,)),
    TransactionBoundary(AT, False, (END, replace(END, xid=Xid(701), tables=()))),
    LogicalMessage(AT, Lsn(96), Oid(5), Xid(700), True, 'a "prefix"', b"\x00\xff"),
    LogicalMessage(AT, Lsn(96), Oid(5), Xid(0), False, "", b""),
    Truncation(AT, Lsn(96), Oid(5), Xid(700), TABLE, False, False, commit_time_us=1_700_000_000_000_001),
]


class EnvelopeRecord(TypedDict):
    """A key and a value."""

    key: str | None
    value: str | None


def fixed_records() -> list[EnvelopeRecord]:
    """Return the records of the batch, of events, and a heartbeat."""
    serializer = DebeziumJson(schemas=True)
    found = [*serializer.records(batch_of(*ROWS, of=TABLE), NOW_NS)]
    for event in EVENTS:
        found += serializer.event_records(event, "shop", NOW_NS)
    found.append(serializer.heartbeat(NOW_NS))
    return [EnvelopeRecord(key=text_of(one.key), value=text_of(one.value)) for one in found]


def unwrapped(record: EnvelopeRecord) -> dict[str, object] | None:
    """Return the row of a record, with the fields that `ExtractNewRecordState` adds."""
    if record["value"] is None:
        return None
    payload = json.loads(record["value"])["payload"]
    if payload.get("op") == "t":  # it drops a TRUNCATE
        return None
    if "before" not in payload:  # it passes on what is no change of a row
        return dict(payload)
    is_deleted = payload["op"] == "d"
    row = payload["before"] if is_deleted else payload["after"]
    return {**row, "__deleted": "true" if is_deleted else "false", "__op": payload["op"]}


def text_of(content: bytes | None) -> str | None:
    """Return the text of a key or a value."""
    return None if content is None else content.decode()
