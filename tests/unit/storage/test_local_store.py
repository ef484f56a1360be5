"""Files of a local lake that disappear while their folder is listed."""

import threading
from pathlib import Path

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
