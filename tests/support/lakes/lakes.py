"""A lake in a folder, fed without Spark: from scripted tables, through crashes, by several outboxes in sequence."""

import random
from collections.abc import Sequence
from enum import Enum
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tidemark.io.host.failpoints import arm
from tidemark.io.process.lake_config import DEFAULT_LAKE
from tidemark.io.readers.accepted_breaks import accepted_breaks
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch, LogicalMessage
from tidemark.model.lsn import SystemIdentifier
from tidemark.model.position import NO_SEQUENCE, Position
from tidemark.model.position import Sequence as OutboxSequence
from tidemark.model.relation import Relation
from tidemark.pipeline.iceberg.iceberg_lake import IcebergLake
from tidemark.pipeline.lake.folders import folder_name
from tidemark.pipeline.lake.layout import constants_of, position_of, shape_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.lake_batch import LakeBatch, LakeItem
from tidemark.pipeline.sinks.steps import Delivered, TableItem
from tidemark.wire.state.values import Identity
from tidemark.wire.values import ValueKind

CAPTURE = "test"
STORY_ITEMS = 4  # of a batch
IDENTITY = Identity(CAPTURE, SystemIdentifier(77), "outbox-1", 15, 16 << 20, 16 << 20)


class Crash(BaseException):
    """The equivalent of SIGKILL inside one process: no handler catches it."""


class CrashAt:
    """Raises `Crash` at the nth failpoint, and at every one after it, because all threads are dead then."""

    def __init__(self, nth: int) -> None:
        self.nth = nth
        self.passed: list[Enum] = []

    def __call__(self, point: Enum) -> None:
        self.passed.append(point)
        if 0 < self.nth <= len(self.passed):
            raise Crash(point)


def position_after(item: TableItem | LogicalMessage) -> Position:
    """Return the position of the last change in `item`."""
    return position_of(item.rows, item.rows.num_rows - 1) if isinstance(item, ChangeBatch) else item.position


def batch(items: Sequence[Delivered], outbox: str = "outbox-1") -> LakeBatch:
    """Return a batch of whole groups of `items`."""
    return LakeBatch(outbox, items[-1].sequence, position_after(items[-1].item), [(i.sequence, i.item) for i in items])


def story() -> tuple[ScriptedTable, list[list[Delivered]]]:
    """Return a table, and batches with each kind of commit: a copy, merges, a new column, a rewrite, a TRUNCATE."""
    table = ScriptedTable()
    table.copy(1, [{1: key, 2: "copied", 3: None} for key in range(2)])
    table.commit()
    table.update((1,), {2: "changed"})
    table.commit()
    table.add_column("more")
    table.insert({1: 9, 2: "new", 3: None, 4: "x"})
    table.commit()
    table.rewrite(3, "int8", dict.fromkeys(table.rows, 7))
    table.commit()
    table.truncate()
    table.insert({1: 10, 2: "last", 3: None, 4: None})
    items = table.delivered()
    return table, [items[at : at + STORY_ITEMS] for at in range(0, len(items), STORY_ITEMS)]


class CrashingFeed:
    """Feeds a lake in batches with random crashes; after a crash some earlier values are repeated."""

    config = DEFAULT_LAKE

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.chance = chance
        self.crashes: list[Enum] = []

    def open_lake(self) -> Lake | IcebergLake:
        """Open the lake."""
        return Lake(str(self.root), IDENTITY, shape_of, constants_of, config=self.config)

    def feed(self, items: Sequence[Delivered]) -> None:
        """Write all of `items` into the lake."""
        outbox, numbered, at = "outbox-1", list(items), 0
        while at < len(numbered):
            end = self.chance.randint(at + 1, len(numbered))
            crash = CrashAt(self.chance.choice([1, 2, 3, 4, 5, 6, 8, 0, 0, 0, 0]))
            arm(crash)
            try:
                self.open_lake().apply(batch(numbered[at:end], outbox))
                at = end
            except Crash:
                self.crashes.append(crash.passed[crash.nth - 1])
                arm(None)
                what = self.chance.random()
                if what < 0.3:  # the checkpoint is lost: continue from the positions table
                    applied = self.open_lake().positions.applied.sequence
                    at = next((i for i, d in enumerate(numbered) if d.sequence > applied), len(numbered))
                elif what < 0.5:  # the state is lost: a new outbox continues the sequence, from any earlier position
                    greatest = max(d.sequence for d in numbered)
                    outbox += "+"
                    numbered = [Delivered(OutboxSequence(greatest + 1 + i), d.item) for i, d in enumerate(numbered)]
                    at = self.chance.randint(0, at)
            finally:
                arm(None)


def folder_of(relation: Relation) -> str:
    """Return the folder of a scripted table whose name no other table has."""
    return f"{DATABASE}/{folder_name(relation.namespace)}/{folder_name(relation.name)}"


def replica_rows(root: Path, folder: str) -> list[dict[str, object]]:
    """Return a replica's rows, sorted."""
    return sorted(_read(root / folder / "replica").to_pylist(), key=repr)


def log_rows(root: Path, folder: str) -> list[dict[str, object]]:
    """Return a log's rows in stream order."""
    rows = _read(root / folder / "log").to_pylist()
    return sorted(rows, key=lambda row: (row["_tli"], row["_commit_lsn"], row["_ordinal"]))


def event_rows(root: Path) -> list[dict[str, object]]:
    """Return what a lake records of the events of its tables."""
    rows: list[dict[str, object]] = _read(root / "_events").to_pylist()
    return rows


def feed_by_hand(
    folder: StateFolder, root: Path, name: str, *, confirm: bool = True, end: OutboxSequence | None = None
) -> None:
    """Write the values of a state's outbox, up to `end` or all, into a lake, as the reader `name`; trim nothing."""
    with OutboxReader.open(folder) as reader, StateStore.open(folder) as store:
        registered, head = reader.register(name), reader.head() if end is None else end
        values = list(reader.read(registered.applied, head))
        items: list[LakeItem] = [
            (value.header.sequence, value.item()) for value in values if value.header.kind is not ValueKind.TRANSACTIONS
        ]
        accepted = partial(accepted_breaks, folder.root, name)
        lake = Lake(str(root), store.identity, shape_of, constants_of, accepted=accepted)
        if values:
            newest_us = max(value.header.commit_time_us for value in values)
            lake.apply(LakeBatch(reader.outbox_id, head, values[-1].header.pointer.position, items, newest_us))
        if confirm:
            reader.confirm(name, head, NO_SEQUENCE)


def rows_by_key(root: Path, table: str) -> dict[object, list[object]]:
    """Return a replica's rows by their first column; raise if a key is there twice."""
    (folder,) = root.glob(f"*/public/{table}")
    rows = _read(folder / "replica").to_pylist()
    found = {next(iter(row.values())): list(row.values())[1:] for row in rows}
    assert len(found) == len(rows), "a row is there twice"
    return found


def rows_by_key_so_far(root: Path, table: str) -> dict[object, list[object]]:
    """Return the same of a lake that a pipeline writes now; no rows until the replica has its first commit."""
    there = any(root.glob(f"*/public/{table}/replica/_delta_log/*.json"))
    return rows_by_key(root, table) if there else {}


def _read(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table()
