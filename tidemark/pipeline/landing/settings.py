"""The settings of a pipeline, and what paused tables may keep of the outbox."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tidemark.engine.selection import Selection
from tidemark.io.process.lake_config import DEFAULT_LAKE, LakeConfig
from tidemark.model.errors import ConfigError
from tidemark.pipeline.delta_log.log_cleanup import KEEP_S
from tidemark.pipeline.source.outbox_port import OutboxPort

PAUSED_SHARE = 4  # paused tables may keep a quarter of the outbox


class LakeFormat(StrEnum):
    """The format of the lake's tables."""

    DELTA = "delta"
    ICEBERG = "iceberg"  # change logs only


class PausedBytesTooLarge(ConfigError):
    """`--paused-bytes` would let paused tables fill the outbox."""

    hint = "a batch needs up to half of the outbox, and new changes need the rest: lower --paused-bytes"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a pipeline."""

    folder: Path  # of the files of this process: the state folder, or with a server the runner folder
    lake: str
    checkpoint: str
    reader: str
    batch_bytes: int
    once: bool  # stop at the present end of the outbox
    source: Mapping[str, str]  # the options of Spark's format that name the outbox
    master: str = "local"
    lake_config: LakeConfig = DEFAULT_LAKE
    selection: Selection = field(default_factory=Selection)
    log_keep_s: float = KEEP_S  # how long a version of a table can be read after the next one
    lake_format: LakeFormat = LakeFormat.DELTA
    paused_bytes: int | None = None  # that the outbox keeps for paused tables; None: `PAUSED_SHARE` of it


def paused_bytes(settings: Settings, outbox: OutboxPort) -> int:
    """Return how many bytes the outbox keeps for paused tables; raise `PausedBytesTooLarge`."""
    most = outbox.outbox_bytes_max // PAUSED_SHARE
    if settings.paused_bytes is not None and settings.paused_bytes > most:
        raise PausedBytesTooLarge(
            f"--paused-bytes is {settings.paused_bytes}: at most {most}, a quarter of outbox.bytes_max"
        )
    return most if settings.paused_bytes is None else settings.paused_bytes
