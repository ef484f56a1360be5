"""Typed rows from before and after the type of a column changes, and changes back."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.integration.landing.test_spark_rows import made, read, read_all, source_of, stream_of
from tests.support.forged import groups
from tests.support.processes.captures import running
from tests.support.servers.postgres import Cluster
from tests.support.workloads.feeder import feed
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.pipeline.source.rows.exact_values import UnfitValues
from tidemark.pipeline.source.rows.query_table import ColumnsMixed, SchemaChanged
from tidemark.pipeline.source.stream import OutboxStreamReader

ALL = ReadAllAvailable()


def kinds(rows: list[dict[str, object]], column: str) -> list[tuple[object, bool]]:
    """Return the key of each row, and whether its value has a time zone."""
    return [(row["id"], getattr(row[column], "tzinfo", None) is not None) for row in rows]


@pytest.mark.parametrize("is_one_transaction", [False, True])
def test_a_stream_follows_a_column_to_another_type_and_back(
    cluster: Cluster,
    database: str,
    tmp_path: Path,
    is_one_transaction: bool,  # noqa: FBT001 - a parameter
) -> None:
    def stream(evolution: str = "restart") -> OutboxStreamReader:
        return stream_of(sidecar.folder.root, "public.visit", reader=evolution, schemaEvolution=evolution)

    cluster.sql("CREATE TABLE visit (id int PRIMARY KEY, at timestamp)", database)
    with running(cluster, database, tmp_path) as sidecar:
        statements = [
            "INSERT INTO visit VALUES (1, '2024-01-01 10:00')",
            "ALTER TABLE visit ALTER at TYPE timestamptz",
            "INSERT INTO visit VALUES (2, '2024-01-01 10:00')",
            "ALTER TABLE visit ALTER at TYPE timestamp",
            "INSERT INTO visit VALUES (3, '2024-01-01 10:00')",
        ]
        for script in ["; ".join(statements)] if is_one_transaction else statements:
            cluster.sql(script, database)
        sidecar.catch_up()
        at, found = (reader := stream()).initialOffset(), list[tuple[object, bool]]()
        while at != reader.reportLatestOffset():
            try:
                end = reader.latestOffset(at, ALL)
            except SchemaChanged:
                reader = stream()
            else:
                found += kinds(read(reader, at, end), "at")
                at = end
        assert found == [(1, False), (2, True), (3, False)]
        failing = stream("fail")
        start = failing.initialOffset()
        with pytest.raises(UnfitValues, match=r"column at: timestamp\[us, tz=UTC\] does not become timestamp\[us\]"):
            read(failing, start, failing.latestOffset(start, ALL))
        cluster.sql("INSERT INTO visit VALUES (4, '2024-01-01 10:00')", database)
        sidecar.catch_up()
        assert kinds(read(failing, end, failing.latestOffset(end, ALL)), "at") == [(4, False)]


@pytest.mark.parametrize("evolution", ["fail", "ignore"])
def test_an_earlier_value_that_does_not_fit_the_newest_type_is_an_error_with_the_way_round_it(
    tmp_path: Path, evolution: str
) -> None:
    state = made(tmp_path, [groups.insert_text_key(100), groups.insert(200, groups.text_relation("note"), "a")])
    with pytest.raises(UnfitValues, match="before the type of the column changed: a stream with schemaEvolution=rest"):
        read_all(state, "account", schemaEvolution=evolution)
    (row,) = read_all(state, "account", schemaEvolution=evolution, startingPosition=format_lsn(Lsn(150)))
    assert row["note"] == "a"


@pytest.mark.parametrize("columns", ["after", "before_after", "debezium"])
@pytest.mark.parametrize("is_stopped_before", [True, False])
def test_a_query_that_restarts_reads_earlier_values_in_the_columns_that_they_had(
    tmp_path: Path,
    columns: str,
    is_stopped_before: bool,  # noqa: FBT001 - a parameter
) -> None:
    """The first start is of a new reader, or of one that was stopped before the type changed."""

    def stream() -> OutboxStreamReader:
        return stream_of(folder, "account", columns=columns, schemaEvolution="restart")

    note = groups.text_relation("note")
    folder = made(tmp_path, [groups.insert_text_key(100), groups.insert_text_key(200)])
    if is_stopped_before:
        stream().initialOffset()
    feed(folder, [groups.insert(300, note, "a"), groups.insert_text_key(400)])
    reader, keys = stream(), list[list[str]]()
    at, last = reader.initialOffset(), reader.reportLatestOffset()
    while at != last:
        try:
            end = reader.latestOffset(at, ALL)
        except SchemaChanged:
            reader = stream()
            continue
        rows = read(reader, at, end)
        assert read(reader, at, end) == rows
        keys.append([type(_key(row, columns)).__name__ for row in rows])
        at = end
    assert keys == [["str", "str"], ["int"], ["str"]]


def _key(row: dict[str, object], columns: str) -> object:
    side = row if columns == "after" else row["_after" if columns == "before_after" else "after"]
    assert isinstance(side, dict)
    return side["id"]


def test_a_batch_that_was_planned_across_a_change_of_types_needs_a_new_checkpoint(tmp_path: Path) -> None:
    state = made(tmp_path, [groups.insert_text_key(100), groups.insert(200, groups.text_relation("note"), "a")])
    failing = stream_of(state, "account")
    start = failing.initialOffset()
    end = failing.latestOffset(start, ALL)
    with pytest.raises(UnfitValues):
        read(failing, start, end)
    restarted = stream_of(state, "account", schemaEvolution="restart")
    with pytest.raises(ColumnsMixed, match=r"has rows of both: public\.account: .*new checkpoint"):
        restarted.partitions(start, end)
    anew = restarted.initialOffset()
    (row,) = read(restarted, anew, restarted.latestOffset(anew, ALL))
    assert isinstance(row["id"], str)
    source = source_of(state, "account", schemaEvolution="restart")
    with pytest.raises(ConfigError, match="only a stream continues with these: leave schemaEvolution=restart out"):
        source.reader(source.schema())


def test_a_query_that_restarts_reads_earlier_values_in_the_newest_columns_if_all_fit(tmp_path: Path) -> None:
    note = groups.text_relation("note")
    state = made(tmp_path, [groups.insert(100, note, "a"), groups.insert(200, groups.text_relation("tag"), "b")])
    reader = stream_of(state, "account", schemaEvolution="restart")
    start = reader.initialOffset()
    rows = read(reader, start, reader.latestOffset(start, ALL))
    assert [row["tag"] for row in rows] == ["a", "b"], "renamed"
