"""DDL that changes stored values: a replica built from changes and schema events alone remains equal to the table."""

from collections.abc import Iterator

import pytest

from tests.support.lakes.replica import Replicating, differences
from tests.support.servers.postgres import Cluster, database_in
from tidemark.decode.transactions.schema_changes import SchemaTracker

DATABASE = "schema_effects"
LONG = "repeat(md5({}::text), 200)"  # compresses badly enough to be TOASTed
SETUP = [
    "CREATE TABLE item (id int PRIMARY KEY, amount int, note text, doc text)",
    "ALTER TABLE item ALTER doc SET STORAGE EXTERNAL",
    "CREATE TABLE event (id bigint, at timestamptz, kind text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE event_low PARTITION OF event FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE event_high PARTITION OF event FOR VALUES FROM (100) TO (1000)",
    "CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY, v int)",
    "CREATE TABLE log (id serial PRIMARY KEY, seen int)",
    """CREATE FUNCTION seen(v int) RETURNS bigint LANGUAGE plpgsql AS
       $$BEGIN INSERT INTO log (seen) VALUES (v); RETURN v * 10; END$$""",
]
SAVEPOINTS = """
    BEGIN; ALTER TABLE item ALTER c_more TYPE bigint; SAVEPOINT s; ALTER TABLE item ALTER c_more TYPE text;
    UPDATE item SET c_more = 'gone'; ROLLBACK TO s; UPDATE item SET c_more = c_more + 1 WHERE id < 10;
    ALTER TABLE item ALTER c_more TYPE text USING c_more || '!'; DELETE FROM item WHERE id = 11; COMMIT
"""
FAILING = """
    DO $$ BEGIN
        ALTER TABLE item ALTER c_more TYPE int USING 1 / (id - 60);
    EXCEPTION WHEN division_by_zero THEN
        UPDATE item SET c_more = 'failed half-way' WHERE id < 5; ALTER TABLE item ALTER c_more TYPE varchar(20)
            USING c_more || '?';
    END $$
"""
STEPS: list[tuple[str, list[str]]] = [  # the statements, and the emitted effects
    (f"INSERT INTO item SELECT i, i * 10, 'note ' || i, {LONG.format('i')} FROM generate_series(1, 120) i", []),
    (
        "INSERT INTO event SELECT i, timestamptz '2026-01-01 UTC', 'k' FROM generate_series(1, 300, 7) i",
        [],
    ),
    ("INSERT INTO scratch SELECT i, i FROM generate_series(1, 30) i", []),
    ("UPDATE item SET note = 'changed' WHERE id % 3 = 0", []),
    ("ALTER TABLE item ADD c_const int DEFAULT 42", ["item constant"]),
    (
        "ALTER TABLE item ADD c_text text DEFAULT 'it''s', ADD c_time timestamptz DEFAULT '2026-05-05 05:05:05+00'",
        ["item constant"],
    ),
    ("ALTER TABLE item ADD c_null numeric(10,2)", ["item metadata"]),
    ("UPDATE item SET c_null = id / 4.0 WHERE id % 5 = 0", []),
    ("ALTER TABLE item ALTER amount TYPE bigint", ["item rewrite"]),
    ("ALTER TABLE item ALTER amount TYPE text USING 'amount ' || amount", ["item rewrite"]),
    ("ALTER TABLE item ADD c_volatile double precision DEFAULT random()", ["item rewrite"]),
    ("ALTER TABLE item DROP c_text", ["item metadata"]),
    ("ALTER TABLE item RENAME note TO remark", ["item metadata"]),
    ("ALTER TABLE item ALTER c_const TYPE numeric(12,3), ADD c_more int DEFAULT 7", ["item rewrite"]),
    ("ALTER TABLE item ADD c_generated int GENERATED ALWAYS AS (id * 2) STORED", ["item rewrite"]),
    ("VACUUM FULL item", []),
    ("CLUSTER item USING item_pkey", []),
    (
        SAVEPOINTS,
        ["item rewrite", "item rewrite"],
    ),
    (FAILING, ["item rewrite"]),
    ("BEGIN; ALTER TABLE item ALTER c_more TYPE int USING 1; ROLLBACK", []),
    ("ALTER TABLE item ALTER c_more TYPE bigint USING seen(id)", ["item rewrite"]),
    (
        "ALTER TABLE event ADD place text DEFAULT 'here'",
        ["event_low constant", "event_high constant", "event metadata"],
    ),
    # NB: a partition without rows has none to rewrite.
    (
        "ALTER TABLE event ALTER kind TYPE int USING length(kind)",
        ["event_low rewrite", "event_high rewrite", "event metadata"],
    ),
    ("CREATE TABLE event_top PARTITION OF event FOR VALUES FROM (1000) TO (2000)", ["event_top metadata"]),
    (
        "ALTER TABLE event ALTER kind TYPE text",
        ["event_low rewrite", "event_high rewrite", "event_top metadata", "event metadata"],
    ),
    ("INSERT INTO event SELECT i, now(), 1, 'there' FROM generate_series(1001, 1020) i", []),
    ("ALTER TABLE scratch SET LOGGED", ["scratch rewrite"]),
    ("UPDATE scratch SET v = v + 1", []),
    ("ALTER TABLE scratch ALTER v TYPE text", ["scratch rewrite"]),
    ("TRUNCATE item, log RESTART IDENTITY", []),
    (f"INSERT INTO item (id, doc) SELECT i, {LONG.format('i')} FROM generate_series(5, 9) i", []),
    ("ALTER TABLE item DROP c_generated, ALTER id TYPE bigint", ["item rewrite"]),
    ("DELETE FROM item", []),
    ("ALTER TABLE item ALTER id TYPE int", ["item metadata"]),
    ("INSERT INTO item (id) VALUES (1)", []),
    (
        "BEGIN; CREATE TABLE short (id int PRIMARY KEY); INSERT INTO short VALUES (1); DROP TABLE short; COMMIT",
        ["short metadata", "short metadata"],
    ),
    ("BEGIN; CREATE TABLE shorter (id int PRIMARY KEY); DROP TABLE shorter; COMMIT", []),
    ("DROP TABLE log CASCADE", ["log metadata"]),
    ("ALTER TABLE event DETACH PARTITION event_low", ["event_low metadata"]),
    ("ALTER TABLE scratch SET UNLOGGED", ["scratch metadata"]),
]


@pytest.fixture
def database(oracle_cluster: Cluster) -> Iterator[str]:
    with database_in(oracle_cluster, DATABASE, *SETUP) as name:
        yield name


@pytest.mark.feature("P07")
@pytest.mark.feature("P21")
def test_a_replica_stays_equal_to_its_source_through_ddl_that_rewrites_it(
    oracle_cluster: Cluster, database: str
) -> None:
    ours = Replicating(oracle_cluster, [database])
    ours.settle()
    compared = 0
    for step, effects in STEPS:
        oracle_cluster.sql(step, database)
        tables = ours.catch_up()
        assert ours.replica.pop_effects() == effects, step
        for name, table in tables.items():
            assert not table.is_lost, name
            assert differences(oracle_cluster, database, table) == [], step
            compared += 1
    assert compared > len(STEPS)
    ours.changes.close()


def test_a_replica_shows_what_the_lines_do_not(
    oracle_cluster: Cluster, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SchemaTracker, "rewrite_target", lambda *_: None)
    ours = Replicating(oracle_cluster, [database])
    ours.settle()
    oracle_cluster.sql("INSERT INTO item (id, amount) SELECT i, i FROM generate_series(1, 3) i", database)
    oracle_cluster.sql("ALTER TABLE item ALTER amount TYPE text USING 'amount ' || amount", database)
    (reported,) = differences(oracle_cluster, database, ours.catch_up()["public.item"])[:1]
    assert "public.item: 3 rows are only in the table" in reported
    ours.changes.close()


def test_ddl_is_reported_for_its_own_database_although_the_transaction_changed_a_shared_catalog_before(
    oracle_cluster: Cluster, database: str
) -> None:
    with database_in(oracle_cluster, "schema_effects_first") as first:
        ours = Replicating(oracle_cluster, [first, database])
        ours.settle()
        assert list(ours.seed.databases.values()) == [first, database], "the other database's mirror is asked first"
        for number, change in enumerate(("GRANT CONNECT ON DATABASE {} TO cdc", "ALTER DATABASE {} OWNER TO cdc")):
            for place in (first, database):
                granted = change.format(place)
                oracle_cluster.sql(
                    f"BEGIN; {granted}; CREATE TABLE made_{number} (id int PRIMARY KEY, x int); "
                    f"INSERT INTO made_{number} VALUES (1, 1); ALTER TABLE made_{number} ALTER x TYPE bigint; COMMIT",
                    place,
                )
                name = f"public.made_{number}"
                table = ours.catch_up()[name]
                assert ours.replica.pop_effects() == [f"made_{number} metadata", f"made_{number} rewrite"], granted
                assert differences(oracle_cluster, place, table) == []
                oracle_cluster.sql(f"BEGIN; {granted}; DROP TABLE made_{number}; COMMIT", place)
                assert name not in ours.catch_up()
                assert ours.replica.pop_effects() == [f"made_{number} metadata"], granted
        ours.changes.close()
