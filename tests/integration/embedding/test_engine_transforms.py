"""Transforms in an engine over a real server: first copies, the stream, retries, and tables that they do not fit."""

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

import tidemark
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import (
    Batch,
    CopyBoundary,
    Drop,
    Engine,
    EngineEvent,
    EngineState,
    Filter,
    Mask,
    OnRow,
    Order,
    Rename,
    Route,
    SchemaEvent,
    Secret,
)
from tidemark.runtime.delivery.targets import UNMATCHED

KEY = Secret(b"0123456789abcdef")
DEADLINE_S = 60.0


class CollectedRows:
    """Keeps the rows of all batches, and the threads."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, dict[str, object]]] = []
        self.threads: set[str] = set()

    def __call__(self, batch: Batch) -> None:
        self.threads.add(threading.current_thread().name)
        for change in batch:
            self.rows.append((batch.table, change.op.value, dict(change.after or change.before or {})))


@pytest.fixture
def customers(cluster: Cluster, database: str) -> str:
    cluster.sql("CREATE TABLE customers (id int PRIMARY KEY, email text, note text)", database)
    return "public.customers"


@pytest.mark.feature("P15")
@pytest.mark.usefixtures("customers")
def test_transforms_apply_to_copied_and_to_streamed_rows_in_the_threads_of_the_handler(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("INSERT INTO customers VALUES (1, 'one@x.org', 'copied'), (2, NULL, 'copied')", database)
    collected = CollectedRows()
    called: set[str] = set()

    def note_thread(change: tidemark.Change) -> tidemark.Change:
        called.add(threading.current_thread().name)
        return change

    transforms = [
        Mask("public.customers.email", constant="-"),
        Rename("public.customers.note", "remark"),
        Filter("remark <> 'no'", operations="iu"),
        OnRow(note_thread),
        Route("all_customers", tables="public.customers"),
    ]
    with Engine(
        cluster.dsn(database), state=tmp_path / "state", handler=collected, transforms=transforms, order=Order.BY_KEY
    ) as engine:
        wait_until(lambda: len(collected.rows) == 2 or engine.wait(0))
        cluster.sql("INSERT INTO customers VALUES (3, 'three@x.org', 'yes'), (4, 'four@x.org', 'no')", database)
        cluster.sql("DELETE FROM customers WHERE id = 1", database)
        wait_until(lambda: len(collected.rows) == 4 or engine.wait(0))
        confirmed = engine.confirmed
        cluster.sql("INSERT INTO customers VALUES (5, 'five@x.org', 'no')", database)
        wait_until(lambda: engine.confirmed != confirmed)  # also what is left out is confirmed
    assert collected.rows == [
        ("all_customers", "c", {"id": 1, "email": "-", "remark": "copied"}),
        ("all_customers", "c", {"id": 2, "email": None, "remark": "copied"}),
        ("all_customers", "i", {"id": 3, "email": "-", "remark": "yes"}),
        ("all_customers", "d", {"id": 1, "email": None, "remark": None}),
    ]
    assert called == collected.threads == {"tidemark-handler-1"}


@pytest.mark.feature("P15")
@pytest.mark.usefixtures("customers")
def test_after_an_error_the_handler_gets_only_the_batches_that_it_has_not_finished(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    handled: list[Batch] = []

    def handle(batch: Batch) -> None:
        handled.append(batch)
        if batch.table == "b" and len(handled) < 4:
            raise OSError("the target is away")

    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=handle,
        transforms=[Route("{value}", by="note")],
        settings={"copy": {"enabled": False}, "retry": {"first_s": 0.01, "max_s": 0.02}},
    ) as engine:
        cluster.sql("INSERT INTO customers VALUES (1, '', 'a'), (2, '', 'b'), (3, '', 'c')", database)
        wait_until(lambda: len(handled) == 5 or engine.wait(0))
    assert [batch.table for batch in handled] == ["a", "b", "b", "b", "c"]
    assert handled[1] is handled[2] is handled[3]


@pytest.mark.feature("P15")
@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Mask("public.customers.mail"), "public.customers has no column mail"),
        (Mask("public.customers.id", key=KEY), "id of public.customers is in the key"),
        (Filter("id = 'x'", tables="public.customers"), "line 1, column 6: 'x' is not a valid int32"),
    ],
)
@pytest.mark.usefixtures("customers")
def test_a_start_with_transforms_that_do_not_fit_a_table_is_refused(
    cluster: Cluster, database: str, tmp_path: Path, transform: tidemark.Transform, message: str
) -> None:
    engine = Engine(
        cluster.dsn(database), state=tmp_path / "state", handler=CollectedRows(), transforms=[Drop("*.*.x"), transform]
    )
    with pytest.raises(tidemark.BadTransform, match=message):
        engine.start()
    assert engine.state is EngineState.STOPPED


@pytest.mark.feature("P15")
@pytest.mark.usefixtures("customers")
def test_a_rename_that_would_show_a_masked_column_stops_the_engine_and_nothing_is_lost(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    collected = CollectedRows()
    dsn, state = cluster.dsn(database), tmp_path / "state"
    engine = Engine(dsn, state=state, handler=collected, transforms=[Mask("public.*.email")])
    engine.start()
    cluster.sql("INSERT INTO customers VALUES (1, 'secret')", database)
    wait_until(lambda: len(collected.rows) == 1 or engine.wait(0))
    cluster.sql("ALTER TABLE customers RENAME email TO mail", database)
    cluster.sql("INSERT INTO customers VALUES (2, 'secret')", database)
    with pytest.raises(tidemark.BadTransform, match=r"which is masked or dropped, is now mail of public\.customers"):
        engine.wait(DEADLINE_S)
    assert [row["id"] for _, _, row in collected.rows] == [1]
    with Engine(dsn, state=state, handler=collected, transforms=[Mask("public.*.email|mail")]) as engine:
        wait_until(lambda: len(collected.rows) >= 2 or engine.wait(0))
    assert collected.rows[-1] == ("public.customers", "i", {"id": 2, "mail": None, "note": None})
    assert "secret" not in str(collected.rows)


@pytest.mark.feature("P15")
@pytest.mark.usefixtures("customers")
def test_the_constant_of_a_masked_column_reaches_neither_events_nor_batches(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    given: list[Batch | tidemark.EngineEvent] = []
    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=given.append,
        on_event=given.append,
        transforms=[Mask("public.*.e*")],
        settings={"copy": {"enabled": False}},
    ) as engine:
        cluster.sql("ALTER TABLE customers ADD COLUMN extra text DEFAULT 'secret'", database)
        cluster.sql("INSERT INTO customers (id) VALUES (1)", database)
        wait_until(lambda: len(given) == 2 or engine.wait(0))
    event, batch = given
    assert isinstance(event, tidemark.SchemaEvent)
    assert isinstance(batch, Batch)
    assert "secret" not in repr(given)


@pytest.mark.feature("P15")
@pytest.mark.usefixtures("customers")
def test_an_engine_with_other_transforms_than_before_gets_an_event_before_the_rows(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    given: list[Batch | tidemark.EngineEvent] = []
    for number, mask in enumerate([Mask("*.email"), Mask("*.email", key=KEY), Mask("*.email", key=KEY)]):
        with Engine(
            cluster.dsn(database),
            state=tmp_path / "state",
            handler=given.append,
            on_event=given.append,
            transforms=[mask],
            settings={"copy": {"enabled": False}},
        ) as engine:
            cluster.sql(f"INSERT INTO customers VALUES ({number}, 'x')", database)
            wait_until(partial(lambda count, running: len(emails(given)) > count or running.wait(0), number, engine))
    first, event, second, third = given
    assert isinstance(event, tidemark.SchemaEvent)
    assert event.effect is tidemark.SchemaEffect.TRANSFORMS
    masked = emails([first, second, third])
    assert masked[0] is None
    assert masked[1] == masked[2] is not None


def emails(given: Sequence[Batch | tidemark.EngineEvent]) -> list[object]:
    return [change.after and change.after["email"] for batch in given if isinstance(batch, Batch) for change in batch]


@pytest.mark.feature("A17")
@pytest.mark.feature("A18")
@pytest.mark.usefixtures("customers")
def test_single_changes_and_records_come_from_the_threads_of_the_pool_and_are_confirmed(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    together = threading.Barrier(2)  # passes only with two threads in the handler
    changed: list[object] = []
    recorded: list[tuple[bytes | None, str]] = []

    def handle_change(change: tidemark.Change) -> None:
        together.wait(DEADLINE_S)
        changed.append(change.after and change.after["id"])

    def handle_record(record: tidemark.SerializedChange) -> None:
        together.wait(DEADLINE_S)
        recorded.append((record.key, record.table))

    def insert_two(engine: Engine, handled: Sequence[object]) -> None:
        with engine:
            confirmed = engine.confirmed
            cluster.sql("INSERT INTO customers VALUES (1)", database)
            wait_until(lambda: together.n_waiting == 1 or engine.wait(0))  # in the handler: the next one comes alone
            cluster.sql("INSERT INTO customers VALUES (2)", database)
            wait_until(lambda: len(handled) == 2 or engine.wait(0))
            wait_until(lambda: engine.confirmed != confirmed)
        cluster.sql("DELETE FROM customers", database)

    dsn, settings = cluster.dsn(database), {"copy": {"enabled": False}}
    unordered = partial(Engine, dsn, order=Order.NONE, workers=2, settings=settings)
    insert_two(unordered(state=tmp_path / "changes", change_handler=handle_change), changed)
    serializer = tidemark.DebeziumJson()
    insert_two(unordered(state=tmp_path / "records", change_handler=handle_record, serializer=serializer), recorded)
    assert {*changed} == {1, 2}
    assert {*recorded} == {(b'{"id":1}', "public.customers"), (b'{"id":2}', "public.customers")}


@pytest.mark.feature("P15")
@pytest.mark.usefixtures("customers")
def test_rows_of_a_renamed_database_are_routed_by_its_new_name_also_after_a_start_and_in_a_copy(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    renamed = f"{database}_renamed"
    collected = CollectedRows()

    def engine() -> Engine:
        return Engine(
            cluster.dsn("postgres"),
            state=tmp_path / "state",
            databases=[database, renamed],
            tables=["public.*"],
            handler=collected,
            transforms=[Route("{database}_{table}", tables="public.customers")],
            settings={"copy": {"enabled": False}},
        )

    def insert(into: str, row: int) -> None:
        cluster.sql(f"INSERT INTO customers VALUES ({row})", into)
        wait_until(lambda: any(values["id"] == row for _, _, values in collected.rows))

    with engine():
        insert(database, 1)
    cluster.sql(f"ALTER DATABASE {database} RENAME TO {renamed}")
    try:
        for row in (2, 3):
            with engine():
                insert(renamed, row)
        with engine() as running:
            running.recopy(f"{renamed}.public.customers")
            wait_until(lambda: sum(op == "c" for _, op, _ in collected.rows) == 3)
    finally:
        cluster.sql(f"ALTER DATABASE {renamed} RENAME TO {database}")
    found = [(table, op, row["id"]) for table, op, row in collected.rows]
    before, after = f"{database}_customers", f"{renamed}_customers"
    assert found[:3] == [(before, "i", 1), (after, "i", 2), (after, "i", 3)]
    assert sorted(found[3:]) == [(after, "c", row) for row in (1, 2, 3)]


@pytest.mark.feature("P15")
@pytest.mark.usefixtures("customers")
def test_a_restart_of_the_capture_for_a_copy_announces_no_transform_that_filled_its_closure(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE other (id int PRIMARY KEY)", database)
    collected = CollectedRows()
    seen: list[object] = []
    events: list[EngineEvent] = []

    def note_row(change: tidemark.Change) -> tidemark.Change:
        seen.append(change.position.commit_lsn)
        return change

    with Engine(
        cluster.dsn(database),
        state=tmp_path / "state",
        handler=collected,
        on_event=events.append,
        transforms=[OnRow(note_row)],
        settings={"copy": {"enabled": False}},
    ) as running:
        cluster.sql("INSERT INTO customers VALUES (1)", database)
        wait_until(lambda: len(collected.rows) == 1)
        running.recopy("other")
        wait_until(lambda: any(isinstance(event, CopyBoundary) and not event.begin for event in events))
        cluster.sql("INSERT INTO customers VALUES (2)", database)
        wait_until(lambda: len(collected.rows) == 2)
    assert [event for event in events if isinstance(event, SchemaEvent)] == []
    assert seen


@pytest.mark.usefixtures("customers")
def test_a_transform_that_names_no_captured_table_or_column_is_a_warning_at_each_start(
    cluster: Cluster, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    transforms = [Mask("public.customers.email", "public.custmers.email"), Drop("public.*.notes")]
    for _ in range(2):
        caplog.clear()
        with Engine(cluster.dsn(database), state=tmp_path / "state", handler=CollectedRows(), transforms=transforms):
            warnings = [line for line in caplog.text.splitlines() if UNMATCHED in line]
        assert len(warnings) == 2
        assert "pattern=public.custmers.email" in warnings[0]
        assert "pattern=public.*.notes" in warnings[1]
