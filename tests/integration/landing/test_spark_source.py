"""The source's reader against a real outbox, called as Spark calls it: its rules are tested without Spark."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from tests.support.forged import groups
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.readers.outbox import OutboxReader, OutboxTrimmed
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch, GroupItem
from tidemark.model.errors import ConfigError, InternalError, StateError
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.pipeline.landing.feed import Feed, check_complete, make_feed
from tidemark.pipeline.landing.portions import PORTION_BYTES, feeds
from tidemark.pipeline.source.format import OutboxSource, spark_schema
from tidemark.pipeline.source.offsets import Offset, OffsetMovedBack, OutboxReplaced
from tidemark.pipeline.source.opened_values import in_order
from tidemark.pipeline.source.options import SourceOptions
from tidemark.pipeline.source.outbox_range import PARTITION_BYTES
from tidemark.pipeline.source.stream import LOOK_S, LOOK_S_MAX, OutboxStreamReader
from tidemark.pipeline.source.value_contents import SCHEMA, ValueContents
from tidemark.wire.items import decode_item, encode_item
from tidemark.wire.state.state_keys import IDENTITY
from tidemark.wire.values import HEADER_BYTES, ValueKind, decode_header

GROUPS = 30


def open_feed(values: pa.Table, outbox: str) -> Feed | None:
    """Open the rows of a query that requests whole values, as a user's own query does; None for no rows."""
    if not values.num_rows:
        return None
    values = in_order(values)
    stored = [blob.as_buffer() for blob in values.column("value")]
    numbers = values.column("sequence").to_pylist()
    headers = [
        decode_header(value[:HEADER_BYTES].to_pybytes(), Sequence(number))
        for number, value in zip(numbers, stored, strict=True)
    ]
    items = [
        (header.sequence, decode_item(header.kind, value[HEADER_BYTES:]))
        for header, value in zip(headers, stored, strict=True)
        if header.kind is not ValueKind.TRANSACTIONS
    ]
    check_complete(headers[0], headers[-1])
    return make_feed(headers, items, outbox)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    root = tmp_path / "state"
    make_state(root)
    feed(root, RandomTables(5).groups(GROUPS))
    return root


def reader_of(state: Path, start: int = 0, **options: str) -> OutboxStreamReader:
    parsed = SourceOptions.parse({"state": str(state), "startingSequence": str(start), **options})
    return OutboxStreamReader(parsed, ValueContents())


def offset(sequence: int, outbox: str = "0a0b") -> Offset:
    return {"outbox": outbox, "sequence": sequence}


def read(reader: OutboxStreamReader, start: Offset, end: Offset) -> pa.Table:
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return pa.Table.from_batches(batches)


def group_ends(state: Path) -> list[int]:
    with OutboxReader.open(StateFolder(state)) as outbox:
        return [h.sequence for h in outbox.headers(Sequence(0), outbox.head()) if h.ends_group]


def test_a_batch_ends_at_a_group_end_and_within_its_bytes(state: Path) -> None:
    reader = reader_of(state)
    at, ends = reader.initialOffset(), []
    while (end := reader.latestOffset(at, ReadMaxBytes(40_000))) != at:
        rows = read(reader, at, end)
        assert rows.nbytes < 80_000
        ends.append(end["sequence"])
        at = end
    assert set(ends) <= set(group_ends(state))
    assert len(ends) > 3
    assert ends[-1] == group_ends(state)[-1]


@pytest.mark.feature("L09")
def test_a_batch_waits_a_bounded_time_for_the_rest_of_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = groups.group(100, [groups.batch(100, [1])])
    begun = replace(groups.group(200, [groups.batch(200, [2])]), transactions=())
    ended = groups.group(300, [groups.batch(300, [3])])
    state = tmp_path / "state"
    make_state(state)
    feed(state, [complete, begun])
    reader, limit = reader_of(state), ReadMaxBytes(PORTION_BYTES)
    assert reader.latestOffset(offset(0), limit) == offset(2)
    assert reader.latestOffset(offset(2), limit) == offset(2)
    with monkeypatch.context() as patched:
        patched.setattr("tidemark.pipeline.source.stream.TRANSACTION_WAIT_S", 0.0)
        assert reader_of(state).latestOffset(offset(2), limit) == offset(4), "no longer than the bound"
    feed(state, [ended])
    assert reader.latestOffset(offset(2), limit) == offset(6)


@pytest.mark.parametrize("item", [groups.message(100, b"m"), groups.batch(100, [1])], ids=["message", "rows"])
def test_a_batch_waits_for_no_transaction_that_has_ended(tmp_path: Path, item: GroupItem) -> None:
    state = tmp_path / "state"
    make_state(state)
    is_message = not isinstance(item, ChangeBatch)
    group = groups.group(100, [item])
    feed(state, [replace(group, transactions=()) if is_message else group])
    assert reader_of(state).latestOffset(offset(0), ReadMaxBytes(PORTION_BYTES)) == offset(2)


def test_a_trigger_waits_for_values_if_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, looks, head = tmp_path / "state", 0, OutboxReader.head
    make_state(state)
    reader = reader_of(state, pollTimeoutMs="60000")

    def look(outbox: OutboxReader) -> Sequence:
        nonlocal looks
        looks += 1
        if looks == 4:
            feed(state, [groups.group(100, [groups.batch(100, [1])])])
        return head(outbox)

    monkeypatch.setattr(OutboxReader, "head", look)
    assert reader.latestOffset(offset(0), ReadMaxBytes(PORTION_BYTES)) == offset(2)
    assert looks >= 4


def test_a_trigger_waits_no_longer_than_its_bound(state: Path) -> None:
    end = offset(group_ends(state)[-1])
    assert reader_of(state, pollTimeoutMs="0").latestOffset(end, ReadAllAvailable()) == end
    assert reader_of(state, pollTimeoutMs="50").latestOffset(end, ReadAllAvailable()) == end


def test_an_outbox_that_is_renumbered_while_a_trigger_waits_gives_no_offset_with_its_new_name(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, head = 0, OutboxReader.head
    end, reader = offset(group_ends(state)[-1]), reader_of(state, pollTimeoutMs="200")

    def look(outbox: OutboxReader) -> Sequence:
        nonlocal looks
        looks += 1
        if looks == 3:
            with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
                transaction.put(IDENTITY, replace(transaction.identity, outbox_id="0c0d"))
        return head(outbox)

    monkeypatch.setattr(OutboxReader, "head", look)
    assert reader.latestOffset(end, ReadAllAvailable()) == end, "Spark would plan a batch from one to the other"
    assert looks >= 3
    with pytest.raises(OutboxReplaced, match="0c0d"):
        reader.latestOffset(end, ReadAllAvailable())


def test_looks_for_values_become_rare_while_there_are_none(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, sleeps = 0.0, list[float]()

    def let_time_pass(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        sleeps.append(seconds)

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=let_time_pass)
    monkeypatch.setattr("tidemark.pipeline.source.stream.time", clock)
    end, reader = offset(group_ends(state)[-1]), reader_of(state, pollTimeoutMs="500")
    for _ in range(10):
        assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert (sleeps[0], max(sleeps)) == (LOOK_S, LOOK_S_MAX)
    assert sum(sleeps) == pytest.approx(5)
    feed(state, [groups.group(1 << 40, [groups.batch(1 << 40, [1])])])
    newest = reader.latestOffset(end, ReadAllAvailable())
    sleeps.clear()
    assert reader.latestOffset(newest, ReadAllAvailable()) == newest
    assert sleeps[0] == LOOK_S


def test_a_query_of_what_is_available_waits_for_no_more(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(state, pollTimeoutMs="60000")
    reader.prepareForTriggerAvailableNow()

    def fail(_seconds: float) -> None:
        pytest.fail("it waits")

    monkeypatch.setattr("tidemark.pipeline.source.stream.time.sleep", fail)
    end = offset(group_ends(state)[-1])
    assert reader.latestOffset(end, ReadMaxBytes(PORTION_BYTES)) == end


def test_a_batch_is_at_most_half_of_the_outbox(tmp_path: Path) -> None:
    make_state(tmp_path / "state", bytes_max=2 << 20)
    limit = reader_of(tmp_path / "state").getDefaultReadLimit()
    assert isinstance(limit, ReadMaxBytes)
    assert limit.max_bytes == 1 << 20


def test_the_same_range_gives_the_same_bytes(state: Path) -> None:
    end = reader_of(state).latestOffset(offset(0), ReadAllAvailable())
    assert read(reader_of(state), offset(0), end) == read(reader_of(state), offset(0), end)


def test_offsets_are_reported_as_equal_text_every_time(state: Path) -> None:
    reader = reader_of(state)
    end = reader.latestOffset(offset(0), ReadAllAvailable())
    assert str(end) == str(reader.latestOffset(end, ReadAllAvailable())) == str(reader.reportLatestOffset())


def test_partitions_cover_a_range_once_and_in_order(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PARTITION_BYTES > 1000
    monkeypatch.setattr("tidemark.pipeline.source.outbox_range.PARTITION_BYTES", 50_000)
    reader = reader_of(state)
    end = reader.latestOffset(offset(0), ReadAllAvailable())
    assert len(reader.partitions(offset(0), end)) > 1
    numbers = read(reader, offset(0), end).column("sequence").to_pylist()
    assert numbers == list(range(1, int(end["sequence"]) + 1))
    assert reader.partitions(end, end) == []


def test_a_trimmed_start_has_a_separate_error(state: Path) -> None:
    with OutboxReader.open(StateFolder(state)) as outbox, StateStore.open(StateFolder(state)) as store:
        outbox.register("spark")
        applied = Sequence(group_ends(state)[3])
        outbox.confirm("spark", applied, applied)
        with store.transaction(None) as transaction:
            transaction.apply_confirmations()
    reader = reader_of(state)
    with pytest.raises(OutboxTrimmed, match="values after 0 were requested"):
        reader.partitions(offset(0), offset(applied))
    with pytest.raises(OutboxTrimmed):
        reader.latestOffset(offset(0), ReadMaxBytes(1000))


def test_an_offset_that_moves_back_is_an_error(state: Path) -> None:
    ends = group_ends(state)
    with pytest.raises(OffsetMovedBack, match="back to"):
        reader_of(state).partitions(offset(ends[3]), offset(ends[2]))


def test_an_offset_of_another_outbox_is_an_error(state: Path) -> None:
    with pytest.raises(OutboxReplaced, match="ffff"):
        reader_of(state).latestOffset(offset(0, "ffff"), ReadMaxBytes(1000))


def test_available_now_stops_at_the_head_of_its_start(state: Path) -> None:
    reader = reader_of(state)
    reader.prepareForTriggerAvailableNow()
    end = group_ends(state)[-1]
    feed(state, list(RandomTables(5).groups(GROUPS + 5))[GROUPS:])
    assert group_ends(state)[-1] > end
    assert reader.latestOffset(offset(0), ReadAllAvailable()) == offset(end)


@pytest.mark.parametrize("options", [{}, {"state": "x", "startSequence": "1"}])
def test_unknown_options_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"has no option startsequence|requires the option state"):
        OutboxSource(options).streamReader(spark_schema(SCHEMA))


def test_a_limit_by_rows_is_refused(state: Path) -> None:
    with pytest.raises(ConfigError, match="by bytes"):
        reader_of(state).latestOffset(offset(0), ReadMaxRows(5))


def test_a_batch_with_a_hole_or_without_its_end_is_refused(state: Path) -> None:
    reader = reader_of(state)
    rows = read(reader, offset(0), reader.latestOffset(offset(0), ReadAllAvailable()))
    assert open_feed(rows, "0a0b") is not None
    for damaged in (
        rows.slice(1),
        rows.slice(0, rows.num_rows - 1),
        pa.concat_tables([rows.slice(0, 5), rows.slice(6)]),
    ):
        with pytest.raises(InternalError, match="incomplete"):
            open_feed(damaged, "0a0b")


def test_values_in_any_order_are_sorted(state: Path) -> None:
    reader = reader_of(state)
    rows = read(reader, offset(0), reader.latestOffset(offset(0), ReadAllAvailable()))
    feed_ = open_feed(rows.sort_by([("sequence", "descending")]), "0a0b")
    assert feed_ is not None
    numbers = [sequence for sequence, _ in feed_.lake_batch.items]
    assert numbers == sorted(numbers)


def test_a_batch_whose_values_the_driver_reads_has_no_partitions(state: Path) -> None:
    reader = reader_of(state, offsetsOnly="true")
    end = reader.latestOffset(offset(0), ReadAllAvailable())
    assert reader.partitions(offset(0), end) == []
    with pytest.raises(OffsetMovedBack, match="back to"):
        reader.partitions(end, offset(0))


def test_the_portions_of_a_batch_have_its_items_for_any_portion_size(state: Path) -> None:
    reader = reader_of(state)
    complete = open_feed(read(reader, offset(0), reader.latestOffset(offset(0), ReadAllAvailable())), "0a0b")
    assert complete is not None
    for bytes_max in (1, 20_000, PORTION_BYTES):
        with OutboxReader.open(StateFolder(state)) as outbox:
            parts = list(feeds(outbox, "0a0b", NO_SEQUENCE, outbox.head(), bytes_max))
        items = [item for part in parts for item in part.lake_batch.items]
        assert [s for s, _ in items] == [s for s, _ in complete.lake_batch.items]
        assert list(map(encode_item, (item for _, item in items))) == [
            encode_item(item) for _, item in complete.lake_batch.items
        ]
        assert sum(part.row_count for part in parts) == complete.row_count
        assert sum(part.byte_count for part in parts) == complete.byte_count
        assert parts[-1].lake_batch.end == complete.lake_batch.end
        assert {part.lake_batch.end for part in parts} <= set(group_ends(state))
        assert (bytes_max == 1) == (len(parts) == len(group_ends(state)))
        assert all(part.byte_count <= bytes_max or len(part.commit_times_us) == 1 for part in parts)


def test_a_batch_is_what_the_lake_lacks_up_to_its_end(state: Path) -> None:
    ends = group_ends(state)
    with OutboxReader.open(StateFolder(state)) as outbox:
        parts = list(feeds(outbox, "0a0b", Sequence(ends[3]), Sequence(ends[5])))
        numbers = [sequence for part in parts for sequence, _ in part.lake_batch.items]
        assert (numbers[0], parts[-1].lake_batch.end) == (ends[3] + 1, ends[5])
        assert list(feeds(outbox, "0a0b", Sequence(ends[5]), Sequence(ends[5]))) == []
        assert list(feeds(outbox, "0a0b", Sequence(ends[5]), Sequence(ends[3]))) == []


def test_portions_are_returned_in_order_and_one_is_read_ahead(state: Path) -> None:
    with OutboxReader.open(StateFolder(state)) as outbox:
        portions_read = feeds(outbox, "0a0b", NO_SEQUENCE, outbox.head(), 1)
        first = next(portions_read)
        portions_read.close()
    assert first.lake_batch.end == group_ends(state)[0]


def test_a_batch_that_begins_or_ends_inside_a_group_is_refused(state: Path) -> None:
    long = next(a for a, b in pairwise(group_ends(state)) if b - a > 2)
    with OutboxReader.open(StateFolder(state)) as outbox:
        with pytest.raises(StateError, match="is not the end of a group"):
            list(feeds(outbox, "0a0b", Sequence(long + 1), outbox.head()))
        with pytest.raises(InternalError, match="incomplete"):
            list(feeds(outbox, "0a0b", NO_SEQUENCE, Sequence(long + 1)))


def test_values_of_an_outbox_that_was_renumbered_meanwhile_are_refused(state: Path) -> None:
    with (
        OutboxReader.open(StateFolder(state)) as outbox,
        pytest.raises(OutboxReplaced, match="it is 0a0b, and the query reads ffff"),
    ):
        list(feeds(outbox, "ffff", NO_SEQUENCE, outbox.head()))
