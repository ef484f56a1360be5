"""The pool of processes: its size, kills, retries, errors and stops."""

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

import tidemark
from tests.support.forged.groups import batch as change_batch
from tests.support.plugins.bad_plugins import SilentSerializer
from tests.support.processes.waiting import wait_until
from tidemark import (
    Batch,
    Change,
    ConfigError,
    ConsumerFailed,
    FlatJson,
    PoisonChange,
    PoolKind,
    SerializedChange,
    SerializerFailed,
    TidemarkError,
)
from tidemark.embedding.engine_options import check_pool, one_handler
from tidemark.embedding.library_log import LibraryLog
from tidemark.io.host.clock import SystemClock
from tidemark.model.errors import Disposition, restored_error
from tidemark.model.lsn import TimelineId
from tidemark.model.poison import WorkerRaised
from tidemark.model.position import Epoch
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import GivenHandler, Processing
from tidemark.runtime.pool.worker_processes import WorkerProcesses
from tidemark.runtime.pool.worker_serving import WorkerCode
from tidemark.runtime.pool.worker_template import WorkerNotForked, WorkerTemplate

DEADLINE_S = 60.0
PLAIN = Processing(takes_changes=False, serializer=None, clock=SystemClock())


def sample() -> Batch:
    made = change_batch(100, [1, 2, 3])
    return Batch.of("shop", made.relation, Epoch(TimelineId(1), 7), made.rows)


@contextmanager
def running(
    handler: GivenHandler,
    workers: int = 1,
    retries: int = 3,
    processing: Processing = PLAIN,
    stop: Callable[[], None] | None = None,
) -> Iterator[tuple[HandlerPool[Batch], WorkerProcesses]]:
    template = WorkerTemplate(WorkerCode(one_handler(handler, None), processing, stop))
    template.start()
    processes = WorkerProcesses(template, workers)
    processes.start()
    pool: HandlerPool[Batch] = HandlerPool(
        processes, workers=workers, retries=retries, backoff=(0.001, 0.002), log=LibraryLog()
    )
    pool.start()
    try:
        yield pool, processes
    finally:
        pool.drain(0.0)
        pids = processes.pids
        processes.end(DEADLINE_S if stop else 0.0)
        wait_until(lambda: not any(map(is_alive, pids)), "the end of the workers")
        template.end()


def is_alive(pid: int) -> bool:
    try:
        return str(psutil.Process(pid).status()) != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def ignore(_batch: Batch) -> None:
    pass


def append(path: Path, line: object) -> None:
    with path.open("a") as file:
        file.write(f"{line}\n")


@pytest.mark.parametrize("workers", [1, 3])
def test_as_many_processes_as_requested_handle_batches_at_a_time(tmp_path: Path, workers: int) -> None:
    inside, leave = tmp_path / "inside", tmp_path / "leave"

    def handle(batch: Batch) -> None:
        append(inside, f"{os.getpid()} {batch.database} {batch.table} {batch.epoch.number} {len(batch)}")
        wait_until(leave.exists)

    with running(handle, workers) as (pool, processes):
        for number in range(2 * workers):
            pool.submit([(sample(), number)], 1)
        wait_until(lambda: len(lines(inside)) == workers)
        assert {int(line.split()[0]) for line in lines(inside)} == set(processes.pids)
        assert os.getpid() not in processes.pids
        leave.touch()
        assert pool.drain(DEADLINE_S) == ()
        assert pool.settled_units == len(lines(inside)) == 2 * workers
        assert len(processes.pids) == workers
        expected = sample()
        assert lines(inside)[0].split()[1:] == ["shop", expected.table, "7", str(len(expected))]


def test_a_batch_of_a_killed_worker_is_handled_by_a_new_one(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def handle(batch: Batch) -> None:
        append(seen, os.getpid())
        if len(lines(seen)) == 1:
            signal.pause()
        append(seen, batch.arrow.num_rows)

    with running(handle) as (pool, processes):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: len(lines(seen)) == 1)
        (killed,) = processes.pids
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: pool.settled_units == 1)
        assert [lines(seen)[0], lines(seen)[2]] == [str(killed), str(sample().arrow.num_rows)]
        assert [int(lines(seen)[1])] == list(processes.pids) != [killed]
        assert len(processes.cpu_s) == 1, "a worker's place"


def test_a_worker_that_is_killed_at_each_attempt_ends_the_pool_and_settles_nothing() -> None:
    def handle(_batch: Batch) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with running(handle, retries=2) as (pool, _processes):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: pool.error is not None)
        assert "ended while it handled a batch" in str(pool.error)
        assert pool.settled_units == 0


def test_single_records_are_made_in_the_worker_and_an_error_continues_behind_those_handled(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def handle(unit: Change | SerializedChange) -> None:
        append(seen, type(unit).__name__)
        if len(lines(seen)) == 2:
            raise ValueError("away for a moment")

    processing = Processing(takes_changes=True, serializer=FlatJson(), clock=SystemClock())
    with running(handle, processing=processing) as (pool, processes):
        pool.submit([(sample(), 0)], 1)
        assert pool.drain(DEADLINE_S) == ()
        assert pool.settled_units == 1
        assert lines(seen) == ["SerializedChange"] * (len(sample()) + (1 if len(sample()) > 1 else 0))
        assert processes.cpu_s[0] > 0


def test_an_error_after_the_retries_is_reported_with_its_class(tmp_path: Path) -> None:
    seen = tmp_path / "seen"

    def handle(_batch: Batch) -> None:
        append(seen, "")
        raise LookupError("nothing there")

    with running(handle, retries=2) as (pool, _processes):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: pool.error is not None)
        assert isinstance(pool.error, WorkerRaised)
        assert str(pool.error) == "LookupError raised in a worker process", "no text that may have values: it is logged"
        assert "nothing there" in pool.error.__notes__
        assert (len(lines(seen)), pool.settled_units) == (3, 0)


class UnreadableError(LookupError):
    """An error that fails when its text is requested."""

    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_error_whose_text_cannot_be_read_is_reported_with_its_class() -> None:
    found = raised_in_a_worker(UnreadableError())
    assert str(found) == "UnreadableError raised in a worker process"
    assert "its text cannot be read: ValueError" in found.__notes__


class AccountRefused(ConsumerFailed):
    """An error of an application, with another constructor."""

    disposition = Disposition.RETRY

    def __init__(self, account: int) -> None:
        super().__init__(f"account {account} is refused", hint="open it")


PUBLIC_ERRORS = [
    each
    for each in (getattr(tidemark, name) for name in tidemark.__all__)
    if isinstance(each, type) and issubclass(each, TidemarkError) and each is not PoisonChange
]


def raised_in_a_worker(error: Exception, processing: Processing = PLAIN) -> BaseException:
    def handle(_batch: Batch) -> None:
        raise error

    with running(handle, retries=0, processing=processing) as (pool, _processes):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: pool.error is not None)
        assert pool.error is not None
        return pool.error


@pytest.mark.parametrize("kind", PUBLIC_ERRORS, ids=lambda kind: kind.__name__)
def test_a_public_error_keeps_its_class_text_and_hint(kind: type[TidemarkError]) -> None:
    found = raised_in_a_worker(restored_error(kind, "what happened", hint="what to do"))
    assert (type(found), str(found)) == (kind, "what happened")
    assert isinstance(found, TidemarkError)
    assert (found.hint, found.exit_code, found.disposition) == ("what to do", kind.exit_code, kind.disposition)
    assert isinstance(found.__cause__, WorkerRaised)


def test_an_error_below_a_public_one_keeps_its_class_if_the_engine_has_it_and_else_has_that_of_its_base() -> None:
    found = raised_in_a_worker(AccountRefused(5))
    assert isinstance(found, AccountRefused)
    assert (str(found), found.hint, found.disposition) == ("account 5 is refused", "open it", Disposition.RETRY)

    def handle(_batch: Batch) -> None:
        class MadeInTheWorker(AccountRefused):
            pass

        raise MadeInTheWorker(7)

    with running(handle, retries=0) as (pool, _processes):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: pool.error is not None)
        assert (type(pool.error), str(pool.error)) == (AccountRefused, "account 7 is refused")


def test_an_error_of_the_serializer_keeps_its_class() -> None:
    processing = Processing(takes_changes=False, serializer=SilentSerializer(), clock=SystemClock())
    found = raised_in_a_worker(ValueError("it is not called"), processing)
    assert isinstance(found, SerializerFailed)
    assert "SilentSerializer returned NoneType for public.account" in str(found)


def test_a_change_that_cannot_be_handled_is_named_in_the_engine_too() -> None:
    found = raised_in_a_worker(PoisonChange(2, "no such account"))
    assert isinstance(found, PoisonChange)
    assert (found.index, found.reason) == (2, "no such account")


def test_a_stop_with_limit_0_kills_a_worker_that_never_returns(tmp_path: Path) -> None:
    inside = tmp_path / "inside"

    def handle(_batch: Batch) -> None:
        append(inside, "")
        while True:
            with suppress(BaseException):
                signal.pause()

    with running(handle) as (pool, processes):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: lines(inside) != [])
        (pid,) = processes.pids
        assert len(pool.drain(0.0)) == 1
        processes.end()
        wait_until(lambda: not is_alive(pid))
        assert pool.settled_units == 0


def test_the_workers_of_a_killed_engine_are_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    engine = os.fork()
    if not engine:
        with running(ignore, workers=2) as (_pool, processes):
            append(pids, " ".join(map(str, processes.pids)))
            signal.pause()
        os._exit(0)
    wait_until(lambda: lines(pids) != [])
    os.kill(engine, signal.SIGKILL)
    os.waitpid(engine, 0)
    wait_until(lambda: not any(is_alive(int(pid)) for pid in lines(pids)[0].split()))


def test_an_engine_beside_another_one_ends_its_workers() -> None:
    with running(ignore) as (_first, first), running(ignore):
        pids = first.pids
        first.end()
        wait_until(lambda: not any(map(is_alive, pids)))


def test_a_serial_engine_has_no_worker_processes() -> None:
    with pytest.raises(ConfigError, match="a serial engine"):
        check_pool(PoolKind.PROCESSES, 0)


def test_a_worker_is_stopped_at_its_end_and_a_signal_for_the_whole_group_does_not_end_it(tmp_path: Path) -> None:
    """NB: a service manager sends SIGTERM to all processes of a unit."""
    seen, stopped = tmp_path / "seen", tmp_path / "stopped"

    def handle(_batch: Batch) -> None:
        append(seen, os.getpid())

    def stop() -> None:
        append(stopped, os.getpid())

    with running(handle, 2, stop=stop) as (pool, processes):
        pids = {*processes.pids}
        for pid in (*pids, psutil.Process(processes.pids[0]).ppid()):
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(pid, number)
        pool.submit([(sample(), 0)], 1)
        assert pool.drain(DEADLINE_S) == ()
        assert {int(line) for line in lines(seen)} <= pids
    assert {int(line) for line in lines(stopped)} == pids


class FailingFork:
    """`os.fork` that fails some times after a number of calls, counted in each process alone."""

    def __init__(self, good: int, failures: int) -> None:
        self._fork = os.fork
        self._failing = range(good, good + failures)
        self._calls = 0

    def __call__(self) -> int:
        self._calls += 1
        if self._calls - 1 in self._failing:
            raise OSError(errno.EAGAIN, "no process")
        return self._fork()


@pytest.mark.parametrize(("failures", "settled"), [(2, 1), (100, 0)])
def test_a_fork_for_which_there_is_no_room_is_tried_again_as_one_of_the_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, settled: int
) -> None:
    called = tmp_path / "called"

    def handle(_batch: Batch) -> None:
        append(called, "")
        if len(lines(called)) == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(os, "fork", FailingFork(good=2, failures=failures))  # the template, and its first worker
    with running(handle, retries=4) as (pool, _):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: pool.settled_units == 1 or pool.error is not None)
        assert pool.settled_units == settled
        assert (pool.error is None) == bool(settled)
        if not settled:
            assert isinstance(pool.error, WorkerNotForked)
            assert str(pool.error) == f"no worker process can be forked: {os.strerror(errno.EAGAIN)}"


def test_without_the_process_that_forks_workers_the_pool_ends_with_a_message(tmp_path: Path) -> None:
    inside = tmp_path / "inside"

    def handle(_batch: Batch) -> None:
        append(inside, "")
        signal.pause()

    with running(handle) as (pool, processes):
        pool.submit([(sample(), 0)], 1)
        wait_until(lambda: lines(inside) != [])
        os.kill(psutil.Process(processes.pids[0]).ppid(), signal.SIGKILL)
        wait_until(lambda: pool.error is not None)
        assert "no worker process can be forked" in str(pool.error)
        assert pool.settled_units == 0
