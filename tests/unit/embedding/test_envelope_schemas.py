"""The schema part of Debezium's records: what Java's classes made of a fixed batch, and the schema of each type."""

import json
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.support.forged.groups import schema_event
from tests.support.forged.tuple_forms import MOOD
from tests.support.samples.changed_rows import batch_of
from tests.support.samples.envelopes import EVENTS, NOW_NS, RECORDED, ROWS, TABLE, fixed_records, unwrapped
from tidemark import DebeziumJson
from tidemark.decode.render.debezium_schemas import column_schema
from tidemark.model.change import CopyBoundary, Truncation
from tidemark.model.lsn import Oid
from tidemark.model.relation import Align, Column, TypeDescription, TypeKind

JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "struct": (dict,),
    "array": (list,),
    "string": (str,),
    "bytes": (str,),
    "boolean": (bool,),
    "float": (float, int, str),
    "double": (float, int, str),
    **dict.fromkeys(("int16", "int32", "int64"), (int,)),
}


def described(oid: int, name: str, **others: object) -> TypeDescription:
    made = TypeDescription(Oid(oid), "pg_catalog", name, name, TypeKind.BASE, -1, False, Align.INT)
    return replace(made, **others)  # type: ignore[arg-type]


def check(schema: Mapping[str, object], payload: object, path: str = "") -> None:
    """Check that a payload has the form of its schema, as a strict reader does."""
    if payload is None:
        assert schema["optional"], path
        return
    kind = str(schema["type"])
    assert isinstance(payload, JSON_TYPES[kind]), (path, schema, payload)
    if isinstance(payload, list):
        for item in payload:
            check(schema["items"], item, path)  # type: ignore[arg-type]
    elif isinstance(payload, dict):
        fields = {field["field"]: field for field in schema["fields"]}  # type: ignore[attr-defined]
        assert payload.keys() == fields.keys(), path
        for name, value in payload.items():
            check(fields[name], value, f"{path}.{name}")


@pytest.mark.feature("P14")
def test_javas_classes_read_the_rows_of_the_records_with_schemas() -> None:
    """`scripts/envelopes --record` lets Kafka Connect and Debezium read these bytes again."""
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    written = fixed_records()
    assert [{"key": one["key"], "value": one["value"]} for one in recorded] == written
    for one, record in zip(recorded, written, strict=True):
        assert one["read"]["row"] == unwrapped(record)
        assert one["read"]["key"] == (None if record["key"] is None else json.loads(record["key"])["payload"])


@pytest.mark.feature("P14")
def test_a_record_with_schemas_has_the_payload_of_one_without_and_conforms_to_its_schema() -> None:
    batch = batch_of(*ROWS, of=TABLE)
    plain = DebeziumJson().records(batch, NOW_NS)
    for record, payload in zip(DebeziumJson(schemas=True).records(batch, NOW_NS), plain, strict=True):
        assert record.row == payload.row
        for text, alone in ((record.key, payload.key), (record.value, payload.value)):
            if text is None or alone is None:
                assert text is alone
                continue
            whole = json.loads(text)
            assert whole["payload"] == json.loads(alone)
            check(whole["schema"], whole["payload"])


@pytest.mark.feature("P14")
def test_records_of_events_have_the_payload_of_those_without_schemas_and_conform_to_their_schemas() -> None:
    plain, whole = DebeziumJson(name="shop"), DebeziumJson(name="shop", schemas=True)
    pairs = [(plain.heartbeat(NOW_NS), whole.heartbeat(NOW_NS))]
    for event in EVENTS:
        made = plain.event_records(event, "app", NOW_NS), whole.event_records(event, "app", NOW_NS)
        pairs += zip(*made, strict=True)
    assert len(pairs) == 7
    for alone, described in pairs:
        for payload, text in ((alone.key, described.key), (alone.value, described.value)):
            if payload is None or text is None:
                assert payload is text
                continue
            read = json.loads(text)
            assert read["payload"] == json.loads(payload)
            check(read["schema"], read["payload"])
    assert pairs[0][0].key == b'{"serverName":"shop"}'


@pytest.mark.feature("P14")
def test_the_begin_of_a_copy_has_the_record_of_a_truncate_which_states_that_it_is_a_snapshot() -> None:
    (truncation,) = [event for event in EVENTS if isinstance(event, Truncation)]
    at, time_us = truncation.position, 1_800_000_000_000_001
    begin = CopyBoundary(at, truncation.database, TABLE, 2, True, "", seen_time_us=time_us)
    plain, whole = DebeziumJson(name="shop"), DebeziumJson(name="shop", schemas=True)
    (record,), (described,) = (each.event_records(begin, "app", NOW_NS) for each in (plain, whole))
    (other,) = plain.event_records(truncation, "app", NOW_NS)
    assert record.key is other.key is None
    event, wanted = (json.loads(one.value or b"") for one in (record, other))
    differing = {"snapshot": "true", "txId": 0, "lsn": int(at.commit_lsn)}
    differing |= {"ts_ms": time_us // 1_000, "ts_us": time_us, "ts_ns": time_us * 1_000}
    differing["sequence"] = f'["{at.commit_lsn}","{at.commit_lsn}"]'
    assert event == {**wanted, "source": {**wanted["source"], **differing}}
    read = json.loads(described.value or b"")
    assert read["payload"] == event
    check(read["schema"], event)


@pytest.mark.feature("P14")
def test_other_events_have_no_record() -> None:
    (truncation,) = [event for event in EVENTS if isinstance(event, Truncation)]
    end = CopyBoundary(truncation.position, truncation.database, TABLE, 2, False, "")
    for event in (schema_event(104, TABLE), end):
        assert DebeziumJson().event_records(event, "app", NOW_NS) == []


@pytest.mark.feature("P14")
@pytest.mark.parametrize(
    ("type_", "typmod", "arrow", "kind", "name"),
    [
        (described(1083, "time"), -1, pa.int64(), "int64", "io.debezium.time.MicroTime"),
        (described(1083, "time"), 3, pa.int64(), "int32", "io.debezium.time.Time"),
        (described(1114, "timestamp"), -1, pa.timestamp("us"), "int64", "io.debezium.time.MicroTimestamp"),
        (described(1114, "timestamp"), 0, pa.timestamp("us"), "int64", "io.debezium.time.Timestamp"),
        (described(1114, "timestamp"), 0, pa.string(), "string", None),  # by `[types]`
        (described(1184, "timestamptz"), -1, pa.timestamp("us", tz="UTC"), "string", "io.debezium.time.ZonedTimestamp"),
        (described(1186, "interval"), -1, pa.string(), "int64", "io.debezium.time.MicroDuration"),
        (described(1560, "bit"), 1, pa.string(), "boolean", None),
        (described(1560, "bit"), 9, pa.string(), "bytes", "io.debezium.data.Bits"),
        (described(3802, "jsonb"), -1, pa.string(), "string", "io.debezium.data.Json"),
        (described(70_000, "hstore"), -1, pa.string(), "string", "io.debezium.data.Json"),
        (described(70_001, "geometry"), -1, pa.binary(), "struct", "io.debezium.data.geometry.Geometry"),
        (MOOD, -1, pa.string(), "string", "io.debezium.data.Enum"),
        (None, -1, pa.float32(), "float", None),  # made by a transform
    ],
)
def test_a_type_has_the_schema_of_the_connector(
    type_: TypeDescription | None, typmod: int, arrow: pa.DataType, kind: str, name: str | None
) -> None:
    column = Column(1, "v", type_, typmod, -1, False, Align.INT)
    schema = column_schema(column, arrow)
    assert (schema["type"], schema.get("name")) == (kind, name)
