"""The catalog mirror compared with real servers: row by row, by ctid, with SQL."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import psycopg
import pytest
from psycopg.rows import TupleRow

from tests.conftest import NewCluster
from tests.support.oracles.catalogs import Observed, description_differences, differences, flush_lsn, observe, play
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, StopMode, new_cluster, sql
from tests.support.servers.servers import MAJORS
from tests.support.workloads.ddl_script import REWRITES, STEPS
from tests.support.workloads.random_sessions.crew import storm
from tidemark.decode.catalog.descriptions.describe import Describer, Incomplete
from tidemark.decode.catalog.descriptions.described import DescribedRelation
from tidemark.decode.catalog.descriptions.described_rows import RowReaders
from tidemark.decode.catalog.descriptions.interning import Interner
from tidemark.decode.catalog.descriptions.views import DescriptionCache
from tidemark.decode.catalog.layout import PG_CLASS, PG_TYPE
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.redo import CatalogDiverged, SeedOvertaken
from tidemark.model.lsn import FIRST_USER_OID, INVALID_XID, Oid, Xid
from tidemark.model.relation import Relation, RelFileLocator
from tidemark.wal.rmgr import RM_XACT, xact
from tidemark.wal.versions import wal_format

SEED_ATTEMPTS = 20
WAIT_S = 120
Tables = dict[Oid, Relation | None]
_numbers = count(1)


@pytest.fixture(scope="module")
def quiet() -> Iterator[Cluster]:
    """A server that changes no catalog by itself."""
    with new_cluster(15, {"autovacuum": "off", "wal_keep_size": "2GB"}) as cluster:
        yield cluster


def new_database(cluster: Cluster) -> str:
    name = f"mirrored_{next(_numbers)}"
    cluster.sql(f"CREATE DATABASE {name}")
    return name


def current_xid(session: psycopg.Connection[TupleRow]) -> Xid:
    return Xid(int(sql(session, "SELECT pg_current_xact_id()::text")[0][0]))


def until_waiting(cluster: Cluster, query: str) -> None:
    look = f"SELECT 1 FROM pg_stat_activity WHERE query = '{query}' AND wait_event_type = 'Lock'"
    wait_until(lambda: bool(cluster.sql(look)), f"a wait of {query}")


def assert_equal(observed: Observed) -> None:
    observed.catch_up()
    assert differences(observed)[:5] == []
    assert description_differences(observed)[:5] == []
    assert not observed.mirror.store.open


@pytest.mark.parametrize(
    ("compression", "checkpoint_every"), [("off", 0), ("off", 1), ("pglz", 2), ("lz4", 3), ("zstd", 1)]
)
def test_ddl_of_every_kind_leaves_mirror_and_server_equal(
    quiet: Cluster, compression: str, checkpoint_every: int
) -> None:
    quiet.configure(wal_compression=compression)
    observed = observe(quiet, new_database(quiet))
    play(observed, STEPS, checkpoint_every=checkpoint_every)
    assert_equal(observed)


def test_a_seed_of_what_ddl_left_behind_describes_the_same(quiet: Cluster) -> None:
    followed = observe(quiet, new_database(quiet))
    play(followed, STEPS)
    seeded = observe(quiet, followed.database)
    assert_equal(seeded)
    assert_equal(followed)
    assert [relation.oid for relation in seeded.mirror.relations()] == [
        relation.oid for relation in followed.mirror.relations()
    ]


@pytest.mark.parametrize("checkpoint_every", [0, 1])
def test_rewrites_of_every_catalog_are_followed(quiet: Cluster, checkpoint_every: int) -> None:
    observed = observe(quiet, new_database(quiet))
    play(observed, REWRITES, checkpoint_every=checkpoint_every)
    assert_equal(observed)


@pytest.mark.slow
@pytest.mark.parametrize("major", [major for major in MAJORS if major != 15])
def test_every_major_is_followed(new_cluster: NewCluster, major: int) -> None:
    cluster = new_cluster(major, autovacuum="off", wal_keep_size="2GB", wal_compression="on")
    observed = observe(cluster, new_database(cluster))
    play(observed, STEPS, checkpoint_every=3)
    assert_equal(observed)
    play(observed, REWRITES, checkpoint_every=4)
    assert_equal(observed)


@pytest.mark.parametrize("catalog", ["pg_class", "pg_index", "pg_attribute"])
def test_a_rewrite_that_begins_while_an_abort_is_logged_but_not_over(quiet: Cluster, catalog: str) -> None:
    database = new_database(quiet)
    quiet.sql("CREATE TABLE kept (id int PRIMARY KEY)", database)
    observed = observe(quiet, database)
    with quiet.connect(database) as session, quiet.connect(database) as rewriter:
        sql(session, "BEGIN")
        sql(session, "CREATE TABLE gone (id int PRIMARY KEY)")
        sql(session, "ALTER TABLE kept ADD COLUMN gone int")
        aborted = current_xid(session)
        sql(rewriter, f"VACUUM FULL {catalog}")
        sql(session, "ROLLBACK")
        sql(rewriter, "SELECT pg_logical_emit_message(true, 'flushes', '')")
        records = list(observed.wal.read(flush_lsn(rewriter)))
    # The server logs an abort before other backends see it: this imitates a rewrite between the two.
    fmt = wal_format(quiet.major)
    ends = (record for record in records if record.rmgr == RM_XACT and isinstance(xact.parse(record, fmt), xact.Abort))
    (end,) = (record for record in ends if record.xid == aborted)
    records.remove(end)
    start = next(at for at, record in enumerate(records) if record.xid > aborted)
    for record in (*records[:start], end, *records[start:]):
        observed.follower.follow(record)
    assert_equal(observed)
    assert not observed.mirror.store.marks.aborted, "RUNNING_XACTS showed that it no longer runs"


@pytest.mark.parametrize("catalog", ["pg_class", "pg_type"])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_seed_includes_open_transactions_of_an_earlier_copy(quiet: Cluster, catalog: str, end: str) -> None:
    database = new_database(quiet)
    for table in ("changed", "dropped"):
        quiet.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, a int)", database)
    quiet.sql("CHECKPOINT")  # the seed reads from here, and waits for nothing younger
    with quiet.connect(database) as session:
        for statement in ("BEGIN", "CREATE TABLE new (id int PRIMARY KEY)", "SAVEPOINT a", "DROP TABLE dropped"):
            sql(session, statement)
        sql(session, "ALTER TABLE changed DROP COLUMN a, ADD COLUMN b int")
        quiet.sql(f"VACUUM FULL {catalog}", database)
        observed = observe(quiet, database)
        sql(session, end)
    assert_equal(observed)


MULTIXACT_CHANGES = {  # of rows that other sessions have locked: no column of a unique index changes
    "pg_class": ("SELECT 1 FROM pg_class WHERE relname = 'changed'", "ALTER TABLE changed ADD COLUMN b int"),
    "pg_attribute": (
        "SELECT 1 FROM pg_attribute WHERE attname = 'payload'",
        "ALTER TABLE changed ALTER payload SET NOT NULL",
    ),
    "pg_index": (
        "SELECT 1 FROM pg_index WHERE indexrelid = 'changed_pkey'::regclass",
        "ALTER TABLE changed REPLICA IDENTITY USING INDEX changed_pkey",
    ),
}


@pytest.mark.parametrize("catalog", MULTIXACT_CHANGES)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("seeded", ["before the copy", "behind it"])
def test_a_copied_row_that_a_multixact_ends_stays_until_its_updater_commits(
    quiet: Cluster, catalog: str, end: str, seeded: str
) -> None:
    rows, change = MULTIXACT_CHANGES[catalog]
    database = new_database(quiet)
    quiet.sql("CREATE TABLE changed (id int PRIMARY KEY, payload int)", database)
    quiet.sql("CHECKPOINT")  # a seed reads from here on
    observed = observe(quiet, database) if seeded == "before the copy" else None
    with quiet.connect(database) as updater, quiet.connect(database) as locker:
        sql(updater, "BEGIN")
        sql(updater, "SELECT pg_current_xact_id()")  # older than the locker, or the copy would omit the locker
        sql(locker, f"BEGIN; {rows} FOR KEY SHARE")
        sql(updater, change)
        sql(locker, "COMMIT")
        quiet.sql(f"VACUUM FULL {catalog}", database)
        observed = observed or observe(quiet, database)
        observed.catch_up()
        (relation,) = observed.mirror.relations()
        assert [column.name for column in relation.live_columns] == ["id", "payload"]
        sql(updater, end)
    assert_equal(observed)


def seed_in_storm(cluster: Cluster, database: str) -> Observed:
    for _ in range(SEED_ATTEMPTS):
        try:
            return observe(cluster, database)
        except SeedOvertaken:
            continue
    raise AssertionError("every seed was overtaken")


@pytest.mark.parametrize(("seed", "rewrites", "crashes"), [(1, 0.0, 0), (2, 0.15, 0), (3, 0.15, 2)])
def test_a_seed_read_during_much_ddl_is_exact_and_remains_exact(
    new_cluster: NewCluster, seed: int, rewrites: float, crashes: int
) -> None:
    cluster = new_cluster(15, autovacuum_naptime="1s", wal_keep_size="2GB")
    database = new_database(cluster)
    with storm(cluster, database, seed, rewrites=rewrites) as crew:
        crew.wait_for(40)
        observed = seed_in_storm(cluster, database)
        for crash in range(crashes):
            crew.wait_for(150 + 100 * crash)
            cluster.restart(StopMode.IMMEDIATE)
        crew.wait_for(400)
    cluster.configure(autovacuum="off")
    cluster.restart()
    assert_equal(observed)


def test_a_relation_map_written_before_the_copy_of_another_catalog_leaves_that_one_alone(quiet: Cluster) -> None:
    database = new_database(quiet)
    with quiet.connect(database, autocommit=False) as reader, quiet.connect(database) as session:
        sql(session, "REINDEX INDEX pg_catalog.pg_proc_oid_index")  # fills its caches: pg_namespace will be locked
        sql(reader, "SELECT count(*) FROM pg_toast.pg_toast_2615")  # the copy waits for this lock; its new file exists
        with ThreadPoolExecutor(1) as pool:
            rewriting = pool.submit(quiet.sql, "VACUUM FULL pg_namespace", database)
            until_waiting(quiet, "VACUUM FULL pg_namespace")
            sql(session, "REINDEX INDEX pg_catalog.pg_proc_oid_index")  # writes the relation map
            reader.rollback()
            rewriting.result(WAIT_S)
    assert_equal(observe(quiet, database))


def test_a_role_that_may_only_log_in_and_replicate_can_read_a_seed(quiet: Cluster) -> None:
    database = new_database(quiet)
    quiet.sql("CREATE ROLE plain LOGIN REPLICATION")
    quiet.sql("CREATE TABLE hidden (a int PRIMARY KEY, b text DEFAULT 'x')", database)
    quiet.sql("ALTER TABLE hidden ADD COLUMN c text DEFAULT 'secret'", database)
    observed = observe(quiet, database, user="plain")
    quiet.sql("ALTER TABLE hidden ADD COLUMN d int", database)
    assert_equal(observed)


def test_a_prepared_transaction_stays_open_across_a_crash(quiet: Cluster) -> None:
    database = new_database(quiet)
    observed = observe(quiet, database)
    with quiet.connect(database) as session:
        sql(session, "BEGIN")
        prepared = current_xid(session)
        sql(session, "CREATE TABLE p (a int)")
        sql(session, "PREPARE TRANSACTION 'p'")
        lost = quiet.connect(database)
        sql(lost, "BEGIN")
        sql(lost, "CREATE TABLE lost (a int)")
        sql(session, "CHECKPOINT")
    quiet.restart(StopMode.IMMEDIATE)
    lost.close()
    observed.catch_up()
    assert prepared in observed.mirror.store.open
    quiet.sql("COMMIT PREPARED 'p'", database)
    assert_equal(observed)
    assert [relation.name for relation in observed.mirror.relations()] == ["p"]


def test_a_transaction_sees_its_own_changes_and_others_do_not(quiet: Cluster) -> None:
    database = new_database(quiet)
    quiet.sql("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int PRIMARY KEY, m mood)", database)
    observed = observe(quiet, database)
    mirror = observed.mirror
    (before,) = mirror.relations()

    def seen(xid: Xid | None) -> tuple[str, list[str]]:
        relation = mirror.relation(before.oid, xid)
        assert relation is not None
        return relation.name, [column.name for column in relation.live_columns]

    with quiet.connect(database) as session:
        sql(session, "BEGIN")
        xid = current_xid(session)
        sql(session, "ALTER TABLE t RENAME TO u")
        sql(session, "SAVEPOINT a")
        sql(session, "ALTER TABLE u ADD COLUMN c int")
        observed.catch_up()
        assert seen(xid) == ("u", ["id", "m", "c"])
        assert seen(None) == ("t", ["id", "m"])
        assert mirror.relation(before.oid) is before
        assert before.oid in mirror.pop_touched(xid)
        sql(session, "ROLLBACK TO a")
        quiet.sql("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", database)
        observed.catch_up()
        relation = mirror.relation(before.oid, xid)
        assert relation is not None
        assert relation.name == "u"
        assert relation.columns[1].type is not None
        assert [label.label for label in relation.columns[1].type.labels] == ["sad", "fine"]
        sql(session, "COMMIT")
    observed.catch_up()
    assert seen(None) == ("u", ["id", "m"])


def test_equal_versions_are_one_object_and_only_what_changed_is_described_again(quiet: Cluster) -> None:
    database = new_database(quiet)
    quiet.sql("CREATE TYPE mood AS ENUM ('a'); CREATE TABLE t (m mood[]); CREATE TABLE u (a int)", database)
    quiet.sql("ALTER TABLE u ADD COLUMN b text DEFAULT 'x'", database)
    observed = observe(quiet, database)
    t, u = observed.mirror.relations()
    quiet.sql("GRANT SELECT ON t TO PUBLIC", database)
    quiet.sql("VACUUM FULL pg_attribute", database)
    quiet.sql("VACUUM FULL t", database)
    quiet.sql("ALTER TABLE t RENAME TO x; ALTER TABLE x RENAME TO t; ALTER TABLE u ALTER b SET STATISTICS 5", database)
    observed.catch_up()
    assert observed.mirror.relation(t.oid) is t
    assert observed.mirror.relation(u.oid) is u
    quiet.sql("ALTER TYPE mood ADD VALUE 'b'", database)
    observed.catch_up()
    assert observed.mirror.relation(t.oid) is not t
    assert observed.mirror.relation(u.oid) is u


def test_a_commit_outdates_only_descriptions_that_were_reported_and_may_have_changed(quiet: Cluster) -> None:
    database = new_database(quiet)
    quiet.sql("CREATE TYPE mood AS ENUM ('a'); CREATE TABLE t (m mood); CREATE TABLE u (a int)", database)
    observed = observe(quiet, database)
    mirror = observed.mirror
    t, _ = mirror.relations()

    def outdates(*statements: str) -> bool:
        spc, rel = quiet.sql(
            "SELECT dattablespace::int8, pg_relation_filenode('t')::int8 FROM pg_database"
            " WHERE datname = current_database()",
            database,
        )[0]
        file = RelFileLocator(Oid(spc), mirror.database, Oid(rel))
        seen = mirror.resolve(file, INVALID_XID)
        assert seen is mirror.relation(t.oid)
        before = mirror.outdated_count
        for statement in statements:
            quiet.sql(statement, database)
        observed.catch_up()
        changed = mirror.resolve(file, INVALID_XID) is not seen
        assert mirror.outdated_count > before or not changed
        return mirror.outdated_count > before

    assert not outdates("BEGIN; CREATE TEMP TABLE x (a int) ON COMMIT DROP; COMMIT")
    assert not outdates(
        "CREATE TABLE x (a mood)", "INSERT INTO x VALUES ('a')", "ALTER TABLE x ADD b int", "DROP TABLE x"
    )
    assert not outdates("BEGIN; ALTER TABLE t ADD b int; ROLLBACK")
    assert outdates("ALTER TABLE t ADD b int")
    assert outdates("ALTER TYPE mood ADD VALUE 'b'")
    assert outdates("TRUNCATE t")
    assert outdates("VACUUM FULL t")
    assert outdates("ALTER TABLE t RENAME TO t2", "ALTER TABLE t2 RENAME TO t")


def test_nothing_is_kept_of_a_table_whose_creation_was_rolled_back(quiet: Cluster) -> None:
    database = new_database(quiet)
    observed = observe(quiet, database)
    mirror = observed.mirror
    kept = []
    for _ in range(3):
        with quiet.connect(database) as session:
            sql(session, "BEGIN")
            xid = current_xid(session)
            sql(session, "CREATE TABLE outer_one (a int, b text)")
            sql(session, "SAVEPOINT s")
            sql(session, "CREATE TABLE inner_one (a int, b text)")
            observed.catch_up()
            made = mirror.pop_touched(xid)
            assert {mirror.relation(oid, xid) is None for oid in made} == {False}
            assert {mirror.relation(oid) for oid in made} == {None}
            sql(session, "ROLLBACK TO s")
            sql(session, "ROLLBACK")
        observed.catch_up()
        kept.append(mirror.kept_count)
    assert len(made) == 2
    assert kept[1:] == kept[:1] * 2


def test_dependents_of_a_type_and_of_a_schema_are_touched(quiet: Cluster) -> None:
    database = new_database(quiet)
    for statement in (
        "CREATE TYPE mood AS ENUM ('a')",
        "CREATE DOMAIN feeling AS mood",
        "CREATE TYPE pair AS (a feeling[], b int)",
        "CREATE TABLE direct (m mood)",
        "CREATE TABLE nested (p pair[])",
        "CREATE TABLE of_row (r nested)",
        "CREATE SCHEMA s CREATE TABLE inside (a int)",
        "CREATE TABLE other (a int)",
    ):
        quiet.sql(statement, database)
    observed = observe(quiet, database)
    names = {relation.oid: relation.name for relation in observed.mirror.relations()}

    def touched_by(statement: str) -> set[str]:
        with quiet.connect(database) as session:
            sql(session, "BEGIN")
            xid = current_xid(session)
            sql(session, statement)
            observed.catch_up()
            oids = observed.mirror.pop_touched(xid)
            sql(session, "ROLLBACK")
            return {names[oid] for oid in oids}

    assert touched_by("ALTER TYPE mood RENAME VALUE 'a' TO 'b'") == {"direct", "nested", "of_row"}
    assert touched_by("ALTER TYPE pair ADD ATTRIBUTE c int") == {"nested", "of_row"}
    assert touched_by("ALTER SCHEMA s RENAME TO s2") == {"inside"}
    assert touched_by("ALTER TABLE other ADD COLUMN b int") == {"other"}
    assert touched_by("CREATE INDEX ON other (a)") == {"other"}
    assert touched_by("COMMENT ON TABLE other IS 'nothing'") == set()


class Witness:
    """Describes tables independently, as each open transaction sees them, and compares the mirror with that."""

    def __init__(self, mirror: CatalogMirror, seed: int) -> None:
        self.mirror = mirror
        self.random = random.Random(seed)
        self.readers = RowReaders(mirror.store)
        self.reported: dict[Xid, Tables] = {}  # the reported differences between the transaction's view and others'
        self.compared = self.different = 0

    def tables(self, xid: Xid | None) -> Tables:
        describer = Describer(
            self.mirror.store,
            self.readers,
            self.mirror.dialect.encoding,
            xid,
            DescriptionCache(PG_TYPE.oid),
            interner=Interner(),
        )
        heap, found = self.mirror.store.heap(PG_CLASS, xid), dict[Oid, Relation | None]()
        oids = {heap.subject(packed) for packed in heap.rows.values()}
        for oid in sorted(oid for oid in oids if oid >= FIRST_USER_OID):
            row = describer.class_row(oid)
            if row is not None and row.kind in (b"r", b"p", b"m") and row.persistence != b"t" and not row.rewrite:
                try:
                    described = self.described(describer, oid)
                except Incomplete:
                    described = None
                found[oid] = described.relation if described is not None else None
        return found

    def described(self, describer: Describer, oid: Oid) -> DescribedRelation | None:
        return describer.relation(oid, lambda above: self.described(describer, above))

    def check(self, xid: Xid) -> None:
        """Compare the transaction's view; differences from the reported view must be in relations that it touched."""
        tables = self.tables(xid)
        for oid, relation in tables.items():
            assert self.mirror.relation(oid, xid) == relation
        self.compared += len(tables)
        if self.random.random() < 0.3:
            reported = self.reported.setdefault(xid, {})
            known = {**self.tables(None), **reported}
            different = {oid for oid in known.keys() | tables.keys() if known.get(oid) != tables.get(oid)}
            assert different <= self.mirror.pop_touched(xid)
            reported.update({oid: tables.get(oid) for oid in different})
            self.different += len(different)

    def check_some(self) -> None:
        """Check some moments of some transactions, and the committed view."""
        self.reported = {xid: reported for xid, reported in self.reported.items() if xid in self.mirror.store.open}
        for xid in list(self.mirror.store.open):
            if self.random.random() < 0.3:
                self.check(xid)
        if self.random.random() < 0.02:
            for oid, relation in self.tables(None).items():
                assert self.mirror.relation(oid) == relation


# With rewrites, many more views are compared after each statement.
@pytest.mark.parametrize(("seed", "rewrites", "statements"), [(1, 0.0, 1000), (2, 0.15, 400)])
def test_a_transactions_view_under_much_ddl_equals_an_independent_description(
    new_cluster: NewCluster, seed: int, rewrites: float, statements: int
) -> None:
    cluster = new_cluster(15, wal_keep_size="2GB")
    database = new_database(cluster)
    with storm(cluster, database, seed, rewrites=rewrites) as crew:
        crew.wait_for(20)
        observed = seed_in_storm(cluster, database)
        crew.wait_for(statements)
    witness = Witness(observed.mirror, seed)
    with cluster.connect(database) as session:
        until = flush_lsn(session)
    for record in observed.wal.read(until):
        if observed.follower.follow(record):
            witness.check_some()
    assert witness.compared > 1000
    assert witness.different > 20


def test_a_transaction_of_many_commands_describes_each_table_as_often_as_it_changes_it(quiet: Cluster) -> None:
    database = new_database(quiet)
    observed = observe(quiet, database)
    mirror = observed.mirror
    with quiet.connect(database) as session:
        sql(session, "BEGIN")
        xid = current_xid(session)
        for number in range(20):
            sql(session, f"CREATE TABLE t{number} (id int PRIMARY KEY, a text)")
            observed.catch_up()
            (oid,) = mirror.pop_touched(xid)
            for _ in range(3):
                assert mirror.relation(oid, xid) is mirror.relation(oid, xid)
            assert mirror.described_count == number + 1
        assert mirror.pop_touched(xid) == frozenset()


def test_a_row_of_the_seed_is_never_patched_as_if_it_were_the_servers(new_cluster: NewCluster) -> None:
    cluster = new_cluster(15, autovacuum="off", full_page_writes="off")
    cluster.sql("CREATE TABLE t AS SELECT generate_series(1, 1000)")
    cluster.sql("CHECKPOINT")
    observed = observe(cluster)
    cluster.sql("VACUUM t")  # writes relpages in place
    with pytest.raises(CatalogDiverged, match="full_page_writes"):
        observed.catch_up()


def test_a_page_image_beside_the_visibility_map_shows_the_rows_of_a_seed() -> None:
    with new_cluster(15, {"autovacuum": "off"}, initdb=["--data-checksums"]) as cluster:
        cluster.sql("CREATE TABLE t AS SELECT generate_series(1, 1000)")
        cluster.sql("VACUUM FULL pg_class")  # nothing is left to be pruned, nor hint bits to be set
        cluster.sql("CHECKPOINT")
        observed = observe(cluster)
        cluster.sql("CHECKPOINT")
        cluster.sql("VACUUM pg_class")  # with checksums, an all-visible page is logged with its image
        cluster.sql("VACUUM t")  # writes relpages in place
        assert_equal(observed)


def test_a_database_is_followed_to_another_tablespace(new_cluster: NewCluster) -> None:
    cluster = new_cluster(15, allow_in_place_tablespaces="on")
    cluster.sql("CREATE TABLESPACE elsewhere LOCATION ''")
    cluster.sql("CREATE DATABASE moved")
    cluster.sql("CREATE TABLE before (id int)", "moved")
    observed = observe(cluster, "moved")
    cluster.sql("ALTER DATABASE moved SET TABLESPACE elsewhere")
    cluster.sql("CREATE TABLE behind (id int)", "moved")
    cluster.sql("VACUUM FULL pg_class", "moved")
    assert_equal(observed)
    cluster.sql("ALTER DATABASE moved SET TABLESPACE pg_default")
    cluster.sql("ALTER TABLE before SET TABLESPACE elsewhere", "moved")
    assert_equal(observed)
    assert {relation.name for relation in observed.mirror.relations()} == {"before", "behind"}


def test_databases_are_created_and_dropped(quiet: Cluster) -> None:
    database = new_database(quiet)
    observed = observe(quiet, database)
    quiet.sql("CREATE DATABASE another ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    quiet.sql("ALTER DATABASE another RENAME TO one_more")
    observed.catch_up()
    names = {found.name for found in observed.mirror.shared.databases()}
    assert {database, "one_more", "postgres", "template1"} <= names
    assert "another" not in names
    quiet.sql(f"DROP DATABASE {database}")
    quiet.sql("DROP DATABASE one_more")
    observed.database = "postgres"
    observed.catch_up()
    assert observed.mirror.is_dropped
    assert observed.mirror.shared.database(Oid(1)) is not None
