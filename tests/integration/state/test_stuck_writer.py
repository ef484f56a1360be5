"""A process that hangs inside a write transaction, while no daemon runs that would kill it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidemark_ctl.settings import WRITTEN_BY_INIT

from tests.support.faults.stopped_writer import StoppedWriter
from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import RUN_S, cdcctl, refused, running, succeeded
from tests.support.processes.failover import HANGS_SOON
from tests.support.servers.postgres import Cluster
from tidemark.model.errors import ExitCode


@pytest.fixture
def sidecar(cluster: Cluster, tmp_path: Path) -> Iterator[Sidecar]:
    archive = tmp_path / "wal"
    archive.mkdir()
    options = {"TIDEMARK_ARCHIVE__FOLDER": str(archive), "TIDEMARK_ARCHIVE__FILLED_BY": "pg_receivewal", **HANGS_SOON}
    made = Sidecar(cluster, "postgres", tmp_path, copy=False, **options)
    made.init()
    (made.folder.root / WRITTEN_BY_INIT).touch()
    yield made
    made.close()


@pytest.fixture
def stuck(sidecar: Sidecar) -> Iterator[StoppedWriter]:
    with StoppedWriter(sidecar.folder) as writer:
        yield writer


@pytest.mark.feature("I41")
@pytest.mark.parametrize("asked", ["status", "realtime status", "archive status", "reader list"])
def test_commands_that_only_read_do_not_wait_for_it(sidecar: Sidecar, stuck: StoppedWriter, asked: str) -> None:
    succeeded(cdcctl(*asked.split(), "--state", sidecar.folder.root, **sidecar.options))
    assert stuck.process.poll() is None


def test_decoding_by_a_state_does_not_wait_for_it(sidecar: Sidecar, stuck: StoppedWriter, tmp_path: Path) -> None:
    done = cdcctl("decode", "--archive", tmp_path / "wal", "--state", sidecar.folder.root)
    refused(done, ExitCode.CONFIG, "no WAL segment")
    assert stuck.process.poll() is None


@pytest.mark.parametrize("asked", ["reader drop nobody --yes", "archive repair --yes", "rewind --yes", "init"])
def test_a_writer_reports_the_process_for_which_it_waits_and_continues_after_its_end(
    sidecar: Sidecar, stuck: StoppedWriter, tmp_path: Path, asked: str
) -> None:
    with running(tmp_path, *asked.split(), "--state", sidecar.folder.root, **sidecar.options) as waiting:
        waiting.wait_for_err(f"pid={stuck.pid}")
        assert "stuck inside a write transaction" in waiting.err
        waiting.wait_for_err("continue or kill it")  # the hint is a line of its own
        stuck.resume()
        waiting.process.wait(RUN_S)
    assert stuck.end() == 0


def test_sparks_reader_reports_the_process_that_it_waits_for(
    sidecar: Sidecar, stuck: StoppedWriter, tmp_path: Path
) -> None:
    with running(tmp_path, "spark", "run", "--state", sidecar.folder.root, "--lake", tmp_path / "lake") as pipeline:
        pipeline.wait_for_err(f'"pid": {stuck.pid}')
        assert "stuck inside a write transaction" in pipeline.err
    assert stuck.process.poll() is None


@pytest.mark.feature("I20")
def test_a_daemon_that_is_started_kills_it_and_begins(sidecar: Sidecar, stuck: StoppedWriter) -> None:
    sidecar.start()
    assert stuck.end() == -signal.SIGKILL
    assert sidecar.wait_for_event("killed a process that was stuck inside a write transaction")["pid"] == stuck.pid


def test_a_switch_names_it_and_continues_when_it_is_gone(
    sidecar: Sidecar, stuck: StoppedWriter, tmp_path: Path
) -> None:
    with running(tmp_path, "realtime", "off", "--state", sidecar.folder.root, **sidecar.options) as off:
        off.wait_for_err(f"pid={stuck.pid}")
        assert "stuck inside a write transaction" in off.err
        stuck.resume()
        assert "held" in succeeded(off.ended()).out.decode()


def test_a_switch_by_force_kills_it(sidecar: Sidecar, stuck: StoppedWriter) -> None:
    off = cdcctl("realtime", "off", "--force", "--state", sidecar.folder.root, **sidecar.options)
    assert "held" in succeeded(off).out.decode()
    assert stuck.end() == -signal.SIGKILL
