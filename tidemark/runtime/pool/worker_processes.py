"""The worker processes of an engine: one for each thread of its pool, which waits while its worker handles a batch.

Order, retries, back-pressure and the confirmed prefix are those of the pool of threads. A worker that ends closes its
socket: its thread sees that at once, and the retry is a call of a new worker.
"""

import os
import socket
import struct
import threading
from collections.abc import Sequence

from tidemark.engine.batch import Batch
from tidemark.model.errors import ConfigError, ConsumerFailed, Disposition
from tidemark.model.poison import WorkerPoison, WorkerRaised
from tidemark.runtime.context import Stopped
from tidemark.runtime.pool.pending_batch import Processing, Unit, UnitHandler
from tidemark.runtime.pool.worker_frames import batch_frames, framed_reply, receive_frame, send_frame
from tidemark.runtime.pool.worker_template import PID, fork_template


class WorkerEnded(ConsumerFailed):
    """A worker process ended inside of a call."""

    disposition = Disposition.RETRY
    hint = "see the kernel's log: was it killed, or out of memory?"

    def __init__(self, pid: int) -> None:
        super().__init__(f"the worker process {pid} ended while it handled a batch")


class _ForkedWorker:
    def __init__(self, pid: int, peer: socket.socket) -> None:
        self.pid = pid
        self.peer = peer
        self.cpu_s = 0.0


class WorkerProcesses:
    """Calls a handler in worker processes; each thread that calls it has its own one."""

    def __init__(self, handler: UnitHandler, processing: Processing, count: int) -> None:
        """Start nothing."""
        self._handler = handler
        self._processing = processing
        self._count = count
        self._lock = threading.Lock()
        self._template: tuple[int, socket.socket] | None = None
        self._idle: list[_ForkedWorker] = []
        self._all: list[_ForkedWorker] = []
        self._ended_cpu_s = 0.0
        self._is_over = False
        self._engine_pid = os.getpid()

    def check_is_engine(self) -> None:
        """Raise if this is a worker: its copy of the engine runs nothing."""
        if os.getpid() != self._engine_pid:
            raise ConfigError("a worker process cannot stop the engine", hint="use stop_when, or pool=PoolKind.THREADS")

    def start(self) -> None:
        """Fork the template and all workers."""
        self._engine_pid = os.getpid()
        self._template = fork_template(self._handler, self._processing)
        with self._lock:
            self._idle = [self._fork() for _ in range(self._count)]

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of the workers."""
        with self._lock:
            return [worker.pid for worker in self._all]

    @property
    def cpu_s(self) -> Sequence[float]:
        """The CPU time of each worker up to its last reply, then that of all that have ended."""
        with self._lock:
            return [*(worker.cpu_s for worker in self._all), self._ended_cpu_s]

    def __call__(self, unit: Unit) -> None:
        """Call the handler with a batch in a worker that is idle: there are as many as threads."""
        assert isinstance(unit, Batch), "single changes and records are made in the worker"
        with self._lock:
            if self._is_over:
                raise Stopped
            worker = self._idle.pop() if self._idle else self._fork()
        try:
            for frame in batch_frames(unit):
                send_frame(worker.peer, frame)
            answer = receive_frame(worker.peer)
        except OSError:
            answer = None
        with self._lock:
            if answer is None:
                self._all.remove(worker)
                self._ended_cpu_s += worker.cpu_s
                worker.peer.close()
                if self._is_over:
                    raise Stopped
                raise WorkerEnded(worker.pid)
            reply = framed_reply(answer)
            worker.cpu_s = reply.cpu_s
            self._idle.append(worker)
        if reply.poison is not None:
            index, item = reply.poison
            raise WorkerPoison(index, reply.text, item=item, progress=reply.progress)
        if reply.kind:
            raise WorkerRaised(reply.kind, reply.text, is_final=reply.is_final, progress=reply.progress)

    def end(self) -> None:
        """Kill the workers, also those inside of a call; return when the template has ended."""
        with self._lock:
            self._is_over = True
            template, self._template = self._template, None
            for worker in self._idle:
                worker.peer.close()
                self._all.remove(worker)
            self._idle.clear()
        if template is not None:
            pid, control = template
            control.shutdown(socket.SHUT_RDWR)  # NB: closing is not enough, if another engine's template has a copy
            control.close()
            os.waitpid(pid, 0)

    def _fork(self) -> _ForkedWorker:
        """Have a worker forked; the lock is held."""
        assert self._template is not None, "it was started, and has not ended"
        _, control = self._template
        own, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(control, [b"f"], [theirs.fileno()])
            worker = _ForkedWorker(PID.unpack(control.recv(PID.size, socket.MSG_WAITALL))[0], own)
        except (OSError, struct.error) as error:
            own.close()
            raise ConsumerFailed("no worker process can be forked: the template of the workers has ended") from error
        self._all.append(worker)
        return worker
