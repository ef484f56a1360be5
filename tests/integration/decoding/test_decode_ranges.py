"""Ranges of an archive, decoded independently, give the bytes of the decoder that reads all of it.

The WAL has interleaved sessions with savepoints, DDL, TOAST, prepared transactions that are open for most of it, a
large transaction, rolled back ones, and messages outside transactions. It is cut into few and into many ranges.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path

import psycopg
import pytest
from tidemark_ctl.main import INTERRUPTED
from tidemark_ctl.output.formats import Format
from tidemark_ctl.ranges.messages import DecodeRequest
from tidemark_ctl.ranges.range_output import print_range
from tidemark_ctl.termination import TERMINATED

from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.cdcctl import Done, cdcctl, command, environment, refused, reported, succeeded
from tests.support.processes.ending import ended
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, StopMode, new_cluster, sql
from tests.support.servers.small_disk import needs_mount, small_disk
from tidemark.engine.selection import Selection
from tidemark.engine.wal_ranges import PlannedRange, plan_ranges, start_from_map
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_views import StateView
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, SystemIdentifier, format_lsn, parse_lsn
from tidemark.model.transaction_map import CUTS_MAX, within_bounds
from tidemark.runtime.replay import transaction_mapping
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.runtime.replay.history_start import HistoryStart, LsnRange, begin_from_history
from tidemark.runtime.replay.offline import cell_bytes_of
from tidemark.runtime.replay.range_start import begin_range
from tidemark.runtime.replay.transaction_mapping import MAP_FILE, MappedWal, map_wal
from tidemark.wal.segments import SEGMENT_BYTES_MIN
from tidemark.wire.transaction_map import dump_map, load_map

CELL_BYTES = 16 << 10
MEMORY_BYTES = 64 << 20
ROUNDS = 20
SESSIONS = 4
COUNTS = {Format.JSONL: 12, Format.ARROW: 5, Format.DEBEZIUM: 3}  # ranges
OPEN_SUM = 60  # of a map within narrow bounds
DISK_BYTES = 16 << 10  # less than the first batch of a range
SEGMENTS_KEPT = 12  # of a trimmed archive: a cell, and two and six segments around it
EARLY = 8  # number of a cut in the first part of the WAL
SEGMENTS_PASSED = 5  # one cell of the command and more
WIDE = 3000  # characters that do not compress: TOAST
_MADE_AT = re.compile(rb'"ts_[mun]s":\d+')  # times of Debezium, which include when the event was made


@dataclass(frozen=True)
class RangedServer:
    """The state and the archive of a server that is gone."""

    root: Path

    @property
    def state(self) -> StateFolder:
        return StateFolder(self.root / "state")

    @property
    def archive(self) -> ArchiveFolder:
        return ArchiveFolder(self.root / "archive")

    def view(self) -> StateView:
        with StateStore.open(self.state, read_only=True) as store:
            return store.view()

    def map(self, folder: Path, *, to_lsn: Lsn | None = None, cell_bytes: int = CELL_BYTES) -> MappedWal:
        view = self.view()
        return map_wal(
            view,
            self.state.history,
            self.archive,
            cell_bytes=cell_bytes,
            from_lsn=view.history.bases[0].lsn,
            to_lsn=to_lsn,
            map_file=folder / MAP_FILE,
            file_mode=0o600,
        )


def text(length: int, seed: int) -> str:
    return "".join(random.Random(seed).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=length))


def session(number: int, connection: psycopg.Connection[tuple[object, ...]]) -> Iterator[None]:
    """Yield after each statement, so that sessions alternate."""
    for turn in range(ROUNDS):
        key, table = turn * SESSIONS + number, f"own_{number}"
        statements = [f"INSERT INTO account VALUES ({key}, 'begun {turn}')"]
        if turn % 3 == 0:
            statements += [
                "SAVEPOINT a",
                f"INSERT INTO account VALUES ({-key - 1}, '{text(WIDE, key)}')",
                "SELECT pg_logical_emit_message(false, 'test', 'in a savepoint')",
                "SAVEPOINT b",
                f"UPDATE account SET note = note || 'x' WHERE id = {key}",
                "ROLLBACK TO a" if turn % 2 else "RELEASE a",
            ]
        if turn % 5 == number:
            statements += [
                f"ALTER TABLE {table} ADD COLUMN c{turn} int DEFAULT {turn}",
                f"INSERT INTO {table} SELECT n, '{text(WIDE, turn)}' FROM generate_series(1, 6) n",
                f"CREATE TABLE made_{number}_{turn} AS SELECT n, n::text AS m FROM generate_series(1, 100) n",
            ]
        if turn % 7 == 0:
            statements.append(f"SELECT pg_logical_emit_message(true, 'test', 'with {key}')")
        if turn % 11 == 10:
            statements.append(f"TRUNCATE {table}")
        statements.append(f"UPDATE account SET note = 'done' WHERE id = {key}")
        end = "ROLLBACK" if turn % 9 == 8 else "COMMIT"
        if turn % 10 == 4:
            end = f"PREPARE TRANSACTION '{number}-{turn}'"
        for statement in ("BEGIN", *statements, end):
            sql(connection, statement)
            yield
        if turn % 10 == 9:  # five turns of all sessions later
            sql(connection, f"{'ROLLBACK' if turn == 19 else 'COMMIT'} PREPARED '{number}-{turn - 5}'")
            yield


def pass_segments(cluster: Cluster) -> None:
    for _ in range(SEGMENTS_PASSED):
        cluster.sql("SELECT pg_logical_emit_message(false, 'filler', ''), pg_switch_wal()", "app")


def work(cluster: Cluster) -> None:
    with ExitStack() as stack:
        giant = stack.enter_context(cluster.connect("app", autocommit=False))
        sql(giant, "INSERT INTO account SELECT n, repeat('g', 20) FROM generate_series(100000, 100800) n")
        sql(giant, "SAVEPOINT s")
        sql(giant, "INSERT INTO account SELECT n, repeat('h', 20) FROM generate_series(110000, 110800) n")
        cluster.sql("BEGIN; INSERT INTO account VALUES (-900000, 'old'); PREPARE TRANSACTION 'old'", "app")
        undone = stack.enter_context(cluster.connect("app", autocommit=False))
        sql(undone, "INSERT INTO account SELECT n, 'undone' FROM generate_series(200000, 200300) n")
        running = [session(n, stack.enter_context(cluster.connect("app"))) for n in range(SESSIONS)]
        turn = 0
        while running:
            running = [each for each in running if next(each, "end") is None]
            turn += 1
            if turn % 40 == 0:
                sql(giant, f"UPDATE account SET note = '{text(WIDE, turn)}' WHERE id BETWEEN 100000 AND 100005")
                sql(undone, f"INSERT INTO account VALUES ({300000 + turn}, '{text(WIDE, turn)}')")
            if turn % 50 == 0:
                cluster.sql("CHECKPOINT")
                pass_segments(cluster)
        sql(giant, "DELETE FROM account WHERE id > 100790 AND id < 110000")
        giant.commit()
        cluster.sql("COMMIT PREPARED 'old'", "app")
        undone.rollback()
        for key in (-900001, -900002):
            pass_segments(cluster)
            cluster.sql(f"INSERT INTO account VALUES ({key}, 'alone')", "app")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RangedServer:
    root = tmp_path_factory.mktemp("ranges")
    settings = {"wal_keep_size": "1GB", "max_prepared_transactions": "20"}
    with new_cluster(15, settings, initdb=["--wal-segsize=1"]) as cluster:
        ensure_role(cluster)
        cluster.sql("CREATE DATABASE app")
        cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", "app")
        for number in range(SESSIONS):
            cluster.sql(f"CREATE TABLE own_{number} (id int, note text)", "app")
        cluster.sql("CHECKPOINT")
        succeeded(cdcctl("init", "--state", root / "state", "--dsn", cluster.dsn("app", ROLE)))
        work(cluster)
        cluster.sql("SELECT pg_switch_wal()")
        cluster.stop(StopMode.FAST)
        shutil.copytree(cluster.data / "pg_wal", root / "archive", ignore=shutil.ignore_patterns("archive_status"))
    return RangedServer(root)


@pytest.fixture(scope="module")
def mapped(recorded: RangedServer, tmp_path_factory: pytest.TempPathFactory) -> MappedWal:
    return recorded.map(tmp_path_factory.mktemp("map"))


@pytest.fixture(scope="module")
def everything(recorded: RangedServer) -> bytes:
    return serial(recorded, Format.JSONL, PlannedRange(None, None))


def output(
    recorded: RangedServer, start: HistoryStart, part: PlannedRange, form: Format, *, counting: bool = False
) -> bytes:
    """Return what the command prints for a range, in this process."""
    printed = BytesIO()
    request = DecodeRequest("", "", None, Selection(), form.value, counting)
    print_range(
        request,
        15,
        recorded.archive,
        start,
        lsns=LsnRange(part.from_lsn, part.to_lsn),
        output=printed,
        report_end=no_end,
        reached=lambda _: None,
        cell_bytes=CELL_BYTES,
    )
    return _MADE_AT.sub(b"", printed.getvalue())


def no_end(error: InvalidWal) -> None:
    del error


def serial(recorded: RangedServer, form: Format, part: PlannedRange, *, counting: bool = False) -> bytes:
    view = recorded.view()
    start = begin_from_history(view, recorded.state.history, part.from_lsn, memory_bytes=MEMORY_BYTES)
    return output(recorded, start, part, form, counting=counting)


def committed_in(everything: bytes, begin: Lsn, end: Lsn) -> bytes:
    """Return the lines of what commits in [begin, end)."""
    found = []
    for line in everything.splitlines(keepends=True):
        _, commit_lsn, _ = json.loads(line)["position"].split(":")
        if begin <= parse_lsn(commit_lsn) < end:
            found.append(line)
    assert 0 < len(found) < len(everything)
    return b"".join(found)


def in_ranges(
    recorded: RangedServer, form: Format, ranges: Sequence[PlannedRange], mapped: MappedWal, *, counting: bool = False
) -> bytes:
    view, parts = recorded.view(), []
    for part in ranges:
        if part.start is None:
            parts.append(serial(recorded, form, part, counting=counting))
            continue
        start = begin_range(
            view,
            recorded.state.history,
            mapped.kept,
            part,
            memory_bytes=MEMORY_BYTES,
            is_requested=ranges[0].from_lsn is not None,
        )
        parts.append(output(recorded, start, part, form, counting=counting))
    return b"".join(parts)


@pytest.mark.parametrize("form", COUNTS)
def test_the_output_of_all_ranges_is_that_of_the_serial_decoder(
    recorded: RangedServer, mapped: MappedWal, everything: bytes, form: Format
) -> None:
    found = mapped.kept.transactions
    assert len(found.cuts) >= 60
    expected = everything if form is Format.JSONL else serial(recorded, form, PlannedRange(None, None))
    assert len(expected) > 300_000
    if form is Format.ARROW:
        found = replace(found, cuts=tuple(within_bounds(found.cuts, CUTS_MAX, OPEN_SUM)))
    ranges = plan_ranges(found, None, None, count=COUNTS[form])
    assert len(ranges) == COUNTS[form]
    assert in_ranges(recorded, form, ranges, mapped) == expected


def test_a_part_of_the_wal_in_ranges_is_that_part_of_the_serial_output(
    recorded: RangedServer, mapped: MappedWal, everything: bytes
) -> None:
    found = mapped.kept.transactions
    begin, end = Lsn(found.cuts[len(found.cuts) // 2].lsn + 8), Lsn(found.cuts[-3].lsn - 8)
    ranges = plan_ranges(found, begin, end, count=3)
    assert (ranges[0].from_lsn, ranges[-1].to_lsn) == (begin, end)
    assert in_ranges(recorded, Format.JSONL, ranges, mapped) == committed_in(everything, begin, end)
    counted = serial(recorded, Format.JSONL, PlannedRange(begin, end), counting=True)
    assert in_ranges(recorded, Format.JSONL, ranges, mapped, counting=True) == counted
    # A map whose end is unknown, because an error stopped it: a transaction that is open may commit later.
    ranges = plan_ranges(found, begin, None, count=2, is_complete=False)
    assert ranges[-1].to_lsn is None
    assert in_ranges(recorded, Format.JSONL, ranges, mapped) == committed_in(everything, begin, found.end_lsn)


def test_a_transaction_prepared_long_ago_delays_only_the_range_of_its_commit(
    mapped: MappedWal,
) -> None:
    found = mapped.kept.transactions
    (old,) = {each for cut in found.cuts for each in cut.open if each.commit_lsn and each.first_lsn < found.cuts[0].lsn}
    ranges = plan_ranges(found, None, None, count=15)
    early = [part for part in ranges[1:] if part.start is not None and part.start.lsn < found.cuts[0].lsn]
    assert len(early) == 1
    assert early[0].from_lsn is not None
    assert early[0].from_lsn <= old.commit_lsn


def test_a_kept_map_is_continued_and_a_damaged_one_or_one_of_another_form_is_made_again(
    recorded: RangedServer, mapped: MappedWal, tmp_path: Path
) -> None:
    whole, path = mapped.kept, tmp_path / MAP_FILE
    recorded.map(tmp_path, to_lsn=whole.transactions.cuts[len(whole.transactions.cuts) // 2].lsn)
    part = load_map(path.read_bytes(), "")
    assert 0 < len(part.transactions.cuts) < len(whole.transactions.cuts)
    assert recorded.map(tmp_path).kept == whole
    early = whole.transactions.cuts[EARLY].lsn
    expected = recorded.map(tmp_path / "missing", to_lsn=early).kept
    foreign = replace(whole, transactions=replace(whole.transactions, system_identifier=SystemIdentifier(1)))
    for content in (b"", b"damaged", path.read_bytes()[:-1], dump_map(foreign)):
        path.write_bytes(content)
        assert recorded.map(tmp_path, to_lsn=early).kept == expected
        assert load_map(path.read_bytes(), "").transactions.cuts[-1].lsn == early


def test_a_map_is_within_its_bounds_and_leaves_no_other_file(
    recorded: RangedServer, mapped: MappedWal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = mapped.kept.transactions.cuts[EARLY].lsn
    (tmp_path / f"{MAP_FILE}.1.new").write_bytes(b"of a killed command")
    found = recorded.map(tmp_path, to_lsn=early).kept.transactions
    assert [path.name for path in tmp_path.iterdir()] == [MAP_FILE]
    sum_max = sum(cut.open_count for cut in found.cuts) // 2
    monkeypatch.setattr(transaction_mapping, "OPEN_SUM_MAX", sum_max)
    (tmp_path / "blocked" / MAP_FILE).mkdir(parents=True)  # a file cannot take its place
    bounded = recorded.map(tmp_path / "blocked", to_lsn=early).kept.transactions
    assert [path.name for path in (tmp_path / "blocked").iterdir()] == [MAP_FILE]
    assert 0 < sum(cut.open_count for cut in bounded.cuts) <= sum_max
    assert len(bounded.cuts) >= len(found.cuts) // 3


@pytest.mark.feature("N24")
def test_the_command_prints_the_same_with_several_processes(recorded: RangedServer) -> None:
    one, several = (succeeded(decode(recorded, *jobs)) for jobs in ((), ("--jobs", "2")))
    assert several.out == one.out
    assert several.err == one.err
    assert (recorded.state.history / MAP_FILE).exists()
    assert list(recorded.state.spill.iterdir()) == []


def test_the_counts_of_several_processes_are_those_of_one(recorded: RangedServer) -> None:
    one, several = (
        json.loads(succeeded(decode(recorded, "--format", "null", "--json", *jobs)).out) for jobs in ((), ("-j", "2"))
    )
    assert several.keys() == one.keys()
    assert {**several, "cpu_s": 0} == {**one, "cpu_s": 0}
    assert one["rows"] > 2000


def test_an_error_is_the_same_with_several_processes(recorded: RangedServer, mapped: MappedWal, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(recorded.root / "archive", damaged)
    found = mapped.kept.transactions.cuts
    victim = damaged / ArchiveFolder(damaged).name_at(found[-2].lsn)
    content = bytearray(victim.read_bytes())
    at = found[-2].lsn % len(content) + 100
    content[at : at + 8] = b"damaged!"
    victim.write_bytes(content)
    one, several = (decode(recorded, *jobs, archive=damaged) for jobs in ((), ("-j", "2")))
    assert (several.code, several.err) == (one.code, one.err)
    assert one.code == ExitCode.CORRUPT_WAL
    assert several.out.startswith(one.out)  # and more: what one process has not printed yet is lost
    assert len(one.out) > 300_000
    refused(decode(recorded, "--from", "2026-01-01T00:00:00Z", "-j", "2"), ExitCode.CONFIG, "range of times")


def test_a_killed_process_ends_the_command_and_nothing_is_left(recorded: RangedServer) -> None:
    with started(recorded) as command:
        killed, other = decoding_processes(command.pid)
        os.kill(killed, signal.SIGKILL)
        _, err = command.communicate()
    assert command.returncode == ExitCode.UNEXPECTED
    message, hint = reported(err.decode())
    assert f"decoding process {killed} was killed by SIGKILL" in message
    assert "incomplete" in hint
    assert list(recorded.state.spill.iterdir()) == []
    assert not Path(f"/proc/{other}").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)])
def test_a_terminated_command_ends_its_processes_and_removes_its_files(
    recorded: RangedServer, number: signal.Signals, code: int
) -> None:
    with started(recorded) as command:
        processes = decoding_processes(command.pid)
        os.killpg(command.pid, number)  # as a terminal does
        _, err = command.communicate()
    assert command.returncode == code
    assert err.strip() == b""
    assert list(recorded.state.spill.iterdir()) == []
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]


@needs_mount
def test_a_full_disk_ends_the_command_with_an_error_and_leaves_nothing(recorded: RangedServer) -> None:
    recorded.state.spill.rmdir()
    with small_disk(recorded.state.spill, DISK_BYTES):
        with started(recorded) as command:  # the first range waits for a reader, so the second one needs the disk
            wait_until(lambda: os.statvfs(recorded.state.spill).f_bfree == 0, "a full disk")
            _, err = command.communicate()
        assert list(recorded.state.spill.iterdir()) == []
    assert command.returncode == ExitCode.STATE
    message, _ = reported(err.decode())
    assert message.startswith(f"cdcctl: no space for {recorded.state.spill}")


def decode(recorded: RangedServer, *options: str, archive: Path | None = None) -> Done:
    return cdcctl(
        "decode", "--state", recorded.root / "state", "--archive", archive or recorded.root / "archive", *options
    )


def piped(words: list[str], process_group: int | None = None) -> "subprocess.Popen[bytes]":
    """Start a command whose output is in pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, env=environment(), process_group=process_group)


@contextmanager
def started(recorded: RangedServer) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the command with two processes; nobody reads its output, so that it cannot end."""
    words = command("decode", "--state", recorded.root / "state", "--archive", recorded.root / "archive", "-j", "2")
    with ended(piped(words, 0)) as process:
        yield process


def decoding_processes(pid: int) -> list[int]:
    """Return both decoding processes of a command, once they run."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2, "decoding processes")
    return [int(each) for each in children.read_text().split()]


def test_a_start_in_the_middle_begins_at_a_cut_of_a_kept_map(
    recorded: RangedServer, mapped: MappedWal, tmp_path: Path
) -> None:
    kept = recorded.state.history / MAP_FILE
    kept.unlink(missing_ok=True)
    end_lsn = mapped.kept.transactions.end_lsn
    from_lsn = end_lsn - (SEGMENTS_PASSED + 1) * SEGMENT_BYTES_MIN - 4096  # before the last two rows
    begin = ("--from", format_lsn(from_lsn))
    printed = succeeded(decode(recorded, *begin))
    assert len(printed.lines) == 2 + SEGMENTS_PASSED
    trimmed = tmp_path / "trimmed"
    shutil.copytree(recorded.root / "archive", trimmed)
    for path in sorted(trimmed.iterdir())[:-SEGMENTS_KEPT]:
        path.unlink()
    refused(decode(recorded, *begin, "-j", "2", archive=trimmed), ExitCode.GAP, "has no WAL before")
    found = recorded.map(recorded.state.history, cell_bytes=cell_bytes_of(recorded.archive)).kept.transactions
    assert len(plan_ranges(found, Lsn(from_lsn), None, count=2)) == 2
    # Without the WAL of the base:
    assert succeeded(decode(recorded, *begin, archive=trimmed)).out == printed.out
    far = decode(recorded, *begin, "--to", "7FFFFFFF/0", "-j", "2", archive=trimmed)
    assert (far.code, far.out) == (ExitCode.GAP, printed.out)
    assert "before 7FFFFFFF/0" in reported(far.err)[0]


def test_a_start_from_a_map_misses_nothing_at_any_lsn(
    recorded: RangedServer, mapped: MappedWal, everything: bytes
) -> None:
    kept = mapped.kept
    cuts = kept.transactions.cuts
    base_lsn = recorded.view().history.bases[0].lsn
    for number in (len(cuts) // 3, len(cuts) - 2):
        from_lsn = Lsn(cuts[number].lsn + 40)
        part = start_from_map(kept.transactions, from_lsn, None, base_lsn=base_lsn)
        assert part is not None
        found = in_ranges(recorded, Format.JSONL, [part], mapped).splitlines()
        assert found == committed_in(everything, from_lsn, kept.transactions.end_lsn).splitlines()


def test_an_output_for_appending_and_one_whose_reader_ends_are_written_like_any_other(
    recorded: RangedServer, tmp_path: Path
) -> None:
    words = command("decode", "--state", recorded.root / "state", "--archive", recorded.root / "archive")
    appended = tmp_path / "appended"
    with appended.open("ab") as output:
        subprocess.run([*words, "-j", "2"], stdout=output, env=environment(), check=True)
    assert appended.read_bytes() == decode(recorded).out
    with ended(piped([*words, "-j", "2"])) as several:
        assert several.stdout is not None
        assert several.stderr is not None
        several.stdout.read(1)
        several.stdout.close()
        assert several.stderr.read() == b""
        several.wait()
    with ended(piped(words)) as one:
        assert one.stdout is not None
        one.stdout.read(1)
        one.stdout.close()
        one.wait()
    assert several.returncode == one.returncode == ExitCode.SUCCESS  # as for `head`
