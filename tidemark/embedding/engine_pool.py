"""The pool of an engine: of a handler or of a processor, on threads; a handler may run in worker processes instead."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from tidemark.embedding.engine_options import EngineOptions
from tidemark.embedding.processor import Processor
from tidemark.embedding.processor_pool import ProcessorPool
from tidemark.io.host.clock import SystemClock
from tidemark.io.host.logs import Log
from tidemark.model.change import EngineEvent
from tidemark.runtime.pool.handler_pool import HandlerPool, PartPool
from tidemark.runtime.pool.pending_batch import Processing, UnitHandler
from tidemark.runtime.pool.pool_kind import PoolKind
from tidemark.runtime.pool.pool_parts import PartHandler, PoolPart, isolate, name_of, preparation
from tidemark.runtime.pool.worker_processes import WorkerProcesses
from tidemark.runtime.pool.worker_serving import WorkerCode
from tidemark.runtime.pool.worker_template import WorkerTemplate


class EnginePool:
    """The pool of one engine, and its worker processes."""

    def __init__(
        self,
        handler: UnitHandler | None,
        processing: Processing,
        options: EngineOptions,
        *,
        processor: Processor | None,
        kind: PoolKind,
        on_event: Callable[[EngineEvent], None] | None,
        has_transforms: bool,
        backoff: tuple[float, float],
        log: Log,
    ) -> None:
        """Start nothing; give either `handler` or `processor`. With `kind` PROCESSES, other processes call the handler.

        `processing`: the form of the changes for the handler. `backoff`: between two calls with a batch that failed.
        """
        self.processing = processing  # of the changes before they are passed to the pool
        self._template: WorkerTemplate | None = None
        self._workers: WorkerProcesses | None = None
        self.parts: PartPool[PoolPart]
        if processor is not None:
            self.parts = ProcessorPool(
                processor, processing, workers=options.workers, retries=options.retries, backoff=backoff, log=log
            )
            return
        assert handler is not None, "an engine has a handler or a processor"
        if kind is PoolKind.PROCESSES:
            self._template = WorkerTemplate(WorkerCode(handler, processing))
            self._workers = handler = WorkerProcesses(self._template, options.workers)
            self.processing = Processing(takes_changes=False, serializer=None, clock=SystemClock())
        has_serializer = self.processing.serializer is not None
        self.parts = HandlerPool(
            PartHandler(handler, on_event),
            prepare=preparation(has_transforms=has_transforms, has_serializer=has_serializer),
            isolate=isolate,
            name_of=name_of,
            workers=options.workers,
            retries=options.retries,
            backoff=backoff,
            log=log,
        )

    @property
    def worker_pids(self) -> Sequence[int]:
        """The process ids of the workers that are processes."""
        return () if self._workers is None else self._workers.pids

    @property
    def worker_cpu_s(self) -> Sequence[float]:
        """The CPU seconds by worker, up to the end of its last batch; a killed process counts with its successor."""
        return self.parts.cpu_s if self._workers is None else self._workers.cpu_s

    def start_processes(self, stack: ExitStack) -> None:
        """Start the worker processes, which `stack` ends.

        NB: before anything is opened, because the workers would inherit it.
        """
        if self._template is not None and self._workers is not None:
            self._template.start()
            stack.callback(self._template.end)
            self._workers.start()
            stack.callback(self._workers.end)

    def drain(self, within_s: float) -> tuple[str, ...]:
        """Finish what the pool has, and end the worker processes; return the names of threads that are still busy."""
        unfinished = self.parts.drain(within_s)
        if self._workers is not None:
            self._workers.end()
        return unfinished
