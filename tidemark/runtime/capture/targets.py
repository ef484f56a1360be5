"""Selects the target of a capture: the outbox, a consumer, or none while it follows."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tidemark.engine.ports import Consumer
from tidemark.engine.progress import Progress
from tidemark.engine.retry import Backoff, RetryPolicy
from tidemark.engine.selection import Selection
from tidemark.io.process.config import Config, DeliverConfig, RetryConfig
from tidemark.io.state.history_files import HistoryWriter
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Oid
from tidemark.model.position import Epoch
from tidemark.runtime.capture.consumer_target import ConsumerTarget
from tidemark.runtime.capture.consumers import JsonlConsumer, NullConsumer
from tidemark.runtime.capture.delivery import OutboxTarget, Target
from tidemark.runtime.capture.following import FollowTarget, QueryDeliverer
from tidemark.runtime.capture.liveness import Liveness
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.first_copy.selected_tables import SelectedTables


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The settings that the targets of a capture read."""

    deliver: DeliverConfig
    retry: RetryConfig
    selection: Selection
    copying: bool  # existing rows are copied
    unmarked_bytes_max: int  # while it follows
    hold_bytes: int = 0  # of the outbox, that a reader may hold; 0: the default

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the settings of a configuration."""
        return cls(
            config.deliver,
            config.retry,
            config.select.selection(),
            config.copy.enabled,
            config.standby.unmarked_bytes_max,
            config.reader.hold_bytes,
        )


@dataclass(frozen=True, slots=True)
class TargetMaker:
    """The parts that every target of a capture needs."""

    context: CaptureContext
    settings: TargetSettings
    epoch: Epoch
    history: HistoryWriter
    progress: Progress
    stopping: threading.Event

    def follow(self, query_deliverer: QueryDeliverer) -> Target:
        """Return the target that delivers nothing."""
        context = self.context
        return FollowTarget(
            context.store,
            self.epoch,
            query_deliverer,
            unmarked_bytes_max=self.settings.unmarked_bytes_max,
            history=self.history,
            selected_tables=self._selected_tables(),
            progress=self.progress,
            metrics=context.metrics,
            log=context.log,
        )

    def deliver(self, consumer: Consumer | None, names: Mapping[Oid, str]) -> tuple[Target, Liveness | None]:
        """Return the configured target, or `consumer`'s, and the watch on a custom consumer.

        `names`: of the databases, for people.
        """
        context, deliver, retry = self.context, self.settings.deliver, self.settings.retry
        if consumer is None and deliver.consumer == "outbox":
            context.metrics.outbox_capacity.set(context.store.identity.outbox_bytes_max)
            outbox = OutboxTarget(
                context.store,
                self.epoch,
                history=self.history,
                selected_tables=self._selected_tables(),
                progress=self.progress,
                hold_bytes=self.settings.hold_bytes,
                metrics=context.metrics,
                log=context.log,
                stopping=self.stopping,
            )
            return outbox, None
        if consumer is None:
            consumer = _configured(deliver, names)
        liveness = Liveness(consumer, alive_s=deliver.alive_s, hang_s=deliver.hang_s)
        own = ConsumerTarget(
            consumer,
            context.store,
            self.epoch,
            liveness=liveness,
            history=self.history,
            selected_tables=self._selected_tables(),
            unconfirmed_bytes_max=deliver.unconfirmed_bytes_max,
            progress=self.progress,
            stopping=self.stopping,
            retry=RetryPolicy(deliver.retries_max, Backoff(retry.first_s, retry.max_s)),
            metrics=context.metrics,
            log=context.log,
        )
        return own, liveness

    def _selected_tables(self) -> SelectedTables:
        return SelectedTables(self.settings.selection, copying=self.settings.copying, log=self.context.log)


def _configured(config: DeliverConfig, names: Mapping[Oid, str]) -> Consumer:
    """Return the consumer of the configuration, other than the outbox."""
    if config.consumer == "null":
        return NullConsumer()
    if config.consumer == "jsonl":
        return JsonlConsumer(config.jsonl_file, names)
    raise InternalError(f"deliver.consumer {config.consumer!r} has no consumer")
