"""Changes in an event loop of asyncio: what is finished, what is delivered again, how an end is heard on both sides."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.integration.embedding.test_engine import QUICK, leaves_nothing
from tests.support.servers.postgres import Cluster
from tidemark import AsyncHandler, Batch, Change, ConfigError, Engine, EngineEvent, EngineState, Order

WITHIN_S = 60
NewEngine = partial[Engine]
Insert = Callable[[int, int], Awaitable[None]]


@pytest.fixture
def insert(cluster: Cluster, database: str) -> Insert:
    """Return what inserts the rows with the numbers of a range, each by a transaction."""
    cluster.sql("CREATE TABLE item (id int PRIMARY KEY, note text)", database)

    async def insert_rows(first: int, last: int) -> None:
        for number in range(first, last + 1):
            await asyncio.to_thread(cluster.sql, f"INSERT INTO item VALUES ({number})", database)

    return insert_rows


@pytest.fixture
def new_engine(cluster: Cluster, database: str, tmp_path: Path) -> NewEngine:
    settings = {**QUICK, "deliver": {**QUICK.get("deliver", {}), "group_rows_max": 1}}
    return partial(Engine, cluster.dsn(database), state=tmp_path / "state", settings=settings)


def run(task: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(task, WITHIN_S)

    asyncio.run(bounded())


def test_a_batch_is_finished_by_the_next_one_or_by_finish_and_otherwise_comes_again(
    cluster: Cluster, insert: Insert, new_engine: NewEngine
) -> None:
    async def seen_until(last: int, new: range, *, finishes: bool) -> list[object]:
        handler, seen = AsyncHandler[Batch](), list[object]()
        async with handler.running(new_engine(handler=handler)):
            if new:
                await insert(new[0], new[-1])
            async for batch in handler:
                seen += batch.arrow.column("_after").field("id").to_pylist()
                if last in seen:
                    if finishes:
                        handler.finish(batch)
                        handler.finish(batch)
                    break
        return seen

    async def tell() -> None:
        assert await seen_until(3, range(1, 4), finishes=False) == [1, 2, 3]
        assert await seen_until(3, range(0), finishes=True) == [3]
        assert await seen_until(4, range(4, 5), finishes=True) == [4]

    with leaves_nothing(cluster):
        run(tell())


def test_a_wait_may_time_out_and_go_on_and_a_loop_that_left_its_batch_is_not_followed_by_another(
    cluster: Cluster, insert: Insert, new_engine: NewEngine
) -> None:
    async def tell() -> None:
        handler = AsyncHandler[Change]()
        with pytest.raises(ConfigError, match="has no engine yet"):
            aiter(handler)
        async with handler.running(new_engine(change_handler=handler)):
            changes = aiter(handler)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.1)
            await insert(1, 3)
            seen = [await asyncio.wait_for(anext(changes), WITHIN_S) for _ in range(2)]
            waiting = asyncio.ensure_future(anext(changes))
            seen.append(await waiting)
            waiting = asyncio.ensure_future(anext(changes))
            await asyncio.wait([waiting], timeout=0.1)
            with pytest.raises(ConfigError, match="two tasks share an iterator"):
                await anext(changes)
            await insert(4, 5)
            seen.append(await waiting)
            handler.finish(seen[-1])
            async for change in handler:  # the loop before this one has left nothing
                seen.append(change)
                break
            with pytest.raises(ConfigError, match=r"was left before its batch was finished") as left:
                aiter(handler)
        assert "handler.finish(batch)" in left.value.hint
        assert [change.after and change.after["id"] for change in seen] == [1, 2, 3, 4, 5]

    with leaves_nothing(cluster):
        run(tell())


def test_an_error_in_the_loop_and_a_cancelled_task_end_the_engine_and_the_change_comes_again(
    cluster: Cluster, insert: Insert, new_engine: NewEngine
) -> None:
    seen: list[object] = []
    arrived, forever = asyncio.Event(), asyncio.Event()

    async def handle(engine: Engine, handler: AsyncHandler[Change], *, fails: bool) -> None:
        async with handler.running(engine):
            if not seen:
                await insert(1, 1)
            async for change in handler:
                assert change.after is not None
                seen.append(change.after["id"])
                if fails:
                    raise ValueError("of the loop")
                arrived.set()
                await forever.wait()

    async def tell() -> None:
        first, second = AsyncHandler[Change](), AsyncHandler[Change]()
        failed = new_engine(change_handler=first)
        with pytest.raises(ValueError, match="of the loop"):
            await handle(failed, first, fails=True)
        cancelled = new_engine(change_handler=second)
        task = asyncio.create_task(handle(cancelled, second, fails=False))
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (failed.state, cancelled.state) == (EngineState.STOPPED, EngineState.STOPPED)

    with leaves_nothing(cluster):
        run(tell())
    assert seen == [1, 1]


def test_an_error_of_the_engine_ends_the_loop_and_is_raised_behind_it(
    cluster: Cluster, database: str, insert: Insert, new_engine: NewEngine
) -> None:
    def refuse(event: EngineEvent) -> None:
        raise ConfigError(f"no {type(event).__name__} here")

    batches: list[Batch] = []

    async def take_all() -> None:
        handler = AsyncHandler[Batch]()
        async with handler.running(new_engine(handler=handler, on_event=refuse)):
            await insert(1, 1)
            async for batch in handler:
                batches.append(batch)
                await asyncio.to_thread(cluster.sql, "TRUNCATE item", database)

    with leaves_nothing(cluster), pytest.raises(ConfigError, match="no Truncation here"):
        run(take_all())
    assert len(batches) == 1


def test_as_many_tasks_as_there_are_workers_have_a_batch_each(
    cluster: Cluster, insert: Insert, new_engine: NewEngine
) -> None:
    async def tell() -> None:
        handler, tasks, rounds = AsyncHandler[Batch](), 4, list[int]()
        together, complete = asyncio.Barrier(tasks), asyncio.Event()

        async def handle() -> None:
            async for _ in handler:
                rounds.append(await together.wait())
                if len(rounds) == 3 * tasks:
                    complete.set()

        engine = new_engine(handler=handler, workers=tasks, order=Order.NONE)
        async with handler.running(engine), asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(handle())
            await insert(1, 3 * tasks)
            await complete.wait()
            await asyncio.to_thread(engine.stop)
        assert engine.state is EngineState.STOPPED
        assert sorted(rounds) == sorted([*range(tasks)] * 3)

    with leaves_nothing(cluster):
        run(tell())


def test_a_handler_without_its_loop_or_of_two_engines_is_refused(insert: Insert, new_engine: NewEngine) -> None:
    del insert

    async def tell() -> None:
        handler = AsyncHandler[Batch]()
        with pytest.raises(ConfigError, match="outside of its event loop"):
            handler(Batch.__new__(Batch))
        engine = new_engine(handler=handler)
        async with handler.running(engine):
            with pytest.raises(ConfigError, match="belongs to one engine"):
                async with handler.running(engine):
                    pass

    run(tell())
