"""Writes the commit of a Delta table as a file of its log, by the protocol of Delta Lake.

A commit is one file of JSON lines, each of which is an action. It becomes visible as a whole and never replaces another
writer's commit of the same version. On a local file system, it is written under another name, and link(2) fails if the
version exists. The name of the other file is one that delta-rs leaves out of its listings; after a kill `log_cleanup`
removes it. The file is synced to disk before it becomes visible (`durability`). In an object store, it is one
conditional request (`tidemark.pipeline.storage`). delta-rs also lists the log three times for a commit.

Only files are added and removed here. delta-rs makes every commit that changes the columns, properties or the protocol
of a table, and the checkpoints.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
from deltalake.transaction import AddAction, RemoveAction

from tidemark.pipeline.storage.lake_store import Publish, Stamp
from tidemark.pipeline.storage.stores import store_of

LOG_FOLDER = "_delta_log"
OPERATION = "WRITE"
ENGINE = "tidemark"
CHECKPOINT_EVERY = 50  # commits. Opening a table reads those since: 0.3 ms of CPU each; a checkpoint takes 14 ms
_ENCODER = msgspec.json.Encoder()
CHECKPOINT_BEHIND = 4 * CHECKPOINT_EVERY  # where maintenance writes checkpoints: if it is late, the stream does


@dataclass(slots=True)
class FileChange:
    """The files that one commit adds and removes."""

    added: list[AddAction] = field(default_factory=list)
    removed: list[RemoveAction] = field(default_factory=list)


def commit_path(uri: str, version: int) -> str:
    """Return the path of the file of a commit."""
    return f"{uri}/{LOG_FOLDER}/{version:020d}.json"


def write_commit(
    path: str, change: FileChange, transactions: Mapping[str, int], metadata: Mapping[str, str], token: int
) -> Stamp:
    """Commit `change` as the file `path`, and return its stamp, as `Publish`; raise `FileExistsError` if it exists.

    The content is durable when the commit becomes visible; its entry in the folder is not yet.
    """
    with staged_commit(path, change, transactions, metadata, token) as publish:
        return publish(path)


@contextmanager
def staged_commit(
    path: str, change: FileChange, transactions: Mapping[str, int], metadata: Mapping[str, str], token: int
) -> Iterator[Publish]:
    """Write a commit that is not visible yet, near `path`, and yield what publishes it; the content is durable.

    `transactions` are the application transactions by name, `metadata` further fields of `commitInfo`. `token`
    distinguishes this commit from all others.
    """
    content = _ENCODER.encode_lines(_actions(change, transactions, metadata))
    with store_of(path).staged(path, content, token) as publish:
        yield publish


def _actions(
    change: FileChange, transactions: Mapping[str, int], metadata: Mapping[str, str]
) -> Iterator[dict[str, dict[str, object]]]:
    now_ms = time.time_ns() // 1_000_000
    mode = {"mode": "Append"}
    yield {
        "commitInfo": {
            "timestamp": now_ms,
            "operation": OPERATION,
            "operationParameters": mode,
            "engineInfo": ENGINE,
            **metadata,
        }
    }
    for name, number in transactions.items():
        yield {"txn": {"appId": name, "version": number}}
    for removed in change.removed:
        yield {
            "remove": {
                "path": removed.path,
                "deletionTimestamp": removed.deletion_timestamp,
                "dataChange": removed.data_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(removed.partition_values or {}),
                "size": removed.size,
            }
        }
    for added in change.added:
        yield {
            "add": {
                "path": added.path,
                "partitionValues": dict(added.partition_values),
                "size": added.size,
                "modificationTime": added.modification_time,
                "dataChange": added.data_change,
                "stats": added.stats,
            }
        }
