"""Copies of tables in a running engine: those that a rewind queued, and those that the application requests."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import DEADLINE_S, QUICK, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import ALWAYS, Batch, Change, CommitPolicy, ConfigError, CopyBoundary, Engine, EngineEvent, Order, every
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import parse_lsn
from tidemark.wire.state.copy_progress import CopyPhase

SERIAL, POOL = 0, 4
ROWS = 2000
Row = tuple[object, object]


class Stream:
    """Keeps what an engine delivers of tables with an id and a note, in order."""

    def __init__(self) -> None:
        self.items: list[tuple[str, Change | CopyBoundary]] = []
        self.closed_to: object = None  # the handler does not return from a batch with this id before `leave`
        self.inside, self.leave = threading.Event(), threading.Event()
        self._lock = threading.Lock()

    def handle(self, batch: Batch) -> None:
        if any(change.after is not None and change.after["id"] == self.closed_to for change in batch):
            self.inside.set()
            assert self.leave.wait(DEADLINE_S)
        with self._lock:
            self.items += [(batch.relation.name, change) for change in batch]

    def on_event(self, event: EngineEvent) -> None:
        if isinstance(event, CopyBoundary):
            with self._lock:
                self.items.append((event.relation.name, event))

    def copied(self, table: str) -> Sequence[int]:
        """Return the generations that were copied whole."""
        found = [item for name, item in list(self.items) if name == table and isinstance(item, CopyBoundary)]
        return [item.generation for item in found if not item.begin]

    def inserted(self, table: str) -> Sequence[object]:
        """Return the ids of the rows that INSERT brought, in the order of the stream."""
        changes = [item for name, item in list(self.items) if name == table and isinstance(item, Change)]
        return [change.after["id"] for change in changes if change.op.value == "i" and change.after is not None]

    def rows(self, table: str) -> set[Row]:
        """Return the rows of a table after the changes so far; raise if a change is doubled, or one is missing."""
        rows: dict[object, object] = {}
        for name, item in list(self.items):
            if name != table:
                continue
            if isinstance(item, CopyBoundary):
                rows = {} if item.begin else rows
                continue
            was, row = item.before, item.after
            if row is None:
                assert was is not None
                del rows[was["id"]]
                continue
            assert (row["id"] in rows) == (item.op.value == "u"), (table, item)
            rows[row["id"]] = row["note"]
        return set(rows.items())


def source_rows(cluster: Cluster, database: str, table: str) -> set[Row]:
    return {(number, note) for number, note in cluster.sql(f"SELECT id, note FROM {table}", database)}


@contextmanager
def changing(cluster: Cluster, database: str) -> Iterator[None]:
    """Change both tables, one transaction after the other."""
    ended = threading.Event()

    def change() -> None:
        with cluster.connect(database) as session:
            number = 10 * ROWS
            while not ended.wait(0.002):
                number += 1
                session.execute(
                    b"BEGIN; INSERT INTO item VALUES (%(n)d, 'new'); UPDATE item SET note = 'seen' WHERE id = %(u)d;"
                    b"DELETE FROM item WHERE id = %(d)d; INSERT INTO other VALUES (%(n)d, 'new'); COMMIT"
                    % {b"n": number, b"u": number - 10 * ROWS, b"d": number - 10}
                )

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    for table in ("item", "other"):
        cluster.sql(f"CREATE TABLE {table} (id int PRIMARY KEY, note text)", database)
        cluster.sql(f"INSERT INTO {table} SELECT n, 'old' FROM generate_series(1, {ROWS}) n", database)
    return tmp_path / "state"


@dataclass
class EngineMaker:
    """Makes engines over one state and one stream."""

    dsn: str
    state: Path
    stream: Stream = field(default_factory=Stream)

    def __call__(
        self, workers: int = POOL, commit: CommitPolicy = ALWAYS, *, takes_events: bool = True, **deliver: object
    ) -> Engine:
        return Engine(
            self.dsn,
            state=self.state,
            handler=self.stream.handle,
            on_event=self.stream.on_event if takes_events else None,
            workers=workers,
            order=Order.BY_KEY,
            commit=commit,
            settings={"retry": QUICK["retry"], "select": {"exclude_tables": ["hidden"]}, "deliver": deliver},
        )


@pytest.fixture
def engine(cluster: Cluster, database: str, state: Path) -> EngineMaker:
    return EngineMaker(cluster.dsn(database), state)


@contextmanager
def older_transaction(cluster: Cluster, database: str) -> Iterator[None]:
    """Keep a transaction open that changes nothing: a requested copy waits for it."""
    with cluster.connect(database) as session:
        session.execute(b"BEGIN")
        session.execute(b"SELECT pg_current_xact_id()")
        yield
        session.execute(b"ROLLBACK")


@pytest.mark.feature("A38")
@pytest.mark.parametrize("workers", [SERIAL, POOL])
def test_tables_that_a_rewind_queued_are_copied_while_the_engine_runs(
    cluster: Cluster, database: str, state: Path, engine: EngineMaker, workers: int
) -> None:
    stream = engine.stream
    with engine():
        wait_until(lambda: stream.copied("item") == stream.copied("other") == [1])
    cluster.sql("INSERT INTO item VALUES (0, 'while it was stopped')", database)
    ((item,),) = cluster.sql("SELECT 'item'::regclass::oid::int8", database)
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        ((key, copy),) = ((key, copy) for key, copy in store.view().copies.items() if key[1] == item)
        after_lsn = parse_lsn(cluster.flush_lsn())
        transaction.put_copy(*key, replace(copy, phase=CopyPhase.WAITING, after_lsn=after_lsn))
    with leaves_nothing(cluster), engine(workers, every(seconds=3600)):
        with changing(cluster, database):
            wait_until(lambda: stream.copied("item") == [1, 2])
            wait_until(lambda: len(stream.inserted("item")) > 100)
        for table in ("item", "other"):
            wait_until(lambda: stream.rows(table) == source_rows(cluster, database, table))  # noqa: B023 - called at once
    check_other_stream(stream)
    assert 0 in stream.inserted("item"), "it is delivered before the copy"
    assert stream.copied("other") == [1]


def check_other_stream(stream: Stream) -> None:
    """Check that the stream of the table that is not copied again is neither cut nor doubled."""
    ids = sorted(number for number in stream.inserted("other") if isinstance(number, int))
    assert ids == list(range(ids[0], ids[-1] + 1))


@pytest.mark.feature("A38")
@pytest.mark.parametrize("workers", [SERIAL, POOL])
def test_a_requested_copy_comes_while_changes_stream_and_replaces_the_rows_of_its_table(
    cluster: Cluster, database: str, engine: EngineMaker, workers: int
) -> None:
    stream = engine.stream
    with leaves_nothing(cluster), engine(workers, every(seconds=3600)) as running:
        wait_until(lambda: stream.copied("item") == stream.copied("other") == [1])
        with changing(cluster, database):
            wait_until(lambda: len(stream.inserted("other")) > 20)
            running.recopy("item")
            wait_until(lambda: stream.copied("item") == [1, 2])
            wait_until(lambda: len(stream.inserted("item")) > 200)
        for table in ("item", "other"):
            wait_until(lambda: stream.rows(table) == source_rows(cluster, database, table))  # noqa: B023 - called at once
    assert stream.copied("other") == [1]
    check_other_stream(stream)


@pytest.mark.feature("A38")
def test_a_copy_that_replaces_rows_is_a_warning_if_the_handler_takes_no_events(
    engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    """The first copy replaces none."""

    def count(table: str) -> int:
        return sum(name == table for name, _ in list(engine.stream.items))

    with engine(takes_events=False) as running:
        wait_until(lambda: count("item") == count("other") == ROWS)
        assert "CopyBoundary" not in caplog.text
        running.recopy("item")
        wait_until(lambda: count("item") == 2 * ROWS)
    (warning,) = [line for line in caplog.text.splitlines() if "has no on_event" in line]
    assert "CopyBoundary" in warning


@pytest.mark.feature("A38")
def test_a_handler_that_does_not_return_delays_a_copy_and_gets_its_batch_once(
    cluster: Cluster, database: str, engine: EngineMaker, caplog: pytest.LogCaptureFixture
) -> None:
    stream = engine.stream
    with leaves_nothing(cluster), engine(stop_s=1.0) as running:
        wait_until(lambda: stream.copied("item") == stream.copied("other") == [1])
        stream.closed_to = -1
        with older_transaction(cluster, database):
            running.recopy(f"{database}.public.item")
            cluster.sql("INSERT INTO other VALUES (-2, 'after the request')", database)
            wait_until(lambda: -2 in stream.inserted("other"))
            cluster.sql("INSERT INTO other VALUES (-1, 'the handler keeps it')", database)
            wait_until(stream.inside.is_set)
        wait_until(lambda: "the handler did not finish what it has" in caplog.text)
        cluster.sql("INSERT INTO other VALUES (-3, 'the stream continues')", database)
        wait_until(lambda: -3 in stream.inserted("other"))
        assert stream.copied("item") == [1]
        stream.leave.set()
        wait_until(lambda: stream.copied("item") == [1, 2])
        for table in ("item", "other"):
            wait_until(lambda: stream.rows(table) == source_rows(cluster, database, table))  # noqa: B023 - called at once
    assert sorted(stream.inserted("other"), key=str) == [-1, -2, -3]


@pytest.mark.feature("A38")
def test_a_request_survives_a_stop_and_the_next_start_copies(
    cluster: Cluster, database: str, engine: EngineMaker
) -> None:
    stream = engine.stream
    with engine() as running:
        wait_until(lambda: stream.copied("item") == stream.copied("other") == [1])
        with older_transaction(cluster, database):
            running.recopy("item")
            running.stop()
    with engine():
        wait_until(lambda: stream.copied("item") == [1, 2])
        assert stream.rows("item") == source_rows(cluster, database, "item")
    assert stream.copied("other") == [1]


@pytest.mark.feature("A38")
def test_a_request_that_cannot_be_served_names_its_tables_and_requests_nothing(
    cluster: Cluster, database: str, state: Path, engine: EngineMaker
) -> None:
    cluster.sql("CREATE TABLE hidden (id int PRIMARY KEY)", database)
    waiting = engine()
    with pytest.raises(ConfigError, match="needs a running engine"):
        waiting.recopy("item")
    with engine() as running:
        for names, message in (
            (["item", "nowhere"], "public.nowhere does not exist"),
            (["hidden"], "public.hidden is not selected"),
            (["elsewhere.public.item"], "is in a database that is not captured"),
            (["a..b"], "not a table's name"),
            ([], "names of tables"),
        ):
            with pytest.raises(ConfigError, match=message):
                running.recopy(*names)
    with pytest.raises(ConfigError, match="has stopped"):
        running.recopy("item")
    with StateStore.open(StateFolder(state)) as store:
        assert not store.recopies().tables
