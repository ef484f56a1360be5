"""Text forms: the lines of test_decoding, and JSON lines in stream order."""

import json

from tests.support.forged.forged_records import Wal, external, packed_row
from tests.support.forged.groups import DATABASE, relation
from tests.support.oracles.plugin_lines import PluginLines
from tests.support.processes.json_lines import lines_in
from tests.unit.decoder.test_group_builder import DIALECTS, groups_of
from tests.unit.decoder.test_rows import POINTER
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.render.jsonl import JsonLines
from tidemark.wal.rmgr import heap

ACCOUNT, LEDGER = 16385, 16390


def wal() -> Wal:
    return Wal(relation(), relation("Ledger", LEDGER))


def printed(stream: Wal, major: int = 15, hidden: tuple[str, ...] = ()) -> list[str]:
    renderer = PluginLines(major, DIALECTS, hidden)
    return list(renderer.of(stream.committed[0]))


def json_lines(stream: Wal) -> list[dict[str, object]]:
    lines = JsonLines({DATABASE: "app"})
    found: list[dict[str, object]] = []
    for group in groups_of(stream, GroupBuilder(DIALECTS)):
        found.extend(json.loads(line) for line in lines_in(lines.lines(group)))
    return found


def test_test_decoding_prints_rows_as_the_plugin_does() -> None:
    stream = wal()
    stream.insert(701, ACCOUNT, packed_row(1, b"it's"))
    stream.update(701, LEDGER, packed_row(2, None), old=packed_row(1, None), old_flag=heap.UPDATE_CONTAINS_OLD_KEY)
    stream.update(701, ACCOUNT, packed_row(3, external(POINTER)))
    stream.delete(701, ACCOUNT, old=packed_row(3, None), flags=heap.DELETE_CONTAINS_OLD_KEY)
    stream.delete(701, ACCOUNT)
    stream.commit(701)
    assert printed(stream) == [
        "BEGIN 701",
        "table public.account: INSERT: id[bigint]:1 note[text]:'it''s'",
        'table public."Ledger": UPDATE: old-key: id[bigint]:1 new-tuple: id[bigint]:2 note[text]:null',
        "table public.account: UPDATE: id[bigint]:3 note[text]:unchanged-toast-datum",
        "table public.account: DELETE: id[bigint]:3",
        "table public.account: DELETE: (no-tuple-data)",
        "COMMIT 701",
    ]


def test_test_decoding_prints_a_truncate_of_several_tables_as_one_line() -> None:
    stream = wal()
    stream.truncate(701, ACCOUNT, LEDGER, flags=3)
    stream.truncate(701, ACCOUNT)
    stream.commit(701)
    assert printed(stream)[1:-1] == [
        'table public.account, public."Ledger": TRUNCATE: restart_seqs cascade',
        "table public.account: TRUNCATE: (no-flags)",
    ]


def test_a_transactional_message_begins_a_transaction_from_17_on_only() -> None:
    stream = wal()
    stream.message(b"note", b"hello", xid=701)
    stream.commit(701)
    line = "message: transactional: 1 prefix: note, sz: 5 content:hello"
    assert printed(stream, 16) == [line]
    assert printed(stream, 17) == ["BEGIN 701", line, "COMMIT 701"]
    assert printed(stream, 17, hidden=("note",)) == []


def test_test_decoding_shows_no_rewritten_rows() -> None:
    stream = wal()
    stream.change_catalog(701, LEDGER, None)
    stream.commit(701)
    assert printed(stream) == []


def test_json_lines_are_in_stream_order_although_batches_are_not() -> None:
    stream = wal()
    for number in range(3):
        stream.insert(701, ACCOUNT, packed_row(number))
        stream.insert(701, LEDGER, packed_row(number))
    stream.message(b"note", b"\xff", xid=701)
    stream.commit(701)
    lines = json_lines(stream)
    assert [line.get("table") for line in lines] == ["account", "Ledger"] * 3 + [None]
    assert lines[-1]["content_hex"] == "ff"
    assert lines[0]["after"] == {"id": 0, "note": "x"}
    assert "before" not in lines[0]


def test_json_leaves_unchanged_columns_out_of_the_new_row_and_names_them() -> None:
    stream = wal()
    stream.update(701, ACCOUNT, packed_row(3, external(POINTER)))
    stream.commit(701)
    (line,) = json_lines(stream)
    assert (line["after"], line["unchanged"]) == ({"id": 3}, ["note"])


def test_json_shows_of_an_old_key_the_key_and_of_an_old_row_all() -> None:
    stream = wal()
    stream.delete(701, ACCOUNT, old=packed_row(3, None), flags=heap.DELETE_CONTAINS_OLD_KEY)
    stream.delete(701, ACCOUNT, old=packed_row(3, None), flags=heap.DELETE_CONTAINS_OLD_TUPLE)
    stream.commit(701)
    key, whole = json_lines(stream)
    assert key["before"] == {"id": 3}
    assert whole["before"] == {"id": 3, "note": None}
    assert "after" not in key


def test_json_has_schema_events_with_both_versions() -> None:
    stream = wal()
    stream.change_catalog(701, ACCOUNT, relation("konto"))
    stream.truncate(701, LEDGER, flags=1)
    commit = stream.commit(701)
    event, truncated = json_lines(stream)
    assert (event["op"], event["change"], event["effect"], event["table"]) == ("schema", "alter", "metadata", "konto")
    assert isinstance(event["before"], dict)
    assert event["before"]["table"] == "account"
    assert event["position"] == f"1:0/{commit:X}:0"
    assert (truncated["op"], truncated["cascade"], truncated["restart_identity"]) == ("t", True, False)
