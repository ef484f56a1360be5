"""Writers that hang: the holder of LMDB's write lock is always known, and a process that hangs there is killed."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.stopped_writer import StoppedWriter
from tests.support.processes.ending import ended
from tidemark.io.host import failpoints
from tidemark.io.host.clock import boot_ns
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.process.watchdog import Condition, Watch
from tidemark.io.state.environment import Environment, WritePoint
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.write_guard import CHECKS_MIN, WriteGuard, WriterWatch
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.model.mode import Role
from tidemark.pipeline.failpoints import Failpoint

WATCHDOG_S = 0.6
NS = 1_000_000_000
HOUR_NS = 3600 * NS
KEY = b"of the stopped writer"

WAITING = """
import sys, pathlib
from tidemark.io.state.environment import Environment
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
folder = StateFolder(pathlib.Path(sys.argv[1]))
environment = Environment.open(folder)
with RoleLock.acquire(folder, "sidecar"):
    environment.heartbeat.beat(Slot.SIDECAR)
    print("waits", flush=True)
    with environment.write():
        environment.heartbeat.beat(Slot.SIDECAR)
        print("through", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    made = Environment.open(folder, map_bytes=1 << 30, create=True)
    yield made
    made.close()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    yield stream
    configure_logs("json", "info")


def looks(watch: WriterWatch, now_ns: int, times: int = CHECKS_MIN) -> list[int | None]:
    return [found.pid if found else None for found in (watch.find_stuck(now_ns) for _ in range(times))]


def test_the_lock_file_names_the_thread_that_writes_and_none_afterwards(environment: Environment) -> None:
    assert environment.write_lock.is_known
    assert environment.write_lock.holder() is None
    with environment.write():
        assert environment.write_lock.holder() == threading.get_native_id()
    assert environment.write_lock.holder() is None


def test_a_write_that_fails_leaves_no_sign_of_a_writer(environment: Environment) -> None:
    with pytest.raises(ZeroDivisionError), environment.write():
        raise ZeroDivisionError
    assert environment.heartbeat.read(Slot.WRITER) is None
    assert environment.write_lock.holder() is None


@pytest.mark.feature("I20")
@pytest.mark.parametrize("point", WritePoint)
def test_a_writer_that_stops_anywhere_in_a_transaction_dies_and_the_next_one_goes_through(
    environment: Environment, lines: io.StringIO, point: WritePoint
) -> None:
    with StoppedWriter(environment.folder, point) as writer:
        with WriteGuard(environment, watchdog_s=WATCHDOG_S, log=get_log("test")), environment.write() as transaction:
            assert transaction.get(KEY, db=environment.database("state")) is None
        assert writer.end() == -signal.SIGKILL
    (line,) = lines.getvalue().splitlines()
    reported = json.loads(line)
    assert reported["event"] == "killed a process that was stuck inside a write transaction"
    assert reported["pid"] == writer.pid
    assert reported["writer"].startswith("python")


@pytest.mark.feature("I20")
def test_the_log_names_the_role_of_the_killed_writer(environment: Environment, lines: io.StringIO) -> None:
    with StoppedWriter(environment.folder, role="archiver") as writer:
        with WriteGuard(environment, watchdog_s=WATCHDOG_S, log=get_log("test")), environment.write():
            pass
        assert writer.end() == -signal.SIGKILL
    assert json.loads(lines.getvalue())["writer"] == "archiver"


@pytest.mark.parametrize("point", WritePoint)
def test_a_writer_that_continues_in_time_is_not_killed(environment: Environment, point: WritePoint) -> None:
    watch = WriterWatch(environment, 15.0)
    with StoppedWriter(environment.folder, point) as writer:
        assert looks(watch, boot_ns()) == [None] * CHECKS_MIN
        assert looks(watch, boot_ns() + 14 * NS) == [None] * CHECKS_MIN
        assert looks(watch, boot_ns() + 15 * NS, 1) == [writer.pid]
        assert looks(watch, boot_ns() + 16 * NS, 5) == [None] * 5, "reported again only after as long a time"
        assert looks(watch, boot_ns() + 31 * NS, 1) == [writer.pid]
        writer.resume()
        assert writer.end() == 0
    assert looks(watch, boot_ns() + HOUR_NS) == [None] * CHECKS_MIN
    with environment.read() as transaction:
        assert transaction.get(KEY, db=environment.database("state")) == b"1"


@pytest.mark.feature("I20")
def test_a_process_that_waits_for_a_stuck_writer_does_not_count_as_hung(environment: Environment) -> None:
    folder, watchdog_s = environment.folder, 3.0
    watch = Watch(folder, environment.heartbeat, Role.SIDECAR, stale_s=watchdog_s, restart_s=watchdog_s)
    seen: set[Condition] = set()
    with StoppedWriter(folder) as stuck, WriteGuard(environment, watchdog_s=watchdog_s, log=get_log("test")):
        command = [sys.executable, "-c", WAITING, str(folder.root)]
        pipes = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        with ended(pipes) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline() == "waits\n"
            through = threading.Thread(target=waiting.stdout.readline)
            through.start()
            while through.is_alive():
                seen.add(watch.condition(boot_ns()))
                through.join(0.05)
            seen.add(watch.condition(boot_ns()))
            waiting.communicate("end", timeout=120)
        assert stuck.end() == -signal.SIGKILL
    assert seen == {Condition.ALIVE}


def test_a_guard_that_begins_later_measures_how_long_a_writer_is_stuck(environment: Environment) -> None:
    with StoppedWriter(environment.folder) as writer:
        late = WriterWatch(environment, 15.0)
        assert looks(late, boot_ns() + HOUR_NS) == [*[None] * (CHECKS_MIN - 1), writer.pid]


def test_after_a_suspend_a_writer_has_time_for_a_few_checks_to_continue(environment: Environment) -> None:
    watch = WriterWatch(environment, 15.0)
    with environment.write():
        assert looks(watch, boot_ns(), 1) == [None]
    with environment.write():
        assert looks(watch, boot_ns() + HOUR_NS, CHECKS_MIN - 1) == [None] * (CHECKS_MIN - 1)
    with environment.write():
        assert looks(watch, boot_ns() + 2 * HOUR_NS, CHECKS_MIN - 1) == [None] * (CHECKS_MIN - 1)


def test_consecutive_transactions_do_not_count_as_one(environment: Environment) -> None:
    watch = WriterWatch(environment, 15.0)
    for second in range(60):
        with environment.write():
            assert watch.find_stuck(boot_ns() + second * NS) is None


@pytest.mark.feature("I20")
def test_a_slot_that_names_another_process_than_the_lock_is_ignored(environment: Environment) -> None:
    with StoppedWriter(environment.folder, WritePoint.LOCKED) as writer:
        environment.heartbeat.beat(Slot.WRITER)  # an earlier writer's entry with our id: never cleared
        with WriteGuard(environment, watchdog_s=WATCHDOG_S, log=get_log("test")), environment.write():
            pass
        assert writer.end() == -signal.SIGKILL


def test_a_guard_never_kills_its_own_process_and_reports_that_it_is_stuck(
    environment: Environment, lines: io.StringIO
) -> None:
    reported = threading.Event()

    class SignallingOutput(io.StringIO):
        def write(self, text: str) -> int:
            reported.set()
            return lines.write(text)

    configure_logs("json", "info", SignallingOutput())
    with WriteGuard(environment, watchdog_s=0.05, log=get_log("test")), environment.write():
        assert reported.wait(30)
    line = json.loads(lines.getvalue().splitlines()[0])
    assert line["event"] == "this process is stuck inside a write transaction"
    assert line["pid"] == os.getpid()


@pytest.mark.feature("I20")
def test_a_writer_that_continues_at_the_last_moment_is_not_killed(environment: Environment) -> None:
    guard = WriteGuard(environment, watchdog_s=WATCHDOG_S, log=get_log("test"))
    with StoppedWriter(environment.folder) as writer:
        watch = WriterWatch(environment, WATCHDOG_S)
        (stuck,) = {found for found in (watch.find_stuck(boot_ns() + HOUR_NS) for _ in range(CHECKS_MIN)) if found}
        writer.resume()
        assert writer.end() == 0
        guard.end_writer(stuck)
    assert environment.write_lock.holder() is None


def test_the_lock_file_is_not_closed_while_lmdb_needs_its_locks(environment: Environment) -> None:
    """Closing any descriptor of it would drop LMDB's own lock: the next opener would assume that it is the first."""
    Environment.open(environment.folder).close()
    program = (
        "import sys, pathlib\nfrom tidemark.io.state.environment import Environment\n"
        "from tidemark.io.state.state_folder import StateFolder\n"
        "print(Environment.open(StateFolder(pathlib.Path(sys.argv[1])))._lmdb.readers())"
    )
    with environment.read() as transaction:
        transaction.get(KEY, db=environment.database("state"))
        assert str(os.getpid()) in _run(program, environment.folder).split()


def _run(program: str, folder: StateFolder) -> str:
    command = [sys.executable, "-c", program, str(folder.root)]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def test_failpoints_of_a_write_are_passed_in_order(environment: Environment) -> None:
    passed: list[object] = []
    failpoints.arm(passed.append)
    try:
        with environment.write():
            pass
    finally:
        failpoints.arm(None)
    assert passed == list(WritePoint)


def test_a_process_accepts_failpoints_of_several_kinds_and_refuses_unknown_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, f"{WritePoint.INSIDE.value}:7:stop")
    failpoints.arm_from_environment(Failpoint, WritePoint)
    failpoints.arm(None)
    with pytest.raises(ConfigError, match="no failpoint 'write-inside:7:stop' here"):
        failpoints.arm_from_environment(Failpoint)
