"""Finds the tables that a dead branch changed: decodes its WAL again by the catalog history kept for it.

All available WAL of the branch is decoded, also WAL that was not delivered: a first copy may have seen its effects.
"""

from pathlib import Path

from tidemark.decode.catalog.databases import MappedDialects
from tidemark.decode.groups.group_builder import GroupBuilder
from tidemark.decode.transactions.decoder import DecodedRun
from tidemark.decode.transactions.reorder_buffer.committed_run import CommittedRun
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.engine.dead_branch import DeadBranch
from tidemark.engine.selection import Selection
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.spill import SpillFolder
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_views import StateView
from tidemark.model.change import ChangeGroup
from tidemark.model.errors import ConfigError, TidemarkError
from tidemark.model.lsn import format_lsn
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT, InvalidWal
from tidemark.runtime.replay.history_start import LsnRange, begin_from_history
from tidemark.runtime.replay.offline import check_same_cluster, decode_archive
from tidemark.wire.items import relation_of
from tidemark.wire.recopies import TableKey


class DeadWalMissing(ConfigError):
    """A folder that lacks WAL of a dead branch."""

    hint = (
        "give a folder that contains all of it by --dead-wal, for example pg_wal of the old primary; otherwise "
        "every captured table is copied again"
    )


def touched_tables(
    store: StateStore, view: StateView, folder: Path, branch: DeadBranch, selection: Selection
) -> frozenset[TableKey]:
    """Return the tables that the branch changed; raise `DeadWalMissing` if `folder` does not contain its WAL."""
    try:
        return _touched(store, view, folder, branch, selection)
    except TidemarkError as error:
        raise DeadWalMissing(f"{folder} does not show which tables {branch} changed: {error}") from error


def _touched(
    store: StateStore, view: StateView, folder: Path, branch: DeadBranch, selection: Selection
) -> frozenset[TableKey]:
    identity = view.identity
    archive = ArchiveFolder(folder, branch.timeline, of=identity.system_identifier)
    check_same_cluster(archive, identity.system_identifier)
    start = begin_from_history(
        view,
        store.folder.history,
        branch.fork_lsn,
        memory_bytes=MEMORY_BYTES_DEFAULT,
        spill=SpillFolder(store.folder.spill),
    )
    builder = GroupBuilder(
        MappedDialects(start.mirrors, start.types, identity.server_major),
        selected=selection.selects,
        root_of=selection.root_of,
        selects_message=lambda _prefix: False,
    )
    found: set[TableKey] = set()
    for decoded in decode_archive(archive, start, LsnRange(branch.fork_lsn), _is_the_end):
        for group in _groups(builder, decoded):
            found |= _tables_of(group)
    last = builder.flush()
    if last is not None:
        found |= _tables_of(last)
    if start.decoded_lsn <= branch.delivered.commit_lsn:
        raise DeadWalMissing(f"it ends at {format_lsn(start.decoded_lsn)}")
    return frozenset(found)


def _groups(builder: GroupBuilder, decoded: DecodedRun) -> list[ChangeGroup]:
    if isinstance(decoded, CommittedRun):
        return list(builder.add_run(decoded))
    if isinstance(decoded, CommittedTransaction):
        return list(builder.add_transaction(decoded))
    return []  # a message, which concerns no table


def _tables_of(group: ChangeGroup) -> set[TableKey]:
    about = ((item.database, relation_of(item)) for item in group.items)
    return {(database, relation.oid) for database, relation in about if relation is not None}


def _is_the_end(_error: InvalidWal) -> None:
    """Ignore invalid bytes: the last segment of a lost server contains them."""
