"""Lines in Debezium's form, of hand-made changes: order, ops, keys that change, values that are not in WAL."""

import json

from tests.support.forged.forged_records import Wal, external, packed_row
from tests.support.forged.groups import DATABASE, relation
from tests.support.processes.json_lines import lines_in
from tests.unit.decoder.test_group_builder import DIALECTS, groups_of
from tests.unit.decoder.test_rows import POINTER
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.render.debezium import DebeziumLines
from tidemark.decode.render.debezium_values import UNAVAILABLE
from tidemark.wal.rmgr import heap

ACCOUNT, LEDGER = 16385, 16390
NOW_NS = 1_700_000_000_123_456_789

Event = dict[str, object]


def wal() -> Wal:
    return Wal(relation(), relation("Ledger", LEDGER))


def events(stream: Wal, *, counting: bool = False, rows_max: int = 65536) -> list[Event]:
    lines = DebeziumLines({DATABASE: "app"}, version="1", now_ns=lambda: NOW_NS)
    groups = groups_of(stream, GroupBuilder(DIALECTS, counting=counting, rows_max=rows_max))
    return [json.loads(line) for group in groups for line in lines_in(lines.lines(group))]


def reported(event: Event) -> tuple[object, object, object]:
    return event["op"], event["before"], event["after"]


def test_lines_are_in_stream_order_although_batches_are_not() -> None:
    stream = wal()
    for number in range(3):
        stream.insert(701, ACCOUNT, packed_row(number))
        stream.insert(701, LEDGER, packed_row(number))
    stream.message(b"note", b"\xff", xid=701)
    stream.commit(701)
    found = events(stream)
    tables = [event["source"]["table"] for event in found]  # type: ignore[index]
    assert tables == ["account", "Ledger"] * 3 + [""]
    assert reported(found[0]) == ("c", None, {"id": 0, "note": "x"})
    assert (found[-1]["op"], found[-1]["message"]) == ("m", {"prefix": "note", "content": "/w=="})
    assert (found[0]["ts_ms"], found[0]["ts_ns"]) == (NOW_NS // 1_000_000, NOW_NS)


def test_an_update_has_a_before_only_where_the_old_row_is_known() -> None:
    stream = wal()
    stream.update(701, ACCOUNT, packed_row(1, b"new"))
    stream.update(
        701, ACCOUNT, packed_row(1, b"new"), old=packed_row(1, b"old"), old_flag=heap.UPDATE_CONTAINS_OLD_TUPLE
    )
    stream.commit(701)
    new = {"id": 1, "note": "new"}
    assert [reported(event) for event in events(stream)] == [("u", None, new), ("u", {"id": 1, "note": "old"}, new)]


def test_a_key_that_changes_is_a_delete_and_a_create() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1, b"x"))
    stream.update(701, ACCOUNT, packed_row(2, b"y"), old=packed_row(1, None), old_flag=heap.UPDATE_CONTAINS_OLD_KEY)
    stream.insert(701, LEDGER, packed_row(3, b"z"))
    stream.commit(701)
    assert [reported(event) for event in events(stream)] == [
        ("c", None, {"id": 1, "note": "x"}),
        ("d", {"id": 1, "note": None}, None),
        ("c", None, {"id": 2, "note": "y"}),
        ("c", None, {"id": 3, "note": "z"}),
    ]


def test_a_delete_has_the_known_columns_of_the_row() -> None:
    stream = wal()
    stream.delete(701, ACCOUNT, old=packed_row(3, None), flags=heap.DELETE_CONTAINS_OLD_KEY)
    stream.delete(701, ACCOUNT, old=packed_row(3, b"x"), flags=heap.DELETE_CONTAINS_OLD_TUPLE)
    stream.delete(701, ACCOUNT)
    stream.commit(701)
    assert [reported(event) for event in events(stream)] == [
        ("d", {"id": 3, "note": None}, None),
        ("d", {"id": 3, "note": "x"}, None),
        ("d", None, None),
    ]


def test_a_value_that_is_not_in_wal_is_marked_or_read_from_the_old_row() -> None:
    stream = wal()
    stream.update(701, ACCOUNT, packed_row(3, external(POINTER)))
    stream.update(
        701,
        ACCOUNT,
        packed_row(4, external(POINTER)),
        old=packed_row(4, b"kept"),
        old_flag=heap.UPDATE_CONTAINS_OLD_TUPLE,
    )
    stream.insert(701, ACCOUNT, packed_row(5, b"there"))
    stream.commit(701)
    assert [event["after"] for event in events(stream)] == [
        {"id": 3, "note": UNAVAILABLE},
        {"id": 4, "note": "kept"},
        {"id": 5, "note": "there"},
    ]


def test_a_value_that_is_not_in_wal_is_read_from_an_old_row_with_another_key_as_well() -> None:
    stream = wal()
    old = packed_row(3, b"kept")
    stream.update(701, ACCOUNT, packed_row(4, external(POINTER)), old=old, old_flag=heap.UPDATE_CONTAINS_OLD_TUPLE)
    stream.commit(701)
    assert [reported(event) for event in events(stream)] == [
        ("d", {"id": 3, "note": "kept"}, None),
        ("c", None, {"id": 4, "note": "kept"}),
    ]


def test_a_truncate_is_one_event_for_each_table_and_ddl_is_not_an_event() -> None:
    stream = wal()
    stream.change_catalog(701, ACCOUNT, relation("konto"))
    stream.truncate(701, ACCOUNT, LEDGER, flags=1)
    stream.commit(701)
    found = events(stream)
    assert [reported(event) for event in found] == [("t", None, None)] * 2
    assert [event["source"]["table"] for event in found] == ["konto", "Ledger"]  # type: ignore[index]


def test_with_counts_events_have_their_number_and_transactions_their_bounds() -> None:
    for rows_max in (1, 3, 100):
        stream = wal()
        for number in range(2):
            stream.insert(701, ACCOUNT, packed_row(number))
            stream.insert(701, LEDGER, packed_row(number))
        commit = stream.commit(701)
        begin, *rows, end = events(stream, counting=True, rows_max=rows_max)
        name = f"701:{int(commit)}"
        assert (begin["status"], begin["id"], begin["event_count"]) == ("BEGIN", name, None)
        assert (end["status"], end["id"], end["event_count"]) == ("END", name, 4)
        assert end["data_collections"] == [
            {"data_collection": "public.account", "event_count": 2},
            {"data_collection": "public.Ledger", "event_count": 2},
        ]
        positions = [event["transaction"] for event in rows]
        assert positions == [
            {"id": name, "total_order": total, "data_collection_order": order}
            for total, order in ((1, 1), (2, 1), (3, 2), (4, 2))
        ]
