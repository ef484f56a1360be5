"""`cdcctl decode` from an archive, after the server is gone, compared with the server's earlier test_decoding output.

The server's lines are divided by commit record, or by message outside a transaction; pg_waldump gives the LSNs of these
records, and SQL their times (`pg_xact_commit_timestamp`). [from, to) must then yield exactly the pieces in it. The
capture had selected one table only: the others were never captured.
"""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.oracles.oracle import ROLE, ServerSide, ensure_role, without_tidemarks_messages
from tests.support.oracles.waldump import waldump
from tests.support.processes.cdcctl import Done, cdcctl, contents, refused, running, succeeded
from tests.support.servers.postgres import Cluster, StopMode, new_cluster, sql
from tidemark.model.commit_time import CommitTime
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn, parse_lsn

MB = 1 << 20
SEGMENT_NAME_LENGTH = 24
DATABASES = ("app", "other")
GID = "spanning"
CAPTURED = "public.slow"  # the only table that was selected all the time
RUNS_AT_ONCE = 2
_RECORD = re.compile(r"^rmgr: (\w+) .* tx: +(\d+), lsn: ([0-9A-F]+/[0-9A-F]+), .* desc: (\w+)(?: (\d+))?(.*)$")


@dataclass(frozen=True)
class RecordOutput:
    """The output for one record: a whole transaction, or a message outside one."""

    begin_lsn: Lsn
    lines: tuple[str, ...]
    commit_time: CommitTime | None = None  # None: a message


@dataclass(frozen=True)
class RecordedServer:
    """The remains of a removed server."""

    state: Path
    archive: Path
    pieces: dict[str, list[RecordOutput]]
    bases: list[Lsn]

    def expected(self, database: str, from_lsn: int, to_lsn: int) -> list[str]:
        """Return the server's lines for [from, to)."""
        return [line for piece in self.pieces[database] if from_lsn <= piece.begin_lsn < to_lsn for line in piece.lines]

    def transactions(self, database: str, from_time: CommitTime, to_time: CommitTime) -> list[str]:
        """Return the server's lines of the transactions that committed in [from, to) according to SQL."""
        timed = [(piece.commit_time, piece.lines) for piece in self.pieces[database]]
        return [line for time, lines in timed if time is not None and from_time <= time < to_time for line in lines]

    def decode(self, form: str, *more: str, archive: Path | None = None) -> Done:
        return cdcctl("decode", "--state", self.state, "--archive", archive or self.archive, "--format", form, *more)

    def find(self, text: str, database: str = "app") -> RecordOutput:
        """Return the only piece that contains `text`."""
        (found,) = (piece for piece in self.pieces[database] if any(text in line for line in piece.lines))
        return found

    @property
    def end_lsn(self) -> Lsn:
        return Lsn(max(piece.begin_lsn for pieces in self.pieces.values() for piece in pieces) + 1)


def move_on(cluster: Cluster) -> None:
    """Let WAL grow by two segments: enough for a new catalog base."""
    for _ in range(2):
        cluster.sql("SELECT pg_logical_emit_message(false, 'filler', ''), pg_switch_wal()", "other")


def work(cluster: Cluster, round_number: int) -> None:
    """Make a change of every kind."""
    with cluster.connect("app") as session:
        sql(session, f"INSERT INTO account SELECT {round_number} * 10 + n, 'a' FROM generate_series(0, 4) n")
        sql(session, "BEGIN")
        sql(session, f"UPDATE account SET note = 'round {round_number}' WHERE id = {round_number} * 10")
        sql(session, "SAVEPOINT s")
        sql(session, "DELETE FROM account")
        sql(session, "ROLLBACK TO s")
        sql(session, "SELECT pg_logical_emit_message(false, 'app', 'said at once, of a transaction that is undone')")
        sql(session, f"SELECT pg_logical_emit_message(true, 'app', 'said at commit {round_number}')")
        sql(session, "COMMIT")
        sql(session, f"ALTER TABLE account ADD COLUMN c{round_number} int DEFAULT {round_number}")
        sql(session, f"INSERT INTO account SELECT {round_number} * 10 + n, 'wide' FROM generate_series(5, 9) n")
        sql(session, f"DELETE FROM account WHERE id = {round_number} * 10 + 1")
        sql(session, "BEGIN")
        sql(session, f"SELECT pg_logical_emit_message(false, 'alone', 'message {round_number}')")
        sql(session, "ROLLBACK")
    cluster.sql(f"INSERT INTO note VALUES ({round_number}, repeat('x', 10))", "other")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedServer:
    root = tmp_path_factory.mktemp("offline")
    state, archive = root / "state", root / "archive"
    with (
        new_cluster(
            15, {"wal_keep_size": "1GB", "track_commit_timestamp": "on"}, initdb=["--wal-segsize=1"]
        ) as cluster,
        ExitStack() as stack,
    ):
        ensure_role(cluster)
        for database in DATABASES:
            cluster.sql(f"CREATE DATABASE {database}")
        cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", "app")
        cluster.sql("CREATE TABLE slow (id int PRIMARY KEY, note text)", "app")
        cluster.sql("CREATE TABLE note (id int PRIMARY KEY, content text)", "other")
        servers = {database: ServerSide(cluster, database) for database in DATABASES}
        cluster.sql("CHECKPOINT")
        dsn = cluster.dsn("app", ROLE)
        both = ("--database", "app", "--database", "other")
        succeeded(cdcctl("init", "--state", state, "--dsn", dsn, *both, "--table", CAPTURED))
        for server in servers.values():
            server.lines()
        # A transaction and a prepared one that are open across two catalog bases.
        spanning = stack.enter_context(cluster.connect("app", autocommit=False))
        sql(spanning, "INSERT INTO slow VALUES (1, 'long open')")
        cluster.sql(f"BEGIN; INSERT INTO slow VALUES (2, 'prepared'); PREPARE TRANSACTION '{GID}'", "app")
        capture = {
            "TIDEMARK_HISTORY__BASE_EVERY_BYTES": str(MB),
            "TIDEMARK_ARCHIVE__KEEP_BYTES": str(1 << 30),  # this also keeps the bases from which older WAL is decoded
            "TIDEMARK_COPY__ENABLED": "false",
            "TIDEMARK_METRICS__PORT": "0",
        }
        with running(root, "run", "sidecar", "--state", state, **capture) as sidecar:
            for round_number in (1, 2, 3):
                work(cluster, round_number)
                if round_number == 3:
                    sql(spanning, "UPDATE slow SET note = 'long done' WHERE id = 1")
                    spanning.commit()
                    cluster.sql(f"COMMIT PREPARED '{GID}'", "app")
                done = current_lsn(cluster)
                move_on(cluster)
                sidecar.wait_for(partial(has_base_after, state, done), "a catalog base")
            assert sidecar.stop() == ExitCode.SUCCESS
        # From here on no capture runs: there are no bases and no journal, only the archive.
        work(cluster, 4)
        cluster.sql("INSERT INTO account (id, note) VALUES (-1, 'last')", "app")
        pieces = {database: pieces_of(cluster, servers[database]) for database in DATABASES}
        cluster.sql("SELECT pg_switch_wal()")
        cluster.stop(StopMode.FAST)
        shutil.copytree(cluster.data / "pg_wal", archive, ignore=shutil.ignore_patterns("archive_status"))
    assert not cluster.data.exists()  # the server and its files are gone
    return RecordedServer(state, archive, pieces, saved_bases(state))


def current_lsn(cluster: Cluster) -> Lsn:
    return parse_lsn(cluster.sql("SELECT pg_current_wal_insert_lsn()")[0][0])


def has_base_after(state: Path, lsn: Lsn) -> bool:
    return any(base > lsn for base in saved_bases(state))


def saved_bases(state: Path) -> list[Lsn]:
    return sorted(Lsn(int(path.name.rpartition("-")[2], 16)) for path in (state / "history").glob("base-*[0-9A-F]"))


def pieces_of(cluster: Cluster, server: ServerSide) -> list[RecordOutput]:
    """Return the server's lines since the last call, by the record that completes them."""
    commits, messages = records_of(cluster)
    pieces: list[RecordOutput] = []
    open_lines: list[str] = []
    for line in server.lines():
        if line.startswith("message: transactional: 0"):
            if "prefix: filler" not in line:
                content = line.rpartition("content:")[2]
                pieces.append(RecordOutput(messages[content].pop(0), (line,)))
            continue
        open_lines.append(line)
        if line.startswith("COMMIT "):
            kept = without_tidemarks_messages(open_lines)
            if kept:
                xid = int(line.split()[1])
                pieces.append(RecordOutput(commits[xid], tuple(kept), commit_time(cluster, xid)))
            open_lines = []
    assert not open_lines
    assert pieces == sorted(pieces, key=lambda piece: piece.begin_lsn)
    return pieces


def commit_time(cluster: Cluster, xid: int) -> CommitTime:
    ((reported,),) = cluster.sql(f"SELECT (extract(epoch FROM pg_xact_commit_timestamp('{xid}')) * 1000000)::int8")
    return CommitTime(int(reported))


def records_of(cluster: Cluster) -> tuple[dict[int, Lsn], dict[str, list[Lsn]]]:
    """Return the LSNs of commit records by xid, and of messages outside transactions by content."""
    folder = cluster.data / "pg_wal"
    begin = Lsn(segment_number(segments(folder)[0]) * MB)
    commits: dict[int, Lsn] = {}
    messages: dict[str, list[Lsn]] = {}
    for line in waldump(cluster, folder, begin, parse_lsn(cluster.flush_lsn())).splitlines():
        found = _RECORD.match(line)
        if found is None:
            continue
        rmgr, tx, lsn, name, number, rest = found.groups()
        if rmgr == "Transaction" and name == "COMMIT":
            commits[int(tx)] = parse_lsn(lsn)
        elif rmgr == "Transaction" and name == "COMMIT_PREPARED":
            commits[int(number)] = parse_lsn(lsn)
        elif rmgr == "LogicalMessage" and "non-transactional" in rest:
            content = bytes.fromhex(rest.rpartition(": ")[2]).decode()
            messages.setdefault(content, []).append(parse_lsn(lsn))
    return commits, messages


@pytest.mark.feature("N04")
def test_with_the_server_gone_every_database_decodes_as_test_decoding_did(recorded: RecordedServer) -> None:
    before = contents(recorded.state), contents(recorded.archive)
    for database in DATABASES:
        done = succeeded(recorded.decode("test_decoding", "--database", database))
        expected = recorded.expected(database, 0, recorded.end_lsn)
        assert [line for line in done.lines if "prefix: filler" not in line] == expected
        assert len(expected) > 10
    assert (contents(recorded.state), contents(recorded.archive)) == before
    assert list((recorded.state / "spill").iterdir()) == []


def test_a_range_contains_what_completes_in_it_whether_commit_prepared_transaction_or_message(
    recorded: RecordedServer,
) -> None:
    plain = recorded.find("'round 2'").begin_lsn
    message = recorded.find("content:message 3").begin_lsn
    spanning = recorded.find("'long done'").begin_lsn
    prepared = recorded.find("'prepared'").begin_lsn
    last = recorded.find("'last'").begin_lsn
    assert plain < message < spanning < prepared < last
    edges = [(plain, message), (plain + 1, message + 1), (spanning, spanning + 1)]
    edges += [(message, prepared), (message + 1, prepared + 1), (prepared, last + 1)]

    def decode(edge: tuple[int, int]) -> list[str]:
        begin, end = (format_lsn(Lsn(lsn)) for lsn in edge)
        return succeeded(recorded.decode("test_decoding", "--database", "app", "--from", begin, "--to", end)).lines

    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        for edge, lines in zip(edges, pool.map(decode, edges), strict=True):
            assert lines == recorded.expected("app", *edge), edge


@pytest.mark.feature("N06")
def test_a_range_of_times_contains_what_sql_shows_to_have_committed_in_it(recorded: RecordedServer) -> None:
    times = [piece.commit_time for piece in recorded.pieces["app"] if piece.commit_time is not None]
    assert times == sorted(times)
    assert len(times) > 10
    third, two_thirds, last = times[len(times) // 3], times[2 * len(times) // 3], times[-1]
    edges = [(third, two_thirds), (CommitTime(third.us + 1), CommitTime(two_thirds.us + 1)), (two_thirds, last)]

    def decode(edge: tuple[CommitTime | None, CommitTime | None]) -> list[str]:
        options = [word for name, at in zip(("--from", "--to"), edge, strict=True) if at for word in (name, str(at))]
        return succeeded(recorded.decode("test_decoding", "--database", "app", *options)).lines

    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        for edge, lines in zip(edges, pool.map(decode, edges), strict=True):
            found = [line for line in lines if not line.startswith("message: transactional: 0")]
            assert found == recorded.transactions("app", *edge), edge
            assert found
    whole = succeeded(recorded.decode("test_decoding", "--database", "app")).lines
    assert decode((None, third)) + decode((third, two_thirds)) + decode((two_thirds, None)) == whole


def test_a_range_of_times_outside_the_archive_or_the_history_is_an_error_that_names_which(
    recorded: RecordedServer,
) -> None:
    times = [piece.commit_time for pieces in recorded.pieces.values() for piece in pieces if piece.commit_time]
    early, late = min(times).earlier_by(3600), CommitTime(max(times).us + 1)
    refused(recorded.decode("null", "--from", str(early)), ExitCode.STATE, "no catalog base", str(early))
    refused(recorded.decode("null", "--to", str(late)), ExitCode.GAP, str(recorded.archive), str(late))
    refused(
        recorded.decode("null", "--from", str(late), "--to", str(early)), ExitCode.CONFIG, f"{late} comes after {early}"
    )
    refused(recorded.decode("null", "--from", "2026-11-22T14:00:00"), ExitCode.CONFIG, "has no time zone")


@pytest.mark.feature("N05")
def test_a_table_that_was_never_selected_is_decoded_from_any_base_on_as_it_was_then(recorded: RecordedServer) -> None:
    def decode(lsn: Lsn) -> list[str]:
        captured_late = ("--database", "app", "--table", "public.account", "--from", format_lsn(lsn))
        return succeeded(recorded.decode("test_decoding", *captured_late)).lines

    with ThreadPoolExecutor(RUNS_AT_ONCE) as pool:
        for base, lines in zip(recorded.bases, pool.map(decode, recorded.bases), strict=True):
            expected = recorded.expected("app", base, recorded.end_lsn)
            rows = [line for line in expected if line.startswith("table ") and CAPTURED not in line]
            assert [line for line in lines if line.startswith("table ")] == rows
            assert rows
    columns = [[word for word in line.split() if word.startswith("c")] for line in lines if "'wide'" in line]
    assert columns[-1] == ["c1[integer]:1", "c2[integer]:2", "c3[integer]:3", "c4[integer]:4"]
    below = Lsn(recorded.bases[0] - 8)
    refused(
        recorded.decode("test_decoding", "--table", "public.account", "--from", format_lsn(below)),
        ExitCode.STATE,
        f"no catalog base for {format_lsn(below)}",
        f"the oldest is of {format_lsn(recorded.bases[0])}",
    )


@pytest.mark.feature("N04")
def test_decoding_begins_at_the_newest_base_that_misses_nothing(recorded: RecordedServer, tmp_path: Path) -> None:
    """The archive loses the WAL before the last base: ranges that do not need it are decoded, others are refused."""
    *_, base = recorded.bases
    spanning, last = recorded.find("'long done'").begin_lsn, recorded.find("'last'").begin_lsn
    assert len(recorded.bases) > 3
    assert recorded.bases[1] < spanning < base < last
    later = tmp_path / "later"
    shutil.copytree(recorded.archive, later)
    for path in segments(later):
        if segment_number(path) < base // MB:
            path.unlink()
    for begin in (base, last):
        done = succeeded(
            recorded.decode("test_decoding", "--database", "app", "--from", format_lsn(begin), archive=later)
        )
        assert done.lines == recorded.expected("app", begin, recorded.end_lsn)
    begun_before = format_lsn(recorded.bases[2])  # at this base, the spanning transactions were open
    refused(
        recorded.decode("test_decoding", "--from", begun_before, archive=later),
        ExitCode.GAP,
        str(later),
        format_lsn(Lsn(segment_number(segments(later)[0]) * MB)),
    )


def segments(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if len(path.name) == SEGMENT_NAME_LENGTH)


def segment_number(path: Path) -> int:
    return int(path.name[8:16], 16) * 4096 + int(path.name[16:], 16)


def test_json_lines_parse_and_are_in_stream_order(recorded: RecordedServer) -> None:
    done = succeeded(recorded.decode("jsonl", "--database", "app", "--table", "public.*"))
    positions = []
    values = {}
    for line in done.lines:
        item = json.loads(line)
        timeline, commit_lsn, ordinal = item["position"].split(":")
        positions.append((int(timeline), parse_lsn(commit_lsn), int(ordinal)))
        assert item["database"] == "app"
        if item["op"] in ("i", "u"):
            values[item["after"]["id"]] = item["after"]
    assert positions == sorted(positions)
    assert values[40] == {"id": 40, "note": "round 4", "c1": 1, "c2": 2, "c3": 3}
    assert values[45]["c4"] == 4
    assert values[-1]["note"] == "last"
    assert sum(line.startswith("table ") for line in recorded.expected("app", 0, recorded.end_lsn)) == sum(
        json.loads(line)["op"] in ("i", "u", "d") for line in done.lines
    )


def test_arrow_is_read_by_others_to_its_end_and_null_counts_the_same(recorded: RecordedServer) -> None:
    done = succeeded(recorded.decode("arrow"))
    source = BytesIO(done.out)
    rows = batches = 0
    items = []
    while source.tell() < len(done.out):
        with pa.ipc.open_stream(source) as stream:
            about = {name.decode(): value.decode() for name, value in (stream.schema.metadata or {}).items()}
            for batch in stream:
                batches += 1
                rows += batch.num_rows
                assert about["tidemark.database"] in DATABASES
                assert about["tidemark.relation"] in ("public.account", "public.note", "public.slow")
            if "tidemark.item" in about:
                items.append(json.loads(about["tidemark.item"]))
    reported = json.loads(succeeded(recorded.decode("null", "--json")).out)
    lines = [line for name in DATABASES for line in recorded.expected(name, 0, recorded.end_lsn)]
    assert (reported["rows"], reported["batches"]) == (rows, batches)
    assert rows == sum(line.startswith("table ") for line in lines)
    assert len([item for item in items if item["op"] == "schema"]) == 4
