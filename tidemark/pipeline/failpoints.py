"""The pipeline's failpoints (`tidemark.io.host.failpoints`)."""

from enum import Enum


class Failpoint(Enum):
    """Points between two durable writes, in the order in which a batch passes them."""

    BATCH_RECEIVED = "batch-received"
    EVENTS_RECORDED = "events-recorded"  # the tables do not contain them yet
    LOG_RESHAPED = "log-reshaped"  # the log was rewritten for a new type; the rows that need the type are not in it yet
    LOG_APPENDED = "log-appended"
    REPLICA_RESHAPED = "replica-reshaped"
    FILES_WRITTEN = "files-written"  # the data files of a merge; the commit is not written
    REPLICA_CHANGED = "replica-changed"  # after each merge, append or truncation
    REWRITE_STAGED = "rewrite-staged"  # rewritten rows are staged; the replica is unchanged
    REWRITE_ENDED = "rewrite-ended"
    TABLES_DONE = "tables-done"
    TABLE_CAUGHT_UP = "table-caught-up"  # a resumed table contains its changes; `_positions` records it as paused
    TABLE_RESUMED = "table-resumed"  # `_positions` records it; the request is still there
    POSITIONS_WRITTEN = "positions-written"
    CONFIRMED = "confirmed"


class MaintenanceFailpoint(Enum):
    """Points between two durable writes of maintenance, beside the batches."""

    CHECKPOINT_WRITTEN = "checkpoint-written"
    MAINTENANCE_WRITTEN = "maintenance-written"  # the data files that replace others; the commit is not written
    MAINTENANCE_COMMITTED = "maintenance-committed"  # `_positions` does not record it yet
    UNUSED_FILE_DELETED = "unused-file-deleted"
    DROPPED_CHECKED = "dropped-checked"  # a dropped table may be removed; `_positions` still has its row
    DROPPED_FILES_DELETED = "dropped-files-deleted"  # some of a leaving folder
    DROPPED_DELETED = "dropped-deleted"  # all of it; `_positions` still names the folder


class EarlierFailpoint(Enum):
    """Points between two durable writes of `cdcctl table add`."""

    MARKED = "earlier-marked"  # `_positions` records that changes are being added
    WRITTEN = "earlier-written"  # a data file; the commit is not written
    COMMITTED = "earlier-committed"  # `_positions` still records that they are being added
