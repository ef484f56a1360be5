"""The registered readers of an outbox with their lag, as `cdcctl reader list` shows them."""

from dataclasses import dataclass

from tidemark.model.position import Sequence
from tidemark.wire.state.readers import Reader


@dataclass(frozen=True, slots=True)
class KnownReader:
    """A reader and its distance from the head of the outbox."""

    reader: Reader
    lag_us: int  # age of the oldest transaction that it has not confirmed; 0: it has confirmed all
    held_bytes: int | None  # None: it is required or lapsed


@dataclass(frozen=True, slots=True)
class KnownReaders:
    """All readers of one moment, by name."""

    head: Sequence
    readers: dict[str, KnownReader]
    damaged: tuple[str, ...]  # for these nothing is trimmed
