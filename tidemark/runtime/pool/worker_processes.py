"""The worker processes of a pool: one for each of its threads, which waits while its worker handles a batch.

Order, retries, back-pressure and the confirmed prefix are those of the pool of threads. A worker that ends closes its
socket: its thread sees that at once, and the retry is a call of a new worker.
"""

import socket
import threading
from collections.abc import Sequence
from typing import NoReturn

from tidemark.engine.pool.batch import Batch
from tidemark.io.host.clock import SystemClock
from tidemark.model.errors import ConsumerFailed, Disposition, error_classes, restored_error
from tidemark.model.poison import WorkerPoison, WorkerRaised
from tidemark.runtime.context import Stopped
from tidemark.runtime.pool.pending_batch import Unit
from tidemark.runtime.pool.worker_frames import WorkerReply, receive_reply
from tidemark.runtime.pool.worker_template import ForkedWorker, WorkerTemplate


class WorkerEnded(ConsumerFailed):
    """A worker process ended inside of a call."""

    disposition = Disposition.RETRY
    hint = "see the kernel's log: it may have been killed, or out of memory"

    def __init__(self, pid: int) -> None:
        super().__init__(f"the worker process {pid} ended while it handled a batch")


class _WorkerPlace:
    """The place of a worker: a process that ends is replaced."""

    def __init__(self, worker: ForkedWorker) -> None:
        self.worker: ForkedWorker | None = worker
        self.ended_cpu_s = 0.0  # of those that have ended

    @property
    def cpu_s(self) -> float:
        return self.ended_cpu_s + (0.0 if self.worker is None else self.worker.cpu_s)

    def vacate(self) -> None:
        if self.worker is not None:
            self.ended_cpu_s += self.worker.cpu_s
            self.worker.close()
            self.worker = None


class WorkerProcesses:
    """Calls a handler in worker processes; each thread that calls it has its own one."""

    def __init__(self, template: WorkerTemplate, count: int) -> None:
        """Start nothing. `template`: it is started before `start`, and ends after `end`."""
        self._template = template
        self._count = count
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._idle: list[_WorkerPlace] = []
        self._places: list[_WorkerPlace] = []
        self._is_over = False

    def start(self) -> None:
        """Fork all workers."""
        for _ in range(self._count):
            place = _WorkerPlace(self._template.fork())
            self._places.append(place)
            self._idle.append(place)

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of the workers."""
        with self._lock:
            return [place.worker.pid for place in self._places if place.worker is not None]

    @property
    def cpu_s(self) -> Sequence[float]:
        """The CPU seconds by worker, up to its last reply; a process that was replaced counts in its place."""
        with self._lock:
            return [place.cpu_s for place in self._places]

    def __call__(self, unit: Unit) -> None:
        """Call the handler with a batch in a worker that is idle: there are as many as threads."""
        assert isinstance(unit, Batch), "single changes and records are made in the worker"
        with self._lock:
            if self._is_over:
                raise Stopped
            place = self._idle.pop()
        try:
            self._call(place, unit)
        finally:
            with self._lock:
                self._idle.append(place)

    def _call(self, place: _WorkerPlace, batch: Batch) -> None:
        worker = self._worker(place)
        try:
            worker.sender.send(batch)
            reply = receive_reply(worker.peer)
        except OSError:
            reply = None
        if reply is None:
            with self._lock:
                place.vacate()
                if self._is_over:
                    raise Stopped
            raise WorkerEnded(worker.pid)
        worker.cpu_s = reply.cpu_s
        if reply.kind:
            _raise(reply)

    def _worker(self, place: _WorkerPlace) -> ForkedWorker:
        """Return the worker of a place; fork it if the last one has ended."""
        if place.worker is not None:
            return place.worker
        worker = self._template.fork()
        with self._lock:
            if self._is_over:
                worker.kill()
                worker.close()
                raise Stopped
            place.worker = worker
        return worker

    def end(self, within_s: float = 0.0) -> None:
        """End the workers: those that are idle within a time, for their last call; then kill what remains.

        A thread that waits for a worker detects its end.
        """
        until_s = self._clock.monotonic_s() + within_s
        with self._lock:
            self._is_over = True
            idle = [place for place in self._idle if place.worker is not None]
            running = [place.worker for place in self._places if place not in idle and place.worker is not None]
            for worker in running:
                worker.kill()
            for place in idle:
                assert place.worker is not None, "chosen by it"
                place.worker.peer.shutdown(socket.SHUT_RDWR)
            for place in idle:
                assert place.worker is not None, "chosen by it"
                place.worker.wait(max(0.0, until_s - self._clock.monotonic_s()))
                place.worker.kill()
                place.vacate()


def _raise(reply: WorkerReply) -> NoReturn:
    """Raise the error of a worker: one of Tidemark in its own class, or in that of a base which is known here."""
    if reply.poison is not None:
        index, item = reply.poison
        raise WorkerPoison(index, reply.text, item=item, progress=reply.progress)
    disposition = Disposition(reply.disposition)
    raised = WorkerRaised(reply.kind, reply.text, disposition=disposition, progress=reply.progress)
    if not reply.names:
        raise raised
    classes = error_classes()
    kind = next(classes[name] for name in reply.names if name in classes)
    error = restored_error(kind, reply.text, hint=reply.hint)
    error.disposition = disposition
    raise error from raised
