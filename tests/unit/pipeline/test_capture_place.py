"""Where a pipeline finds its capture, and the folder of its own files."""

from pathlib import Path

import pytest

from tests.support.forged.deliveries import delivered_store
from tests.support.lakes.lakes import IDENTITY
from tests.support.processes.cdcctl import cdcctl
from tidemark.io.host.clock import host_name
from tidemark.io.process.run_record import RecordFile
from tidemark.io.state.locking.locks import RoleLock
from tidemark.model.errors import ExitCode
from tidemark.pipeline.driver.capture_place import BadRunnerFolder, ServerPlace, private_folder
from tidemark.pipeline.driver.program import main
from tidemark.pipeline.lake.lake_lock import LakeHolder, this_pipeline
from tidemark.wire.state.process_log import Owner, ProcessEnd, ProcessLog


def ends(log: str, *options: str) -> bool:
    """Return whether the pipeline ends with the code of a wrong configuration, and says so."""
    done = cdcctl("spark", "run", "--lake", "/nowhere", *options)
    return done.code == ExitCode.CONFIG and log in done.err


@pytest.mark.parametrize("options", [[], ["--state", "s", "--server", "grpc+tls://db1:5443"]])
def test_a_pipeline_has_one_place(options: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TIDEMARK_STATE", raising=False)
    assert ends("--state or --server", *options)
    assert main(["--lake", str(tmp_path), *options]) == ExitCode.CONFIG


def test_the_usage_names_the_command_that_was_entered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unknown = ["--state", str(tmp_path), "--lake", str(tmp_path), "--no-such-option"]
    done = cdcctl("spark", "run", *unknown)
    assert done.code == ExitCode.CONFIG
    assert "usage: cdcctl spark run [-h]" in done.err
    assert "cdcctl spark run: error: unrecognized arguments: --no-such-option" in done.err
    assert "tidemark.pipeline" not in done.err
    with pytest.raises(SystemExit):
        main(unknown)
    assert "python -m tidemark.pipeline: error: unrecognized arguments" in capsys.readouterr().err


def test_a_second_pipeline_on_one_state_is_told_to_use_another_reader(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with delivered_store(tmp_path) as store:
        folder = store.folder
        with RoleLock.acquire(folder, "pipeline-spark"):
            code = main(["--state", str(folder.root), "--lake", str(tmp_path / "second"), "--no-metrics"])
    assert code == ExitCode.FENCED
    reported = capfd.readouterr().err
    assert f"a pipeline-spark already runs on {folder.root}: process " in reported
    assert "a pipeline to another lake needs a reader of its own, with --reader NAME" in reported


def test_a_state_folder_has_no_runner_folder(tmp_path: Path) -> None:
    given = ["--lake", str(tmp_path / "lake"), "--state", str(tmp_path), "--runner-folder", str(tmp_path / "runner")]
    assert main(given) == ExitCode.CONFIG
    assert not (tmp_path / "runner").exists()


def test_a_runner_folder_is_private(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "new" / "runner")
    assert folder.root.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder.root) == folder
    folder.root.chmod(0o750)
    with pytest.raises(BadRunnerFolder, match="has mode 0750") as refused:
        private_folder(folder.root)
    assert "--runner-folder" in refused.value.hint


def test_the_default_runner_folder_is_in_the_state_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = ServerPlace("grpc+tls://db1:5443", None, None, None, "pipeline-spark")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert place.disk == tmp_path / "tidemark"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert place.disk == tmp_path / "home" / ".local" / "state" / "tidemark"


def test_a_record_without_a_state_is_a_file(tmp_path: Path) -> None:
    record = RecordFile(tmp_path / "record.json", 0o600)
    ended = ProcessLog({"pipeline-spark": Owner("pipeline-spark", "h", "b", 1, 2)}, {"other": ProcessEnd(1, 0, "x")})
    assert record.change(lambda _: ended) == ProcessLog()
    assert record.change(lambda known: known) == ended
    record.path.write_text("rubbish")
    assert record.change(lambda known: known) == ProcessLog()
    assert record.path.stat().st_mode & 0o777 == 0o600


def test_pipelines_on_two_hosts_that_read_one_state_are_not_those_of_two_hosts_of_the_capture() -> None:
    def pipeline(state_host: str, state: str) -> LakeHolder:
        return this_pipeline(IDENTITY, Path(state), "spark", ["key"], state_host)

    here, far = pipeline("", "/state"), pipeline("db1", "/state")
    assert not here.is_beside(pipeline(host_name(), "/state"))
    assert not far.is_beside(pipeline("db1", "/state"))
    assert far.is_beside(pipeline("db2", "/state"))
    assert far.is_beside(here)
    assert "state /state on db1" in str(far)
