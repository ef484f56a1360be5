"""A lake that a command writes while no pipeline does, with what decodes the changes of its tables from archived WAL.

It is here because it decodes with `tidemark.runtime` and writes tables of `tidemark.pipeline`.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pyspark_tidemark.earlier_wal import EarlierWal
from tidemark.io.archive.archive import ArchiveFolder
from tidemark.io.host.disk import is_full
from tidemark.io.process.config_loading import load_config
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup, GroupItem, LogicalMessage
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Oid, TimelineId
from tidemark.model.mode import Role
from tidemark.model.position import Epoch
from tidemark.model.relation import Relation
from tidemark.pipeline.driver.capture_place import OpenedCapture, StatePlace
from tidemark.pipeline.failures import first_reason, reports_full_disk
from tidemark.pipeline.lake.layout import shape_of
from tidemark.pipeline.lake.positions.table_position import TablePosition
from tidemark.pipeline.lake.report import OpenedLake
from tidemark.pipeline.lake.tables.table_errors import LakeFull, lake_failure
from tidemark.pipeline.landing.lake_epoch import LakeHold, hold_lake
from tidemark.pipeline.sinks.steps import TableItem
from tidemark.pipeline.source.captured_databases import CapturedDatabases
from tidemark.pipeline.storage.stores import open_lake
from tidemark.runtime.plugins.group_transforms import GroupTransforms
from tidemark.runtime.plugins.plugin_uses import named_options, text_beside, uses_of_running
from tidemark.runtime.plugins.plugins import load_plugins
from tidemark.runtime.replay.offline import check_same_cluster
from tidemark.wire.state.plugin_log import PluginUses

_NO_EPOCH = Epoch(TimelineId(0), 0)  # the rows go to the lake, and not to a consumer


class OtherTransforms(ConfigError):
    """The configuration has other transforms than the daemons, which may mask values."""

    hint = "name the configuration of the daemons with --config, or restart them with this one"


class OtherFilters(ConfigError):
    """The configuration leaves out other changes than the daemons do."""

    hint = OtherTransforms.hint


class OtherSettings(ConfigError):
    """The configuration has other settings for a table of the lake than the pipeline that writes it."""

    hint = (
        "name the configuration of the pipeline with --config; or start the pipeline with this one, and stop it after "
        "its first batch"
    )


@dataclass(frozen=True, slots=True)
class LakePlaces:
    """Where a lake, its capture and its archived WAL are.

    `config`: the configuration of the daemons; None: by default. `spill`: a folder for large transactions.
    """

    state: Path
    archive: Path
    lake: str
    config: Path | None
    reader: str
    spill: Path


@dataclass(frozen=True, slots=True)
class HeldLake:
    """A lake that no pipeline writes meanwhile, and the capture to which it belongs."""

    root: str
    reader: str
    hold: LakeHold
    found: OpenedCapture
    databases: CapturedDatabases
    transforms: GroupTransforms
    wal: EarlierWal

    def items(self, group: ChangeGroup, database: Oid) -> Sequence[TableItem]:
        """Return the items of a group in one database, after the transforms of the configuration."""
        items = self._transformed(group)
        return [item for item in items if not isinstance(item, LogicalMessage) and item.database == database]

    def check_settings(self, table: TablePosition) -> None:
        """Raise `OtherSettings` if the configuration has other settings for a table than its pipeline."""
        own = self.wal.config.lake.settings_of(table.qualified_name).contents
        if table.settings and table.settings != own:
            reason = f"[[lake.tables]] of the configuration has {own}, and the pipeline writes it with {table.settings}"
            raise OtherSettings(f"{table.qualified_name}: {reason}")

    def messages(self, group: ChangeGroup, database: Oid) -> Sequence[LogicalMessage]:
        """Return the logical messages of a group in one database, after the transforms of the configuration."""
        items = self._transformed(group)
        return [item for item in items if isinstance(item, LogicalMessage) and item.database == database]

    def _transformed(self, group: ChangeGroup) -> Sequence[GroupItem]:
        return group.items if self.transforms.plans is None else self.transforms.apply(group).items

    def shapes(self, relation: Relation) -> pa.StructType:
        """Return the live columns of a version in Arrow."""
        return shape_of(relation, self.databases.types)


@contextmanager
def held_lake(at: LakePlaces) -> Iterator[HeldLake]:
    """Open a lake, and keep pipelines from writing it meanwhile.

    Raise `LakeInUse` or `Fenced` if one is running, `NoLake`, `OtherTransforms`, or `ForeignArchive`.
    """
    loaded = load_config(at.config, os.environ)
    open_lake(at.lake, loaded.lake)
    OpenedLake(at.lake)  # NB: before the lock, which is written also where no lake is
    folder = StateFolder(at.state)
    with ExitStack() as stack:
        found = stack.enter_context(StatePlace(folder, loaded.select.selection()).open())
        stack.enter_context(RoleLock.acquire(found.folder, f"pipeline-{at.reader}"))
        hold = hold_lake(at.lake, found.outbox.identity, found.capture.facts(), at.reader, alone=True)
        stack.enter_context(hold)
        with StateStore.open(folder, read_only=True) as store:
            plugins = load_plugins(loaded, "the configuration")
            _check_daemons(plugins.uses, store)
            view = store.view()
        segments = ArchiveFolder(at.archive, of=view.identity.system_identifier)
        check_same_cluster(segments, view.identity.system_identifier)
        wal = EarlierWal(view, folder.history, segments, loaded, at.spill)
        databases = CapturedDatabases(found.outbox)
        transforms = GroupTransforms(plugins.transforms, databases.types, _NO_EPOCH, databases)
        with _translating_errors(at.lake):
            yield HeldLake(at.lake, at.reader, hold, found, databases, transforms, wal)


def _check_daemons(used: PluginUses, store: StateStore) -> None:
    """Raise `OtherTransforms` or `OtherFilters` if the configuration has other transforms or filters than the daemons.

    NB: what a stopped daemon had at its last start may be old, and mask less. A running one has those that are valid;
    if none runs, both must have had them.
    """
    known = store.plugins()
    if known is None:
        return
    running = {role.value: uses for role in Role if (uses := uses_of_running(store, known, role)) is not None}
    for role, uses in (running or known.uses).items():
        if named_options(used.transforms) != named_options(uses.transforms):
            own, theirs = text_beside(used.transforms, uses.transforms), text_beside(uses.transforms, used.transforms)
            raise OtherTransforms(f"the transforms of the configuration ({own}) are not those of the {role} ({theirs})")
        _check_filter(role, "exclude_origins", used.exclude_origins, uses.exclude_origins)
        _check_filter(role, "messages", used.messages, uses.messages)


def _check_filter(role: str, name: str, own: Sequence[str] | None, theirs: Sequence[str] | None) -> None:
    """Raise `OtherFilters` if a filter differs from that of a daemon, which an earlier version has not recorded."""
    if own is None or theirs is None or set(own) == set(theirs):
        return
    mine, other = (", ".join(patterns) or "none" for patterns in (own, theirs))
    raise OtherFilters(f"select.{name} of the configuration ({mine}) is not that of the {role} ({other})")


@contextmanager
def _translating_errors(lake: str) -> Iterator[None]:
    """Translate errors of the system's files: those of the lake come from the writer of its data files."""
    try:
        yield
    except OSError as error:
        reason = f"{lake} cannot be written: {first_reason(str(error))}"
        if is_full(error) or reports_full_disk(str(error)):
            raise LakeFull(
                reason, hint="free space on its disk, and repeat the command: nothing is added twice"
            ) from error
        raise lake_failure(error, reason) from error
