"""The folder of a replay's result: it is there if it is complete, and nothing else is left whatever ends the replay."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tidemark_ctl.termination import TERMINATED

from tests.integration.replay.test_replay import copied_table, new_lake, replayed
from tests.support.lakes.lakes import batch
from tests.support.lakes.scripted_table import ScriptedTable
from tests.support.processes.cdcctl import cdcctl, command, environment
from tests.support.processes.ending import ended
from tests.support.processes.waiting import wait_until
from tests.support.servers.small_disk import needs_mount, read_only, small_disk
from tidemark.io.host.file_locks import lock_file
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, format_lsn
from tidemark.pipeline.replay.refusal import ResultNotWritten, TargetExists, TargetInUse
from tidemark.pipeline.replay.result_folder import LOCK, publish, unfinished_result

pytestmark = pytest.mark.feature("N17")
INTERRUPTED = 130
STEPS = 80  # commits of a result: some seconds
DISK_BYTES = 1 << 20


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake of a table with three commits, the last one at the LSN 1300."""
    new_lake(tmp_path / "lake").apply(batch(copied_table().delivered()))
    return tmp_path / "lake"


def at(lsn: int) -> str:
    return format_lsn(Lsn(lsn))


def test_what_a_killed_replay_left_is_removed_by_the_next_one(lake: Path, tmp_path: Path) -> None:
    left = tmp_path / ".to.unfinished"
    (left / "replica" / "_delta_log").mkdir(parents=True)
    (left / "replica" / "_delta_log" / f"{0:020d}.json").write_text("left")
    assert len(replayed(lake, 1300, tmp_path / "to")) == 1
    assert not left.exists()


def test_a_replay_beside_another_one_to_the_same_folder_is_refused_and_does_not_disturb_it(
    lake: Path, tmp_path: Path
) -> None:
    with unfinished_result(tmp_path / "to") as folder:
        (folder / "replica").mkdir()
        with pytest.raises(TargetInUse, match="another replay writes"):
            replayed(lake, 1300, tmp_path / "to")
        assert (folder / "replica").exists()
    assert len(replayed(lake, 1300, tmp_path / "to")) == 1


def test_a_lock_on_a_folder_that_was_removed_meanwhile_is_none(tmp_path: Path) -> None:
    def removing(descriptor: int) -> None:
        (tmp_path / ".to.unfinished" / LOCK).unlink()
        lock_file(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tidemark.pipeline.replay.result_folder.lock_file", removing)
        with pytest.raises(TargetInUse, match="has just written"), unfinished_result(tmp_path / "to"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, ValueError])
def test_an_end_in_the_middle_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def end(folder: Path) -> None:
        (folder / "replica").mkdir()
        raise error

    with pytest.raises(error), unfinished_result(tmp_path / "to") as folder:
        end(folder)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_got_the_name_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with unfinished_result(tmp_path / "to") as folder:
        (folder / "replica").mkdir()
        (tmp_path / "to").mkdir()
        with pytest.raises(TargetExists):
            publish(folder / "replica", tmp_path / "to")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for to in (tmp_path / "file" / "to", tmp_path / ("x" * 250)):
        with pytest.raises(ResultNotWritten, match="cannot be written: ") as found:
            replayed(lake, 1300, to)
        assert str(to) in str(found.value)
    done = cdcctl("replay", "--lake", lake, "--table", "Orders", "--at", at(1300), "--to", "gs://bucket/to")
    assert done.code == ExitCode.CONFIG
    assert "--to: gs://bucket/to is a URL of another store than s3://" in done.err


@needs_mount
def test_a_read_only_or_full_disk_is_named_and_nothing_is_left(lake: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        to = disk.root / "to"
        with read_only(disk.root), pytest.raises(ResultNotWritten, match="Read-only file system"):
            replayed(lake, 1300, to)
        disk.fill(leave_bytes=8192)
        with pytest.raises(ResultNotWritten, match="No space left on device"):
            replayed(lake, 1300, to)
        assert [path.name for path in disk.root.iterdir()] == ["ballast"]
        disk.empty()
        assert len(replayed(lake, 1300, to)) == 1


@pytest.fixture(scope="module")
def long_lake(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A lake of a table whose replay takes some seconds, and the LSN of its last commit."""
    table = ScriptedTable()
    table.copy(1, [{1: 1, 2: "copied", 3: None}])
    for step in range(STEPS):
        table.commit()
        table.rename_column(2, f"note {step % 2}")
        table.insert({1: step + 2, 2: "inserted", 3: None})
    root = tmp_path_factory.mktemp("long")
    new_lake(root).apply(batch(table.delivered()))
    return root, table.lsn


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)])
def test_a_terminated_command_ends_its_program_and_leaves_nothing(
    long_lake: tuple[Path, int], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    root, lsn = long_lake
    arguments = ("replay", "--lake", root, "--table", "Orders", "--at", at(lsn))
    to = tmp_path / "results" / "to"
    words = command(*arguments, "--to", to)
    started = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, start_new_session=True)
    with ended(started) as process:
        log = to.parent / ".to.unfinished" / "replica" / "_delta_log"
        wait_until(lambda: log.exists() and len(list(log.glob("*.json"))) > 1, "some commits of the result")
        if number is signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does
        else:
            process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == code, err.decode()
    assert b"Traceback" not in err
    assert list(to.parent.iterdir()) == []
