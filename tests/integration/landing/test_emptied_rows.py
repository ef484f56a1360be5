"""Rows of a query that remove all earlier rows of their table: of hand-made copies, in each form and in many parts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.forged import groups
from tests.support.lakes.kept_target import FORMS, KeptTarget, Row
from tests.support.workloads.feeder import feed, make_state
from tidemark.io.readers.outbox import OutboxReader, OutboxTrimmed
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import (
    ChangeBatch,
    ChangeGroup,
    CopyBoundary,
    GroupItem,
    LogicalMessage,
    RewriteBoundary,
    SchemaChange,
    Truncation,
)
from tidemark.model.lsn import FullXid, Lsn, Oid, TimelineId, Xid
from tidemark.model.message_prefix import REWIND_PREFIX
from tidemark.model.position import Pointer, Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.source import outbox_range
from tidemark.pipeline.source.format import OutboxSource
from tidemark.pipeline.source.rows.query_table import ChangesMissing
from tidemark.wire.state.state_keys import BEGINNING
from tidemark.wire.state.values import Beginning

ACCOUNT = groups.text_relation("note")
COPIED_US = 250_000  # when a copy was made; the time of a commit is its LSN


def copy(
    lx: int, generation: int, notes: Sequence[str], *, of: Relation = ACCOUNT, timeline: int = 1, ends: bool = True
) -> list[ChangeGroup]:
    """Return the groups of a copy, one for each row; its keys are 1, 2, and so on."""
    at = Position(TimelineId(timeline), Lsn(lx), generation << 40)
    begin = CopyBoundary(at, groups.DATABASE, of, generation, True, "", seen_time_us=COPIED_US)
    made = [_copied(at, [begin])]
    for number, note in enumerate(notes, 1):
        place = replace(at, ordinal=at.ordinal + number)
        batch = groups.batch(lx, [number], note, of)
        columns = {"_op": ["c"], "_tli": [timeline], "_ordinal": [place.ordinal], "_lsn": [lx], "_xid": [0]}
        rows = batch.rows
        for name, values in columns.items():
            index = rows.schema.get_field_index(name)
            field = rows.schema.field(index)
            rows = rows.set_column(index, field, pa.array(values, field.type))
        made.append(_copied(place, [replace(batch, given=rows)]))
    if ends:
        last = replace(at, ordinal=at.ordinal + len(notes) + 1)
        made.append(_copied(last, [replace(begin, position=last, begin=False)]))
    return made


def _copied(at: Position, items: Sequence[object]) -> ChangeGroup:
    return ChangeGroup(at, Pointer(at, Lsn(0)), items, (), 1, 100)  # type: ignore[arg-type]


def made(tmp_path: Path, *changes: ChangeGroup) -> Path:
    make_state(tmp_path / "state")
    feed(tmp_path / "state", changes)
    return tmp_path / "state"


def name_databases(state: Path, names: dict[Oid, str]) -> None:
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.put(BEGINNING, Beginning(groups.TIMELINE, Lsn(1), FullXid(3), names))


def notes(state: Path, columns: str, **options: str) -> list[object]:
    target = KeptTarget(state, "account", columns, **options)
    target.advance()
    return [note for _, note in target.notes()]


@pytest.mark.parametrize("columns", FORMS)
def test_a_copy_that_was_interrupted_is_replaced_by_the_next_one(tmp_path: Path, columns: str) -> None:
    interrupted = copy(200, 1, ["a", "b", "gone"], ends=False)
    state = made(tmp_path, groups.insert(100, ACCOUNT, "gone"), *interrupted, *copy(220, 2, ["a", "c"]))
    assert notes(state, columns) == ["a", "c"]


@pytest.mark.parametrize("columns", FORMS)
def test_the_order_of_positions_is_sufficient_in_a_batch_of_many_partitions(
    tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_range, "PARTITION_BYTES", 500)
    copies = [*copy(200, 1, ["a", "b", "gone"]), *copy(300, 2, ["c", "d"])]
    state = made(tmp_path, groups.insert(100, ACCOUNT, "gone"), *copies, groups.insert(400, ACCOUNT, "new"))
    source = OutboxSource({"state": str(state), "table": "account", "reader": "other", "columns": columns})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    assert len(reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))) > 5
    target = KeptTarget(state, "account", columns)
    target.advance(bytes_max=1 << 20)
    assert [note for _, note in target.notes()] == ["c", "d", "new"]


@pytest.mark.parametrize("columns", FORMS[:2])
def test_a_copy_after_a_rewind_has_a_smaller_lsn_and_a_greater_timeline(tmp_path: Path, columns: str) -> None:
    dead = groups.insert(500, ACCOUNT, "dead")
    state = made(tmp_path, *copy(200, 1, ["a", "b"]), dead, *copy(400, 2, ["a"], timeline=2))
    assert notes(state, columns) == ["a"]


@pytest.mark.parametrize("database", [groups.DATABASE, Oid(5)], ids=["own", "other"])
def test_a_query_in_debeziums_form_ends_after_a_rewind_of_its_database(tmp_path: Path, database: Oid) -> None:
    """Its events have no timeline: by their LSN, an abandoned one would be later than the copy."""
    at = Position(TimelineId(2), Lsn(399), 0)
    said = LogicalMessage(at, at.commit_lsn, database, Xid(0), False, REWIND_PREFIX, b"{}")
    own = replace(said, position=groups.position(480), database=groups.DATABASE)  # of the source, with this prefix
    groups_of_source = groups.group(480, [own]), groups.insert(500, ACCOUNT, "dead")
    copied = copy(408, 2, ["a"], timeline=2)
    state = made(tmp_path, *copy(200, 1, ["a", "b"]), *groups_of_source, _copied(at, [said]), *copied)
    target = KeptTarget(state, "account", "debezium")
    if database != groups.DATABASE:
        target.advance()
        return
    with pytest.raises(ChangesMissing, match=r"changes of public\.account before value \d+ .* were given up .*=ignore"):
        target.advance()
    assert [note for _, note in target.notes()] == ["a", "b", "dead"]
    target.advance(schemaEvolution="ignore")
    assert target.ops()[-2:] == ["t", "r"]


@pytest.mark.parametrize(("columns", "kept"), [("after", [8]), ("before_after", [8]), ("debezium", [1, 2])])
def test_rows_that_ddl_rewrote_replace_all_earlier_ones_in_a_form_that_has_them(
    tmp_path: Path, columns: str, kept: list[int]
) -> None:
    """They can have other keys (`ALTER COLUMN ... USING`), and no row is deleted."""
    begin = RewriteBoundary(groups.position(300), Lsn(290), groups.DATABASE, Xid(700), ACCOUNT, begin=True)
    batch = groups.batch(300, [8], "a", ACCOUNT)
    index = batch.rows.schema.get_field_index("_op")
    rows = batch.rows.set_column(index, batch.rows.schema.field(index), pa.array(["r"]))
    rewritten: list[GroupItem] = [
        begin,
        replace(batch, given=rows),
        replace(begin, position=groups.position(300, 9), begin=False),
    ]
    state = made(tmp_path, *copy(200, 1, ["a", "b"]), groups.group(300, rewritten))
    target = KeptTarget(state, "account", columns)
    target.advance()
    assert [key for key, _ in target.notes()] == kept


@pytest.mark.parametrize(("name", "ops"), [("other", []), ("shop", ["t", "i"])])
def test_a_table_of_a_later_database_is_that_of_a_running_query_if_the_database_has_the_same_name(
    tmp_path: Path, name: str, ops: list[str]
) -> None:
    state, later = made(tmp_path, groups.insert(100, ACCOUNT, "a")), Oid(5)
    name_databases(state, {groups.DATABASE: "shop"})
    source = OutboxSource({"state": str(state), "table": "account", "reader": "running"})
    reader = source.streamReader(source.schema())
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    name_databases(state, {groups.DATABASE: "shop", later: name})
    other = groups.text_relation("note", oid=16999)
    (batch,) = groups.insert(300, other, "b").items
    assert isinstance(batch, ChangeBatch)
    created = replace(groups.schema_event(200, other), database=later)
    feed(state, [groups.group(200, [created]), groups.group(300, [replace(batch, database=later)])])
    parts = reader.partitions(at, reader.latestOffset(at, ReadAllAvailable()))
    assert [op for part in parts for found in reader.read(part) for op in found.column("_op").to_pylist()] == ops


def test_the_row_before_a_copy_has_its_position_and_no_transaction(tmp_path: Path) -> None:
    state = made(tmp_path, *copy(200, 3, ["a"]))
    first, _ = rows(state)
    assert {name: first[name] for name in ("_op", "_tli", "_commit_lsn", "_ordinal", "_lsn", "_xid", "id", "note")} == {
        "_op": "t",
        "_tli": 1,
        "_commit_lsn": 200,
        "_ordinal": 3 << 40,
        "_lsn": 200,
        "_xid": 0,
        "id": None,
        "note": None,
    }
    event, read = rows(state, columns="debezium")
    assert (event["op"], event["before"], event["after"], event["ts_ms"]) == ("t", None, None, 250)
    assert [source(one, "snapshot") for one in (event, read)] == ["true", "true"]
    assert source(event, "lsn") == source(read, "lsn") == 200


def test_the_event_of_a_truncate_has_the_time_of_its_commit(tmp_path: Path) -> None:
    event = Truncation(
        groups.position(300), Lsn(290), groups.DATABASE, Xid(7), ACCOUNT, False, False, commit_time_us=5_000_000
    )
    state = made(tmp_path, groups.insert(100, ACCOUNT, "a"), groups.group(300, [event]))
    _, row = rows(state, columns="debezium")
    assert (row["ts_ms"], source(row, "ts_ms"), source(row, "snapshot"), source(row, "txId")) == (
        5_000,
        5_000,
        "false",
        7,
    )


def rows(state: Path, **options: str) -> list[Row]:
    target = KeptTarget(state, "account", **options)
    target.read_once()
    return target.seen


def source(event: Row, name: str) -> object:
    found = event["source"]
    assert isinstance(found, dict)
    return found[name]


@pytest.mark.parametrize(
    ("start", "found"),
    [
        ("earliest", ["a", "b", "new"]),
        ("latest", []),
        ("0/C8", ["a", "b", "new"]),  # that of the copy
        ("0/C9", ["new"]),
        ("1970-01-01T00:00:00.000101Z", ["a", "b", "new"]),  # a copy has the time of the change that follows it
        ("1970-01-01T00:00:00.000400Z", ["a", "b", "new"]),
        ("1970-01-01T00:00:00.000401Z", []),
    ],
)
def test_a_new_reader_has_all_of_a_copy_or_nothing(tmp_path: Path, start: str, found: list[str]) -> None:
    before, after = groups.insert(100, ACCOUNT, "gone"), groups.insert(400, ACCOUNT, "new")
    state = made(tmp_path, before, *copy(200, 1, ["a", "b"]), after)
    assert notes(state, "after", startingPosition=start) == found


def test_a_reader_that_starts_at_a_time_has_all_of_a_transaction_in_several_groups(tmp_path: Path) -> None:
    whole = groups.group(300, [groups.batch(300, [2], "second", ACCOUNT)])
    begun = replace(groups.group(300, [groups.batch(300, [1], "first", ACCOUNT)], ordinal=1), transactions=())
    state = made(tmp_path, groups.insert(100, ACCOUNT, "before"), begun, whole)
    assert notes(state, "after", startingPosition="1970-01-01T00:00:00.000300Z") == ["first", "second"]


def test_a_reader_that_starts_at_a_time_after_the_last_commit_has_a_copy_since_then(tmp_path: Path) -> None:
    state = made(tmp_path, groups.insert(100, ACCOUNT, "gone"), *copy(200, 1, ["a"]))
    assert notes(state, "after", startingPosition="1970-01-01T00:00:00.000300Z") == ["a"]


def test_a_reader_that_starts_at_a_time_after_a_copy_whose_begin_was_trimmed_is_refused(tmp_path: Path) -> None:
    state = made(tmp_path, *copy(200, 1, ["a", "b"]))
    with OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register("first")
        outbox.confirm("first", OutboxSequence(2), OutboxSequence(2))
    feed(state, copy(220, 2, [])[-1:])  # trims what is confirmed
    with pytest.raises(OutboxTrimmed, match="the time of value 2, the newest that was removed, is not known"):
        notes(state, "after", startingPosition="1970-01-01T00:00:00.000300Z")


def test_a_batch_query_is_refused_where_changes_are_missing_unless_it_ignores_them(tmp_path: Path) -> None:
    ends = replace(
        groups.schema_event(200, ACCOUNT), change=SchemaChange.ALTER, before=ACCOUNT, capture=CaptureChange.ENDS
    )
    state = made(tmp_path, groups.insert(100, ACCOUNT, "a"), groups.group(200, [ends]), *copy(300, 1, ["b"]))
    with pytest.raises(ChangesMissing, match=r"changes of public\.account are missing from value \d+ .*=ignore"):
        rows(state)
    assert [row["note"] for row in rows(state, schemaEvolution="ignore")] == ["a", None, "b"]
