"""The systemd units compared with the values that they depend on: exit codes, programs, options, times."""

import re
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from tidemark.io.flight.outbox_server import MESSAGE_BYTES
from tidemark.io.process.config import Config
from tidemark.io.state.locking.heartbeat import START_S_MAX, STOP_S_MAX
from tidemark.model.errors import ExitCode
from tidemark.pipeline.driver.runner import BATCH_S_MAX, RESTART_WAIT_S
from tidemark.runtime.serving.program import ALIVE_S, STOP_S
from tidemark.wire.values import CHUNK_BYTES

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "conf" / "systemd"
PAGE = ROOT / "docs" / "exit-codes.md"
ROLES = ("sidecar", "archiver")
PIPELINE = "pipeline"
SERVER = "server"
SEGMENT_BYTES = 16 << 20
DEFAULT_WEIGHT = 100  # systemd.resource-control(5)
PROGRAMS = {
    "sidecar": "tidemark_sidecar",
    "archiver": "tidemark_archiver",
    PIPELINE: "tidemark.pipeline",
    SERVER: "tidemark.runtime.serving",
}
PYTHON = "/opt/tidemark/.venv/bin/python"
A_RESTART_HELPS = {ExitCode.UNEXPECTED, ExitCode.CONSUMER_FAILED, ExitCode.NODE_UNREACHABLE}
each_unit = pytest.mark.parametrize("role", [*ROLES, PIPELINE, SERVER])
each_daemon = pytest.mark.parametrize("role", ROLES)


def service(role: str) -> dict[str, str]:
    """Return the settings of a unit's service."""
    parser = RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    parser.read(FOLDER / f"tidemark-{role}@.service")
    return dict(parser["Service"])


@pytest.mark.feature("I40")
@each_unit
def test_a_unit_restarts_for_exactly_the_exit_codes_for_which_the_page_recommends_a_restart(role: str) -> None:
    found = service(role)
    held = {ExitCode(int(code)) for code in found["RestartPreventExitStatus"].split()}
    assert found["Restart"] == "on-failure"
    assert held == set(ExitCode) - A_RESTART_HELPS - {ExitCode.SUCCESS}
    reported = re.search(r"restart on ([\d, ]+) and on death by a signal", PAGE.read_text())
    assert reported
    assert {int(code) for code in reported.group(1).split(",")} == A_RESTART_HELPS
    assert f"RestartPreventExitStatus={found['RestartPreventExitStatus']}`" in PAGE.read_text()


@each_unit
def test_a_unit_starts_a_program_that_exists_with_options_that_it_has(role: str) -> None:
    python, *arguments = service(role)["ExecStart"].split()
    assert python == PYTHON
    program = PROGRAMS[role]
    assert arguments[:2] == ["-m", program]
    done = subprocess.run([sys.executable, "-m", program, "--help"], capture_output=True, text=True, check=True)
    for option in [argument for argument in arguments[2:] if argument.startswith("--")]:
        assert re.search(rf"^  {option} ", done.stdout, re.MULTILINE), done.stdout


def test_the_pipelines_unit_prepares_the_start_of_spark_in_the_folder_of_the_pipeline() -> None:
    found = service(PIPELINE)
    before, start = found["ExecStartPre"], found["ExecStart"].split()
    assert before[0] == "-", "a pipeline starts without the archive"
    python, _, program, *arguments = before[1:].split()
    assert python == PYTHON
    assert arguments[:2] == start[start.index("--state") :][:2]
    done = subprocess.run([sys.executable, "-m", program, "--help"], capture_output=True, text=True, check=True)
    for option in [argument for argument in arguments if argument.startswith("--")]:
        assert re.search(rf"^  {option} ?", done.stdout, re.MULTILINE), done.stdout


@each_daemon
def test_a_units_times_fit_those_of_the_configuration(role: str) -> None:
    found, config = service(role), Config()
    assert int(found["RestartSec"]) < config.watchdog.restart_s, "a restart comes before a takeover"
    in_a_step = START_S_MAX + STOP_S_MAX
    assert int(found["WatchdogSec"]) > in_a_step + config.watchdog.watchdog_s, "who hangs is the archiver's first"
    assert int(found["TimeoutStartSec"]) > START_S_MAX
    assert int(found["TimeoutStopSec"]) > STOP_S_MAX > config.deliver.stop_s


def test_the_pipelines_unit_waits_longer_than_the_pipeline_and_signals_its_driver_alone() -> None:
    found = service(PIPELINE)
    assert int(found["TimeoutStopSec"]) > BATCH_S_MAX
    assert float(found["RestartSec"]) > RESTART_WAIT_S
    assert found["KillMode"] == "mixed"
    assert found["Type"] == "notify"


@each_unit
def test_a_unit_has_a_lower_priority_than_the_server_beside_it(role: str) -> None:
    found = service(role)
    assert 0 < int(found["Nice"]) < 20
    assert max(int(found["CPUWeight"]), int(found["IOWeight"])) < DEFAULT_WEIGHT


@each_daemon
def test_a_unit_permits_the_memory_that_the_configuration_permits(role: str) -> None:
    config = Config()
    bounds = (config.ring_bytes(SEGMENT_BYTES), config.decode.memory_bytes, config.decode.queue_bytes)
    gibibytes = service(role)["MemoryHigh"].removesuffix("G")
    assert int(gibibytes) << 30 > 2 * (sum(bounds) + config.deliver.group_bytes_max)


def test_the_servers_unit_bounds_its_memory_and_waits_longer_than_its_streams() -> None:
    found = service(SERVER)
    of_streams = Config().server.streams_max * (2 * MESSAGE_BYTES + CHUNK_BYTES)
    high, at_most = (int(found[name].removesuffix("G")) << 30 for name in ("MemoryHigh", "MemoryMax"))
    assert of_streams < high < at_most
    assert int(found["TimeoutStopSec"]) > STOP_S
    assert int(found["WatchdogSec"]) > ALIVE_S + STOP_S


@each_unit
def test_a_unit_lets_folders_be_shared_with_a_group(role: str) -> None:
    """A folder in the spool gets the spool's own mode, including a bit that this hardening forbids."""
    assert "RestrictSUIDSGID" not in service(role)


@each_unit
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="NOT TESTED: systemd is not installed")
def test_systemd_finds_nothing_wrong_with_a_unit(role: str, tmp_path: Path) -> None:
    text = (FOLDER / f"tidemark-{role}@.service").read_text()
    unit = tmp_path / f"tidemark-{role}@main.service"
    unit.write_text(text.replace(PYTHON, sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
