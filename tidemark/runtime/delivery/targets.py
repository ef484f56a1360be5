"""Selects the target of a capture: the outbox, a consumer, or none while it follows."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from tidemark.engine.ports import GroupConsumer
from tidemark.engine.progress import Progress
from tidemark.engine.retry import Backoff, RetryPolicy
from tidemark.engine.selection import Selection
from tidemark.io.host.clock import SystemClock
from tidemark.io.process.config import Config, DeliverConfig, PoisonConfig, PoolConfig, RetryConfig
from tidemark.io.state.history_files import HistoryWriter
from tidemark.model.change import ChangeGroup
from tidemark.model.commit_time import MSECS_PER_SECOND
from tidemark.model.errors import InternalError
from tidemark.model.lsn import Oid
from tidemark.model.mapping import TypeMapping
from tidemark.model.position import Epoch
from tidemark.model.relation import Relation
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.delivery.consumer_target import ConsumerTarget
from tidemark.runtime.delivery.consumers import JsonlConsumer, NullConsumer
from tidemark.runtime.delivery.delivery import GroupRecord, OutboxTarget, Target
from tidemark.runtime.delivery.following import FollowTarget, QueryDeliverer
from tidemark.runtime.delivery.liveness import Liveness
from tidemark.runtime.delivery.mapped_target import MappedTarget
from tidemark.runtime.first_copy.capture_notices import CaptureNotices
from tidemark.runtime.first_copy.copies import left_versions
from tidemark.runtime.first_copy.selected_tables import SelectedTables
from tidemark.runtime.plugins.consumer import Consumer
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.runtime.plugins.handler import AnyHandler
from tidemark.runtime.plugins.plugin_consumer import PluginConsumer
from tidemark.runtime.plugins.plugins import Plugins, built_in
from tidemark.runtime.plugins.poison_handling import ParkedRetries, PoisonHandling
from tidemark.runtime.plugins.transform_changes import TransformChanges
from tidemark.runtime.pool.handler_consumer import HandlerConsumer, PoolSettings
from tidemark.runtime.pool.worker_template import WorkerTemplate
from tidemark.transforms.plan import TransformPlans

UNMATCHED = "a transform names what no captured table has at present"
UNMATCHED_HINT = (
    "rows of a table that matches later are transformed from its creation on; correct the list of transforms if that "
    "is not meant: until then, values are delivered as they are"
)
SelectedVersions = Callable[[], Iterable[tuple[Oid, Relation]]]  # the selected tables, with their databases


@runtime_checkable
class TransformingConsumer(GroupConsumer, Protocol):
    """A consumer that applies the transforms itself, and is kept when another capture continues for it."""

    plans: TransformPlans | None
    """The transforms as it has bound them: a capture compares these definitions with those of the state."""


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """The settings that the targets of a capture read."""

    deliver: DeliverConfig
    retry: RetryConfig
    selection: Selection
    copying: bool  # existing rows are copied
    unmarked_bytes_max: int  # while it follows
    plugins: Plugins
    poison: PoisonConfig
    pool: PoolConfig
    template: WorkerTemplate | None = None  # of the pool's worker processes
    hold_bytes: int = 0  # of the outbox, that a reader may hold; 0: the default

    @classmethod
    def of(cls, config: Config, plugins: Plugins | None, template: WorkerTemplate | None) -> Self:
        """Return the settings of a configuration, with the plug-ins that it names and the template of its workers."""
        return cls(
            config.deliver,
            config.retry,
            config.select.selection(),
            config.copy.enabled,
            config.standby.unmarked_bytes_max,
            plugins or built_in(config.deliver.consumer),
            config.poison,
            config.pool,
            template,
            config.reader.hold_bytes,
        )

    @property
    def fills_outbox(self) -> bool:
        """Return whether the consumer is the outbox."""
        return self.deliver.consumer == "outbox"


@dataclass(frozen=True, slots=True)
class TargetMaker:
    """The parts that every target of a capture needs."""

    context: CaptureContext
    settings: TargetSettings
    epoch: Epoch
    history: HistoryWriter
    progress: Progress
    stopping: threading.Event

    def follow(
        self,
        query_deliverer: QueryDeliverer,
        names: Mapping[Oid, str],
        types: TypeMapping,
        tables: SelectedVersions,
    ) -> Target:
        """Return the target that delivers nothing. It records by which transforms the tables are delivered meanwhile.

        The other parameters are those of `deliver`; the deliverer has the same list of transforms.
        """
        context = self.context
        transforms = GroupTransforms(self.settings.plugins.transforms, types, self.epoch, self._latest(names))
        changes = TransformChanges.since(
            context.store, self.epoch, transforms, tables(), self.settings.selection.selects, follows=True
        )
        target: Target = FollowTarget(
            context.store,
            self.epoch,
            query_deliverer,
            unmarked_bytes_max=self.settings.unmarked_bytes_max,
            history=self.history,
            records=self._records(changes),
            progress=self.progress,
            metrics=context.metrics,
            log=context.log,
        )
        return target if changes is None else MappedTarget(target, streamed=changes.noted, copied=changes.noted)

    def deliver(
        self,
        consumer: GroupConsumer | None,
        names: Mapping[Oid, str],
        types: TypeMapping,
        tables: SelectedVersions,
        notices: CaptureNotices | None = None,
    ) -> tuple[Target, Liveness | None]:
        """Return the configured target, or `consumer`'s, and the watch on a custom consumer.

        `names`: of the databases, for people. `tables`: to check that the transforms fit them; raise `BadTransform`.
        """
        plugins = self.settings.plugins
        bound = consumer.plans if isinstance(consumer, TransformingConsumer) else None
        store = self.context.store
        left = left_versions(store, store.view()) if plugins.transforms else {}
        transforms = GroupTransforms(plugins.transforms, types, self.epoch, self._latest(names), bound, left=left)
        if plugins.transforms:
            transforms.check(tables(), keeps_tables=consumer is None and not plugins.takes_any_form)
            for transform, pattern in transforms.unmatched():
                self.context.log.warning(UNMATCHED, transform=str(transform), pattern=pattern, hint=UNMATCHED_HINT)
        selects = self.settings.selection.selects
        changes = TransformChanges.since(self.context.store, self.epoch, transforms, tables(), selects)
        target, liveness = self._target(consumer, transforms, names, self._records(changes))
        if changes is not None:
            target = MappedTarget(target, streamed=changes.announced, copied=changes.noted)
        if notices is not None:
            target = MappedTarget(target, streamed=notices.announced, copied=_unchanged)
        return target, liveness

    def _latest(self, names: Mapping[Oid, str]) -> Mapping[Oid, str]:
        """Return the names of databases up to the delivered position; a restart begins before it, with `names`."""
        beginning = self.context.store.view().beginning
        return names if beginning is None else {**names, **beginning.databases}

    def _target(
        self,
        consumer: GroupConsumer | None,
        transforms: GroupTransforms,
        names: Mapping[Oid, str],
        records: Sequence[GroupRecord],
    ) -> tuple[Target, Liveness | None]:
        plugins = self.settings.plugins
        if consumer is not None:
            return self._custom(consumer, records)
        if plugins.make_handler is not None:
            handler = plugins.make_handler()
            return self._custom(self._pool(handler, transforms, self._latest(names)), records, of=handler)
        if plugins.make_consumer is not None:
            made = plugins.make_consumer()
            plugin = PluginConsumer(
                made,
                transforms,
                plugins.serializer,
                SystemClock(),
                poison=PoisonHandling.of(self.settings.poison, self.context, self.epoch),
                retries=ParkedRetries(self.context, self.epoch),
            )
            return self._custom(plugin, records, of=made)
        target: Target
        target, liveness = (
            (self._outbox(records), None)
            if self.settings.fills_outbox
            else self._custom(_built_in(self.settings.deliver, names), records)
        )
        if plugins.transforms:
            target = MappedTarget(target, streamed=transforms.apply, copied=transforms.apply)
        return target, liveness

    def _pool(self, handler: AnyHandler, transforms: GroupTransforms, names: Mapping[Oid, str]) -> HandlerConsumer:
        settings = self.settings
        return HandlerConsumer(
            handler,
            transforms.plans,
            settings.plugins.serializer,
            names,
            settings=PoolSettings(settings.pool, settings.deliver, settings.retry, settings.template),
            context=self.context,
            poison=PoisonHandling.of(settings.poison, self.context, self.epoch),
            retries=ParkedRetries(self.context, self.epoch),
        )

    def _outbox(self, records: Sequence[GroupRecord]) -> Target:
        context = self.context
        context.metrics.outbox_capacity.set(context.store.identity.outbox_bytes_max)
        return OutboxTarget(
            context.store,
            self.epoch,
            history=self.history,
            records=records,
            progress=self.progress,
            hold_bytes=self.settings.hold_bytes,
            metrics=context.metrics,
            log=context.log,
            stopping=self.stopping,
        )

    def _custom(
        self, consumer: GroupConsumer, records: Sequence[GroupRecord], of: Consumer | AnyHandler | None = None
    ) -> tuple[Target, Liveness]:
        """Return the target of a consumer; `of`: the plug-in that it calls, which messages name."""
        context, deliver, retry = self.context, self.settings.deliver, self.settings.retry
        name = type(consumer if of is None else of).__name__
        liveness = Liveness(consumer, alive_s=deliver.alive_s, hang_s=deliver.hang_s, name=name)
        target = ConsumerTarget(
            consumer,
            context.store,
            self.epoch,
            liveness=liveness,
            history=self.history,
            records=records,
            unconfirmed_bytes_max=deliver.unconfirmed_bytes_max,
            confirm_s=deliver.confirm_ms / MSECS_PER_SECOND,
            progress=self.progress,
            stopping=self.stopping,
            retry=RetryPolicy(deliver.retries_max, Backoff(retry.first_s, retry.max_s)),
            metrics=context.metrics,
            log=context.log,
        )
        return target, liveness

    def _records(self, changes: TransformChanges | None) -> Sequence[GroupRecord]:
        selected = SelectedTables(self.settings.selection, copying=self.settings.copying, log=self.context.log)
        return (selected,) if changes is None else (selected, changes)


def _unchanged(group: ChangeGroup) -> ChangeGroup:
    return group


def _built_in(config: DeliverConfig, names: Mapping[Oid, str]) -> GroupConsumer:
    """Return the built-in consumer of the configuration, other than the outbox."""
    if config.consumer == "null":
        return NullConsumer()
    if config.consumer == "jsonl":
        return JsonlConsumer(config.jsonl_file, names)
    raise InternalError(f"deliver.consumer {config.consumer!r} was not loaded as a plug-in")
