"""The settings that a first copy reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tidemark.io.node.copy_stream import BlockBounds
from tidemark.io.process.config import Config, CopyConfig, RetryConfig, SelectConfig


@dataclass(frozen=True, slots=True)
class CopySettings:
    """The settings that a first copy reads."""

    dsn: str
    select: SelectConfig
    copy: CopyConfig
    retry: RetryConfig
    older_wait_s: float  # for transactions older than the seed, or than a table's snapshot
    bounds: BlockBounds  # of a delivered batch
    archive: Path | None  # with the WAL of a base backup

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the settings of a configuration."""
        bounds = BlockBounds(config.deliver.group_rows_max, config.deliver.group_bytes_max)
        archive = Path(config.archive.folder) if config.has_archive else None
        return cls(config.capture.dsn, config.select, config.copy, config.retry, config.seed.wait_s, bounds, archive)
