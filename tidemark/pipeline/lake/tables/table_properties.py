"""The properties of the lake's Delta tables: their maintenance, and the source that they name."""

from collections.abc import Mapping

from tidemark.model.lsn import SystemIdentifier
from tidemark.pipeline.delta_log.commit_files import CHECKPOINT_EVERY

KEEP_HOURS = 1  # for readers of older versions: files that a commit replaced; versions are kept for ten minutes
NO_PROPERTIES: Mapping[str, str] = {}
CAPTURE, SOURCE = "tidemark.capture", "tidemark.source"  # properties that name the source
EXPIRED = "tidemark.expired"  # property of a log: rows of transactions up to this commit LSN may be deleted


def source_properties(capture: str, system_identifier: SystemIdentifier, database: str, name: str) -> dict[str, str]:
    """Return the properties that name the source of a table, whose qualified name is `name`."""
    return {CAPTURE: capture, SOURCE: f"{system_identifier}/{database}/{name}"}


def table_properties(keep_hours: int) -> dict[str, str]:
    """Return the properties of Tidemark's tables; replaced files are kept for `keep_hours`."""
    return {
        "delta.logRetentionDuration": "interval 1 days",  # for other engines; Tidemark uses `log_cleanup`
        "delta.enableExpiredLogCleanup": "false",  # delta-rs would remove commits that `_positions` still needs
        "delta.checkpointInterval": str(CHECKPOINT_EVERY),
        # A checkpoint lists files removed within this time; at two commits a second, a week would be a million files.
        "delta.deletedFileRetentionDuration": f"interval {keep_hours} hours",
    }
