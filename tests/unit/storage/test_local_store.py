"""Files of a local lake: those that disappear while their folder is listed, and those that are written."""

import os
import threading
from errno import ENOSPC
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.pipeline.storage.lake_store import ParquetSource
from tidemark.pipeline.storage.local_store import LocalStore

LISTINGS = 300


def test_a_file_that_disappears_during_a_listing_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "0.json").touch()
    staged, is_over = tmp_path / "1.json#token", threading.Event()

    def commit() -> None:  # as the stream does beside maintenance
        while not is_over.is_set():
            staged.touch()
            staged.unlink()

    committing = threading.Thread(target=commit)
    committing.start()
    try:
        for _ in range(LISTINGS):
            assert "0.json" in {file.name for file in LocalStore().files(str(tmp_path))}
    finally:
        is_over.set()
        committing.join()


def test_the_content_of_a_small_parquet_file_is_synced_once_and_that_of_a_large_one_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, sync, store, rows = list[str](), os.fdatasync, LocalStore(), pa.table({"id": [1, 2]})

    def record(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", record)
    paths = [str(tmp_path / name) for name in ("small", "large")]
    for path, is_small in zip(paths, (True, False), strict=True):
        size = store.write_parquet(path, lambda sink: pq.write_table(rows, sink), is_small=is_small)
        assert size == Path(path).stat().st_size
        assert pq.read_table(path) == rows
    assert synced == ["small"]
    store.sync_files(paths)
    assert synced == ["small", "large"]
    store.sync_files(paths)
    assert sorted(synced[2:]) == ["large", "small"], "another program may have written them since"


@pytest.mark.parametrize("is_small", [True, False])
def test_a_parquet_file_that_cannot_be_written_is_not_left(tmp_path: Path, is_small: bool) -> None:  # noqa: FBT001
    def fail(sink: ParquetSource) -> None:
        del sink
        raise OSError(ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        LocalStore().write_parquet(str(tmp_path / "file"), fail, is_small=is_small)
    assert not list(tmp_path.iterdir())


def test_a_replaced_file_has_the_new_content_and_leaves_no_other_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"first", b"second"):
        LocalStore().replace(str(path), content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
