"""The rows of tables at random moments, from their logs: equal to point-in-time recovery of the source."""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.conftest import NewCluster
from tests.support.lakes.lakes import feed_by_hand
from tests.support.processes.captures import running
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, Session, sql
from tests.support.servers.standby import copy_of
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ExitCode
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.replay.moment import TimeMoment
from tidemark.pipeline.replay.replaying import replay
from tidemark.pipeline.replay.result_target import FolderTarget

TABLES = ("keyed", "keyless", "parts")
TABLES_DDL = """
CREATE TABLE keyed (id int PRIMARY KEY, note text, big text);
CREATE TABLE keyless (id int, note text); ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id);
CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (20);
CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (20) TO (1000);
ALTER TABLE keyed ALTER big SET STORAGE EXTERNAL;
INSERT INTO keyed SELECT id, 'first', repeat('x', 3000) FROM generate_series(1, 30) id;
INSERT INTO keyless SELECT id % 7, 'first' FROM generate_series(1, 30) id;
INSERT INTO parts SELECT id, 'first' FROM generate_series(1, 39) id;
"""
DDL = (
    "ALTER TABLE keyed ADD COLUMN extra int DEFAULT 5",
    "ALTER TABLE keyless RENAME COLUMN note TO remark",
    "ALTER TABLE parts ADD COLUMN extra text DEFAULT 'constant'",
    "TRUNCATE parts_low",
    "ALTER TABLE keyed DROP COLUMN extra",
    "TRUNCATE keyless",
    "ALTER TABLE keyed ALTER COLUMN note TYPE varchar(50) USING upper(note)",
    "ALTER TABLE keyless RENAME COLUMN remark TO note",
    "TRUNCATE keyed, parts",
)
MOMENTS = int(os.environ.get("TIDEMARK_MOMENTS", "3"))  # scripts/recovery: 20
Rows = list[dict[str, object]]


def statements(chance: random.Random) -> Iterator[str]:
    """Yield random changes; rows in `keyed` and `parts` change their keys, and partitions, too."""
    number = 0
    while True:
        number += 1
        key, other = chance.randrange(1, 40), chance.randrange(1, 40)
        table = chance.choice(TABLES)
        name = "id" if table == "keyless" else "note"
        value = str(chance.randrange(7)) if table == "keyless" else f"'change {number}'"
        yield chance.choice(
            [
                f"UPDATE {table} SET {name} = {value} WHERE id = {key % 7 if table == 'keyless' else key}",
                f"DELETE FROM {table} WHERE id = {key}",
                f"INSERT INTO {table} (id) VALUES ({key}) ON CONFLICT DO NOTHING",
                f"INSERT INTO {table} (id) SELECT g FROM generate_series({key}, {key + 5}) g ON CONFLICT DO NOTHING",
                f"UPDATE {table} SET id = {other} WHERE id = {key} AND {other} NOT IN (SELECT id FROM {table})",
            ]
        )


def change(cluster: Cluster, database: str, chance: random.Random) -> list[range]:
    """Change the tables in two sessions whose transactions overlap, with DDL between; return the times of the DDL.

    NB: a standby that is paused inside a transaction with DDL has its locks, and recovery to any time after the commit
    before it stops there: the table cannot be read.
    """
    script, locked = statements(chance), list[range]()
    with cluster.connect(database) as first, cluster.connect(database) as second:
        for ddl in DDL:
            for _ in range(8):
                overlap(first, second, next(script), chance.randrange(1000, 1900))
            begun_us = clock_us(cluster)
            first.execute(b"INSERT INTO keyless (id) VALUES (5)")
            first.execute(ddl.encode())
            locked.append(range(begun_us, clock_us(cluster)))
    return locked


def overlap(first: Session, second: Session, statement: str, key: int) -> None:
    second.execute("BEGIN")
    second.execute(f"INSERT INTO keyless (id) VALUES ({key})".encode())
    first.execute(statement.encode())
    second.execute("COMMIT")


def recovered(standby: Cluster, database: str, at: CommitTime) -> dict[str, Rows]:
    """Return the rows of all tables after recovery to a time; times must not decrease."""
    if standby.running:
        standby.stop()
    target = str(at).replace("Z", "+00")
    standby.configure(reload=False, recovery_target_time=f"'{target}'", recovery_target_action="pause")
    standby.start()
    wait_until(
        lambda: standby.sql("SELECT pg_get_wal_replay_pause_state()") == [("paused",)],
        "the recovery target",
        reported=lambda: standby.log[-2000:],
    )
    found = {}
    for table in TABLES:
        rows = standby.sql(f"SELECT row_to_json(t)::text FROM {table} t", database)
        found[table] = sorted((json.loads(str(row)) for (row,) in rows), key=repr)
    return found


def without_tableoid(uri: Path) -> Rows:
    rows = DeltaTable(str(uri)).to_pyarrow_table().to_pylist()
    return sorted(({name: value for name, value in row.items() if name != "tableoid"} for row in rows), key=repr)


def clock_us(cluster: Cluster) -> int:
    ((time_us,),) = cluster.sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    assert isinstance(time_us, int)
    return time_us


@pytest.mark.feature("N17")
def test_a_replay_equals_point_in_time_recovery_at_random_times(new_cluster: NewCluster, tmp_path: Path) -> None:
    chance = random.Random(20)
    primary, database, lake = new_cluster(wal_keep_size="1GB"), "shop", tmp_path / "lake"
    primary.sql(f"CREATE DATABASE {database}")
    primary.sql(TABLES_DDL, database)
    with copy_of(primary, primary_conninfo=f"'{primary.dsn()}'") as standby:
        (standby.data / "standby.signal").touch()
        before_us = clock_us(primary)
        options = {"TIDEMARK_SELECT__PARTITION_ROOTS": "public.parts"}
        with running(primary, database, tmp_path, copy=True, **options) as sidecar:
            sidecar.catch_up()
            begun_us = clock_us(primary)
            locked = change(primary, database, chance)
            ended_us = clock_us(primary)
            insert_into_all(primary, database)
            sidecar.catch_up()
            feed_by_hand(sidecar.folder, lake, "lake")
        opened = OpenedLake(str(lake))
        readable = [us for us in range(begun_us, ended_us) if not any(us in times for times in locked)]
        for number, time_us in enumerate(sorted(chance.sample(readable, MOMENTS))):
            at = CommitTime(time_us)
            expected = recovered(standby, database, at)
            for table in TABLES:
                to = tmp_path / f"{table}-{number}"
                replay(opened, opened.find(f"public.{table}"), TimeMoment(at), FolderTarget(to))
                assert without_tableoid(to) == expected[table], (table, str(at))
        arguments = ("replay", "--lake", str(lake), "--table", "public.keyed", "--to", str(tmp_path / "by-command"))
        early = cdcctl(*arguments, "--at", str(CommitTime(before_us)))
        assert early.code == ExitCode.CONFIG
        assert "is before the first copy of it" in early.err
        late = cdcctl(*arguments, "--at", str(CommitTime(ended_us + 3_600_000_000)))
        assert late.code == ExitCode.CONFIG
        assert "the lake does not contain all transactions before" in late.err
        assert not (tmp_path / "by-command").exists()
        done = json.loads(succeeded(cdcctl(*arguments, "--at", str(CommitTime(begun_us)), "--json")).out)
        assert done["rows"] == len(without_tableoid(tmp_path / "by-command"))


def insert_into_all(cluster: Cluster, database: str) -> None:
    """Commit one more change of each table, so that the lake contains all before it."""
    with cluster.connect(database) as session:
        for table in TABLES:
            sql(session, f"INSERT INTO {table} (id) VALUES (999)")
