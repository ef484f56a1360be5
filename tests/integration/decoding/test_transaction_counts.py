"""Transactions with their counts (P11), from a sidecar that is killed inside a large one."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, running
from tests.support.processes.json_lines import lines_of
from tests.support.servers.postgres import Cluster, database_in
from tidemark.wire.control import Json

DATABASE = "transaction_counts"
ROWS = 30_000  # of the large transaction and each of its tables
LARGE = f"""
BEGIN;
INSERT INTO first SELECT n FROM generate_series(1, {ROWS}) n;
SAVEPOINT s; INSERT INTO second SELECT n FROM generate_series(1, 500) n; ROLLBACK TO s;
CREATE TABLE third (id int PRIMARY KEY);
INSERT INTO second SELECT n FROM generate_series(1, {ROWS}) n;
INSERT INTO third VALUES (1), (2);
UPDATE first SET id = id + {10 * ROWS} WHERE id BETWEEN 1 AND 10;
TRUNCATE third;
DELETE FROM second WHERE id > {ROWS - 5};
COMMIT
"""
SMALL = ["begin", "i", "end"]
TAIL_BYTES = 4096


@pytest.fixture
def database(cluster: Cluster) -> Iterator[str]:
    tables = "CREATE TABLE first (id int PRIMARY KEY); CREATE TABLE second (id int PRIMARY KEY)"
    with database_in(cluster, DATABASE, tables) as name:
        yield name


def has(path: Path, op: str, times: int) -> bool:
    return sum(line["op"] == op for line in lines_of(path)) >= times


def has_delivered_all(path: Path) -> bool:
    """Return whether the small transaction after the large one is over: of the file, only its end is read."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        tail = file.read().splitlines()[-3:]
    return all(line.endswith(b"}") for line in tail) and [json.loads(line)["op"] for line in tail] == SMALL


@pytest.mark.feature("P11")
def test_counts_and_numbers_are_the_same_through_a_kill_in_the_middle_of_a_large_transaction(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines.jsonl"
    with running(
        cluster,
        database,
        tmp_path,
        TIDEMARK_DELIVER__CONSUMER="jsonl",
        TIDEMARK_DELIVER__JSONL_FILE=str(path),
        TIDEMARK_DELIVER__TRANSACTIONS="true",
        TIDEMARK_DELIVER__GROUP_ROWS_MAX="10",  # 6,000 groups: longer than the writes before the kill
        TIDEMARK_DELIVER__IDLE_POINTER_S="3600",  # only groups write to the state
        TIDEMARK_FAILPOINT="write-inside:11",  # each confirms some groups, at most a hundred times a second
    ) as sidecar:
        cluster.sql("INSERT INTO first VALUES (-1), (-2)", database)
        cluster.sql(LARGE, database)
        sidecar.wait_until(lambda: not sidecar.running, "the kill in the middle of the large transaction")
        killed_at = len(lines_of(path))
        assert has(path, "begin", 2), "it had not begun"
        assert not has(path, "end", 2), "it came to an end before the kill"
        del sidecar.options["TIDEMARK_FAILPOINT"]
        sidecar.start()
        cluster.sql("INSERT INTO second VALUES (-1)", database)
        sidecar.wait_until(lambda: has_delivered_all(path), "the end")
        check(path, sidecar, killed_at)


def check(path: Path, sidecar: Sidecar, killed_at: int) -> None:
    lines = lines_of(path)
    ends = [line for line in lines if line["op"] == "end"]
    reported = [{table["table"]: table["count"] for table in _tables(end)} for end in ends]
    assert reported == [{"first": 2}, {"first": ROWS + 10, "second": ROWS + 5, "third": 3}, {"second": 1}]
    assert [line["op"] for line in lines[:4]] == ["begin", "i", "i", "end"]
    assert sum(line["op"] == "begin" for line in lines) == 3, "what went on is not begun again"
    large = str(ends[1]["xid"])
    changes = {str(line["position"]): line for line in lines if str(line.get("xid")) == large and "table" in line}
    rows = [line for line in changes.values() if "table_ordinal" in line]
    assert Counter(str(line["table"]) for line in rows) == Counter(first=ROWS + 10, second=ROWS + 5, third=2)
    for table in ("first", "second", "third"):
        numbers = [line["table_ordinal"] for line in rows if line["table"] == table]
        assert numbers == list(range(len(numbers))), table
    assert len(lines) > killed_at
    assert ends[1]["items"] == len(rows) + 2, "rows, the TRUNCATE, and the new table"
    assert sidecar.running


def _tables(end: Mapping[str, Json]) -> list[dict[str, Json]]:
    tables = end["tables"]
    assert isinstance(tables, list)
    return [table for table in tables if isinstance(table, dict)]
