"""The process that forks the workers of an engine, and what a worker does.

The template is forked once, before the engine opens its state, and stays single-threaded: a worker that replaces a
killed one is forked from it, and not from an engine with threads, locks and connections. The handler is inherited, so
it may be a local function. When the engine ends, even by SIGKILL, the template's socket closes: it ends, and the kernel
kills its workers.
"""

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time

from tidemark.model.errors import Disposition, TidemarkError
from tidemark.model.poison import PoisonChange
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, UnitHandler
from tidemark.runtime.pool.worker_frames import (
    WorkerReply,
    framed_batch,
    receive_frame,
    reply_frame,
    send_frame,
)

PID = struct.Struct("<q")
_PR_SET_PDEATHSIG = 1  # prctl(2): the kernel sends this signal when the parent ends
_LOCKS = ".lock"  # of `ProcessFolder.lock`


def fork_template(handler: UnitHandler, processing: Processing) -> tuple[int, socket.socket]:
    """Fork the template; return its process id and the socket that it forks workers for."""
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the engine, which ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # killed workers leave no zombies
        _fork_on_request(theirs, lambda peer: _serve(peer, handler, processing))
    finally:
        os._exit(0)


def _fork_on_request(control: socket.socket, serve: Callable[[socket.socket], None]) -> None:
    template = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        (descriptor,) = descriptors
        pid = os.fork()
        if not pid:
            try:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() == template:
                    control.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    serve(socket.socket(fileno=descriptor))
            finally:
                os._exit(0)
        os.close(descriptor)
        control.sendall(PID.pack(pid))


def _serve(peer: socket.socket, handler: UnitHandler, processing: Processing) -> None:
    failed: tuple[bytes, bytes, PendingBatch] | None = None
    while (head := receive_frame(peer)) is not None and (rows := receive_frame(peer)) is not None:
        is_again = failed is not None and failed[:2] == (head, rows)
        pending = failed[2] if failed and is_again else PendingBatch(framed_batch(head, rows), None, processing)
        failed, raised = None, None
        try:
            pending.handle(handler)
        except BaseException as error:  # noqa: BLE001 - the one place: the engine decides what becomes of it
            failed, raised = (head, rows, pending), error
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        send_frame(peer, reply_frame(_reply(raised, pending)))


def _reply(error: BaseException | None, pending: PendingBatch) -> WorkerReply:
    if error is None:
        return WorkerReply(process_time())
    kind, progress = type(error).__name__, pending.progress()
    if isinstance(error, PoisonChange):
        return WorkerReply(process_time(), kind, error.reason, poison=(error.index, error.item), progress=progress)
    is_final = not isinstance(error, Exception)
    if isinstance(error, TidemarkError):
        is_final = error.disposition is not Disposition.RETRY
    return WorkerReply(process_time(), kind, str(error), is_final, progress=progress)


def _close_locks() -> None:
    """Close the locks of other engines of this process: they are of open files, and last until the last copy closes."""
    for descriptor in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if descriptor.readlink().suffix == _LOCKS:
                os.close(int(descriptor.name))
