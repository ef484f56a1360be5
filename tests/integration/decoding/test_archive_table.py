"""The rows of a table that ranges of an archive yield are those that the serial decoder prints (N07), without Spark."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from pyspark_tidemark.archive_source import ArchiveSource
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.archived_table import record_table
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn
from tidemark.pipeline.source.rows.exact_values import UnfitValues
from tidemark.pipeline.source.rows.query_table import UnknownTable
from tidemark.runtime.replay.offline import ArchiveEndsEarly

Row = dict[str, object]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return record_table(tmp_path_factory.mktemp("table"))


def read(folders: dict[str, str], **options: str) -> tuple[list[Row], int]:
    """Return the rows in the order of the partitions, and how many partitions there are."""
    source = ArchiveSource({**folders, **options})
    reader = source.reader(source.schema())
    parts = reader.partitions()
    rows: list[Row] = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return rows, len(parts)


def printed(folders: dict[str, str], table: str, *options: str) -> list[tuple[str, int, int, Row | None]]:
    """Return op, commit LSN, ordinal and the new or old row of each change that the command prints."""
    words = ("--archive", folders["archive"], "--table", table, "--message", "none", *options)
    found: list[tuple[str, int, int, Row | None]] = []
    for line in succeeded(cdcctl("decode", "--state", folders["state"], *words)).lines:
        row = json.loads(line)
        if row["op"] in "iudt":
            _, lsn, ordinal = row["position"].rsplit(":", 2)
            found.append((row["op"], parse_lsn(lsn), int(ordinal), row.get("after") or row.get("before")))
    return found


def shown(rows: list[Row], *columns: str) -> list[tuple[object, object, object, Row | None]]:
    return [
        (
            row["_op"],
            row["_commit_lsn"],
            row["_ordinal"],
            None if row["_op"] == "t" else {name: row[name] for name in columns},
        )
        for row in rows
    ]


@pytest.mark.feature("N07")
def test_the_rows_of_all_ranges_are_those_of_the_serial_decoder(folders: dict[str, str]) -> None:
    rows, parts = read(folders, table="account")
    assert parts >= 4
    expected = printed(folders, "account")
    assert shown(rows, "id", "note") == expected
    assert len(expected) > 200
    assert [row[1:3] for row in expected] == sorted(row[1:3] for row in expected)
    others, _ = read(folders, table="public.other")
    expected = [(op, lsn, at, row and {"b": None, **row}) for op, lsn, at, row in printed(folders, "other")]
    assert shown(others, "a", "b") == expected
    assert [row[0] for row in expected] == ["i", "i", "t"]


def test_values_from_before_a_change_of_type_are_read_by_a_query_that_ends_there(folders: dict[str, str]) -> None:
    with pytest.raises(UnfitValues, match=r"column a: .* does not become string.*by a query that ends there"):
        read(folders, table="retyped")
    words = ("--state", folders["state"], "--archive", folders["archive"], "--table", "retyped")
    lines = [json.loads(line) for line in succeeded(cdcctl("decode", *words)).lines]
    (changed,) = [line["position"].split(":")[1] for line in lines if line.get("change") == "alter"]
    before, _ = read(folders, table="retyped", to=changed)
    after, _ = read(folders, table="retyped", **{"from": changed})
    assert [row["a"] for row in (*before, *after)] == [[1, 2], "{1,2}"]


def test_a_query_begins_and_ends_at_lsns_or_times(folders: dict[str, str]) -> None:
    whole = printed(folders, "account")
    begin, end = format_lsn(whole[60][1]), format_lsn(Lsn(whole[-1][1]))
    rows, _ = read(folders, table="account", **{"from": begin, "to": end})
    assert shown(rows, "id", "note") == printed(folders, "account", "--from", begin, "--to", end)
    assert 0 < len(rows) < len(whole)
    times = sorted({str(row["_commit_time"]) for row in read(folders, table="account")[0]})
    middle = times[len(times) // 2].replace(" ", "T")
    rows, _ = read(folders, table="account", **{"from": middle})
    assert shown(rows, "id", "note") == printed(folders, "account", "--from", middle)
    assert 0 < len(rows) < len(whole)
    with pytest.raises(ArchiveEndsEarly, match="with transactions up to"):
        read(folders, table="account", to=(datetime.now(UTC) + timedelta(days=1)).isoformat())


def test_errors_of_options_state_the_remedy(folders: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"requires the option table: its options are archive, state"):
        read(folders)
    with pytest.raises(ConfigError, match=r"no option servr"):
        read(folders, table="account", servr="x")
    with pytest.raises(UnknownTable, match=r"table 'gone' is not"):
        read(folders, table="gone")
    with pytest.raises(ArchiveEndsEarly, match=r"before 7FFFFFFF/0: wait until"):
        read(folders, table="account", to="7FFFFFFF/0")
