"""COPY's text compared with the heap's bytes: both give the same Arrow columns, for all values."""

from contextlib import closing

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.conftest import NewCluster
from tests.support.forged.spans import inserts
from tests.support.samples.type_samples import SAMPLES
from tests.support.servers.heap_pages import describe_relation, load_values, packed_tuples
from tests.support.servers.postgres import Cluster, database_in
from tidemark.decode.arrow.batches import BatchBuilder
from tidemark.decode.copy.copied import CopyBatchBuilder
from tidemark.io.node.copy_source import CopySource
from tidemark.model.lsn import Lsn, Oid, TimelineId
from tidemark.model.position import Position
from tidemark.wal.versions import wal_format

PLACE = Position(TimelineId(1), Lsn(77), 5)


@pytest.mark.parametrize("declaration", SAMPLES)
def test_a_copied_row_equals_the_streamed_one(
    cluster: Cluster, session: psycopg.Connection[TupleRow], declaration: str
) -> None:
    load_values(session, "one_type", declaration, [None, *SAMPLES[declaration], None])
    relation = describe_relation(session, "one_type")
    with session.cursor().copy("COPY (SELECT number, value FROM one_type) TO STDOUT") as copy:
        lines = b"".join(bytes(line) for line in copy)
    copied = CopyBatchBuilder(Oid(1), relation).build(lines, lines.count(b"\n"), PLACE, 123)
    copied.rows.validate(full=True)
    (streamed,) = BatchBuilder(Oid(1), relation).build(inserts(packed_tuples(cluster.data, session, "one_type")))
    assert copied.rows.schema.equals(streamed.rows.schema)
    # NB: SELECT without an order reads the heap in physical order; repr, because NaN equals nothing.
    assert repr(copied.rows.column("_after").to_pylist()) == repr(streamed.rows.column("_after").to_pylist())
    first = copied.rows.slice(0, 1).to_pylist()[0]
    assert (first["_op"], first["_commit_lsn"], first["_ordinal"], first["_before"]) == ("c", 77, 5, None)


def test_names_are_copied_as_the_oids_that_they_mean(cluster: Cluster, session: psycopg.Connection[TupleRow]) -> None:
    session.execute("CREATE DOMAIN some_class AS regclass")
    session.execute("CREATE TABLE named (a regclass, b regtype, c regproc[], d some_class, e regrole)")
    session.execute(
        "INSERT INTO named VALUES ('pg_class', 'int', '{now,NULL}', 'named', 'postgres'), (0, 0, NULL, NULL, NULL)"
    )
    with closing(
        CopySource(cluster.dsn(session.info.dbname), session.info.dbname, wal_format(cluster.major))
    ) as source:
        table = next(table for table in source.tables() if table.name == "named")
        with source.locked_snapshot(table) as snapshot:
            relation, lines = snapshot.relation, b"".join(block.lines for block in source.rows(snapshot.relation))
    copied = CopyBatchBuilder(Oid(1), relation).build(lines, lines.count(b"\n"), PLACE, 123)
    (streamed,) = BatchBuilder(Oid(1), relation).build(inserts(packed_tuples(cluster.data, session, "named")))
    assert copied.rows.column("_after").equals(streamed.rows.column("_after"))
    first, second = copied.rows.column("_after").to_pylist()
    assert (first["a"], first["b"], first["e"], second["a"]) == (1259, 23, 10, 0)


def test_a_virtual_column_is_copied_as_it_is_streamed_and_not_computed(new_cluster: NewCluster) -> None:
    """It is not stored in tuples; for some rows its computation may fail."""
    made = new_cluster(18)
    script = (
        "CREATE TABLE ratio (id int, x int, v int GENERATED ALWAYS AS (10 / x) VIRTUAL,"
        " s int GENERATED ALWAYS AS (x * 2) STORED); INSERT INTO ratio (id, x) VALUES (1, 5), (2, 0)"
    )
    with (
        database_in(made, "virtual", script) as database,
        closing(CopySource(made.dsn(database), database, wal_format(made.major))) as source,
    ):
        (table,) = source.tables()
        with source.locked_snapshot(table) as snapshot:
            lines = b"".join(block.lines for block in source.rows(snapshot.relation))
    assert lines == b"1\t5\t\\N\t10\n2\t0\t\\N\t0\n"


@pytest.mark.parametrize(("encoding", "code"), [("WIN1252", "201"), ("LATIN3", "245"), ("EUC_JP", "251\\241")])
def test_bytes_that_are_no_character_of_the_encoding_stop_no_copy(cluster: Cluster, encoding: str, code: str) -> None:
    """The server cannot convert such text to UTF-8, nor its remainder; the stream has a replacement character."""
    script = f"CREATE TABLE odd (a text, b text[]); INSERT INTO odd VALUES (E'x\\302\\261\\{code}', '{{a b}}')"
    options = f"ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    with (
        database_in(cluster, "other_bytes", options=options) as database,
        cluster.connect(database) as session,
        closing(CopySource(cluster.dsn(database), database, wal_format(cluster.major))) as source,
    ):
        session.execute(script.encode())
        (table,) = source.tables()
        with source.locked_snapshot(table) as snapshot:
            relation, lines = snapshot.relation, b"".join(block.lines for block in source.rows(snapshot.relation))
        dialect = source.dialect_of(snapshot).dialect
        copied = CopyBatchBuilder(Oid(1), relation, dialect).build(lines, lines.count(b"\n"), PLACE, 123)
        (streamed,) = BatchBuilder(Oid(1), relation, dialect).build(
            inserts(packed_tuples(cluster.data, session, "odd"))
        )
    assert copied.rows.column("_after").equals(streamed.rows.column("_after"))
    assert "\ufffd" in copied.rows.column("_after")[0]["a"].as_py()
