"""A handler that is a plug-in, with its pool: what a daemon delivers to.

The pool starts with the capture, in the application thread, and ends before it: batches that it has are finished within
`deliver.stop_s`, and confirmed. Worker processes are forked from a template that is older than everything that the
daemon opened.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from tidemark.engine.pool.commit_policy import ALWAYS
from tidemark.engine.pool.dispatch import Order
from tidemark.engine.ports import GroupPart
from tidemark.engine.progress import Progress
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config import DeliverConfig, PoolConfig, RetryConfig
from tidemark.model.change import ChangeGroup
from tidemark.model.errors import ConsumerFailed, Disposition, TidemarkError
from tidemark.model.lsn import Oid
from tidemark.model.position import Epoch, Partition, Pointer
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.plugins.handler import AnyHandler, Handler
from tidemark.runtime.plugins.plugins import Plugins
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.pool.handler_pool import HandlerPool
from tidemark.runtime.pool.pending_batch import Processing, UnitHandler
from tidemark.runtime.pool.pool_consumer import PoolConsumer
from tidemark.runtime.pool.pool_kind import PoolKind
from tidemark.runtime.pool.pool_parts import PartHandler, PoolPart, isolate, name_of, preparation
from tidemark.runtime.pool.worker_processes import WorkerProcesses
from tidemark.runtime.pool.worker_serving import WorkerCode
from tidemark.runtime.pool.worker_template import WorkerTemplate
from tidemark.serializers.serializer import Serializer
from tidemark.transforms.plan import TransformPlans
from tidemark.wire.state.event_logs import Loss

ORDERS: Mapping[str, Order] = {"total": Order.TOTAL, "key": Order.BY_KEY, "none": Order.NONE}


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The settings of a daemon's pool."""

    pool: PoolConfig
    deliver: DeliverConfig
    retry: RetryConfig
    template: WorkerTemplate | None  # of worker processes; None: the workers are threads


def worker_template(plugins: Plugins, config: PoolConfig) -> WorkerTemplate | None:
    """Return the template of the worker processes that a daemon is configured with; None: it needs none."""
    if plugins.make_handler is None or PoolKind(config.kind) is PoolKind.THREADS:
        return None
    handler = plugins.make_handler()
    processing = Processing(takes_changes=False, serializer=plugins.serializer, clock=SystemClock())
    return WorkerTemplate(WorkerCode(unit_handler(handler), processing, handler.stop))


class HandlerConsumer(PoolConsumer):
    """Implements `DrainedConsumer` of `tidemark.engine.ports` for a plug-in."""

    def __init__(
        self,
        handler: AnyHandler,
        plans: TransformPlans | None,
        serializer: Serializer | None,
        databases: Mapping[Oid, str],
        *,
        settings: PoolSettings,
        context: CaptureContext,
        poison: PoisonHandling,
        retries: ParkedRetries,
    ) -> None:
        """Start nothing. The other parameters are those of `PoolConsumer`."""
        workers, template = settings.pool.workers, settings.template
        self._handler = handler
        self._settings = settings
        self._cpu = context.metrics.pool_cpu
        self._workers = None if template is None else WorkerProcesses(template, workers)
        kind = type(handler)
        takes_events = kind.on_event is not Handler.on_event
        serializer = serializer if self._workers is None else None
        self._handlers: HandlerPool[PoolPart] = HandlerPool(
            PartHandler(
                unit_handler(handler) if self._workers is None else self._workers,
                handler.on_event if takes_events else None,
            ),
            prepare=preparation(has_transforms=plans is not None, has_serializer=serializer is not None),
            isolate=isolate,
            name_of=name_of,
            workers=workers,
            retries=settings.deliver.retries_max,
            backoff=(settings.retry.first_s, settings.retry.max_s),
            log=context.log,
            on_retry=context.metrics.errors.inc,
        )
        self._clock_s = SystemClock().monotonic_s
        self._draining = threading.Lock()
        self._is_drained = False
        self._unfinished: tuple[str, ...] = ()
        super().__init__(
            self._handlers,
            order=ORDERS[settings.pool.order],
            lane_count=workers,
            commit=ALWAYS,
            bytes_max=settings.pool.buffer_bytes,
            databases=databases,
            takes_events=takes_events,
            plans=plans,
            processing=Processing(takes_changes=False, serializer=serializer, clock=SystemClock()),
            poison=poison,
            retries=retries,
            log=context.log,
            update_offsets=handler.update_offsets if kind.update_offsets is not Handler.update_offsets else None,
            on_notice=lambda event: handler.on_loss(event) if isinstance(event, Loss) else handler.on_rewind(event),
        )

    def on_assigned(self, partition: Partition, epoch: Epoch, start: Pointer | None) -> None:
        """Start the workers."""
        super().on_assigned(partition, epoch, start)
        if self._workers is not None:
            self._workers.start()
        workers = self._handlers if self._workers is None else self._workers
        self._cpu.follow(lambda: workers.cpu_s)
        self._handlers.start()

    def alive(self) -> bool:
        """Raise the error that ended the pool, or if a call of the handler takes too long; any thread calls it."""
        error = self._handlers.error
        if error is not None:
            raise self._final(error)
        if self._handlers.longest_call_s > self._settings.deliver.hang_s:
            raise ConsumerFailed(
                f"{self._name} has been in a call for over {self._settings.deliver.hang_s:g} s",
                hint="see deliver.hang_s",
            )
        return True

    def drain(self, within_s: float, progress: Progress) -> None:
        """End the pool, which finishes what it has within a time, and wait until the position of that is stored."""
        until_s = self._clock_s() + within_s
        self._drain(within_s)
        self.store_finished(progress, until_s)

    def on_revoked(self, partition: Partition) -> bool | ChangeGroup | GroupPart | None:
        """End the pool, if no other thread has, and confirm what is finished."""
        self._drain(self._settings.deliver.stop_s)
        return super().on_revoked(partition)

    def stop(self) -> None:
        """Stop the handler; raise if a thread is still in it."""
        self._drain(0.0)
        self._cpu.settle()
        if self._unfinished:
            raise ConsumerFailed(
                f"{self._name} did not return within {self._settings.deliver.stop_s:g} s in "
                f"{', '.join(self._unfinished)}",
            )
        self._handler.stop()

    def _drain(self, within_s: float) -> None:
        with self._draining:
            if self._is_drained:
                return
            self._is_drained = True
            until_s = self._clock_s() + within_s
            self._unfinished = self._handlers.drain(within_s)
            if self._workers is not None:  # those that are still in a call are killed
                self._workers.end(max(0.0, until_s - self._clock_s()))
                self._unfinished = ()

    @property
    def _name(self) -> str:
        return f"the handler {type(self._handler).__name__}"

    def _final(self, error: BaseException) -> TidemarkError:
        """Return an error of the pool, which has retried it."""
        if not isinstance(error, TidemarkError):
            # NB: never the text of the handler's own error: it may contain a row's values.
            failed = ConsumerFailed(f"{self._name} raised {type(error).__name__}")
            failed.__cause__ = error
            return failed
        if error.disposition is Disposition.RETRY:
            error.disposition = Disposition.HALT
        return error


def unit_handler(handler: AnyHandler) -> UnitHandler:
    """Return the function that a pool calls with batches or records."""
    return cast("UnitHandler", handler.handle)  # whether it takes records is the serializer's concern
