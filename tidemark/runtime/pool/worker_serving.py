"""What a worker process does: it handles the batches that come on its socket, until that is closed."""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import process_time

from tidemark.model.errors import Disposition, TidemarkError, error_names
from tidemark.model.poison import PoisonChange
from tidemark.runtime.pool.pending_batch import PendingBatch, Processing, UnitHandler
from tidemark.runtime.pool.worker_frames import BatchReceiver, BatchRequest, WorkerReply, send_reply


@dataclass(frozen=True, slots=True)
class WorkerCode:
    """What workers call; they have it as it was when their template was forked."""

    handler: UnitHandler
    processing: Processing
    stop: Callable[[], None] | None = None  # called at the end of a worker


def serve(peer: socket.socket, code: WorkerCode) -> None:
    """Handle batches until the peer has ended."""
    send_identity(peer)
    failed: tuple[BatchRequest, PendingBatch] | None = None
    for request in BatchReceiver(peer).requests():
        is_again = failed is not None and failed[0] == request
        pending = failed[1] if failed and is_again else PendingBatch(request.batch(), None, code.processing)
        failed, raised = None, None
        try:
            pending.handle(code.handler)
        except BaseException as error:  # noqa: BLE001 - the one place: the engine decides what becomes of it
            failed, raised = (request, pending), error
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        send_reply(peer, _reply(raised, pending))
    if code.stop is not None:
        code.stop()


def send_identity(peer: socket.socket) -> None:
    """Send a descriptor of this process: with it, the peer kills this one and no other that has its number later."""
    descriptor = os.pidfd_open(os.getpid())
    socket.send_fds(peer, [b"w"], [descriptor])
    os.close(descriptor)


def _reply(error: BaseException | None, pending: PendingBatch) -> WorkerReply:
    if error is None:
        return WorkerReply(process_time())
    kind, progress = type(error).__name__, pending.progress()
    if isinstance(error, PoisonChange):
        return WorkerReply(process_time(), kind, error.reason, poison=(error.index, error.item), progress=progress)
    disposition = Disposition.RETRY if isinstance(error, Exception) else Disposition.HALT
    names, hint = tuple[str, ...](), ""
    if isinstance(error, TidemarkError):
        disposition, names, hint = error.disposition, tuple(error_names(type(error))), error.hint
    text = _text(error)
    return WorkerReply(process_time(), kind, text, disposition.value, progress=progress, names=names, hint=hint)


def _text(error: BaseException) -> str:
    """Return the text of an error of the application, which may fail to give it."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - whatever it is, it must not end the worker
        return f"its text cannot be read: {type(failed).__name__}"
