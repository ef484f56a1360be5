"""The lock of a lake that cannot be acquired: the error states the reason and the remedy. One beside its holder."""

import errno
import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.lakes.lakes import IDENTITY
from tests.support.processes.other_user import acting_as_nobody
from tests.support.processes.waiting import wait_until
from tidemark.io.host.clock import host_name
from tidemark.io.host.file_locks import read_holder, write_holder
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode, StateError
from tidemark.pipeline.lake import lake_lock
from tidemark.pipeline.lake.lake_lock import FILE, HOLDER, LakeInUse, LakeLock, UnusableLakeFolder, this_pipeline
from tidemark.pipeline.lake.tables.table_errors import LakeFailed
from tidemark.pipeline.landing.lake_epoch import hold_lake
from tidemark.wire.capture_facts import CaptureFacts


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
        pytest.raises(
            UnusableLakeFolder, match=f"{FILE} belongs to the user root and is not writable for nobody"
        ) as refusal,
    ):
        LakeLock.acquire(Path(), IDENTITY, tmp_path, "spark", [])
    assert "as one user" in refusal.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="acting as another user requires root")
def test_a_lake_that_the_user_may_not_create_is_an_error_of_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    with (
        acting_as_nobody(),
        pytest.raises(UnusableLakeFolder, match=r"the lake new cannot be created .*nobody") as refusal,
    ):
        LakeLock.acquire(Path("new"), IDENTITY, tmp_path, "spark", [])
    assert refusal.value.exit_code == ExitCode.CONFIG
    assert "--lake" in refusal.value.hint


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


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pipeline without the lock ask for it often."""
    monkeypatch.setattr(lake_lock, "TAKE_S", 0.01)


def locked(lake: Path, host: str, keys: tuple[str, ...] = ("key",)) -> LakeLock:
    return LakeLock.acquire(lake, IDENTITY, lake / host, "spark", keys)


@pytest.mark.usefixtures("short_waits")
def test_the_pipeline_beside_the_holder_holds_the_lock_after_the_holder_has_ended(tmp_path: Path) -> None:
    facts = CaptureFacts(host_name(), str(tmp_path / "second"), ("key",), awaits_promotion=False)
    first = locked(tmp_path, "first")
    with locked(tmp_path, "second") as survivor:
        assert survivor.beside is not None
        survivor.check()
        first.close()
        wait_until(lambda: survivor.beside is None, "the lock")
        survivor.check()
        named = f"is written by .*state {tmp_path / 'second'}, process {os.getpid()} on "
        with pytest.raises(LakeInUse, match=named):
            hold_lake(str(tmp_path), IDENTITY, facts, "other")
        with pytest.raises(LakeInUse, match=named):
            hold_lake(str(tmp_path), IDENTITY, replace(facts, state=str(tmp_path / "third")), "spark", alone=True)
        with hold_lake(str(tmp_path), IDENTITY, replace(facts, state=str(tmp_path / "third")), "spark") as third:
            assert third.beside is not None
            assert third.beside.state == str(tmp_path / "second")
    with locked(tmp_path, "first", ()) as free:
        assert free.beside is None


def write_text(lake: Path, text: bytes) -> None:
    descriptor = os.open(lake / FILE, os.O_RDWR)
    write_holder(descriptor, text)
    os.close(descriptor)


@pytest.mark.usefixtures("short_waits")
def test_a_pipeline_that_waits_for_the_lock_ends_if_one_that_may_not_write_beside_it_has_taken_it(
    tmp_path: Path,
) -> None:
    def is_refused() -> bool:
        try:
            second.check_idle()
        except LakeInUse as error:
            return f"(state {tmp_path / 'stranger'}, " in str(error)
        return False

    stranger = this_pipeline(IDENTITY, tmp_path / "stranger", "spark", ["another key"], "")
    with locked(tmp_path, "first"), locked(tmp_path, "second") as second:
        write_text(tmp_path, HOLDER.write(stranger))
        wait_until(is_refused, "the refusal")
        with pytest.raises(LakeInUse):
            second.check()


@pytest.mark.usefixtures("short_waits")
def test_a_pipeline_that_waits_for_the_lock_waits_for_the_name_of_a_new_holder(tmp_path: Path) -> None:
    """The text is missing for a moment after another host has taken the lock."""
    reads = list[bytes]()

    def read(descriptor: int) -> bytes:
        reads.append(read_holder(descriptor))
        return reads[-1]

    with pytest.MonkeyPatch.context() as patching, locked(tmp_path, "first"), locked(tmp_path, "second") as second:
        patching.setattr(lake_lock, "read_holder", read)
        write_text(tmp_path, b"")
        wait_until(lambda: reads.count(b"") > 1, "a request while the name is missing")
        second.check()
        third = this_pipeline(IDENTITY, tmp_path / "third", "spark", ["key"], "")
        write_text(tmp_path, HOLDER.write(third))
        wait_until(lambda: second.beside == third, "the new holder")
        second.check()


@pytest.mark.usefixtures("short_waits")
def test_a_pipeline_that_waits_for_the_lock_takes_it_also_after_an_error_of_its_file(tmp_path: Path) -> None:
    failed = list[int]()

    def fail(descriptor: int) -> bytes:
        failed.append(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    first = locked(tmp_path, "first")
    with locked(tmp_path, "second") as second:
        with pytest.MonkeyPatch.context() as patching:
            patching.setattr(lake_lock, "read_holder", fail)
            wait_until(lambda: len(failed) > 1, "another request after an error")
        first.close()
        wait_until(lambda: second.beside is None, "the lock")
