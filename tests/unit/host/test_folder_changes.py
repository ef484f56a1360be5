"""When a folder is listed again: after a change, and not before earlier listings are a small share of the time."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from tidemark.io.host.folder_changes import CPU_SHARE_MAX, FolderChanges


def test_a_listing_that_takes_long_is_not_repeated_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0, used_s=5.0)
    monkeypatch.setattr(
        "tidemark.io.host.folder_changes.time",
        SimpleNamespace(monotonic=lambda: clock.now_s, thread_time=lambda: clock.used_s, time_ns=lambda: 0),
    )
    changes = FolderChanges(tmp_path)
    assert changes.may_be_new()
    with changes.listing():
        clock.used_s += 0.5
    assert not changes.may_be_new()
    changes.forget()
    clock.now_s += 0.5 / CPU_SHARE_MAX - 0.1
    assert not changes.may_be_new(), "also after a hole, for which the folder is listed again"
    clock.now_s += 0.2
    assert changes.may_be_new()
