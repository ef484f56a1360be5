"""The Python cost of a small transaction on each path from WAL to the output of `decode` and `tail`: counts, no times.

Compiled loops process rows and small transactions, many at a time. A path that processes them one by one fails here,
whatever option selects it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Protocol

import pytest
from tidemark_ctl.actions.tail import print_live
from tidemark_ctl.commands.decode import decode
from tidemark_ctl.commands.tail import tail
from tidemark_ctl.output.formats import Format
from tidemark_ctl.output.printing import PrintContext, printer, select_printed_rows

from tests.support.processes.captures import config_for
from tests.support.servers.postgres import Cluster, database_in
from tests.unit.decoder.test_small_transactions import lines_outside_kernels
from tidemark.engine.selection import Selection
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import parse_lsn
from tidemark.runtime.replay.history_start import LsnRange
from tidemark.runtime.seed.initialise import initialise
from tidemark.runtime.seed.live_changes import LiveChanges
from tidemark.runtime.seed.seeding import read_seed

DATABASE = "cost"
FEW, MANY = 500, 2500
RUNS = 3  # of paths that wait for a server: each wait adds lines, so the lowest count is used
LINES_A_TRANSACTION = 2.5  # of Python, outside the kernels, for one more of two rows; 0.5 to 1.4 at the time of writing
LINES_TAILED = 20.0  # the same for tail, which prints after each message of 128 kB at most: 2 to 5, under load 12
LINES_FOR_TEXT = 5.0  # the same for --format test_decoding, which prints block by block: 2.1
LINES_WITH_BOUNDS = 8.0  # the same with a line for its begin and one for its end: 4.7
TRANSACTIONS = """
    DO $$ BEGIN
        FOR n IN {first}..{last} LOOP
            INSERT INTO account VALUES (n, 'note ' || n);
            UPDATE account SET note = note || '.' WHERE id = n;
            COMMIT;
        END LOOP;
    END $$
"""


class DecodeUpTo(Protocol):
    """A path that prints WAL up to an LSN."""

    def __call__(self, *, to: str) -> Callable[[], object]:
        """Return the call that prints it."""


@dataclass(frozen=True)
class Span:
    """WAL from an LSN on, with one end after few transactions and another after many."""

    begin: str
    few: str
    many: str


@dataclass(frozen=True)
class RecordedWal:
    """A state, and later WAL: a span in segments, and one that a server sends."""

    cluster: Cluster
    state: Path
    time: str  # before the span in segments, and after an earlier commit
    archived: Span
    streamed: Span

    def decoded(self, *options: str, to: str) -> Callable[[], object]:
        archive = str(self.cluster.data / "pg_wal")
        common = ["--state", str(self.state), "--archive", archive, "--from", self.archived.begin, "--to", to]
        return partial(decode.main, [*common, *options], standalone_mode=False)

    def tailed(self, *options: str, to: str) -> Callable[[], object]:
        common = [self.cluster.dsn(DATABASE), "--state", str(self.state), "--from", self.streamed.begin, "--until", to]
        return partial(tail.main, [*common, *options], standalone_mode=False)


def committed(cluster: Cluster, database: str, first: int, count: int) -> str:
    """Commit so many small transactions; return the end of WAL."""
    cluster.sql(TRANSACTIONS.format(first=first, last=first + count - 1), database)
    return cluster.flush_lsn()


def archived(cluster: Cluster, first: int, count: int) -> str:
    """Do the same, and complete the segment: an archive is decoded by segment."""
    end = committed(cluster, DATABASE, first, count)
    cluster.sql("SELECT pg_switch_wal()")
    return end


@pytest.fixture(scope="module")
def recorded(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedWal]:
    with database_in(cluster, DATABASE) as database:
        cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
        cluster.sql("CHECKPOINT")
        folder = StateFolder(tmp_path_factory.mktemp("cost") / "state")
        initialise(config_for(cluster, database), folder)
        committed(cluster, database, 0, 1)
        ((time,),) = cluster.sql("SELECT to_char(now(), 'YYYY-MM-DD HH24:MI:SS.USOF')")
        segments = Span(cluster.flush_lsn(), archived(cluster, 1, FEW), archived(cluster, FEW + 1, MANY - FEW))
        begin = cluster.flush_lsn()
        few = committed(cluster, database, MANY + 1, FEW)
        stream = Span(begin, few, committed(cluster, database, MANY + FEW + 1, MANY - FEW))
        yield RecordedWal(cluster, folder.root, str(time), segments, stream)


def lines_a_transaction(decode: DecodeUpTo, span: Span, *, runs: int = 1) -> float:
    """Return the lines of Python that each transaction adds on a path that prints WAL up to an LSN."""
    decode(to=span.few)()  # some work is done once
    few, many = (min(lines_outside_kernels(decode(to=end)) for _ in range(runs)) for end in (span.few, span.many))
    return (many - few) / (MANY - FEW)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--database", DATABASE),
        ("--table", "public.account"),
        ("--table", "no.such"),
        ("--database", DATABASE, "--table", "no.such"),
        ("--exclude-origin", "any"),
        ("--message", "none"),
        ("--partition-root", "no.such"),
        ("--transactions",),
    ],
    ids=" ".join,
)
def test_each_option_of_decode_handles_small_transactions_in_runs(
    recorded: RecordedWal, options: tuple[str, ...]
) -> None:
    decode = partial(recorded.decoded, "--format", "null", *options)
    assert lines_a_transaction(decode, recorded.archived) < LINES_A_TRANSACTION


def test_a_begin_by_time_handles_small_transactions_in_runs(recorded: RecordedWal) -> None:
    decode = partial(recorded.decoded, "--format", "null", "--from", recorded.time)
    assert lines_a_transaction(decode, recorded.archived) < LINES_A_TRANSACTION


@pytest.mark.parametrize("form", ["jsonl", "debezium", "arrow"])
def test_each_columnar_format_handles_small_transactions_in_runs(recorded: RecordedWal, form: str) -> None:
    decode = partial(recorded.decoded, "--format", form, "--database", DATABASE)
    assert lines_a_transaction(decode, recorded.archived) < LINES_A_TRANSACTION


@pytest.mark.parametrize("form", ["jsonl", "debezium", "arrow"])
def test_each_format_reports_the_bounds_of_small_transactions_in_runs(recorded: RecordedWal, form: str) -> None:
    decode = partial(recorded.decoded, "--format", form, "--transactions")
    assert lines_a_transaction(decode, recorded.archived) < LINES_WITH_BOUNDS


def test_the_text_of_test_decoding_handles_small_transactions_in_runs(recorded: RecordedWal) -> None:
    decode = partial(recorded.decoded, "--format", "test_decoding", "--database", DATABASE)
    assert lines_a_transaction(decode, recorded.archived) < LINES_FOR_TEXT


@pytest.mark.parametrize(
    "options",
    [("--format", "null"), ("--format", "jsonl"), ("--format", "test_decoding"), ("--table", "no.such")],
    ids=" ".join,
)
def test_tail_by_a_state_handles_small_transactions_in_runs(recorded: RecordedWal, options: tuple[str, ...]) -> None:
    decode = partial(recorded.tailed, *options)
    assert lines_a_transaction(decode, recorded.streamed, runs=RUNS) < LINES_TAILED


def test_tail_from_now_on_handles_small_transactions_in_runs(cluster: Cluster, database: str) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    cluster.sql("CHECKPOINT")
    seed = read_seed(cluster.dsn(database))
    about = PrintContext.of(seed.node.major, seed.mirrors, seed.databases)
    shown = printer(Format.JSONL, about, BytesIO(), Selection())
    with LiveChanges(cluster.dsn(database), seed) as changes:
        select_printed_rows(changes.decoding.decoder, shown)

        def printed(end: str) -> Callable[[], object]:
            return partial(print_live, changes, shown, LsnRange(None, parse_lsn(end)))

        printed(committed(cluster, database, 1, FEW))()
        changes.close()  # it reconnects: the WAL written meanwhile arrives in messages of the largest size
        few = lines_outside_kernels(printed(committed(cluster, database, 10_001, FEW)))
        changes.close()
        many = lines_outside_kernels(printed(committed(cluster, database, 20_001, MANY)))
    assert shown.counts.transactions == FEW + MANY  # the snapshot contains the first ones
    assert (many - few) / (MANY - FEW) < LINES_TAILED
