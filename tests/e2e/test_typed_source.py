"""The format `tidemark` with a table, on the Spark of all tests: types, a stream with a reader, its end at DDL."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.forged import groups
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.outbox_server import Certificate, outbox_server, token_file
from tests.support.workloads.feeder import feed, make_state
from tidemark.io.flight.remote_errors import CertificateRefused
from tidemark.io.readers.outbox import OutboxReader, ReaderLapsed
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.pipeline.driver.runner import register_source
from tidemark.pipeline.failures import named_failure

ROWS = 5_000
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("forked")]


@pytest.fixture
def state(tmp_path: Path, spark: SparkSession) -> Path:
    """Return a state with two groups of inserts."""
    register_source(spark)
    make_state(tmp_path / "state")
    feed(tmp_path / "state", [groups.group(lsn, [groups.batch(lsn, range(ROWS))]) for lsn in (100, 200)])
    return tmp_path / "state"


def drain(
    spark: SparkSession,
    outbox: Path | Mapping[str, str],
    checkpoint: Path,
    each: Callable[[DataFrame, int], None],
    **options: str,
) -> None:
    """Run a query until the present end of the outbox, which is in a state folder or behind a server."""
    where = {"state": str(outbox)} if isinstance(outbox, Path) else outbox
    reader = spark.readStream.format("tidemark").options(**where, table="account", reader="query", **options)
    writer = reader.load().writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    query = writer.foreachBatch(each).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


@pytest.mark.feature("L03")
def test_a_batch_query_has_the_types_of_the_table(spark: SparkSession, state: Path) -> None:
    rows = spark.read.format("tidemark").options(state=str(state), table="account").load()
    assert rows.dtypes[:4] == [("id", "bigint"), ("note", "string"), ("_op", "string"), ("_seq", "bigint")]
    assert rows.filter("id < 10 and _lsn = 192").count() == 10
    (first,) = rows.orderBy("_seq", "_ordinal").limit(1).collect()
    assert (first.id, first.note, first["_op"]) == (0, "x", "i")
    assert first["_commit_time"].replace(tzinfo=UTC) == datetime(1970, 1, 1, microsecond=100, tzinfo=UTC)
    nested = spark.read.format("tidemark").options(state=str(state), table="account", columns="before_after").load()
    assert nested.select("_after.note").distinct().collect() == [("x",)]


def test_a_stream_ends_at_other_columns_and_continues_with_them(
    spark: SparkSession, state: Path, tmp_path: Path
) -> None:
    counts: list[tuple[list[str], int]] = []

    def each(rows: DataFrame, _batch_id: int) -> None:
        counts.append((rows.columns[:3], rows.count()))

    drain(spark, state, tmp_path / "checkpoint", each)
    assert counts == [(["id", "note", "_op"], 2 * ROWS)]
    assert b"query" in succeeded(cdcctl("reader", "list", "--state", state)).out
    feed(
        state,
        [
            groups.insert(250, groups.text_relation("note"), "a"),
            groups.insert(300, groups.text_relation("note", "tag"), "b", "c"),
        ],
    )
    query = spark.readStream.format("tidemark").options(state=str(state), table="account", reader="query")
    assert query.load().columns[:3] == ["id", "note", "tag"]
    with pytest.raises(StreamingQueryException, match="checkpoint belongs to a query with other columns"):
        drain(spark, state, tmp_path / "checkpoint", each)
    drain(spark, state, tmp_path / "checkpoint", each, schemaEvolution="restart")
    assert counts[1:] == [(["id", "note", "tag"], 2)]
    with OutboxReader.open(StateFolder(state)) as outbox:
        reader = outbox.registered("query")
        assert reader is not None
        assert reader.applied > 2 * len(counts)


def test_a_stream_that_was_stopped_reads_rows_of_an_earlier_type_first_and_then_continues(
    spark: SparkSession, state: Path, tmp_path: Path
) -> None:
    found: list[tuple[str, int]] = []

    def each(rows: DataFrame, _batch_id: int) -> None:
        found.append((rows.dtypes[0][1], rows.count()))

    drain(spark, state, tmp_path / "checkpoint", each, schemaEvolution="restart")
    feed(state, [groups.insert(300, groups.relation(), None), groups.insert_text_key(400)])
    feed(state, [groups.insert_text_key(500), groups.insert(600, groups.relation(), None)])
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="SchemaChanged"):
            drain(spark, state, tmp_path / "checkpoint", each, schemaEvolution="restart")
    drain(spark, state, tmp_path / "checkpoint", each, schemaEvolution="restart")
    assert found == [("bigint", 2 * ROWS), ("bigint", 1), ("string", 2), ("bigint", 1)]


@pytest.mark.feature("L04")
def test_the_query_of_a_lapsed_reader_ends_with_the_remedy_and_continues_when_resumed(
    spark: SparkSession, state: Path, tmp_path: Path
) -> None:
    counts: list[int] = []

    def each(rows: DataFrame, _batch_id: int) -> None:
        counts.append(rows.count())

    with OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register("lake")
        drain(spark, state, tmp_path / "checkpoint", each)
        feed(state, [groups.insert(lsn, groups.text_relation("note"), "gone") for lsn in (300, 400)])
        outbox.confirm("lake", outbox.head(), outbox.head())
        with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
            transaction.apply_confirmations(hold_bytes=1)
        assert set(transaction.lapsed) == {"query"}
    with pytest.raises(StreamingQueryException) as raised:
        drain(spark, state, tmp_path / "checkpoint", each)
    (line,) = {line for line in str(raised.value).splitlines() if "ReaderLapsed: " in line}
    assert "values 1 to 8 of the outbox were trimmed, commits from 0/12C on" in line
    assert "`cdcctl reader resume query` continues without them" in line
    assert isinstance(named_failure(str(raised.value)), ReaderLapsed)
    succeeded(cdcctl("reader", "resume", "query", "--state", state))
    feed(state, [groups.insert(500, groups.text_relation("note"), "next")])
    before = sum(counts)
    drain(spark, state, tmp_path / "checkpoint", each)
    assert sum(counts) == before + 1


def test_a_query_reads_from_a_server_with_tls_and_names_it_when_it_is_gone(
    spark: SparkSession, state: Path, tmp_path: Path
) -> None:
    counts: list[int] = []

    def each(rows: DataFrame, _batch_id: int) -> None:
        counts.append(rows.filter("note = 'x'").count())

    certificate = Certificate.of_years(tmp_path / "tls", 2020, 2050)
    with outbox_server(state, certificate) as (_, url):
        served = {"server": url, "tokenFile": str(token_file(tmp_path)), "tlsRoots": str(certificate.path)}
        assert spark.read.format("tidemark").options(**served, table="account").load().count() == 2 * ROWS
        drain(spark, served, tmp_path / "checkpoint", each)
        assert sum(counts) == 2 * ROWS
        assert b"query" in succeeded(cdcctl("reader", "list", "--state", state)).out
        options = {**served, "tlsRoots": str(Certificate.of_years(tmp_path / "other", 2020, 2050).path)}
        with pytest.raises(PySparkException) as refused:
            spark.read.format("tidemark").options(**options, table="account").load()
    assert isinstance(named_failure(str(refused.value)), CertificateRefused)
    with pytest.raises(PySparkException) as gone:
        drain(spark, served, tmp_path / "checkpoint", each)
    (line,) = {line for line in str(gone.value).splitlines() if "ServerUnreachable: " in line}
    assert f"the outbox server at {url} does not answer" in line
    assert line.endswith("check that `cdcctl run server` runs there, and host, port and firewall")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "missing"}, "table 'missing' is not in the outbox"),
        ({"table": "account", "columns": "all"}, "option columns: 'all' is invalid"),
    ],
)
def test_an_error_of_an_option_names_it(
    spark: SparkSession, state: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("tidemark").options(state=str(state), **options).load()
