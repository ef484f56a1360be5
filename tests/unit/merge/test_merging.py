"""Merges into a replica: which files are written again, how many files there are, and what a kill leaves."""

import base64
import json
import os
import random
import struct
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, WriterProperties, write_deltalake
from deltalake.transaction import AddAction

from tests.support.lakes.lakes import Crash, CrashAt
from tidemark.io.host.failpoints import arm
from tidemark.model.position import Sequence
from tidemark.pipeline.delta_log.applied import NOTHING, Applied
from tidemark.pipeline.delta_log.unused_files import delete_unused_files
from tidemark.pipeline.lake.tables.lake_table import LakeTable
from tidemark.pipeline.merge import clustering, data_files, merging
from tidemark.pipeline.merge.clustering import DEPTH_MAX, recluster
from tidemark.pipeline.merge.compaction import Compacted
from tidemark.pipeline.merge.data_files import FILE_ROWS_MAX, FILE_ROWS_MIN, FILES_WANTED, file_rows
from tidemark.pipeline.merge.merging import append_rows, merge_rows, rows_of
from tidemark.pipeline.merge.touched_files import keyed_files

APP = "tidemark:test:replica"
KEY = ("id",)
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
ROWS_MAX = 8
HOUR_S = 3600


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_ROWS_MIN", ROWS_MAX)
    monkeypatch.setattr(data_files, "FILE_ROWS_MAX", ROWS_MAX)


class NotesReplica:
    """A replica of notes by number, in files of at most eight rows."""

    def __init__(self, root: Path, rows: Iterable[int] = ()) -> None:
        self.uri = str(root)
        self.notes: dict[int, str] = {}
        self._changes = 0
        LakeTable(self.uri, APP).create(SCHEMA, NOTHING)
        self.insert(rows)

    def insert(self, keys: Iterable[int]) -> None:
        rows = dict.fromkeys(keys, "new")
        self.notes |= rows
        table = self._opened()
        append_rows(table, _rows(rows), KEY, self._next(table))

    def change(self, puts: Iterable[int], removed: Iterable[int] = ()) -> None:
        self._changes += 1
        rows, gone = dict.fromkeys(puts, f"change {self._changes}"), list(removed)
        table = self._opened()
        keys = pa.table({"id": pa.array(gone, pa.int64())})
        merge_rows(table, Compacted(_rows(rows), keys, {}, only_new=False), KEY, self._next(table))
        self.notes |= rows
        for key in gone:
            self.notes.pop(key, None)

    def maintain(self) -> int:
        table = self._opened()
        made = recluster(table, KEY, Lock())
        return table.version if made is None else made.version

    def _opened(self) -> LakeTable:
        return LakeTable(self.uri, APP)

    def _next(self, table: LakeTable) -> Applied:
        return replace(table.applied, sequence=Sequence(table.applied.sequence + 1))

    @property
    def files(self) -> dict[str, tuple[int, int, int]]:
        """Return rows, least and greatest key of each file."""
        added = pa.table(DeltaTable(self.uri).get_add_actions()).to_pylist()
        return {file["path"]: (file["num_records"], file["min"]["id"], file["max"]["id"]) for file in added}

    def check(self) -> None:
        rows = self._opened().scan().read_all().to_pylist()
        assert {row["id"]: row["note"] for row in rows} == self.notes
        assert len(rows) == len(self.notes)


def _rows(notes: dict[int, str]) -> pa.Table:
    return pa.table([list(notes), list(notes.values())], schema=SCHEMA)


@pytest.mark.feature("L09")
def test_a_file_without_a_changed_row_is_not_written_again(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(0, 64, 2))
    before = replica.files
    assert sorted(before.values()) == [(8, 0, 14), (8, 16, 30), (8, 32, 46), (8, 48, 62)]
    replica.change([18], removed=[40, 41, 1])  # 41 and 1 do not exist
    left = {path for path, (_, least, _) in before.items() if least in (0, 48)}
    assert replica.files.keys() & before.keys() == left
    assert sorted(replica.files.values()) == [(7, 32, 46), (8, 0, 14), (8, 16, 30), (8, 48, 62)]
    replica.check()


@pytest.mark.parametrize("key", ["\U00020000", "\U0002f800", "\U000a0000", "\U0010ffff"], ids=ascii)
def test_a_key_beyond_the_first_two_planes_is_found_again(tmp_path: Path, key: str) -> None:
    schema = pa.schema([("\U00020001", pa.string()), ("number", pa.int64())])
    table = LakeTable(str(tmp_path), APP)
    table.create(schema, NOTHING)
    for number in range(3):
        rows = pa.table([[key], [number]], schema=schema)
        compacted = Compacted(rows, rows.select([0]).slice(0, 0), {}, only_new=False)
        merge_rows(table, compacted, schema.names[:1], table.applied)
    assert table.scan().read_all().column("number").to_pylist() == [2]
    (added,) = pa.table(DeltaTable(str(tmp_path)).get_add_actions()).to_pylist()
    assert added["min"][schema.names[0]] == added["max"][schema.names[0]] == key


def test_an_empty_change_makes_a_commit_without_files(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(8))
    before, version = replica.files, DeltaTable(replica.uri).version()
    replica.change([], removed=[100])
    assert replica.files == before
    assert DeltaTable(replica.uri).version() == version + 1
    replica.check()


def test_new_rows_are_added_to_a_file_that_is_rewritten_for_other_rows(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(0, 32, 2))
    replica.change([4, 5], removed=[6])
    assert sorted(replica.files.values()) == [(8, 0, 14), (8, 16, 30)]
    replica.check()


def test_rows_at_the_end_of_the_table_fill_its_last_file(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(8))
    for key in range(8, 40):
        replica.change([key])
    assert sorted(replica.files.values()) == [(8, first, first + 7) for first in range(0, 40, 8)]
    replica.check()


def test_rows_at_the_end_of_a_table_of_one_file_fill_it(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(5))
    replica.change([5])
    assert sorted(replica.files.values()) == [(6, 0, 5)]


@pytest.mark.feature("L09")
@pytest.mark.parametrize("changed", range(8))
def test_a_file_that_is_read_in_pieces_gets_each_change_and_each_new_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: int
) -> None:
    monkeypatch.setattr(data_files, "PIECE_BYTES", 1)
    replica = NotesReplica(tmp_path)
    replica.notes = dict.fromkeys(range(0, 16, 2), "new")
    groups = WriterProperties(max_row_group_size=2)
    write_deltalake(replica.uri, _rows(replica.notes), mode="append", writer_properties=groups)
    replica.change([2 * changed, 2 * changed + 1], removed=[(2 * changed + 6) % 16])
    replica.check()


def test_a_new_row_is_added_to_a_file_without_rows(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path)
    pq.ParquetWriter(tmp_path / "empty.parquet", SCHEMA).close()
    size = (tmp_path / "empty.parquet").stat().st_size
    empty = AddAction("empty.parquet", size, {}, 0, False, '{"numRecords":0}')
    table = DeltaTable(replica.uri)
    table.create_write_transaction([empty], "append", table.schema())
    replica.change([1])
    replica.check()


def test_a_new_row_inside_the_range_of_a_file_is_added_only_to_a_small_file(tmp_path: Path) -> None:
    half_full, small = NotesReplica(tmp_path / "half", range(0, 8, 2)), NotesReplica(tmp_path / "small", range(0, 6, 2))
    half_full.change([3])
    assert sorted(half_full.files.values()) == [(1, 3, 3), (4, 0, 6)]
    small.change([3])
    assert sorted(small.files.values()) == [(4, 0, 4)]


def test_a_new_row_is_added_to_the_nearest_of_several_small_files(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path)
    for keys in ((0, 1), (10, 12), (20, 21)):
        replica.insert(keys)
    replica.change([11])
    assert sorted(replica.files.values()) == [(2, 0, 1), (2, 20, 21), (3, 10, 12)]


def test_touched_neighbours_are_combined_up_to_the_bounds_of_rows_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_rows, by_bytes = NotesReplica(tmp_path / "rows"), NotesReplica(tmp_path / "bytes")
    for replica in (by_rows, by_bytes):
        for first in (0, 4, 8):
            replica.insert(range(first, first + 4))
    by_rows.change([0, 4, 8])
    assert sorted(by_rows.files.values()) == [(4, 8, 11), (8, 0, 7)]
    monkeypatch.setattr(merging, "FILE_BYTES", 1)
    by_bytes.change([0, 4, 8])
    assert sorted(by_bytes.files.values()) == [(4, 0, 3), (4, 4, 7), (4, 8, 11)]


def test_columns_of_the_key_are_read_once(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(3))
    found = rows_of(keyed_files(LakeTable(replica.uri, APP), KEY), [(1,), (7,)], ["id", "note"])
    assert found == {(1,): {"id": 1, "note": "new"}}


def test_the_rows_of_a_file_depend_on_the_rows_of_the_table_after_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("FILES_WANTED", 1), ("FILE_ROWS_MIN", 1), ("FILE_ROWS_MAX", 64)):
        monkeypatch.setattr(data_files, name, value)
    replica = NotesReplica(tmp_path, range(16))
    assert sorted(replica.files.values()) == [(16, 0, 15)]
    replica.change(range(16, 32))
    assert sorted(replica.files.values()) == [(32, 0, 31)]
    replica.check()


def test_small_batches_of_new_rows_do_not_leave_a_file_each(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(0, 800, 10))
    keys = [key for key in range(800) if key % 10]
    random.Random(1).shuffle(keys)
    for key in keys[:60]:
        replica.change([key])
    assert len(replica.files) <= 10 + 60 // (ROWS_MAX // 2) + 1
    replica.check()


def test_small_neighbours_that_are_touched_together_become_one_file(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path)
    for first in (0, 2, 4, 20, 40):
        replica.insert([first, first + 1])
    replica.change([0, 2, 4, 40])  # the file of 20 is between the last two
    assert sorted(replica.files.values()) == [(2, 20, 21), (2, 40, 41), (6, 0, 5)]
    replica.check()


@pytest.mark.feature("L09")
def test_maintenance_combines_small_neighbours_in_a_commit_that_changes_no_row_and_no_position(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path)
    for key in range(40):
        replica.insert([key])
    applied = LakeTable(replica.uri, APP).applied
    version = replica.maintain()
    assert sorted(replica.files.values()) == [(8, first, first + 7) for first in range(0, 40, 8)]
    log = Path(replica.uri) / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    assert {one[kind]["dataChange"] for one in actions for kind in ("add", "remove") if kind in one} == {False}
    table = LakeTable(replica.uri, APP)
    assert table.applied == applied
    assert not any("txn" in action for action in actions)
    assert replica.maintain() == version, "there is nothing left to do, so no commit is made"
    replica.check()


@pytest.mark.feature("L09")
def test_maintenance_sorts_overlapping_files_until_few_contain_a_key_between_their_bounds(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path)
    numbers = random.Random(2).sample(range(100_000), 160)
    for begin in range(0, 160, 4):
        replica.insert(numbers[begin : begin + 4])
    assert deepest(replica) > 20
    replica.maintain()
    assert deepest(replica) <= DEPTH_MAX
    assert len(replica.files) <= 2 * 160 / ROWS_MAX
    replica.check()


def test_a_call_of_maintenance_is_bounded_and_the_next_one_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clustering, "WORK_ROWS", 40)
    replica = NotesReplica(tmp_path)
    numbers = random.Random(3).sample(range(100_000), 120)
    for begin in range(0, 120, 4):
        replica.insert(numbers[begin : begin + 4])
    depths, version = [deepest(replica)], -1
    for _ in range(100):
        before = replica.files
        made = replica.maintain()
        assert sum(rows for path, (rows, *_) in before.items() if path not in replica.files) <= 40
        depths.append(deepest(replica))
        if made == version:
            break
        version = made
    assert all(later <= earlier for earlier, later in pairwise(depths))
    assert depths[-1] <= DEPTH_MAX
    replica.check()


def deepest(replica: NotesReplica) -> int:
    """Return the greatest number of files between whose bounds one key is."""
    spans = [(least, most) for _, least, most in replica.files.values()]
    return max(sum(least <= point <= most for least, most in spans) for point, _ in spans)


def test_the_rows_of_a_file_grow_with_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert file_rows(0) == file_rows(FILE_ROWS_MIN * FILES_WANTED) == FILE_ROWS_MIN
    assert file_rows(FILE_ROWS_MIN * FILES_WANTED + 1) == 2 * FILE_ROWS_MIN
    assert file_rows(10**10) == FILE_ROWS_MAX


def test_wide_rows_are_bounded_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "FILE_BYTES", 100)
    replica = NotesReplica(tmp_path, range(8))
    assert max(rows for rows, *_ in replica.files.values()) < ROWS_MAX
    replica.check()


@pytest.mark.feature("L09")
@pytest.mark.parametrize(
    "act", [lambda replica: replica.change([3, 99]), NotesReplica.maintain], ids=["merge", "maintenance"]
)
def test_a_kill_between_files_and_commit_leaves_only_files_that_maintenance_deletes(
    tmp_path: Path, act: object
) -> None:
    assert callable(act)
    replica = NotesReplica(tmp_path)
    for key in range(6):
        replica.insert([key])
    before, files, notes = replica.files, set(tmp_path.glob("*.parquet")), dict(replica.notes)
    arm(CrashAt(1))
    try:
        with pytest.raises(Crash):
            act(replica)
    finally:
        arm(None)
    replica.notes = notes
    assert replica.files == before
    orphans = set(tmp_path.glob("*.parquet")) - files
    assert orphans
    replica.check()
    for path in orphans:
        os.utime(path, (0, 0))
    delete_unused_files(replica.uri, 1, DeltaTable(replica.uri).version(), len(orphans), Lock())
    assert set(tmp_path.glob("*.parquet")) == files
    replica.check()


def test_a_deletion_vector_that_remains_after_its_property_is_applied(tmp_path: Path) -> None:
    replica = NotesReplica(tmp_path, range(4))
    (name,) = replica.files
    delete_by_vector(tmp_path, name, [1, 2])
    replica.notes = {0: "new", 3: "new"}
    replica.change([3])
    assert not any(batch.num_rows for batch in DeltaTable(replica.uri).deletion_vectors())
    replica.check()


def delete_by_vector(root: Path, name: str, rows: list[int]) -> None:
    """Commit a deletion vector in the log itself, as Spark writes it: a roaring bitmap of one array container."""
    bitmap = struct.pack("<II", 12346, 1) + struct.pack("<HHI", 0, len(rows) - 1, 16)
    bitmap += b"".join(struct.pack("<H", row) for row in rows)
    content = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    content += b"\0" * (-len(content) % 4)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": z85(content),
        "sizeInBytes": len(content),
        "cardinality": len(rows),
    }
    size = (root / name).stat().st_size
    stats = json.dumps({"numRecords": pq.read_metadata(root / name).num_rows})
    add = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True, "stats": stats}
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    actions = [
        {"commitInfo": {"operation": "DELETE"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **features}},
        {"remove": {"path": name, "deletionTimestamp": 0, "dataChange": True}},
        {"add": {**add, "deletionVector": vector}},
    ]
    version = DeltaTable(str(root)).version() + 1
    text = "\n".join(map(json.dumps, actions))
    (root / "_delta_log" / f"{version:020}.json").write_text(text)


def z85(content: bytes) -> str:
    """Encode bytes by ZeroMQ's base 85, which differs from Python's in its alphabet."""
    ours = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    theirs = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    return base64.b85encode(content).decode("ascii").translate(str.maketrans(theirs, ours))
