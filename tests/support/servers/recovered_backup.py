"""Servers that recover from a base backup to a moment: the oracle for what is read from the backup without a server."""

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, cluster_without_data
from tidemark.decode.copy.copied import CopyBatchBuilder
from tidemark.io.node.copy_source import CopySource
from tidemark.model.change import AFTER, ChangeBatch
from tidemark.model.commit_time import CommitTime
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.model.position import Position
from tidemark.wal.versions import wal_format

RECOVERED_S = 120
FIRST = Position(TimelineId(1), Lsn(1), 1)


@contextmanager
def recovered(node: Cluster, backup: Path, moment: Lsn | CommitTime | None) -> Iterator[Cluster]:
    """Start a server on a copy of `backup`, recovered from the WAL of `node`; None: as soon as it is consistent."""
    with cluster_without_data(node.major) as server:
        shutil.copytree(backup, server.data, symlinks=True)
        (server.data / "pg_wal" / "archive_status").mkdir(parents=True, exist_ok=True)
        (server.data / "recovery.signal").touch()
        owner = server.folder.stat()
        for path in (server.data, *server.data.rglob("*")):
            shutil.chown(path, owner.st_uid, owner.st_gid)
        server.data.chmod(0o700)
        targets: dict[str, str | int] = {"recovery_target": "immediate"}
        if isinstance(moment, CommitTime):
            targets = {"recovery_target_time": f"'{str(moment).replace('Z', '+00')}'"}
        elif moment is not None:
            targets = {"recovery_target_lsn": f"'{format_lsn(moment)}'", "recovery_target_inclusive": "off"}
        server.configure(
            reload=False,
            port=server.port,
            unix_socket_directories=f"'{server.folder}'",
            archive_mode="off",
            autovacuum="off",
            restore_command=f"'cp {node.data}/pg_wal/%f %p'",
            recovery_target_action="promote",
            allow_in_place_tablespaces="on",  # the copy has folders where the server had links
            **targets,
        )
        server.start()
        wait_until(
            lambda: server.sql("SELECT pg_is_in_recovery()") == [(False,)],
            "the recovery target",
            within_s=RECOVERED_S,
            reported=lambda: server.log[-3000:],
        )
        for gid, of in server.sql("SELECT gid, database::text FROM pg_prepared_xacts"):
            server.sql(f"ROLLBACK PREPARED '{gid}'", str(of))  # shows the same rows, and releases its locks
        yield server


def table_names(server: Cluster, database: str) -> list[str]:
    """Return the tables with rows, of users, that WAL contains."""
    rows = server.sql(
        "SELECT format('%I.%I', nspname, relname) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE relkind = 'r' AND relpersistence = 'p' AND c.oid >= 16384 ORDER BY 1",
        database,
    )
    return [str(name) for (name,) in rows]


def copied_rows(server: Cluster, database: str, name: str) -> list[str]:
    """Return the rows of a table as COPY gives them, in physical order, each as the text of its Arrow values."""
    with closing(CopySource(server.dsn(), database, wal_format(server.major))) as source:
        (oid,) = (row[0] for row in server.sql(f"SELECT '{name}'::regclass::oid::int8", database))
        table = source.table(oid)
        assert table is not None, name
        with source.locked_snapshot(table) as snapshot:
            builder = CopyBatchBuilder(snapshot.relation.oid, snapshot.relation, source.dialect_of(snapshot).dialect)
            blocks = [(bytes(block.lines), block.rows) for block in source.rows(snapshot.relation)]
    return values_of([builder.build(lines, count, FIRST, 0) for lines, count in blocks if count])


def values_of(batches: list[ChangeBatch]) -> list[str]:
    """Return rows of batches, each as text."""
    rows = [batch.rows.column(AFTER) for batch in batches]
    assert all(pa.types.is_struct(column.type) for column in rows)
    return [repr(value) for column in rows for value in column.to_pylist()]


def clock(node: Cluster) -> CommitTime:
    """Return the time of a server."""
    ((time_us,),) = node.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    assert isinstance(time_us, int)
    return CommitTime(time_us)
