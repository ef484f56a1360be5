"""Merges that are divided into tasks leave the rows of the source, however keys, files and parts are cut.

The oracle is the dict of a scripted table. Each task runs by itself, with nothing but what it gets on an executor.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.lakes.scripted_table import DATABASE, ScriptedTable
from tests.support.lakes.writers_here import WritersHere
from tidemark.model.change import ChangeBatch
from tidemark.model.position import Sequence
from tidemark.model.relation import ReplicaIdentity
from tidemark.pipeline.delta_log.applied import NOTHING
from tidemark.pipeline.lake.deletion_marks import DELETED, MARKS, not_deleted
from tidemark.pipeline.lake.layout import lake_columns, position_of, replica_schema, shape_of
from tidemark.pipeline.lake.row_identity import row_identity
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge import data_files, merge_tasks
from tidemark.pipeline.merge.compaction import changed_keys
from tidemark.pipeline.merge.merge_tasks import divided_merge
from tidemark.pipeline.merge.merging import append_rows
from tidemark.pipeline.merge.touched_files import KeyedFiles, keyed_files
from tidemark.pipeline.sinks.executors.packed_runs import PackedRuns
from tidemark.pipeline.sinks.steps import PackedRun

APP = "tidemark:test:replica"
KEY = ("id",)
FILE_ROWS, TASK_KEYS = 4, 3
KEYS = st.integers(0, 11)
NOTES = st.sampled_from(["a", "b"])  # a partition each
Action = tuple[str, int, int, str, bool, bool]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_ROWS_MIN", FILE_ROWS)
    monkeypatch.setattr(data_files, "FILE_ROWS_MAX", FILE_ROWS)
    monkeypatch.setattr(merge_tasks, "TASK_KEYS", TASK_KEYS)


def act(table: ScriptedTable, script: Iterable[Action]) -> None:
    """Change the table; a change with a true last value ends a part of the run."""
    for step, (action, key, other, note, keeps, cuts) in enumerate(script):
        if action == "i" and (key,) not in table.rows:
            table.insert({1: key, 2: note, 3: f"big {step}"})
        elif (key,) not in table.rows:
            continue
        elif action == "d":
            table.delete((key,))
        elif action == "u":
            table.update((key,), {2: note} if keeps else {2: note, 3: f"big {step}"}, (3,) if keeps else ())
        elif action == "m" and (other,) not in table.rows:
            table.update((key,), {1: other, 2: note}, (3,) if keeps else ())
        if cuts:
            table.cut()
    table.cut()


SCRIPTS = st.lists(
    st.tuples(st.sampled_from("iudmm"), KEYS, KEYS, NOTES, st.booleans(), st.booleans()), min_size=10, max_size=40
)
PRESENT = st.lists(st.lists(KEYS, max_size=10), max_size=5)


class CutReplica:
    """A replica in small files, whose ranges may overlap, and the table at the source."""

    def __init__(
        self, uri: str, present: Iterable[Iterable[int]], identity: ReplicaIdentity, *, marks: bool, parts: bool
    ) -> None:
        self.table = ScriptedTable(identity=identity)
        schema = replica_schema(self.table.relation, shape_of(self.table.relation))
        self.lake_table = LakeTable(uri, APP)
        self.lake_table.create(
            pa.schema([*schema, *MARKS]) if marks else schema, NOTHING, partition=("note",) if parts else ()
        )
        for keys in present:
            new = [key for key in dict.fromkeys(keys) if (key,) not in self.table.rows]
            rows: list[dict[int, int | str | float | None]] = [
                {1: key, 2: "ab"[key % 2], 3: f"big {key}"} for key in new
            ]
            self.table.rows.update({(key,): dict(row) for key, row in zip(new, rows, strict=True)})
            columns = [pa.array([row[number] for row in rows], schema.field(number - 1).type) for number in (1, 2, 3)]
            given_rows = pa.table(columns, schema=schema)
            append_rows(self.lake_table, not_deleted(given_rows) if marks else given_rows, KEY, NOTHING)

    def run(self) -> PackedRun | None:
        items = [item for item in self.table.items if isinstance(item, ChangeBatch)]
        if not items:
            return None
        last = items[-1].rows
        numbered = [(Sequence(number), item) for number, item in enumerate(items, 1)]
        return PackedRun(self.table.relation, numbered, position_of(last, last.num_rows - 1))

    def rows(self) -> list[tuple[object, ...]]:
        found = self.lake_table.scan().read_all().to_pylist()
        return sorted((row["id"], row["note"], row["big"]) for row in found if not row.get(DELETED))

    def expected(self) -> list[tuple[object, ...]]:
        return sorted((row[1], row[2], row[3]) for row in self.table.rows.values())


@pytest.mark.feature("L06")
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    present=PRESENT,
    script=SCRIPTS,
    identity=st.sampled_from([ReplicaIdentity.DEFAULT, ReplicaIdentity.FULL]),
    marks=st.booleans(),
    parts=st.booleans(),
)
def test_a_merge_in_tasks_leaves_the_rows_of_the_source(
    present: list[list[int]], script: list[Action], identity: ReplicaIdentity, *, marks: bool, parts: bool
) -> None:
    with TemporaryDirectory() as folder:
        replica = CutReplica(folder, present, identity, marks=marks, parts=parts)
        act(replica.table, script)
        if replica.run() is not None:
            assert merge(replica, marks=marks)
            assert replica.rows() == replica.expected()


def merge(replica: CutReplica, *, marks: bool) -> int:
    """Merge the changes of the source, and return in how many tasks."""
    run, writers = replica.run(), WritersHere()
    assert run is not None
    writers.expect_merge(replica.lake_table.uri)
    found = row_identity(run.relation)
    assert found is not None
    packed = PackedRuns(writers, (DATABASE, run.relation.oid), keeps_deleted=marks)
    assert packed.write(replica.lake_table, run, found)
    applied = replace(NOTHING, sequence=run.sequence, position=run.last)
    assert LakeTable(replica.lake_table.uri, APP).applied == applied
    (tasks,) = writers.merged
    return tasks


FILES = [[0, 1, 2, 3], [20, 21, 22, 23]]
FILLING: list[Action] = [("u", key, 0, "a", True, False) for key in (0, 2, 3)]  # a task for each file


def value(key: int, *, cuts: bool = False) -> Action:
    """Return an update of the value of a row."""
    return "u", key, 0, "b", False, cuts


def move(key: int, other: int, *, cuts: bool = False) -> Action:
    """Return a change of the key of a row, with its value unchanged."""
    return "m", key, other, "b", True, cuts


@pytest.mark.parametrize("marks", [False, True], ids=["deleted", "marked"])
@pytest.mark.parametrize(
    "script",
    [
        [move(1, 25)],
        [value(1), move(1, 25)],
        [value(1, cuts=True), move(1, 25)],
        [value(1), move(1, 25), move(25, 10), move(10, 26)],
        [("i", 10, 0, "a", False, False), move(10, 25)],
        [value(1), move(1, 25), move(20, 1), move(25, 20)],
        [move(1, 25), move(25, 1)],
    ],
    ids=[
        "of the replica",
        "of the run",
        "of another part",
        "twice",
        "of a new row",
        "of rows that change places",
        "back",
    ],
)
def test_a_row_that_moves_to_another_task_keeps_its_unchanged_value(
    tmp_path: Path, script: list[Action], *, marks: bool
) -> None:
    replica = CutReplica(str(tmp_path), FILES, ReplicaIdentity.DEFAULT, marks=marks, parts=False)
    act(replica.table, [*FILLING, *script])
    assert merge(replica, marks=marks) > 1
    assert replica.rows() == replica.expected()


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(present=PRESENT, script=SCRIPTS)
def test_each_file_and_each_key_belong_to_one_task_within_the_bounds(
    present: list[list[int]], script: list[Action]
) -> None:
    with TemporaryDirectory() as folder:
        replica = CutReplica(folder, present, ReplicaIdentity.DEFAULT, marks=False, parts=False)
        act(replica.table, script)
        run = replica.run()
        if run is None:
            return
        columns = lake_columns(run.relation)
        keys = [changed_keys(pa.Table.from_batches([batch.rows]), columns, KEY) for _, batch in run.batches]
        files = keyed_files(replica.lake_table, KEY)
        tasks = divided_merge(files, keys).tasks
        assert sorted(np.concatenate([task.files for task in tasks]).tolist()) == list(range(len(files.files)))
        every = {row["id"] for part in keys for row in part.keys.to_pylist()}
        if any(part.moves for part in keys):
            own = [key for task in tasks if task.own is not None for key in task.own.column("id").to_pylist()]
            assert sorted(own) == sorted(every)
            assert all(task.own is not None for task in tasks)
        assert {part for task in tasks for part in task.rows} == set(range(len(keys)))
        in_files = {file: set(_keys_in(files, file)) for file in range(len(files.files))}
        for task in tasks if all(task.own is not None for task in tasks) else ():
            assert task.own is not None
            mine = set(task.own.column("id").to_pylist())
            elsewhere = {key for file, there in in_files.items() if file not in task.files for key in there}
            assert not mine & elsewhere, "a key is in a file of another task"
            touched = [file for file in task.files if mine & in_files[int(file)]]
            assert len(mine) <= TASK_KEYS or len(touched) <= 1 or len(mine) <= TASK_KEYS + FILE_ROWS


def _keys_in(files: KeyedFiles, file: int) -> list[int]:
    found: list[int] = files.reader.columns(files.files[file], list(KEY)).column("id").to_pylist()
    return found
