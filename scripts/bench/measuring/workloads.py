"""The WAL for the decoders: workloads, each in a separate database of one PostgreSQL 15."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers.postgres import Cluster, Session, new_cluster, sql
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn
from tidemark.wal.segments import SEGMENT_BYTES_DEFAULT, parse_segment_name, segment_start

MAJOR = 15
SETTINGS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
    "max_replication_slots": "32",
    "wal_keep_size": "8GB",
    "logical_decoding_work_mem": "256MB",  # as much as Tidemark's decoder has: neither spills
}
WORK_TIMEOUT_S = 240
PLUGINS = ("pgoutput", "test_decoding")
PUBLICATION = "bench"
PGBENCH_CLIENTS = 4
PGBENCH_CHANGES = 4  # changed rows of a TPC-B transaction
WIDE_STATEMENTS = 10

CREATE_NARROW = """CREATE TABLE narrow (
    id bigint PRIMARY KEY, account integer, amount numeric(12, 2), label text, at timestamptz)"""
INSERT_NARROW = """INSERT INTO narrow
    SELECT n, n % 1000, n % 100000 / 100.0, 'label ' || n, timestamptz '2024-01-01' + n * interval '1 second'
    FROM generate_series(1, {rows}) n"""
CREATE_WIDE = """CREATE TABLE wide (
    id bigint PRIMARY KEY, small smallint, number integer, single real, double double precision,
    amount numeric(14, 4), label text, code varchar(40), bytes bytea, flag boolean, day date,
    local timestamp, at timestamptz, key uuid, document jsonb, numbers integer[])"""
INSERT_WIDE = """INSERT INTO wide
    SELECT n, n % 30000, n, n / 7.0, n / 11.0, n / 13.0, 'label ' || n, md5(n::text), decode(md5(n::text), 'hex'),
        n % 2 = 0, date '2024-01-01' + n % 1000, timestamp '2024-01-01' + n * interval '1 second',
        timestamptz '2024-01-01' + n * interval '1 minute', md5(n::text)::uuid,
        jsonb_build_object('n', n, 'name', 'name ' || n, 'list', jsonb_build_array(n, n + 1)), ARRAY[n, n + 1, n + 2]
    FROM generate_series(1, {rows}) n"""
UPDATE_WIDE = """UPDATE wide
    SET number = number + 1, amount = amount + 1, label = label || '.', at = at + interval '1 day'
    WHERE id BETWEEN {first} AND {last}"""

TEMPORARY_SHARE = 200
TEMPORARY_ROWS = 5
USE_TEMPORARY = """DO $$ BEGIN FOR n IN 1..{count} LOOP
    CREATE TEMPORARY TABLE collected ON COMMIT DROP AS
        SELECT n * 5 + i AS id, i AS account, i / 2.0 AS amount, 'label ' || i AS label, now() AS at
        FROM generate_series(1, 5) i;
    INSERT INTO narrow SELECT * FROM collected;
    COMMIT;
END LOOP; END $$"""


@dataclass(frozen=True, slots=True)
class Recording:
    """A workload that has run, and its WAL."""

    name: str
    what: str
    database: str
    rows: int
    begin: Lsn
    end: Lsn
    time: str  # of the server's clock at `begin`, after an earlier commit
    state: Path
    archive: Path

    @property
    def wal_bytes(self) -> int:
        """Bytes of WAL between begin and end."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Workload:
    """The setup, the measured statements, and the number of changed rows."""

    what: str
    prepare: Callable[[Cluster, Session, int], None]
    work: Callable[[Cluster, Session, int], int]


def _prepare_narrow(_cluster: Cluster, session: Session, _rows: int) -> None:
    sql(session, CREATE_NARROW)


def _insert_narrow(_cluster: Cluster, session: Session, rows: int) -> int:
    sql(session, INSERT_NARROW.format(rows=rows))
    return rows


def _prepare_tpcb(cluster: Cluster, session: Session, _rows: int) -> None:
    cluster.client("pgbench", "-i", "-q", "-s", "5", session.info.dbname, timeout_s=WORK_TIMEOUT_S)


def _run_tpcb(cluster: Cluster, session: Session, rows: int) -> int:
    each = max(rows // 50 // PGBENCH_CLIENTS, 1)
    options = ("-n", "-c", str(PGBENCH_CLIENTS), "-t", str(each), session.info.dbname)
    cluster.client("pgbench", *options, timeout_s=WORK_TIMEOUT_S)
    return each * PGBENCH_CLIENTS * PGBENCH_CHANGES


def _wide_rows(rows: int) -> int:
    return max(rows // 10 // WIDE_STATEMENTS, 1) * WIDE_STATEMENTS


def _prepare_wide(_cluster: Cluster, session: Session, rows: int) -> None:
    sql(session, CREATE_WIDE)
    sql(session, INSERT_WIDE.format(rows=_wide_rows(rows)))


def _update_wide(_cluster: Cluster, session: Session, rows: int) -> int:
    each = _wide_rows(rows) // WIDE_STATEMENTS
    for number in range(WIDE_STATEMENTS):
        sql(session, UPDATE_WIDE.format(first=number * each + 1, last=(number + 1) * each))
    return each * WIDE_STATEMENTS


WORKLOADS: Mapping[str, Workload] = {
    "insert": Workload("one INSERT of five columns", _prepare_narrow, _insert_narrow),
    "tpcb": Workload("pgbench TPC-B, scale 5, four clients", _prepare_tpcb, _run_tpcb),
    "wide": Workload("UPDATEs of 16 mixed columns, ten transactions", _prepare_wide, _update_wide),
}


INSERTED_AT_ONCE = 20_000
LARGE_SHARE = 20  # one row of 10 kB for so many others


def _insert_in_parts(_cluster: Cluster, session: Session, rows: int) -> int:
    for first in range(1, rows + 1, INSERTED_AT_ONCE):
        sql(session, INSERT_NARROW.replace("(1, {rows})", f"({first}, {first + INSERTED_AT_ONCE - 1})"))
    return rows // INSERTED_AT_ONCE * INSERTED_AT_ONCE


def _prepare_copied(_cluster: Cluster, session: Session, rows: int) -> None:
    """Make a table to copy from; its own rows are written before the measured WAL."""
    sql(session, CREATE_NARROW)
    sql(session, INSERT_NARROW.format(rows=rows))
    sql(session, "CREATE TABLE copied (LIKE narrow)")


def _copy_rows(*statements: str) -> Callable[[Cluster, Session, int], int]:
    """Return a function that writes the rows of `narrow` once, in one transaction, after these statements."""

    def work(cluster: Cluster, session: Session, rows: int) -> int:
        copied = cluster.data.parent / f"{session.info.dbname}.rows"
        sql(session, f"COPY narrow TO '{copied}'")
        sql(session, "; ".join(["BEGIN", *statements, f"COPY copied FROM '{copied}'", "COMMIT"]))
        copied.unlink()
        return rows

    return work


def _upsert(_cluster: Cluster, session: Session, rows: int) -> int:
    sql(session, INSERT_NARROW.format(rows=rows) + " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount")
    return rows


def _prepare_large(_cluster: Cluster, session: Session, _rows: int) -> None:
    sql(session, "CREATE TABLE large (id bigint PRIMARY KEY, document text)")
    sql(session, "ALTER TABLE large ALTER COLUMN document SET STORAGE EXTERNAL")


def _insert_large(_cluster: Cluster, session: Session, rows: int) -> int:
    count = max(1, rows // LARGE_SHARE)
    sql(session, f"INSERT INTO large SELECT n, repeat(md5(n::text), 320) FROM generate_series(1, {count}) n")
    return count


def _prepare_toasted(_cluster: Cluster, session: Session, rows: int) -> None:
    count = max(1, rows // LARGE_SHARE)
    for name in ("large", "toasted"):
        sql(session, f"CREATE TABLE {name} (id bigint PRIMARY KEY, stored text, compressed text)")
        sql(session, f"ALTER TABLE {name} ALTER COLUMN stored SET STORAGE EXTERNAL")
    compressed = "SELECT string_agg(md5((n * i)::text) || 'xxxxxxxx', '') FROM generate_series(1, 200) i"
    texts = f"repeat(md5(n::text), 160), ({compressed})"
    sql(session, f"INSERT INTO large SELECT n, {texts} FROM generate_series(1, {count}) n")


def _copy_toasted(cluster: Cluster, session: Session, rows: int) -> int:
    copied = cluster.data.parent / f"{session.info.dbname}.rows"
    sql(session, f"COPY large TO '{copied}'")
    sql(session, f"COPY toasted FROM '{copied}'")
    copied.unlink()
    return max(1, rows // LARGE_SHARE)


def _prepare_inline(cluster: Cluster, session: Session, rows: int) -> None:
    _prepare_toasted(cluster, session, 1)
    sql(session, "ALTER TABLE large ALTER COLUMN stored SET STORAGE PLAIN")
    sql(session, "ALTER TABLE toasted ALTER COLUMN stored SET STORAGE PLAIN")
    texts = "repeat(md5(n::text), 64)"
    sql(session, f"INSERT INTO large SELECT n + 1, {texts}, NULL FROM generate_series(1, {rows // LARGE_SHARE * 5}) n")


def _prepare_view(_cluster: Cluster, session: Session, rows: int) -> None:
    sql(session, CREATE_NARROW)
    sql(session, INSERT_NARROW.format(rows=rows))
    sql(session, "CREATE MATERIALIZED VIEW summary AS SELECT * FROM narrow")


def _refresh(_cluster: Cluster, session: Session, _rows: int) -> int:
    sql(session, "REFRESH MATERIALIZED VIEW summary")
    return 0


def _create_as(_cluster: Cluster, session: Session, rows: int) -> int:
    sql(session, "CREATE TABLE selected AS SELECT * FROM narrow")
    return rows


def _rewrite(_cluster: Cluster, session: Session, rows: int) -> int:
    sql(session, "ALTER TABLE narrow ALTER COLUMN account TYPE bigint")
    return rows


def _use_temporary_tables(_cluster: Cluster, session: Session, rows: int) -> int:
    """Copy five rows through a temporary table in each transaction, as reports and imports do."""
    count = max(1, rows // TEMPORARY_SHARE)
    sql(session, USE_TEMPORARY.format(count=count))
    return count * TEMPORARY_ROWS


OTHER_WORKLOADS: Mapping[str, Workload] = {
    "temporary": Workload(
        "transactions with a temporary table each, five rows", _prepare_narrow, _use_temporary_tables
    ),
    "upsert": Workload("one INSERT ... ON CONFLICT of new rows, five columns", _prepare_narrow, _upsert),
    "large": Workload("one INSERT of texts of 10 kB, stored out of line", _prepare_large, _insert_large),
    "toasted": Workload("one COPY of texts stored out of line, compressed and not", _prepare_toasted, _copy_toasted),
    "inline": Workload("one COPY of texts of 2 kB, stored in their rows", _prepare_inline, _copy_toasted),
    "inserts": Workload("INSERTs of 20,000 rows of five columns", _prepare_narrow, _insert_in_parts),
    "copy": Workload("one COPY of five columns", _prepare_copied, _copy_rows()),
    "copy_truncated": Workload(
        "the same after TRUNCATE, as pgbench -i and restores do", _prepare_copied, _copy_rows("TRUNCATE copied")
    ),
    "copy_created": Workload(
        "the same after CREATE TABLE",
        _prepare_copied,
        _copy_rows("DROP TABLE copied", "CREATE TABLE copied (LIKE narrow)"),
    ),
    "create_as": Workload("CREATE TABLE AS", _prepare_copied, _create_as),
    "refresh": Workload("REFRESH MATERIALIZED VIEW, whose rows are not delivered", _prepare_view, _refresh),
    "rewrite": Workload("ALTER TABLE that rewrites the rows", _prepare_copied, _rewrite),
}
"""Workloads of single benchmarks."""
ALL_WORKLOADS: Mapping[str, Workload] = {**WORKLOADS, **OTHER_WORKLOADS}


@contextmanager
def node() -> Iterator[Cluster]:
    """Start the measured server."""
    with new_cluster(MAJOR, SETTINGS) as cluster:
        yield cluster


def record(cluster: Cluster, name: str, rows: int, folder: Path, init: Callable[[str, str, Path], None]) -> Recording:
    """Run a workload after creating slots and state; copy its WAL afterwards."""
    workload = ALL_WORKLOADS[name]
    cluster.sql(f"CREATE DATABASE {name}")
    archive, state = folder / f"{name}-wal", folder / f"{name}-state"
    with cluster.connect(name) as session:
        sql(session, f"SET statement_timeout = '{WORK_TIMEOUT_S}s'")
        workload.prepare(cluster, session, rows)
        sql(session, f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        sql(session, "CHECKPOINT")
        oldest = _insert_lsn(session)
        init(cluster.dsn(name), name, state)
        for plugin in PLUGINS:
            sql(session, f"SELECT pg_create_logical_replication_slot('{source_slot(name, plugin)}', '{plugin}')")
        sql(session, "SELECT pg_current_xact_id()")
        begin, ((time,),) = _insert_lsn(session), sql(session, "SELECT to_char(now(), 'YYYY-MM-DD HH24:MI:SS.USOF')")
        changed = workload.work(cluster, session, rows)
        end = _insert_lsn(session)
        # pg_recvlogical stops at the first LSN after the end, so some WAL must follow.
        sql(session, "SELECT pg_logical_emit_message(true, 'bench', 'end')")
        sql(session, "SELECT pg_switch_wal()")
    _copy(cluster.data / "pg_wal", archive, oldest, end)
    return Recording(name, workload.what, name, changed, begin, end, str(time), state, archive)


def source_slot(name: str, plugin: str) -> str:
    """Return the slot that precedes a workload and is copied for each trial."""
    return f"{name}_{plugin}"


def _insert_lsn(session: Session) -> Lsn:
    return parse_lsn(str(sql(session, "SELECT pg_current_wal_insert_lsn()")[0][0]))


def _copy(pg_wal: Path, archive: Path, oldest: Lsn, end: Lsn) -> None:
    archive.mkdir()
    for path in pg_wal.iterdir():
        place = parse_segment_name(path.name, SEGMENT_BYTES_DEFAULT)
        if place is None:
            continue
        start = segment_start(place[1], SEGMENT_BYTES_DEFAULT)
        if oldest - SEGMENT_BYTES_DEFAULT < start <= end:
            shutil.copyfile(path, archive / path.name)
    if not any(archive.iterdir()):
        raise SystemExit(f"no WAL from {format_lsn(oldest)} to {format_lsn(end)} in {pg_wal}")
