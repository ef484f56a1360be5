"""Locks, control socket, heartbeats and logs: how Tidemark's processes communicate through the state folder."""

import errno
import io
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.processes.descriptors import no_descriptors
from tidemark.io.host.clock import boot_id, own_start_ticks, process_start_ticks
from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.io.host.logs import describe_error
from tidemark.io.host.unix_sockets import PATH_BYTES_MAX
from tidemark.io.process.control import (
    CONNECTIONS_MAX,
    DEADLINE_S,
    EXHAUSTED_PAUSE_S,
    HANDLERS_MAX,
    ControlServer,
    DaemonUnreachable,
    request,
)
from tidemark.io.state.environment import Environment
from tidemark.io.state.locking.heartbeat import HeartbeatFile, Slot
from tidemark.io.state.locking.locks import AlreadyRunning, LockStatus, RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import StateError, WalGap
from tidemark.wire.control import Json

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

HOLD_LOCK = """
import sys, pathlib
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
lock = RoleLock.acquire(StateFolder(pathlib.Path(sys.argv[1])), "sidecar")
print("held", flush=True)
sys.stdin.read()
"""
HOLD_READER = """
import sys, pathlib
from tidemark.io.state.environment import Environment
from tidemark.io.state.state_folder import StateFolder
environment = Environment.open(StateFolder(pathlib.Path(sys.argv[1])))
with environment.read() as transaction:
    transaction.get(b"x", db=environment.database("state"))
    print("held", flush=True)
    sys.stdin.read()
"""
ANSWER_S = 1.0  # a command is answered within this time beside a hundred clients
ASKED = 3  # polls after which a server without a pause would find the same client each time
HOLD_WRITER = HOLD_READER.replace("environment.read()", "environment.write()")


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "state")
    made.make()
    return made


class Holder:
    """A process that holds a resource until it is killed."""

    def __init__(self, program: str, folder: StateFolder) -> None:
        command = [sys.executable, "-c", program, str(folder.root)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=120)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.mark.feature("I38")
def test_a_second_process_of_a_role_is_refused_naming_the_first_until_that_dies(folder: StateFolder) -> None:
    holder = Holder(HOLD_LOCK, folder)
    try:
        with pytest.raises(AlreadyRunning) as raised:
            RoleLock.acquire(folder, "sidecar")
        assert f": process {holder.process.pid} on " in str(raised.value)
        found = RoleLock.holder(folder, "sidecar")
        assert found is not None
        named = json.loads(found)
        assert (named["pid"], named["start_ticks"]) == (holder.process.pid, process_start_ticks(holder.process.pid))
        with RoleLock.acquire(folder, "archiver"):
            pass
    finally:
        holder.kill()
    assert RoleLock.holder(folder, "sidecar") is None
    with RoleLock.acquire(folder, "sidecar") as lock:
        assert lock.owner.pid == os.getpid()


@pytest.mark.feature("I38")
def test_a_query_for_a_locks_holder_never_disturbs_a_process_that_acquires_it(folder: StateFolder) -> None:
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            RoleLock.holder(folder, "sidecar")

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    try:
        for _ in range(500):
            RoleLock.acquire(folder, "sidecar").release()
    finally:
        over.set()
        for asker in askers:
            asker.join()


def test_the_last_holder_of_a_free_lock_is_known_by_name(folder: StateFolder) -> None:
    assert RoleLock.status(folder, "sidecar") == LockStatus(is_locked=False, owner=None)
    with RoleLock.acquire(folder, "sidecar") as lock:
        assert RoleLock.status(folder, "sidecar") == LockStatus(is_locked=True, owner=lock.owner)
    assert RoleLock.status(folder, "sidecar") == LockStatus(is_locked=False, owner=lock.owner)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"role": "sidecar"}', "\xff", '{"pid": "1"}'])
def test_a_lock_file_with_other_text_names_no_process(folder: StateFolder, text: str) -> None:
    folder.lock("sidecar").write_text(text)
    assert RoleLock.status(folder, "sidecar") == LockStatus(is_locked=False, owner=None)


def test_a_killed_reader_keeps_no_pages_once_it_is_cleared(folder: StateFolder) -> None:
    environment = Environment.open(folder, map_bytes=1 << 30, create=True)
    try:
        holder = Holder(HOLD_READER, folder)
        assert environment.clear_stale_readers() == 0
        holder.kill()
        assert environment.clear_stale_readers() == 1
    finally:
        environment.close()


def test_the_heartbeat_file_names_the_writer_and_its_death_releases_the_lock(
    folder: StateFolder,
) -> None:
    environment = Environment.open(folder, map_bytes=1 << 30, create=True)
    try:
        holder = Holder(HOLD_WRITER, folder)
        beat = environment.heartbeat.read(Slot.WRITER)
        assert beat is not None
        assert (beat.pid, beat.boot_id) == (holder.process.pid, boot_id())
        assert beat.start_ticks == process_start_ticks(beat.pid)
        holder.kill()
        with environment.write() as transaction:
            inside = environment.heartbeat.read(Slot.WRITER)
            assert inside is not None
            assert inside.pid == os.getpid()
            assert transaction.get(b"x", db=environment.database("state")) is None
        assert environment.heartbeat.read(Slot.WRITER) is None
    finally:
        environment.close()


def test_a_heartbeat_is_seen_by_others_and_gone_when_cleared(tmp_path: Path) -> None:
    mine, others = HeartbeatFile.open(tmp_path / "heartbeat"), HeartbeatFile.open(tmp_path / "heartbeat")
    mine.beat(Slot.SIDECAR)
    seen = others.read(Slot.SIDECAR)
    assert seen is not None
    assert (seen.pid, seen.start_ticks) == (os.getpid(), own_start_ticks())
    mine.beat(Slot.SIDECAR)
    later = others.read(Slot.SIDECAR)
    assert later is not None
    assert later.boot_ns >= seen.boot_ns
    mine.clear(Slot.SIDECAR)
    assert others.read(Slot.SIDECAR) is None


def test_a_foreign_file_is_no_heartbeat_file(tmp_path: Path) -> None:
    (tmp_path / "heartbeat").write_bytes(b"something else")
    with pytest.raises(StateError, match="not a heartbeat file"):
        HeartbeatFile.open(tmp_path / "heartbeat")


def _refuse(_request: dict[str, Json]) -> dict[str, Json]:
    raise WalGap("WAL from 0/1000000 on is gone", hint="restore it")


@pytest.fixture
def server(folder: StateFolder) -> Iterator[Path]:
    path = folder.socket("sidecar")
    handlers = {"echo": lambda asked: {"heard": asked["word"]}, "gap": _refuse}
    served = ControlServer(path, handlers)
    yield path
    served.close()
    assert not path.exists()


def test_a_command_is_answered_and_an_error_is_reported(server: Path) -> None:
    assert request(server, {"command": "echo", "word": "hello"}) == {"ok": True, "heard": "hello"}
    refused = request(server, {"command": "gap"})
    assert refused == {
        "ok": False,
        "error": "WAL from 0/1000000 on is gone",
        "kind": "WalGap",
        "hint": "restore it",
    }
    assert request(server, {"command": "dance"})["error"] == "unknown command: 'dance'"


@pytest.mark.parametrize("line", [b"\n", b"[]\n", b"{\n", b"\xff\xfe\n", b"{}", b""])
def test_garbage_at_the_socket_is_refused_and_the_next_is_served(server: Path, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(server))
        client.sendall(line)
        client.shutdown(socket.SHUT_WR)
        assert json.loads(client.makefile().readline())["ok"] is False
    assert request(server, {"command": "echo", "word": "again"})["ok"] is True


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def half_open(path: Path) -> socket.socket:
    """Return a connection that has sent a part of a line."""
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    client.sendall(b"{")
    return client


def test_a_command_is_answered_beside_more_half_open_clients_than_are_served(folder: StateFolder) -> None:
    """The clock does not advance, so no deadline passes: the answer waited for none of them."""
    path = folder.socket("sidecar")
    served = ControlServer(path, {"echo": lambda asked: {"heard": asked["word"]}}, clock=SetClock())
    with ExitStack() as stack:
        stack.callback(served.close)
        clients = [stack.enter_context(half_open(path)) for _ in range(2 * CONNECTIONS_MAX)]
        answer = request(path, {"command": "echo", "word": "hello"}, deadline_s=ANSWER_S)
        assert answer == {"ok": True, "heard": "hello"}
        assert clients[0].recv(1) == b""  # the oldest was closed for it
        clients[-1].sendall(b'"command": "echo", "word": "late"}\n')
        assert json.loads(clients[-1].makefile().readline()) == {"ok": True, "heard": "late"}


def test_a_slow_command_delays_no_other(folder: StateFolder) -> None:
    path, begun, may_end = folder.socket("sidecar"), threading.Event(), threading.Event()

    def wait(_request: dict[str, Json]) -> dict[str, Json]:
        begun.set()
        return {"ended": may_end.wait(60)}

    served = ControlServer(path, {"wait": wait, "echo": lambda asked: {"heard": asked["word"]}})
    with ExitStack() as stack:
        stack.callback(served.close)
        slow = stack.enter_context(socket.socket(socket.AF_UNIX))
        slow.connect(str(path))
        slow.sendall(b'{"command": "wait"}\n')
        assert begun.wait(60)
        assert request(path, {"command": "echo", "word": "hello"})["ok"] is True
        may_end.set()
        assert json.loads(slow.makefile().readline()) == {"ok": True, "ended": True}


def test_a_client_that_sends_no_whole_line_is_closed_at_its_deadline(folder: StateFolder) -> None:
    path, clock = folder.socket("sidecar"), SetClock()
    served = ControlServer(path, {}, clock=clock)
    with ExitStack() as stack:
        stack.callback(served.close)
        client = stack.enter_context(half_open(path))
        assert request(path, {"command": "other"})["ok"] is False  # so the first one is accepted by now
        clock.now_s = DEADLINE_S
        assert client.recv(1) == b""


Ready = list[tuple[selectors.SelectorKey, int]]  # type: ignore[explicit-any]  # the key's `data`, of typeshed


class WatchingSelector(selectors.DefaultSelector):
    """Counts how often the listening socket was ready; may refuse to watch a client."""

    def __init__(self) -> None:
        super().__init__()
        self.ready = 0
        self.refuses = 0  # number of clients still to refuse
        self.refuses_listener = False  # after the start
        self.refused_listener = threading.Event()
        self.asked_more = threading.Event()  # set by a poll after the listening socket was first ready
        self._asked = 0

    def select(self, timeout: float | None = None) -> Ready:  # type: ignore[explicit-any]
        found = super().select(timeout)
        self.ready += sum(is_listening(key.fileobj) for key, _ in found)
        self._asked += bool(self.ready)
        if self._asked > ASKED:
            self.asked_more.set()
        return found

    def register(  # type: ignore[explicit-any]
        self, fileobj: "FileDescriptorLike", events: int, data: object = None
    ) -> selectors.SelectorKey:
        if self.refuses_listener and is_listening(fileobj):
            self.refuses_listener = False
            self.refused_listener.set()
            raise OSError(errno.ENOMEM, "no memory for a watch")
        if self.refuses and not is_listening(fileobj):
            self.refuses -= 1
            raise OSError(errno.ENOSPC, "no more watches")
        return super().register(fileobj, events, data)


def is_listening(file: object) -> bool:
    return isinstance(file, socket.socket) and bool(file.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_process_without_descriptors_looks_for_clients_now_and_then_and_not_without_a_pause(
    folder: StateFolder, *, is_refused: bool
) -> None:
    path, clock, selector = folder.socket("sidecar"), SetClock(), WatchingSelector()
    served = ControlServer(path, {"echo": lambda _: {}}, clock=clock, make_selector=lambda: selector)
    with ExitStack() as stack:
        stack.callback(served.close)
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        with no_descriptors():
            client.connect(str(path))
            assert selector.asked_more.wait(60)
        assert selector.ready == 1
        selector.refuses_listener = is_refused
        clock.now_s = EXHAUSTED_PAUSE_S
        if is_refused:  # also where the listening socket cannot be registered again at once
            assert selector.refused_listener.wait(60)
            clock.now_s = 2 * EXHAUSTED_PAUSE_S
        client.settimeout(60)
        client.sendall(b'{"command": "echo"}\n')
        assert json.loads(client.makefile().readline()) == {"ok": True}


def test_a_client_that_cannot_be_watched_is_closed_and_the_next_one_is_served(folder: StateFolder) -> None:
    path, selector = folder.socket("sidecar"), WatchingSelector()
    selector.refuses = 1
    served = ControlServer(path, {"echo": lambda _: {}}, make_selector=lambda: selector)
    with ExitStack() as stack:
        stack.callback(served.close)
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.connect(str(path))
        assert client.recv(1) == b""
        assert request(path, {"command": "echo"}) == {"ok": True}


def test_a_bug_in_a_command_is_reported_by_its_class_alone(folder: StateFolder) -> None:
    path = folder.socket("sidecar")
    served = ControlServer(path, {"bug": lambda asked: {"word": asked["missing"]}, "echo": lambda _: {}})
    with ExitStack() as stack:
        stack.callback(served.close)
        for _ in range(2 * HANDLERS_MAX):
            assert request(path, {"command": "bug"})["error"] == "the command failed with KeyError"
        assert request(path, {"command": "echo"})["ok"] is True


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_another_user_is_refused() -> None:
    with tempfile.TemporaryDirectory() as open_folder:
        Path(open_folder).chmod(0o755)
        path = Path(open_folder, "sidecar.sock")
        served = ControlServer(path, {}, file_mode=0o666)
        program = f"import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect({str(path)!r})\n"
        program += "s.sendall(b'{}\\n')\nprint(s.makefile().readline())"
        command = ["/usr/bin/env", "python3", "-c", program]
        reported = subprocess.run(command, check=False, capture_output=True, text=True, user=65534, timeout=120)
        served.close()
    assert "user 65534 may not control this process" in reported.stdout, reported


def test_a_socket_without_a_server_is_reported(folder: StateFolder) -> None:
    with pytest.raises(DaemonUnreachable, match="no process answers"):
        request(folder.socket("archiver"), {"command": "echo"})


@pytest.mark.parametrize("length", [PATH_BYTES_MAX, PATH_BYTES_MAX + 1, 1_000])
def test_a_socket_may_have_a_path_of_any_length(length: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        missing = length - len(root) - len("/sidecar.sock")
        folder = Path(root, *["x" * 99] * (missing // 100), "y" * (missing % 100 - 1))
        folder.mkdir(parents=True)
        path = folder / "sidecar.sock"
        assert len(str(path)) == length
        served = ControlServer(path, {"echo": lambda asked: {"heard": asked["word"]}})
        try:
            assert path.is_socket()
            assert request(path, {"command": "echo", "word": "x"})["heard"] == "x"
        finally:
            served.close()
        assert not path.exists()
        with pytest.raises(DaemonUnreachable, match="no process answers"):
            request(path, {"command": "echo"})


def test_logs_are_events_with_lsns_as_postgresql_prints_them() -> None:
    stream = io.StringIO()
    configure_logs("json", "warning", stream)
    log = get_log("sidecar")
    log.info("below the level")
    log.warning("ring is full", read_lsn=0x16B3748, timeline=1, **describe_error(WalGap("gone", hint="restore it")))
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert event.pop("timestamp")
    assert event == {
        "event": "ring is full",
        "level": "warning",
        "role": "sidecar",
        "read_lsn": "0/16B3748",
        "timeline": 1,
        "error": "gone",
        "kind": "WalGap",
        "hint": "restore it",
    }
    configure_logs("json", "info")
