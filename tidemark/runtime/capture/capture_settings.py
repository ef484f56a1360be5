"""The settings that a capture reads, the types that are fixed with its state, and its status."""

from dataclasses import dataclass, fields
from typing import Self

from tidemark.engine.batching import DeliveryPacing
from tidemark.engine.host_load import HostLoad
from tidemark.engine.progress import Progress
from tidemark.io.host.cpu_pressure import cpu_waited_s
from tidemark.io.process.config import (
    BadConfig,
    Config,
    DecodeConfig,
    DeliverConfig,
    HistoryConfig,
    SelectConfig,
    TypesConfig,
)
from tidemark.model.commit_time import MSECS_PER_SECOND
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.delivery.targets import TargetSettings
from tidemark.runtime.first_copy.copy_settings import CopySettings
from tidemark.runtime.plugins.plugins import Plugins
from tidemark.runtime.pool.worker_template import WorkerTemplate
from tidemark.wire.state.values import Beginning


class OtherTypes(BadConfig):
    """A configuration with other Arrow types than `init` fixed: they would need new tables."""

    hint = (
        "restore the value of the state, or create a new state and a new lake: the types of existing tables "
        "cannot change"
    )


@dataclass(frozen=True, slots=True)
class CaptureStatus:
    """The status of a running capture."""

    link: Link
    copying: bool
    ring_used_bytes: int
    ring_high_water_bytes: int
    ring_bytes: int
    queue_bytes: int
    open_transactions: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """The settings that a capture reads."""

    select: SelectConfig
    decode: DecodeConfig
    types: TypesConfig
    deliver: DeliverConfig
    history: HistoryConfig
    first_copy: CopySettings
    target: TargetSettings
    keep_bytes: int  # of the archive, behind delivery
    watchdog_s: float

    @classmethod
    def of(cls, config: Config, plugins: Plugins | None = None, template: WorkerTemplate | None = None) -> Self:
        """Return the settings of a configuration; `plugins`: those that it names, if there are any.

        template: of worker processes, if the pool has them.
        """
        return cls(
            config.select,
            config.decode,
            config.types,
            config.deliver,
            config.history,
            CopySettings.of(config),
            TargetSettings.of(config, plugins, template),
            config.archive.keep_bytes,
            config.watchdog.watchdog_s,
        )

    def pacing(self) -> DeliveryPacing:
        """Return the pacing of deliveries, before the first one."""
        deliver = self.deliver
        return DeliveryPacing(
            deliver.rate_max,
            deliver.linger_ms / MSECS_PER_SECOND,
            deliver.busy_linger_ms / MSECS_PER_SECOND,
            HostLoad(cpu_waited_s) if deliver.busy_linger_ms else None,
        )


def check_types(types: TypesConfig, beginning: Beginning) -> None:
    """Raise `OtherTypes` if the configuration has other Arrow types than those of the capture."""
    wanted = types.mapping()
    for key in fields(wanted):
        configured, stored = getattr(wanted, key.name), getattr(beginning.types, key.name)
        if configured != stored:
            raise OtherTypes(f"types.{key.name} is {configured} in the configuration, and {stored} since `cdcctl init`")
