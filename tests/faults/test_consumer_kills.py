"""SIGKILL of a sidecar, and of an engine, with a custom consumer: no more than the last batch is delivered again.

The state itself may lack much more: the confirmations since the last transaction of the confirm thread.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import pytest

from tests.support.processes.captures import Sidecar
from tests.support.processes.forking import StartedProgram, start_program
from tests.support.processes.waiting import let_pass, wait_until
from tests.support.servers.postgres import Cluster, sql
from tidemark import Order
from tidemark.io.state.confirmed_file import read_confirmation
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import INVALID_LSN, TimelineId, parse_lsn
from tidemark.model.position import Position

KILLS, KILLS_MAX = 8, 24  # more than KILLS only until the state lacked more than a batch at one
SEED = 20261127
PAUSE_S_MAX = 0.3
TRANSACTIONS_MAX = 3000  # of a run: the load must last longer than the wait for the kill
ROWS = 20  # of a commit, which is a batch
COMMITS = 5  # that the state lacks at a kill
PATIENCE_S, ATTEMPTS_MAX = 20.0, 5  # to deliver them while the state cannot be written
WATCHDOG_S = "600"  # longer than the test keeps the others from the state
TABLE = "CREATE TABLE account (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)"
INSERT = f"INSERT INTO account (note) SELECT repeat(md5(random()::text), 32) FROM generate_series(1, {ROWS})"
INSERT_ONE = "INSERT INTO account (note) VALUES ('one')"
pytestmark = pytest.mark.usefixtures("forked")
ENGINE = """
import os
import sys

from tidemark import Engine, Order

dsn, state, order, file = sys.argv[1:]
written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def handle(batch):
    for change in batch:
        os.write(written, f"{change.after['id']}\\n".encode())


settings = {"copy": {"enabled": False}, "deliver": {"group_rows_max": 1, "idle_pointer_s": 0.3}}
with Engine(dsn, state=state, handler=handle, workers=3, order=Order[order], settings=settings) as engine:
    engine.wait()
"""


def test_a_sidecar_that_is_killed_at_any_moment_delivers_no_more_than_the_last_batch_again(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    dice = random.Random(SEED)
    delivered, again, lacked = 0, list[int](), list[int]()
    with prepared(cluster, database, tmp_path) as sidecar:

        def check(file: Path) -> int:
            ids = ids_in(file)
            assert ids == list(range(ids[0], ids[-1] + 1))
            assert ids[0] <= delivered + 1, "a change is missing"
            again.append(delivered + 1 - ids[0])
            return ids[-1]

        while len(again) < KILLS or (max(lacked) <= ROWS and len(again) < KILLS_MAX):
            file = start(sidecar, tmp_path / f"{len(again)}.jsonl")
            with inserting(cluster, database):
                wait_for_id(file, delivered + 1)
                let_pass(dice.uniform(0, PAUSE_S_MAX), "a random moment for the kill")
                sidecar.kill()
            stored = stored_position(sidecar.folder)
            lacked.append(sum(position > stored for position in positions_in(file)))
            delivered = check(file)
        file = start(sidecar, tmp_path / "last.jsonl")
        ((last,),) = cluster.sql("SELECT max(id) FROM account", database)
        wait_for_id(file, int(last))
        assert check(file) == last
    assert max(again) <= ROWS, again
    assert max(lacked) > ROWS, lacked


def test_a_sidecar_that_is_killed_before_the_state_has_its_confirmations_repeats_none_of_them(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    with prepared(cluster, database, tmp_path) as sidecar:
        file = start(sidecar, tmp_path / "first.jsonl")
        cluster.sql(INSERT, database)
        wait_for_id(file, ROWS)
        last = ROWS

        def deliver() -> Callable[[], bool]:
            nonlocal last
            for _ in range(COMMITS):
                cluster.sql(INSERT, database)
            last += COMMITS * ROWS
            return lambda: last in ids_in(file) and is_confirmed(sidecar.folder, max(positions_in(file)))

        kill_before_the_state_has(deliver, sidecar.folder, sidecar.kill)
        stored = stored_position(sidecar.folder)
        assert sum(position > stored for position in positions_in(file)) >= COMMITS * ROWS
        file = start(sidecar, tmp_path / "again.jsonl")
        cluster.sql(INSERT_ONE, database)
        wait_for_id(file, last + 1)
    assert ids_in(file) == [last + 1]


@pytest.mark.feature("A22")
@pytest.mark.parametrize("order", list(Order))
def test_an_engine_with_workers_that_is_killed_repeats_nothing_that_was_finished(
    cluster: Cluster, database: str, tmp_path: Path, order: Order
) -> None:
    cluster.sql(TABLE, database)
    folder = StateFolder(tmp_path / "state")
    with running_engine(cluster.dsn(database), folder, order, tmp_path / "first") as (file, process):
        wait_until(lambda: read_confirmation(folder) is not None, "the engine's start: the idle pointer")
        cluster.sql(INSERT_ONE, database)
        wait_for_number(file, 1)
        last, last_lsn = 1, INVALID_LSN

        def deliver() -> Callable[[], bool]:
            nonlocal last, last_lsn
            for _ in range(COMMITS):
                last_lsn = parse_lsn(str(cluster.sql("SELECT pg_current_wal_insert_lsn()")[0][0]))
                cluster.sql(INSERT_ONE, database)
            last += COMMITS
            return lambda: last in numbers_in(file) and is_confirmed(folder, Position(TimelineId(1), last_lsn, 0))

        def kill() -> None:
            process.kill()
            process.wait(timeout=60)

        kill_before_the_state_has(deliver, folder, kill)
        assert stored_position(folder).commit_lsn < last_lsn
    with running_engine(cluster.dsn(database), folder, order, tmp_path / "again") as (file, _):
        cluster.sql(INSERT_ONE, database)
        wait_for_number(file, last + 1)
        assert numbers_in(file) == [last + 1]


@contextmanager
def prepared(cluster: Cluster, database: str, root: Path) -> Iterator[Sidecar]:
    """A sidecar with the state of a new table; a batch is one commit."""
    cluster.sql(TABLE, database)
    sidecar = Sidecar(
        cluster,
        database,
        root,
        TIDEMARK_DELIVER__CONSUMER="jsonl",
        TIDEMARK_DELIVER__JSONL_FILE=str(root / "unused"),
        TIDEMARK_DELIVER__GROUP_ROWS_MAX=str(ROWS),
        TIDEMARK_WATCHDOG__WATCHDOG_S=WATCHDOG_S,
    )
    sidecar.init()
    try:
        yield sidecar
    finally:
        sidecar.close()


def start(sidecar: Sidecar, file: Path) -> Path:
    """Start it with a file of its own: a kill may leave part of a line at the end."""
    sidecar.options["TIDEMARK_DELIVER__JSONL_FILE"] = str(file)
    sidecar.start()
    return file


@contextmanager
def running_engine(dsn: str, folder: StateFolder, order: Order, file: Path) -> Iterator[tuple[Path, StartedProgram]]:
    """Run an engine in another process, which writes the numbers of its changes to a file; kill it at the end."""
    with file.with_suffix(".log").open("wb") as log:
        command = [sys.executable, "-c", ENGINE, dsn, str(folder.root), order.name, str(file)]
        process = start_program(command, os.environ, log, log)
        try:
            yield file, process
        finally:
            process.kill()
            process.wait(timeout=60)


def kill_before_the_state_has(
    deliver: Callable[[], Callable[[], bool]], folder: StateFolder, kill: Callable[[], None]
) -> None:
    """Kill a process that has delivered and confirmed changes while it could not write to the state.

    `deliver` makes changes, and returns whether they are confirmed. The process delivers nothing if it has to write to
    the state before, as for a change of the catalogs: then further changes are made later.
    """
    for _ in range(ATTEMPTS_MAX):
        with StateStore.open(folder) as store, store.transaction(None):
            if comes(deliver()):
                kill()
                return
    raise AssertionError("nothing was confirmed without the state")


def comes(condition: Callable[[], bool]) -> bool:
    """Return whether a condition holds within a time."""
    with suppress(AssertionError):
        wait_until(condition, within_s=PATIENCE_S)
        return True
    return False


@contextmanager
def inserting(cluster: Cluster, database: str) -> Iterator[None]:
    """Insert rows in another thread as long as the context lasts."""
    stop = Event()

    def insert() -> None:
        with cluster.connect(database) as session:
            for _ in range(TRANSACTIONS_MAX):
                if stop.is_set():
                    break
                sql(session, INSERT)

    with ThreadPoolExecutor(1) as pool:
        inserts = pool.submit(insert)
        try:
            yield
        finally:
            stop.set()
            inserts.result()


def rows_in(file: Path) -> list[dict[str, object]]:
    """Return the complete lines of rows."""
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines if b'"after"' in line]


def ids_in(file: Path) -> list[int]:
    return [int(row["after"]["id"]) for row in rows_in(file)]  # type: ignore[index]


def positions_in(file: Path) -> list[Position]:
    return [position_of(str(row["position"])) for row in rows_in(file)]


def position_of(text: str) -> Position:
    timeline, lsn, ordinal = text.split(":")
    return Position(TimelineId(int(timeline)), parse_lsn(lsn), int(ordinal))


def stored_position(folder: StateFolder) -> Position:
    """Return the position in LMDB."""
    with StateStore.open(folder, read_only=True) as store:
        start = store.view().start
    assert start is not None
    return start.position


def wait_for_id(file: Path, number: int) -> None:
    """Wait until a line has this id."""
    wait_until(lambda: number in ids_in(file), f"the row {number}")


def numbers_in(file: Path) -> list[int]:
    """Return the rows that an engine has handled."""
    return [int(number) for number in file.read_text().split()] if file.exists() else []


def wait_for_number(file: Path, number: int) -> None:
    """Wait until an engine has handled a row."""
    wait_until(lambda: number in numbers_in(file), f"the row {number}")


def is_confirmed(folder: StateFolder, position: Position) -> bool:
    """Return whether the file has the confirmation of a position."""
    found = read_confirmation(folder)
    return found is not None and found.position >= position
