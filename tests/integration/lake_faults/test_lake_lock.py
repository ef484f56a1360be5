"""The lock of a lake that cannot be acquired: the error states the reason and the remedy."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tests.support.lakes.lakes import IDENTITY
from tests.support.processes.other_user import acting_as_nobody
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import StateError
from tidemark.pipeline.lake.lake_lock import FILE, LakeLock
from tidemark.pipeline.lake.table_errors import LakeFailed


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user requires root")
def test_a_lake_whose_lock_belongs_to_another_user_names_both_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    with LakeLock.acquire(lake, IDENTITY, tmp_path, "spark", []):
        pass
    lake.chmod(0o777)
    monkeypatch.chdir(lake)  # other users cannot access the folders above
    with (
        acting_as_nobody(),
        pytest.raises(LakeFailed, match=f"{FILE} belongs to the user root and is not writable for nobody") as refusal,
    ):
        LakeLock.acquire(Path(), IDENTITY, tmp_path, "spark", [])
    assert "as one user" in refusal.value.hint


def test_a_file_system_without_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    # NB: no file system that a test can mount refuses locks, so the system call is replaced.
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(LakeFailed, match=f"{tmp_path}/{FILE} cannot be locked: No locks available") as refusal:
        LakeLock.acquire(tmp_path, IDENTITY, tmp_path, "spark", [])
    assert "NFS" in refusal.value.hint
    with pytest.raises(StateError, match="cannot be locked: No locks available") as refused:
        RoleLock.acquire(StateFolder(tmp_path), "sidecar")
    assert "local disk" in refused.value.hint
