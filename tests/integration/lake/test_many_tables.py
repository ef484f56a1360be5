"""What each further changed table costs in a batch, as calls of the operating system, and what waits for what."""

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.lakes.lakes import IDENTITY, batch
from tests.support.lakes.scripted_table import RELATION, ScriptedTable
from tests.support.processes.python_calls import counted_calls
from tidemark.model.lsn import Oid
from tidemark.model.position import Sequence
from tidemark.pipeline.lake.layout import constants_of, shape_of
from tidemark.pipeline.sinks.lake import Lake
from tidemark.pipeline.sinks.steps import Delivered

FEW, MANY = 2, 10
OPENED_MAX = 8  # a table: the commits of log and replica, and what is synced: two files and two folders of each
SYNCED_MAX = 8
LINKED_MAX = 2
CALLS_MAX = 2600  # of functions, for a table: rows, files, statistics, commits, syncs; 2,480 with CPython 3.11
WAIT_S = 30.0


class FileCalls:
    """Counts the calls of Python that open and link files while it is active; the hook stays for the process."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.is_active = False
        sys.addaudithook(self._record)

    def _record(self, event: str, _args: tuple[object, ...]) -> None:
        if self.is_active and event in ("open", "os.link"):
            self.seen[event] += 1


class ChangingTables:
    """A lake of some tables, each of which gets an update and a new row in a batch."""

    def __init__(self, root: Path, count: int) -> None:
        self._tables = [ScriptedTable(oid=Oid(RELATION + n), name=f"t{n}") for n in range(count)]
        self._reported = [0] * count
        self._sequence = self._batches = 0
        self._lake = Lake(str(root), IDENTITY, shape_of, constants_of)

    def change_all(self) -> None:
        """Write a batch in which each table changes."""
        self._batches += 1
        items: list[Delivered] = []
        for number, table in enumerate(self._tables):
            table.commit(100_000 + 100 * (self._batches * len(self._tables) + number))
            table.insert({1: self._batches, 2: "new", 3: None})
            table.update((1,), {2: f"changed {self._batches}"})
            table.cut()
            for item in table.items[self._reported[number] :]:
                self._sequence += 1
                items.append(Delivered(Sequence(self._sequence), item))
            self._reported[number] = len(table.items)
        self._lake.apply(batch(items))


def test_each_further_changed_table_costs_a_bounded_number_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, synced = FileCalls(), Counter[str]()
    found = {}

    def counted(sync: Callable[[int], None]) -> Callable[[int], None]:
        def counting(descriptor: int) -> None:
            synced["sync"] += 1
            sync(descriptor)

        return counting

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(os, "fdatasync", counted(os.fdatasync))
    for count in (FEW, MANY):
        tables = ChangingTables(tmp_path / str(count), count)
        for _ in range(3):
            tables.change_all()
        calls.seen.clear()
        synced.clear()
        calls.is_active = True
        tables.change_all()
        calls.is_active = False
        found[count] = {**calls.seen, **synced}
    each = {name: (found[MANY][name] - found[FEW][name]) / (MANY - FEW) for name in found[MANY]}
    assert each["open"] <= OPENED_MAX, each
    assert each["sync"] <= SYNCED_MAX, each
    assert each["os.link"] == LINKED_MAX, each


def test_tables_of_a_batch_wait_for_the_disk_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ChangingTables(tmp_path, FEW)
    tables.change_all()
    together, sync, first = threading.Barrier(FEW), os.fdatasync, threading.Semaphore(FEW)

    def waiting(descriptor: int) -> None:
        if first.acquire(blocking=False):
            together.wait(WAIT_S)  # raises if no other table gets here meanwhile
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", waiting)
    tables.change_all()
    assert not together.broken


def test_each_further_changed_table_costs_a_bounded_number_of_computations(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        tables = ChangingTables(tmp_path / str(count), count)
        for _ in range(3):
            tables.change_all()
        with counted_calls() as counted:
            tables.change_all()
        return counted.total

    few, some, many = calls(FEW), calls(MANY), calls(3 * MANY)
    assert (some - few) / (MANY - FEW) <= CALLS_MAX
    assert (many - some) / (2 * MANY) <= CALLS_MAX, "further tables cost more than the first ones"
