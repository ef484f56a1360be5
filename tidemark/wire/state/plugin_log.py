"""The consumer, serializer and transforms that each daemon is configured with."""

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.wire.state.process_log import Owner

OUTBOX = "outbox"  # the built-in consumer that fills the outbox
EMBEDDED = "tidemark.Engine"  # the consumer of an engine's state: a daemon over it would deliver elsewhere


@dataclass(frozen=True, slots=True)
class PluginUse:
    """A plug-in, or a built-in consumer, as a daemon is configured with it."""

    name: str  # `package.module:Name`, or the word of a built-in consumer
    version: str  # "" if it has none
    options: str  # a fingerprint

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class PluginUses:
    """The consumer, serializer and transforms that a daemon is configured with, and which changes it leaves out."""

    consumer: PluginUse
    serializer: PluginUse | None = None
    transforms: tuple[PluginUse, ...] = ()
    owner: Owner | None = None  # the process that recorded it; None: not recorded
    exclude_origins: tuple[str, ...] | None = None  # of `select`; None: not recorded
    messages: tuple[str, ...] | None = None  # the same

    @property
    def in_order(self) -> tuple[PluginUse, ...]:
        """The plug-ins in the order in which changes pass them, the consumer last."""
        serializer = () if self.serializer is None else (self.serializer,)
        return (*self.transforms, *serializer, self.consumer)


@dataclass(frozen=True, slots=True)
class PluginLog:
    """The consumer that this state delivers to, and the plug-ins of each daemon since its last start."""

    consumer: str  # its name
    uses: Mapping[str, PluginUses]  # by role

    @property
    def is_embedded(self) -> bool:
        """Whether an engine in an application delivers from this state, and no daemon."""
        return self.consumer == EMBEDDED
