"""The process that forks workers.

It is forked once, before its owner opens a state or starts a thread, and stays single-threaded: a worker that replaces
a killed one is forked from it, and not from a process with threads, locks and connections. The handler is inherited, so
it may be a local function. When the owner ends, even by SIGKILL, the template's socket closes: it ends, and the kernel
kills its workers.

SIGINT and SIGTERM do not end it, nor its workers: a terminal or a service manager sends them to the owner as well,
which ends its workers in order.
"""

import ctypes
import os
import select
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

from tidemark.model.errors import ConsumerFailed, Disposition, ExitCode, TidemarkError
from tidemark.runtime.pool.worker_frames import BatchSender
from tidemark.runtime.pool.worker_serving import WorkerCode, serve

_PID = struct.Struct("<q")
_PR_SET_PDEATHSIG = 1  # prctl(2): the kernel sends this signal when the parent ends
_LOCKS = ".lock"  # of `ProcessFolder.lock`


class TemplateEnded(TidemarkError):
    """The process that forks workers has ended, and with it all workers: only a new owner has another one."""

    exit_code = ExitCode.CONSUMER_FAILED
    hint = "see the kernel's log: it may have been killed, or out of memory; unconfirmed changes are delivered again"


class WorkerNotForked(ConsumerFailed):
    """The system has no room for another process now."""

    disposition = Disposition.RETRY
    hint = "see the limits of processes and memory of this user or unit"


class ForkedWorker:
    """A worker process and the socket to it."""

    def __init__(self, pid: int, descriptor: int, peer: socket.socket) -> None:
        self.pid = pid
        self.peer = peer
        self.sender = BatchSender(peer)
        self.cpu_s = 0.0  # up to its last reply
        self._descriptor = descriptor

    def wait(self, within_s: float) -> None:
        """Wait for its end."""
        polled = select.poll()
        polled.register(self._descriptor, select.POLLIN)
        polled.poll(within_s * 1000)

    def kill(self) -> None:
        """End it, if it has not ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Release what is held of it."""
        self.peer.close()
        os.close(self._descriptor)


class WorkerTemplate:
    """Forks workers for the process that started it. Any thread may use it."""

    def __init__(self, code: WorkerCode) -> None:
        """Start nothing."""
        self._code = code
        self._lock = threading.Lock()
        self._pid = 0
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Fork the template."""
        self._pid, self._control = _fork_template(self._code)

    def fork(self) -> ForkedWorker:
        """Return a new worker; raise `WorkerNotForked`, `TemplateEnded`."""
        with self._lock:
            control = self._control
            if control is None:
                raise TemplateEnded("no worker process can be forked: the pool has ended")
            own, theirs = socket.socketpair()
            try:
                with theirs:
                    socket.send_fds(control, [b"f"], [theirs.fileno()])
                pid = _received_pid(control)
                descriptors = socket.recv_fds(own, 1, 1)[1] if pid > 0 else []
            except OSError as error:
                own.close()
                raise TemplateEnded("no worker process can be forked: the template of the workers has ended") from error
            if not descriptors:
                own.close()
                reason = os.strerror(-pid) if pid < 0 else "it ended at its start"
                raise WorkerNotForked(f"no worker process can be forked: {reason}")
            return ForkedWorker(pid, descriptors[0], own)

    def end(self) -> None:
        """End it, and with it all workers."""
        with self._lock:
            control, self._control = self._control, None
        if control is not None:
            control.shutdown(socket.SHUT_RDWR)  # NB: closing is not enough, if another engine's template has a copy
            control.close()
            os.waitpid(self._pid, 0)


def _received_pid(control: socket.socket) -> int:
    """Return the process id of a new worker; below 0: the number of the error."""
    message = control.recv(_PID.size, socket.MSG_WAITALL)
    if len(message) < _PID.size:
        raise ConnectionResetError
    return int(_PID.unpack(message)[0])


def _fork_template(code: WorkerCode) -> tuple[int, socket.socket]:
    own, theirs = socket.socketpair()
    sys.stdout.flush()  # NB: else each worker writes what was buffered here
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, own
    try:
        own.close()
        _close_locks()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
        signal.signal(signal.SIGTERM, _go_on)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed workers leave no zombies
        _fork_on_request(theirs, code)
    finally:
        os._exit(0)


def _go_on(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. NB: a program that a handler starts gets the default of the signal, as it does not of SIG_IGN."""


def _fork_on_request(control: socket.socket, code: WorkerCode) -> None:
    template = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        (descriptor,) = descriptors
        try:
            pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if not pid:
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == template:
                    control.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    serve(socket.socket(fileno=descriptor), code)
            finally:
                os._exit(0)
        os.close(descriptor)
        control.sendall(_PID.pack(pid))


def _close_locks() -> None:
    """Close the locks of other engines of this process: they are of open files, and last until the last copy closes."""
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if descriptor.readlink().suffix == _LOCKS:
                os.close(int(descriptor.name))
