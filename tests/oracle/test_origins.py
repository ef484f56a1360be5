"""Replication origins: each change has one, and the omitted changes are those that test_decoding omits."""

import re
from collections.abc import Iterator, Mapping, Sequence

import pytest

from tests.conftest import NewCluster
from tests.support.lakes.group_collector import GroupCollector
from tests.support.oracles.oracle import Oracle
from tests.support.servers.postgres import Cluster, database_in
from tidemark.engine.selection import Selection
from tidemark.wire.control import Json

DATABASE = "origins"
SLOT = "origins_slot"
_LINE = re.compile(r"table public\.(\w+): (\w+):.*?(?:id\[integer\]:(\d+)|$)")
_MESSAGE = re.compile(r"message: transactional: . prefix: p, sz: \d+ content:(.*)")
_VERBS = {"i": "INSERT", "u": "UPDATE", "d": "DELETE", "t": "TRUNCATE"}
SETUP = """
SELECT pg_replication_origin_create('north'), pg_replication_origin_create('south');
CREATE TABLE t (id int PRIMARY KEY, v text);
"""
SESSIONS = (
    # Local, remote, and both in one transaction; the commit's own origin is the last one.
    "INSERT INTO t SELECT n FROM generate_series(1, 5) n",
    "SELECT pg_replication_origin_session_setup('north')",
    "INSERT INTO t SELECT n FROM generate_series(11, 20) n",
    (
        "BEGIN; INSERT INTO t VALUES (21); SELECT pg_replication_origin_xact_setup('0/10', '2026-01-01');"
        " UPDATE t SET v = 'x' WHERE id < 3; COMMIT"
    ),
    "BEGIN; INSERT INTO t VALUES (22); SELECT pg_logical_emit_message(true, 'p', 'north'); TRUNCATE t; COMMIT",
    "SELECT pg_logical_emit_message(false, 'p', 'north aside')",
    (
        "BEGIN; INSERT INTO t VALUES (30); SELECT pg_replication_origin_session_reset(); INSERT INTO t VALUES (31);"
        " SELECT pg_logical_emit_message(true, 'p', 'here'); COMMIT"
    ),
    (
        "BEGIN; INSERT INTO t VALUES (32); SELECT pg_replication_origin_session_setup('south');"
        " DELETE FROM t WHERE id = 31; COMMIT"
    ),
    "BEGIN; SAVEPOINT s; INSERT INTO t VALUES (33); ROLLBACK TO s; INSERT INTO t VALUES (34, repeat('y', 99)); COMMIT",
    "BEGIN; INSERT INTO t VALUES (35); PREPARE TRANSACTION 'p'",
    "COMMIT PREPARED 'p'",
    "BEGIN; CREATE TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1); COMMIT",
    "SELECT pg_replication_origin_session_reset()",
    "INSERT INTO u VALUES (2)",
    "UPDATE t SET v = 'last'",
)


@pytest.fixture
def database(oracle_cluster: Cluster) -> Iterator[str]:
    slot = f"SELECT pg_create_logical_replication_slot('{SLOT}', 'test_decoding')"
    with database_in(oracle_cluster, DATABASE, SETUP, slot) as name:
        yield name
        oracle_cluster.sql(f"SELECT pg_drop_replication_slot('{SLOT}')", DATABASE)
    oracle_cluster.sql("SELECT pg_replication_origin_drop('north'), pg_replication_origin_drop('south')")


def server_reported(cluster: Cluster, *options: str) -> list[str]:
    rows = cluster.sql(
        f"SELECT data FROM pg_logical_slot_peek_changes('{SLOT}', NULL, NULL, 'include-xids', '0'"
        + "".join(f", '{option}'" for option in options)
        + ")",
        DATABASE,
    )
    reported = []
    for (line,) in rows:
        if found := _LINE.search(str(line)):
            reported.append(" ".join(part for part in found.groups() if part))
        elif found := _MESSAGE.search(str(line)):
            reported.append(found[1])
    return reported


def we_reported(lines: Sequence[Mapping[str, Json]]) -> list[str]:
    reported = []
    for line in lines:
        if line["op"] == "m":
            reported.append(str(line["content"]))
        elif line["op"] in _VERBS:
            shown = line.get("after") or line.get("before")
            key = f" {shown['id']}" if isinstance(shown, dict) else ""
            reported.append(f"{line['table']} {_VERBS[str(line['op'])]}{key}")
    return reported


def test_changes_are_filtered_by_origin_as_the_server_filters_them(oracle_cluster: Cluster, database: str) -> None:
    everything = GroupCollector(oracle_cluster, [database])
    local = GroupCollector(oracle_cluster, [database], selection=Selection(exclude_origins=("any",)))
    ((north,),) = oracle_cluster.sql("SELECT roident::text FROM pg_replication_origin WHERE roname = 'north'")
    not_north = GroupCollector(oracle_cluster, [database], selection=Selection(exclude_origins=(str(north),)))
    for side in (everything, local, not_north):
        side.settle()
    with oracle_cluster.connect(database) as session:
        for statement in SESSIONS:
            session.execute(statement.encode())
    lines = everything.lines_to_now()
    expected = [line for line in server_reported(oracle_cluster) if not line.startswith("fence")]
    assert sorted(we_reported(lines)) == sorted(expected)
    kept = we_reported(local.lines_to_now())
    expected = server_reported(oracle_cluster, "only-local", "1")
    assert sorted(kept) == sorted(expected)
    assert 0 < len(kept) < len(lines)
    origins = {line["origin"] for line in lines if "origin" in line}
    assert len(origins) == 2
    without_north = we_reported(not_north.lines_to_now())
    assert [line for line in without_north if line in ("t INSERT 11", "t TRUNCATE", "north")] == []
    assert {"t INSERT 35", "t DELETE 31", "u INSERT 1"} <= set(without_north), "the other origin's stay"
    for side in (everything, local, not_north):
        side.changes.close()


@pytest.mark.feature("P10")
def test_messages_are_selected_by_their_prefix_transactional_or_not(oracle_cluster: Cluster, database: str) -> None:
    ours = GroupCollector(oracle_cluster, [database], selection=Selection(messages=("order*",)))
    ours.settle()
    for transactional in ("true", "false"):
        for prefix in ("orders", "other", "order"):
            oracle_cluster.sql(f"SELECT pg_logical_emit_message({transactional}, '{prefix}', 'x')", database)
    lines = ours.lines_to_now()
    assert [(line["prefix"], line["transactional"]) for line in lines] == [
        (prefix, transactional) for transactional in (True, False) for prefix in ("orders", "order")
    ]
    ours.changes.close()


def test_commit_timestamps_that_the_server_keeps_change_nothing(new_cluster: NewCluster, major: int) -> None:
    node = new_cluster(major, track_commit_timestamp="on")
    with Oracle(node, "postgres") as oracle:
        node.sql("CREATE TABLE t (id int PRIMARY KEY)")
        for _ in range(3):
            node.sql("BEGIN; INSERT INTO t SELECT coalesce(max(id), 0) + 1 FROM t; SAVEPOINT s; TABLE t; COMMIT")
            node.sql("VACUUM (FREEZE) t")
        node.configure(track_commit_timestamp="off")
        node.restart()  # which writes the truncation of kept WAL into WAL
        node.sql("INSERT INTO t VALUES (100)")
        node.configure(track_commit_timestamp="on")
        node.restart()
        node.sql("INSERT INTO t VALUES (101)")
        assert len([line for line in oracle.check("commit timestamps") if "INSERT" in line]) == 5
    times = node.sql("SELECT xmin::text, pg_xact_commit_timestamp(xmin) FROM t WHERE id = 101")
    assert times[0][1] is not None
