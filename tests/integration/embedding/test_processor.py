"""A processor of an application: it gets the pool, the transforms, the serializer and confirmation."""

import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import DEADLINE_S, QUICK, leaves_nothing
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark import (
    ConfigError,
    Engine,
    EngineSignal,
    FlatJson,
    Mask,
    Order,
    Poison,
    PoolKind,
    Position,
    Processor,
    ProcessorPart,
    WorkerPool,
)

WORKERS = 3
MANY = 1000  # parts that a buffering processor keeps
DSN = "postgresql://db/shop"
SINGLE = {**QUICK, "deliver": {"group_rows_max": 1}}


class CollectingProcessor:
    """Serializes each part by a call of the pool, and keeps it until the test finishes it. It has no base class."""

    def __init__(self, *, finishes_at_stop: bool = False) -> None:
        self.calls: list[str] = []
        self.events: list[str] = []
        self.rows: dict[int, dict[str, object]] = {}
        self.parts: dict[int, ProcessorPart] = {}
        self.positions: dict[int, Position] = {}
        self.threads: set[str] = set()
        self.failures = 0
        self.together = threading.Barrier(WORKERS)
        self._finishes_at_stop = finishes_at_stop
        self._lock = threading.Lock()

    def start(self, pool: WorkerPool) -> None:
        self.calls.append("start")
        self._pool = pool

    def process(self, part: ProcessorPart) -> None:
        assert threading.current_thread().name == "tidemark-processor"
        if part.event is not None:
            assert part.serialized() == []
            self.events.append(type(part.event).__name__)
            part.finish()
        else:
            self._pool.submit(partial(self._serialize, part))

    def stop(self) -> None:
        self.calls.append("stop")
        if self._finishes_at_stop:
            self.finish(*self.parts)

    def finish(self, *ids: int) -> None:
        for number in ids:
            self.parts[number].finish()

    def _serialize(self, part: ProcessorPart) -> None:
        (batch,) = part.serialized()
        row = json.loads(batch.records[0].value or b"{}")
        if row["id"] <= WORKERS:
            self.together.wait(DEADLINE_S)
        with self._lock:
            self.threads.add(threading.current_thread().name)
            if self.failures:
                self.failures -= 1
                raise OSError("away for a moment")
            self.rows[row["id"]] = row
            self.positions[row["id"]] = batch.batch.position
            self.parts[row["id"]] = part


class KeepingProcessor:
    """Keeps parts with changes until there are `MANY`. It has no base class."""

    def __init__(self) -> None:
        self.kept: list[ProcessorPart] = []
        self.rows: list[tuple[str, object]] = []
        self.flushes = 0

    def start(self, pool: WorkerPool) -> None:
        pass

    def process(self, part: ProcessorPart) -> None:
        if part.event is not None:
            part.finish()
            return
        self.kept.append(part)
        if len(self.kept) == MANY:
            self.write()

    def write(self) -> None:
        assert threading.current_thread().name == "tidemark-processor"
        kept, self.kept = self.kept, []
        for part in kept:
            for batch in part.transformed():
                self.rows += [(change.op.value, (change.after or {})["id"]) for change in batch]
            part.finish()

    def stop(self) -> None:
        self.write()


class FlushedProcessor(KeepingProcessor):
    def flush(self) -> None:
        self.flushes += 1
        self.write()


@pytest.fixture
def state(cluster: Cluster, database: str, tmp_path: Path) -> Path:
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)
    return tmp_path / "state"


@pytest.fixture
def engine_of(cluster: Cluster, database: str, state: Path) -> Callable[[Processor], Engine]:
    return lambda processor: Engine(
        cluster.dsn(database),
        state=state,
        processor=processor,
        serializer=FlatJson(),
        transforms=[Mask("public.item.note", constant="hidden")],
        workers=WORKERS,
        settings=SINGLE,
    )


def insert(cluster: Cluster, database: str, first: int, last: int) -> None:
    cluster.sql(f"INSERT INTO item SELECT n, 'canary' FROM generate_series({first}, {last}) n", database)


@pytest.mark.feature("A21")
def test_a_processor_without_base_class_gets_pool_transforms_serializer_and_the_confirmation_of_the_finished_prefix(
    cluster: Cluster, database: str, engine_of: Callable[[Processor], Engine]
) -> None:
    first, second, third = CollectingProcessor(), CollectingProcessor(finishes_at_stop=True), CollectingProcessor()
    with leaves_nothing(cluster), engine_of(first) as engine:
        insert(cluster, database, 1, 3)  # as many as workers, and each call waits for the others
        wait_until(lambda: len(first.rows) == WORKERS or engine.wait(0))
        assert first.threads == {f"tidemark-handler-{number}" for number in range(1, WORKERS + 1)}
        first.failures = 2
        insert(cluster, database, 4, 5)
        cluster.sql("TRUNCATE item", database)
        wait_until(lambda: len(first.rows) == 5 or engine.wait(0))
        wait_until(lambda: "Truncation" in first.events)
        assert {row["note"] for row in first.rows.values()} == {"hidden"}
        first.finish(3, 2)
        confirmed = engine.confirmed
        assert confirmed is not None
        assert confirmed < first.positions[1], "nothing passes the first part, which is not finished"
        first.finish(1, 1)
        wait_until(lambda: engine.confirmed == first.positions[3])
        first.finish(5)
    assert first.calls == ["start", "stop"]
    assert engine.confirmed == first.positions[3]
    with leaves_nothing(cluster), engine_of(second) as engine:
        wait_until(lambda: {*second.rows} == {4, 5} or engine.wait(0))
        assert engine.confirmed == first.positions[3]
    with leaves_nothing(cluster), engine_of(third) as engine:
        insert(cluster, database, 6, 6)
        wait_until(lambda: bool(third.rows) or engine.wait(0))
    assert [*third.rows] == [6], "what a processor finished in its stop does not come again"


@pytest.mark.feature("A21")
def test_a_processor_that_keeps_parts_is_flushed_before_a_requested_copy(
    cluster: Cluster, database: str, engine_of: Callable[[Processor], Engine]
) -> None:
    processor = FlushedProcessor()
    with leaves_nothing(cluster), engine_of(processor) as engine:
        insert(cluster, database, 1, 2)
        wait_until(lambda: len(processor.kept) == 2 or engine.wait(0))
        assert (processor.rows, processor.flushes) == ([], 0)
        engine.recopy("item")
        wait_until(lambda: len(processor.rows) == 4 or engine.wait(0))
        assert processor.rows == [("i", 1), ("i", 2), ("c", 1), ("c", 2)]
        assert processor.flushes >= 2, "before the copy, and behind it"
        insert(cluster, database, 3, 3)
        # A poll that still finds the request flushes the row: it is kept, or written already.
        wait_until(lambda: bool(processor.kept) or ("i", 3) in processor.rows or engine.wait(0))


@pytest.mark.feature("A21")
def test_a_processor_that_keeps_parts_is_flushed_by_a_pause(
    cluster: Cluster, database: str, engine_of: Callable[[Processor], Engine]
) -> None:
    processor = FlushedProcessor()
    with leaves_nothing(cluster), engine_of(processor) as engine:
        insert(cluster, database, 1, 2)
        wait_until(lambda: len(processor.kept) == 2 or engine.wait(0))
        (kept,) = processor.kept[-1].transformed()
        engine.signal(EngineSignal.PAUSE)
        wait_until(lambda: processor.rows == [("i", 1), ("i", 2)] or engine.wait(0))
        wait_until(lambda: (engine.confirmed is not None and engine.confirmed >= kept.position) or engine.wait(0))
        engine.signal(EngineSignal.RESUME)
        insert(cluster, database, 3, 3)
        wait_until(lambda: len(processor.kept) == 1 or engine.wait(0))
    assert processor.rows == [("i", 1), ("i", 2), ("i", 3)], "the stop writes the last one"


class RaisingProcessor(CollectingProcessor):
    def __init__(self, cause: Exception, *, in_the_pool: bool) -> None:
        super().__init__()
        self._cause = cause
        self._in_the_pool = in_the_pool

    def process(self, part: ProcessorPart) -> None:
        if part.event is not None:
            return
        if self._in_the_pool:
            self._pool.submit(self._fail)
        else:
            self._fail()

    def _fail(self) -> None:
        self.calls.append("fail")
        raise self._cause


@pytest.mark.feature("A21")
@pytest.mark.parametrize(("in_the_pool", "calls"), [(True, 6), (False, 1)])
def test_an_error_of_a_processor_or_of_its_call_after_the_retries_ends_the_engine_and_confirms_nothing(
    cluster: Cluster, database: str, engine_of: Callable[[Processor], Engine], *, in_the_pool: bool, calls: int
) -> None:
    cause = ValueError("of the processor")
    processor, again = RaisingProcessor(cause, in_the_pool=in_the_pool), CollectingProcessor()
    engine = engine_of(processor)
    with leaves_nothing(cluster):
        engine.start()
        insert(cluster, database, 9, 9)
        with pytest.raises(ValueError, match="of the processor") as raised:
            engine.wait(DEADLINE_S)
    assert raised.value is cause
    assert processor.calls == ["start", *["fail"] * calls, "stop"]
    with engine_of(again) as engine:
        wait_until(lambda: 9 in again.rows or engine.wait(0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda state, own: Engine(DSN, state=state, processor=own, handler=print), "handler cannot be combined"),
        (
            lambda state, own: Engine(DSN, state=state, processor=own, change_handler=print),
            "change_handler cannot be combined",
        ),
        (lambda state, own: Engine(DSN, state=state, processor=own, on_event=print), "on_event cannot be combined"),
        (lambda state, own: Engine(DSN, state=state, processor=own, order=Order.NONE), "order cannot be combined"),
        (
            lambda state, own: Engine(DSN, state=state, processor=own, pool=PoolKind.PROCESSES),
            "pool cannot be combined",
        ),
        (lambda state, own: Engine(DSN, state=state, processor=own, poison=Poison.PARK), "poison cannot be combined"),
        (lambda state, own: Engine(DSN, state=state, processor=type(own)), "is not a processor"),  # type: ignore[arg-type]
        (lambda state, _own: Engine(DSN, state=state, processor=object()), "is not a processor"),  # type: ignore[arg-type]
        (lambda state, _own: Engine(DSN, state=state), "and processor"),
    ],
)
def test_an_argument_that_a_processor_decides_and_an_object_that_is_none_are_refused(
    make: Callable[[Path, Processor], Engine], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, CollectingProcessor())
