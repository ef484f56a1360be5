"""Typed rows of a table from a real outbox, read as Spark reads them, without Spark."""

import gc
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes
from pyspark.sql.types import IntegerType, StructField, StructType

from tests.support.forged import groups
from tests.support.lakes.scripted_table import DATABASE
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.decode.render.debezium import DebeziumLines
from tidemark.io.readers.outbox import OutboxReader, OutboxTrimmed
from tidemark.io.readers.reader_use import ReaderTakenOver
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.capture_change import CaptureChange
from tidemark.model.change import ChangeBatch, ChangeGroup, SchemaChange, SchemaEvent
from tidemark.model.errors import ConfigError, TidemarkError
from tidemark.model.lsn import INVALID_LSN, FullXid, Lsn, Oid
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Align, Relation, TypeDescription, TypeKind
from tidemark.pipeline.lake.layout import lake_columns
from tidemark.pipeline.source.format import OutboxSource
from tidemark.pipeline.source.offsets import Offset
from tidemark.pipeline.source.rows.exact_values import UnfitValues
from tidemark.pipeline.source.rows.query_table import (
    ChangesMissing,
    SchemaChanged,
    TablesDiffer,
    UnknownTable,
)
from tidemark.pipeline.source.stream import OutboxStreamReader
from tidemark.wire.state.readers import ReaderKind
from tidemark.wire.state.state_keys import BEGINNING, LEDGER
from tidemark.wire.state.values import Beginning

GROUPS = 120
NUMERIC_10_2 = (10 << 16 | 2) + 4  # a typmod
ALL = ReadAllAvailable()
OTHER_COLUMNS = "the checkpoint belongs to a query with other columns, which have changed: tag is new"
TABLE = "public.table 0"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("rows") / "state"
    make_state(root)
    feed(root, RandomTables(5).groups(GROUPS))
    return root


def made(tmp_path: Path, changes: Sequence[ChangeGroup]) -> Path:
    make_state(tmp_path / "state")
    feed(tmp_path / "state", changes)
    return tmp_path / "state"


def source_of(state: Path, table: str | None = TABLE, **options: str) -> OutboxSource:
    return OutboxSource({"state": str(state), "reader": "query", **({"table": table} if table else {}), **options})


def stream_of(state: Path, table: str | None = TABLE, **options: str) -> OutboxStreamReader:
    source = source_of(state, table, **options)
    return source.streamReader(source.schema())


def read(reader: OutboxStreamReader, start: Offset, end: Offset) -> list[dict[str, object]]:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return [row for batch in batches for row in batch.to_pylist()]


def read_all(state: Path, table: str = TABLE, **options: str) -> list[dict[str, object]]:
    source = source_of(state, table, **options)
    reader = source.reader(source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def stored(state: Path) -> Iterator[tuple[int, ChangeBatch]]:
    with OutboxReader.open(StateFolder(state)) as outbox:
        for value in outbox.read(outbox.ledger().trimmed, outbox.head()):
            if value.header.kind.name == "BATCH":
                item = value.item()
                assert isinstance(item, ChangeBatch)
                yield value.header.sequence, item


def confirmed(state: Path) -> tuple[int, int]:
    with OutboxReader.open(StateFolder(state)) as outbox:
        reader = outbox.registered("query")
    assert reader is not None
    return reader.applied, reader.replayable


@pytest.mark.parametrize("columns", ["after", "before_after"])
def test_rows_have_the_columns_and_values_of_the_table(state: Path, columns: str) -> None:
    expected = []
    newest = [batch.relation for _, batch in stored(state) if batch.relation.qualified_name == TABLE][-1]
    numbers = {column.number: column.name for column in lake_columns(newest)}
    for sequence, batch in stored(state):
        if batch.relation.oid != newest.oid:
            continue
        index_of = {column.number: column.index for column in lake_columns(batch.relation)}
        origins = {name: index_of.get(number) for number, name in numbers.items()}
        for row in batch.rows.to_pylist():
            values = [side and list(side.values()) for side in (row.pop("_before"), row.pop("_after"))]
            sides = [
                side and {name: None if at is None else side[at] for name, at in origins.items()} for side in values
            ]
            row["_seq"] = sequence
            del row["_unchanged"]
            if columns == "after":
                expected.append(row | (sides[1] or sides[0]))
            else:
                expected.append(row | {"_before": sides[0], "_after": sides[1]})
    found = read_all(state, columns=columns)
    truncations = [row for row in found if row["_op"] == "t"]
    rows = [row for row in found if row["_op"] != "t"]
    assert len(rows) == len(expected) > 100
    for row, wanted in zip(rows, expected, strict=True):
        assert {name: row[name] for name in wanted} == wanted
    assert all(row["_commit_time"] is None for row in truncations)
    assert {row["_op"] for row in rows} >= {"i", "u", "d"}


def test_the_envelope_is_that_of_the_renderer(state: Path) -> None:
    lines = DebeziumLines({DATABASE: "shop"}, version="x", now_ns=lambda: 0)
    expected = []
    for _, batch in stored(state):
        if batch.relation.qualified_name != TABLE:
            continue
        group = groups.group(100, [batch])
        text = b"".join(map(bytes, lines.lines(group))).replace(b'"ts_ns":0000', b'"ts_ns":0')  # of the time 0
        expected += list(map(json.loads, text.splitlines()))
    events = [event for event in expected if event.get("op") in set("cudr")]
    found = [row for row in read_all(state, columns="debezium") if row["op"] != "t"]
    assert [row["op"] for row in found] == [event["op"] for event in events]
    assert {"c", "u", "d"} <= {row["op"] for row in found}
    for row, event in zip(found, events, strict=True):
        source = row["source"]
        assert isinstance(source, dict)
        assert (source["txId"], source["lsn"], source["ts_ms"]) == tuple(
            event["source"][name] for name in ("txId", "lsn", "ts_ms")
        )
        for side in ("before", "after"):
            assert (row[side] is None) == (event[side] is None)
            ours, theirs = row[side], event[side]
            if isinstance(ours, dict):
                assert all(ours[name] == theirs[name] for name in ("id",) if theirs[name] is not None)


def test_an_envelope_has_decimals_of_a_declared_precision(tmp_path: Path) -> None:
    text = groups.text_relation("total")
    numeric = TypeDescription(Oid(1700), "pg_catalog", "numeric", "numeric", TypeKind.BASE, -1, False, Align.INT)
    relation = replace(text, columns=(text.columns[0], replace(text.columns[1], type=numeric, typmod=NUMERIC_10_2)))
    shape = pa.struct([("id", pa.int64()), ("total", pa.decimal128(10, 2))])
    batch = groups.batch(100, [1]).rows
    after = pa.array([{"id": 1, "total": Decimal("1.50")}], shape)
    rows = pa.RecordBatch.from_arrays([*batch.columns[:-2], pa.nulls(1, shape), after], names=batch.schema.names)
    state = made(tmp_path, [groups.group(100, [ChangeBatch(groups.DATABASE, relation, rows)])])
    (event,) = read_all(state, "account", columns="debezium")
    assert (event["op"], event["after"]) == ("c", {"id": 1, "total": Decimal("1.50")})


def test_a_range_of_the_stream_has_the_same_rows_each_time(state: Path) -> None:
    reader = stream_of(state, startingPosition="earliest")
    at, rows = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxBytes(30_000))) != at:
        part = read(reader, at, end)
        assert part == read(stream_of(state, reader="again"), at, end)
        rows += part
        at = end
    assert rows == read_all(state)


def test_raw_values_are_those_of_the_table_alone(state: Path) -> None:
    source = source_of(state, columns="raw")
    reader = source.reader(source.schema())
    found = [
        row["sequence"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()
    ]
    rows = {sequence for sequence, batch in stored(state) if batch.relation.qualified_name == TABLE}
    assert rows <= set(found)
    assert not {sequence for sequence, batch in stored(state) if batch.relation.qualified_name != TABLE} & set(found)


@pytest.mark.parametrize("query", ["batch", "stream"])
def test_a_partition_leaves_what_is_loaded_out_of_the_collection_after_each_task(
    state: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setattr("tidemark.io.host.loaded_objects._Loaded.is_skipped", False)
    gc.unfreeze()
    try:
        if query == "batch":
            read_all(state)
        else:
            with OutboxReader.open(StateFolder(state)) as outbox:
                head = outbox.head()
            read(stream_of(state, None), {"outbox": "0a0b", "sequence": 0}, {"outbox": "0a0b", "sequence": head})
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


def test_a_query_confirms_what_it_has_completed_also_in_silence(tmp_path: Path) -> None:
    state = made(
        tmp_path,
        [groups.insert(100, groups.text_relation("note"), "a"), groups.insert(200, groups.text_relation("note"), "b")],
    )
    reader = stream_of(state, "account")
    start = reader.initialOffset()
    assert confirmed(state) == (0, 0)
    end = reader.latestOffset(start, ALL)
    assert confirmed(state) == (0, 0), "planned, not completed"
    assert reader.latestOffset(end, ALL) == end
    assert confirmed(state) == (4, 0), "applied, but Spark may request it again"
    reader.commit(end)
    assert confirmed(state) == (4, 4)


def test_a_query_without_a_checkpoint_continues_where_its_reader_is(tmp_path: Path) -> None:
    state = made(
        tmp_path,
        [groups.insert(100, groups.text_relation("note"), "a"), groups.insert(200, groups.text_relation("note"), "b")],
    )
    with OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register("query")
        outbox.confirm("query", OutboxSequence(2), OutboxSequence(2))
    reader = stream_of(state, "account", startingPosition="earliest")
    (row,) = read(reader, reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL))
    assert row["note"] == "b"


def test_the_list_of_readers_shows_the_age_of_the_oldest_commit_that_a_query_lacks(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "a")])
    reader = stream_of(state, "account")
    start = reader.initialOffset()

    def listed() -> dict[str, float]:
        found: dict[str, float] = json.loads(succeeded(cdcctl("reader", "list", "--json", "--state", state)).out)[
            "readers"
        ]["query"]
        return found

    age_s = time.time() - 100e-6  # the time of the commit
    assert listed()["lag_s"] == pytest.approx(age_s, rel=0.01)
    end = reader.latestOffset(start, ALL)
    reader.latestOffset(end, ALL)
    assert (listed()["behind"], listed()["lag_s"]) == (0, 0.0)


@pytest.mark.parametrize(
    ("position", "after"),
    [
        ("earliest", 0),
        ("latest", 6),
        ("0/C8", 2),  # the group of LSN 200
        ("0/C9", 4),
        ("0/FFFF", 6),
        ("1970-01-01T00:00:00.000200Z", 2),
        ("1970-01-01T00:00:00.000300Z", 4),
    ],
)
def test_a_new_reader_starts_where_the_option_says(tmp_path: Path, position: str, after: int) -> None:
    state = made(tmp_path, [groups.insert(lsn, groups.text_relation("note"), "a") for lsn in (100, 200, 300)])
    assert stream_of(state, "account", startingPosition=position).initialOffset()["sequence"] == after
    assert confirmed(state) == (after, after)


def trim_all(state: Path) -> None:
    """Remove what the outbox contains, as when each reader has applied it."""
    with OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register("other")
        outbox.confirm("other", outbox.head(), outbox.head())
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.apply_confirmations()


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("position", ["0/1", "0/C8", "1970-01-01T00:00:00.000001Z", "1970-01-01T00:00:00.000200Z"])
def test_a_position_whose_range_was_trimmed_is_refused(tmp_path: Path, position: str, *, is_empty: bool) -> None:
    state = made(tmp_path, [groups.insert(lsn, groups.text_relation("note"), "a") for lsn in (100, 200)])
    trim_all(state)
    if not is_empty:
        feed(state, [groups.insert(300, groups.text_relation("note"), "a")])
    reader = stream_of(state, "account", startingPosition=position)
    with pytest.raises(
        OutboxTrimmed, match=f"^the outbox no longer has all changes since {position}: value 4, .* has the LSN 0/C8"
    ):
        reader.initialOffset()
    with OutboxReader.open(StateFolder(state)) as outbox:
        assert outbox.registered("query") is None


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("position", ["0/C9", "0/12C", "1970-01-01T00:00:00.000201Z", "1970-01-01T00:00:00.000300Z"])
def test_a_position_after_all_that_was_trimmed_is_known_to_be_complete(
    tmp_path: Path, position: str, *, is_empty: bool
) -> None:
    state = made(tmp_path, [groups.insert(lsn, groups.text_relation("note"), "a") for lsn in (100, 200)])
    trim_all(state)
    if not is_empty:
        feed(state, [groups.insert(300, groups.text_relation("note"), "a")])
    assert stream_of(state, "account", startingPosition=position).initialOffset()["sequence"] == 4


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize("position", ["0/C9", "1970-01-01T00:00:00.000201Z"])
def test_a_position_is_refused_if_an_earlier_version_has_trimmed(
    tmp_path: Path, position: str, *, is_empty: bool
) -> None:
    state = made(tmp_path, [groups.insert(lsn, groups.text_relation("note"), "a") for lsn in (100, 200)])
    trim_all(state)
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.put(LEDGER, replace(transaction.ledger(), trimmed_lsn=INVALID_LSN, trimmed_time_us=0))
    if not is_empty:
        feed(state, [groups.insert(300, groups.text_relation("note"), "a")])
    with pytest.raises(OutboxTrimmed, match=f"^it is unknown whether the outbox has all changes since {position}"):
        stream_of(state, "account", startingPosition=position).initialOffset()


@pytest.mark.parametrize("evolution", ["fail", "restart"])
def test_a_query_ends_before_the_first_group_with_other_columns(tmp_path: Path, evolution: str) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "a")])
    reader = stream_of(state, "account", schemaEvolution=evolution)
    start = reader.initialOffset()
    feed(
        state,
        [
            groups.insert(200, groups.text_relation("note"), "b"),
            groups.insert(300, groups.text_relation("note", "tag"), "c", "new"),
        ],
    )
    end = reader.latestOffset(start, ALL)
    assert [row["note"] for row in read(reader, start, end)] == ["a", "b"]
    with pytest.raises(SchemaChanged, match=r"public\.account: tag is new"):
        reader.latestOffset(end, ALL)
    again = stream_of(state, "account", schemaEvolution=evolution)
    if evolution == "fail":
        with pytest.raises(SchemaChanged, match=OTHER_COLUMNS):
            again.latestOffset(end, ALL)
        with pytest.raises(SchemaChanged, match=OTHER_COLUMNS):
            again.partitions(start, end)
        return
    last = again.latestOffset(end, ALL)
    (row,) = read(again, end, last)
    assert (row["note"], row["tag"]) == ("c", "new")
    assert [row["tag"] for row in read(again, start, end)] == [None, None]


@pytest.mark.parametrize("columns", ["after", "before_after", "debezium"])
def test_a_query_names_what_changed_of_its_columns_while_it_was_stopped(tmp_path: Path, columns: str) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "a")])
    start = stream_of(state, "account", columns=columns).initialOffset()
    feed(state, [groups.insert(200, groups.text_relation("note", "tag"), "b", "new")])
    with pytest.raises(SchemaChanged, match=OTHER_COLUMNS):
        stream_of(state, "account", columns=columns).latestOffset(start, ALL)
    with pytest.raises(SchemaChanged, match="a query with other columns: start the query again"):
        stream_of(state, "account", columns=columns).latestOffset(start | {"columns": "unknown"}, ALL)


def test_a_query_of_chosen_columns_names_what_changed_of_them_while_it_was_stopped(tmp_path: Path) -> None:
    def stream() -> OutboxStreamReader:
        columns = source_of(folder, "account").schema()
        return source_of(folder, "account").streamReader(StructType([columns[0], columns[1]]))

    folder = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "a")])
    start = stream().initialOffset()
    text = groups.text_relation("note")
    retyped = replace(text, columns=(text.columns[0], replace(text.columns[0], name="note", number=2)))
    batch = groups.batch(200, [5]).rows
    sides = pa.array([{"id": 5, "note": 6}], pa.struct([("id", pa.int64()), ("note", pa.int64())]))
    rows = pa.RecordBatch.from_arrays([*batch.columns[:-2], pa.nulls(1, sides.type), sides], names=batch.schema.names)
    feed(folder, [groups.group(200, [ChangeBatch(groups.DATABASE, retyped, rows)])])
    with pytest.raises(SchemaChanged, match="which have changed: note is int64 instead of string"):
        stream().latestOffset(start, ALL)


@pytest.mark.parametrize("is_renamed", [False, True], ids=["configured", "renamed"])
@pytest.mark.parametrize("evolution", ["fail", "restart"])
def test_a_query_ends_where_its_table_leaves_the_selection(
    tmp_path: Path,
    evolution: str,
    is_renamed: bool,  # noqa: FBT001 - a parameter
) -> None:
    account, other = groups.text_relation("note"), groups.text_relation("note", oid=16400, name="other")
    state = made(tmp_path, [groups.insert(100, account, "a"), groups.insert(110, other, "b")])
    reader = stream_of(state, "account", schemaEvolution=evolution)
    start = reader.initialOffset()
    renamed = replace(account, name="excluded") if is_renamed else account
    feed(
        state,
        [
            groups.insert(200, account, "last"),
            groups.group(300, [leaving(300, other, other)]),
            groups.group(400, [leaving(400, account, renamed)]),
            groups.insert(500, account, "after the gap"),
        ],
    )
    end = reader.latestOffset(start, ALL)
    assert [row["note"] for row in read(reader, start, end)] == ["a", "last"]
    for again in (reader, stream_of(state, renamed.name, schemaEvolution=evolution)):
        with pytest.raises(ChangesMissing, match=r"changes of public\.account are missing from value \d+ .*=ignore"):
            again.latestOffset(end, ALL)
    ignoring = stream_of(state, renamed.name, schemaEvolution="ignore")
    assert [row["note"] for row in read(ignoring, end, ignoring.latestOffset(end, ALL))] == ["after the gap"]


def leaving(commit_lsn: int, before: Relation, after: Relation) -> SchemaEvent:
    """Return the event by which a table leaves the selection."""
    event = groups.schema_event(commit_lsn, after)
    return replace(event, change=SchemaChange.ALTER, before=before, capture=CaptureChange.ENDS)


def test_a_query_that_ignores_new_columns_keeps_its_own(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note", "tag"), "a", "b")])
    reader = stream_of(state, "account", schemaEvolution="ignore")
    start = reader.initialOffset()
    feed(state, [groups.insert(200, groups.text_relation("note"), "c")])
    rows = read(reader, start, reader.latestOffset(start, ALL))
    assert [(row["note"], row["tag"]) for row in rows] == [("a", "b"), ("c", None)]


def test_a_value_that_does_not_fit_its_column_is_an_error_that_names_it(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "a")])
    reader = stream_of(state, "account", schemaEvolution="ignore")
    start = reader.initialOffset()
    feed(state, [groups.insert_text_key(200)])
    with pytest.raises(UnfitValues, match=r"column id: string does not become int64.*schemaEvolution=restart gives"):
        read(reader, start, reader.latestOffset(start, ALL))


def test_a_query_reads_the_columns_that_it_chose(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "a")])
    source = source_of(state, "account")
    chosen = StructType([source.schema()[name] for name in ("_lsn", "note")])
    reader = source_of(state, "account").streamReader(chosen)
    start = reader.initialOffset()
    feed(state, [groups.insert(200, groups.text_relation("note", "tag"), "b", "c")])
    rows = read(reader, start, reader.latestOffset(start, ALL))
    assert rows == [{"_lsn": 92, "note": "a"}, {"_lsn": 192, "note": "b"}], (
        "a column that it did not choose is none of its"
    )


def test_a_query_that_chose_a_struct_ends_when_the_columns_of_the_table_change(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "a")])
    source = source_of(state, "account", columns="before_after")
    reader = source_of(state, "account", columns="before_after").streamReader(StructType([source.schema()["_after"]]))
    end = reader.latestOffset(reader.initialOffset(), ALL)
    feed(state, [groups.insert(200, groups.text_relation("note", "tag"), "b", "c")])
    with pytest.raises(SchemaChanged, match="tag is new"):
        reader.latestOffset(end, ALL)


def test_rows_of_several_tables_name_their_table(tmp_path: Path) -> None:
    one, two = groups.text_relation("note", name="a1"), groups.text_relation("note", oid=16400, name="a2")
    state = made(tmp_path, [groups.insert(100, one, "x"), groups.insert(200, two, "y")])
    assert [(row["_table"], row["note"]) for row in read_all(state, "a*")] == [("public.a1", "x"), ("public.a2", "y")]


def test_a_renamed_table_and_column_keep_their_earlier_rows(tmp_path: Path) -> None:
    state = made(
        tmp_path,
        [
            groups.insert(100, groups.text_relation("note"), "x"),
            groups.insert(200, groups.text_relation("text", name="renamed"), "y"),
        ],
    )
    assert [row["text"] for row in read_all(state, "renamed")] == ["x", "y"]
    assert [row["text"] for row in read_all(state, "account,renamed")] == ["x", "y"], "one table by both names"


def test_a_name_that_a_table_has_no_more_is_found_beside_a_present_one(tmp_path: Path) -> None:
    other = groups.text_relation("note", oid=16400, name="other")
    renamed = groups.text_relation("note", name="renamed")
    changes = [(groups.text_relation("note"), "x"), (renamed, "y"), (other, "z")]
    state = made(tmp_path, [groups.insert(100 * n, table, text) for n, (table, text) in enumerate(changes, start=1)])
    assert [row["note"] for row in read_all(state, "account,other")] == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("table", "options", "error", "message"),
    [
        ("missing", {}, UnknownTable, "table 'missing' is not in the outbox"),
        ("a1,typo", {}, UnknownTable, "table 'typo' is not in the outbox"),
        ("public.none*, a1", {}, UnknownTable, r"table 'public.none\*' is not in the outbox"),
        ("a1,", {}, UnknownTable, "table '' is not in the outbox"),
        ("a1,a2", {}, TablesDiffer, "the columns of public.a1 differ from those of public.a2: more is new"),
        ("a*", {}, TablesDiffer, "the columns of public.a1 differ from those of public.a2: more is new"),
        ("a1", {"columns": "none"}, ConfigError, "option columns: 'none' is invalid"),
        ("a1", {"schemaEvolution": "none"}, ConfigError, "option schemaEvolution: 'none' is invalid"),
        ("a1", {"startingPosition": "yesterday"}, ConfigError, "neither an LSN nor a time: 'yesterday'"),
        ("a1", {"startingPosition": "2026-01-01"}, ConfigError, "has no time zone"),
        ("a1", {"maxBytesPerTrigger": "0"}, ConfigError, "option maxBytesPerTrigger: '0' is invalid"),
        ("a1", {"pollTimeoutMs": "-1"}, ConfigError, "option pollTimeoutMs: '-1' is invalid"),
        ("a1", {"reader": "a/b"}, ConfigError, "reader: 'a/b' is not a valid name"),
        (None, {"columns": "after"}, ConfigError, "need the option table"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    tmp_path: Path, table: str | None, options: dict[str, str], error: type[TidemarkError], message: str
) -> None:
    one, two = groups.text_relation("note", "more", name="a1"), groups.text_relation("note", oid=16400, name="a2")
    state = made(tmp_path, [groups.insert(100, one, "x", "z"), groups.insert(200, two, "y")])
    with pytest.raises(error, match=message) as caught:
        source_of(state, table, **options).schema()
    assert caught.value.hint or table is None


def test_a_stream_of_a_table_without_a_reader_is_refused(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "x")])
    source = OutboxSource({"state": str(state), "table": "account"})
    with pytest.raises(ConfigError, match="requires the option reader"):
        source.streamReader(source.schema())


def test_a_chosen_column_of_another_type_is_refused(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert(100, groups.text_relation("note"), "x")])
    chosen = StructType([StructField("id", IntegerType())])
    with pytest.raises(ConfigError, match="column id of table 'account' is bigint, but the query requires int"):
        source_of(state, "account").streamReader(chosen)


def test_a_table_of_a_database_that_was_created_again_has_the_rows_of_both(tmp_path: Path) -> None:
    first = groups.insert(100, groups.text_relation("note"), "x")
    (item,) = first.items
    assert isinstance(item, ChangeBatch)
    second = groups.group(200, [replace(item, database=Oid(5))])
    state = made(tmp_path, [first, second])
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        names = {groups.DATABASE: "shop", Oid(5): "shop"}
        transaction.put(BEGINNING, Beginning(groups.TIMELINE, Lsn(1), FullXid(3), names))
    assert [row["note"] for row in read_all(state, "account")] == ["x", "x"]


def test_partitions_of_another_table_with_the_same_oid_in_another_database_are_left_out(tmp_path: Path) -> None:
    """A database that was copied from another one has its OIDs."""
    root = replace(groups.text_relation("note", name="parts"), kind="p")
    part = replace(groups.text_relation("note", name="low", oid=16390), partition_of=root.oid)
    (batch,) = groups.insert(200, part, "x").items
    assert isinstance(batch, ChangeBatch)
    copied = groups.group(300, [replace(batch, database=Oid(5))])
    state = made(tmp_path, [groups.group(100, [groups.schema_event(100, root)]), groups.group(200, [batch]), copied])
    assert [row["_op"] for row in read_all(state, "parts")] == ["t", "i"]


def test_a_table_in_two_databases_is_refused(tmp_path: Path) -> None:
    first = groups.insert(100, groups.text_relation("note"), "x")
    (item,) = first.items
    assert isinstance(item, ChangeBatch)
    second = groups.group(200, [replace(item, database=Oid(5))])
    with pytest.raises(UnknownTable, match="exists in the databases 16384, 5"):
        source_of(made(tmp_path, [first, second]), "account").schema()


@pytest.mark.parametrize("call", ["initialOffset", "latestOffset", "partitions", "commit"])
def test_a_query_with_the_reader_of_a_pipeline_is_refused_at_each_kind_of_start(tmp_path: Path, call: str) -> None:
    state = made(tmp_path, [groups.group(100 * n, [groups.batch(100 * n, [n])]) for n in (1, 2, 3)])
    with OutboxReader.open(StateFolder(state)) as outbox:
        before, head = outbox.register("query", kind=ReaderKind.PIPELINE), outbox.head()
    began, ended = ({"outbox": "0a0b", "sequence": at} for at in (0, head))
    arguments = {"initialOffset": (), "latestOffset": (began, ALL), "partitions": (began, ended), "commit": (ended,)}
    with pytest.raises(ConfigError, match=r"reader 'query' belongs to a pipeline .*`cdcctl reader drop query`"):
        getattr(stream_of(state, None), call)(*arguments[call])
    with OutboxReader.open(StateFolder(state)) as outbox:
        assert outbox.registered("query") == before


def test_the_older_of_two_queries_with_one_reader_ends_at_its_next_confirmation(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.group(100 * n, [groups.batch(100 * n, [n])]) for n in (1, 2, 3)])
    older, younger = stream_of(state, "account"), stream_of(state, "account")
    at = older.initialOffset()
    end = older.latestOffset(at, ReadMaxBytes(1))
    assert end != at
    assert younger.initialOffset() == at
    for confirm in (lambda: older.latestOffset(end, ALL), lambda: older.commit(end)):
        with pytest.raises(ReaderTakenOver, match="another query, which started later, uses reader 'query'"):
            confirm()
    assert confirmed(state) == (at["sequence"], at["sequence"])
    latest = younger.latestOffset(at, ALL)
    younger.commit(latest)
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.apply_confirmations()
    with pytest.raises(ReaderTakenOver):
        older.partitions(end, latest)
