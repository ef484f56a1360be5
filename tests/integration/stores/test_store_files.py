"""The files of a store: large ones are read in parts, and a folder is moved once, however often that is interrupted."""

import dataclasses
from collections import Counter
from errno import EFBIG
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.lakes.scripted_table import ScriptedTable
from tests.support.lakes.stored_lake import FOLDER, StoredLake, changes
from tests.support.servers.object_store import ENVIRONMENT, QUICK, Answer, Forward, StoreRequest, refusal
from tidemark.pipeline.storage.lake_store import PIECE_BYTES, READ_BYTES_MAX
from tidemark.pipeline.storage.local_store import LocalStore
from tidemark.pipeline.storage.object_store import UNFINISHED
from tidemark.pipeline.storage.store_errors import StoreUnavailable
from tidemark.pipeline.storage.stores import open_lake, store_of

ROWS = 40_000
COPIES = 3  # of the files of a folder, before the store fails


def test_a_file_that_is_too_large_to_be_read_as_a_whole_is_refused_with_its_size(
    stored: StoredLake, tmp_path: Path
) -> None:
    open_lake(stored.root, stored.server.config, ENVIRONMENT, dataclasses.replace(QUICK, read_bytes_max=9))
    store, path, local = store_of(stored.root), f"{stored.root}/file", tmp_path / "file"
    for content in (b"123456789", b"1234567890"):
        store.write_parquet(path, lambda sink, content=content: sink.write(content))  # type: ignore[misc]
        if len(content) <= 9:
            assert store.read(path) == content
    with pytest.raises(OSError, match="the file has 10 bytes, and at most 9 are read as a whole") as refused:
        store.read(path)
    with local.open("wb") as file:
        file.truncate(READ_BYTES_MAX + 1)
    with pytest.raises(OSError, match=f"at most {READ_BYTES_MAX} are read as a whole") as also:
        LocalStore().read(str(local))
    assert [(one.value.errno, one.value.filename) for one in (refused, also)] == [(EFBIG, path), (EFBIG, str(local))]


def test_an_object_without_an_etag_exists(stored: StoredLake) -> None:
    def without_etag(_request: StoreRequest, forward: Forward) -> Answer:
        answer = forward()
        kept = [(name, value) for name, value in answer.headers if name.lower() != "etag"]
        return dataclasses.replace(answer, headers=kept)

    store, path = store_of(stored.root), f"{stored.root}/file"
    assert not store.exists(path)
    store.replace(path, b"content")
    with stored.server.failing(without_etag):
        assert store.stamp(path) == ()
        assert store.exists(path)
        assert not store.exists(f"{path}.other")


def test_a_large_file_is_checked_in_pieces(stored: StoredLake) -> None:
    store, path, content = store_of(stored.root), f"{stored.root}/file", bytes(range(256)) * (4 * PIECE_BYTES // 256)
    store.write_parquet(path, lambda sink: sink.write(content))  # type: ignore[union-attr]
    pieces = list(store.pieces(path))
    assert b"".join(pieces) == content
    assert max(map(len, pieces)) < 2 * PIECE_BYTES
    store.delete([path])
    with pytest.raises(FileNotFoundError):
        list(store.pieces(path))


def test_of_a_large_parquet_file_only_the_wanted_parts_are_read(stored: StoredLake) -> None:
    open_lake(stored.root, stored.server.config, ENVIRONMENT, dataclasses.replace(QUICK, parquet_bytes_max=1000))
    store, path = store_of(stored.root), f"{stored.root}/file.parquet"
    rows = pa.table({"a": range(ROWS), "b": [f"value {n}" for n in range(ROWS)]})
    size = store.write_parquet(path, lambda sink: pq.write_table(rows, sink, row_group_size=ROWS // 4))
    read = Counter[str]()

    def counted(request: StoreRequest, forward: Forward) -> Answer:
        answer = forward()
        read[request.method] += len(answer.body)
        return answer

    source = store.parquet_source(path)  # it does not read the rest of the answer that has the size
    with stored.server.failing(counted), pq.ParquetFile(source) as file:
        assert file.read_row_group(2, ["a"]) == rows.select(["a"]).slice(ROWS // 2, ROWS // 4)
        part = read["GET"]
        assert file.read() == rows
    assert part < size / 4, (part, size)
    store.delete([path])
    with pytest.raises(FileNotFoundError):
        store.parquet_source(path)


@pytest.mark.feature("L07")
def test_a_store_that_finds_no_place_for_an_object_is_waited_for(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    stored.feed(changes(table, 1), lake)
    items = changes(table, 2)

    def not_found(request: StoreRequest, forward: Forward) -> Answer:
        return Answer(404, [], b"") if request.method == "PUT" else forward()

    with stored.server.failing(not_found):
        for opened in (lake, None):
            with pytest.raises(StoreUnavailable, match="the store does not answer as it should"):
                stored.feed(items, opened)
    stored.feed(items, lake)
    stored.check(table)


@pytest.mark.feature("L07")
def test_a_damaged_replica_is_set_aside_once_however_the_store_interrupts_that(stored: StoredLake) -> None:
    table, lake = ScriptedTable(), stored.opened()
    for key in range(4):
        stored.feed(changes(table, key), lake)
    store, folder = store_of(stored.root), f"{stored.root}/{FOLDER}"
    store.delete(stored.delta(f"{FOLDER}/replica").file_uris())
    begun = len(table.items)
    table.commit()
    table.update((3,), {2: "again"})
    table.cut()
    lake = stored.feed(table.delivered()[begun:])
    begun = len(table.items)
    table.commit()
    table.copy(1, list(table.rows.values()))
    table.commit()
    items, started, copied = table.delivered()[begun:], list[str](), list[str]()

    def fail_later(request: StoreRequest, forward: Forward) -> Answer:
        if request.method == "PUT" and "/replica.diverged-" in request.key and UNFINISHED not in request.key:
            started.append(request.key)
            if len(started) > COPIES:
                return refusal(503, "SlowDown")
            copied.append(request.key)
        return forward()

    with stored.server.failing(fail_later), pytest.raises(StoreUnavailable):
        stored.feed(items, lake)
    assert store.is_unfinished_move(f"{folder}/replica", f"{folder}/replica.diverged-1")
    started, first = [], set(copied)
    stored.server.requests.clear()
    stored.feed(items)
    puts = [request.key for request in stored.server.requests if request.method == "PUT"]
    assert first
    assert first.isdisjoint(puts)
    assert not store.is_unfinished_move(f"{folder}/replica", f"{folder}/replica.diverged-1")
    assert [name for name in store.folders(folder) if "diverged" in name] == ["replica.diverged-1"]
    assert stored.delta(f"{FOLDER}/replica.diverged-1").version() == 4
    stored.check(table)


def test_a_folder_is_not_moved_into_the_unfinished_copy_of_another_one(stored: StoredLake) -> None:
    store = store_of(stored.root)
    source, to = f"{stored.root}/a", f"{stored.root}/b"
    for path, content in ((f"{source}/1", b"one"), (f"{to}/1", b"two"), (f"{to}/{UNFINISHED}", b"")):
        with store.staged(path, content, 0) as publish:
            publish(path)
    assert not store.is_unfinished_move(source, to)
    store.move(source, f"{stored.root}/c")
    assert store.read(f"{stored.root}/c/1") == b"one"
    assert store.files(f"{stored.root}/c")[0].name == "1"
