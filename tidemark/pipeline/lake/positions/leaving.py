"""The folders of dropped tables that are being deleted, as the row of the whole lake in `_positions` names them.

A folder is *leaving* once `_positions` names it and no longer has the row of its table: only then are its files
deleted. A kill leaves a folder that is still named. `tidemark.pipeline.landing.folder_removal` deletes the files.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

LEAVING = pa.list_(
    pa.struct(
        [
            pa.field("folder", pa.string()),
            pa.field("log_version", pa.int64()),
            pa.field("replica_version", pa.int64()),
        ]
    )
)


@dataclass(frozen=True, slots=True)
class LeavingFolder:
    """A folder below the lake's root; no other writer had changed its log and replica up to these versions."""

    folder: str
    log_version: int  # -1: there is none
    replica_version: int


def leaving_column(folders: Iterable[LeavingFolder]) -> list[dict[str, object]]:
    """Return folders as stored in the positions table."""
    return [
        {"folder": one.folder, "log_version": one.log_version, "replica_version": one.replica_version}
        for one in folders
    ]


def parse_leaving(value: object) -> tuple[LeavingFolder, ...]:
    """Parse the output of `leaving_column`; an earlier version of Tidemark wrote none."""
    rows = value if isinstance(value, list) else []
    return tuple(LeavingFolder(row["folder"], row["log_version"], row["replica_version"]) for row in rows)
