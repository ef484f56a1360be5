"""A fixed batch as Debezium records with schemas, and the file with what Java's classes make of them."""

import json
from pathlib import Path
from typing import TypedDict

from tests.support.samples.changed_rows import SampleRow, batch_of, customers, with_full_identity
from tidemark import DebeziumJson

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


class EnvelopeRecord(TypedDict):
    """A key and a value."""

    key: str | None
    value: str | None


def fixed_records() -> list[EnvelopeRecord]:
    """Return the records of the batch."""
    found = DebeziumJson(schemas=True).records(batch_of(*ROWS, of=TABLE), NOW_NS)
    return [EnvelopeRecord(key=text_of(one.key), value=text_of(one.value)) for one in found]


def unwrapped(record: EnvelopeRecord) -> dict[str, object] | None:
    """Return the row of a record, with the fields that `ExtractNewRecordState` adds."""
    if record["value"] is None:
        return None
    payload = json.loads(record["value"])["payload"]
    is_deleted = payload["op"] == "d"
    row = payload["before"] if is_deleted else payload["after"]
    return {**row, "__deleted": "true" if is_deleted else "false", "__op": payload["op"]}


def text_of(content: bytes | None) -> str | None:
    """Return the text of a key or a value."""
    return None if content is None else content.decode()
