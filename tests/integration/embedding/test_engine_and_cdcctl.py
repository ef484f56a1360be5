"""`cdcctl` beside an engine: it has no control socket, so commands write its state, or name its process and the way."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tidemark_ctl.views.embedded import CONTROL_HINT

from tests.integration.embedding.test_engine_copies import older_transaction
from tests.support.processes.cdcctl import Done, cdcctl, refused, succeeded
from tests.support.processes.cdcctl import running as running_cdcctl
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode

PROGRAM = """
import json, sys
from tidemark import CopyBoundary, Engine

def write(**line):
    print(json.dumps(line), flush=True)

def handle(batch):
    for change in batch:
        write(op=change.op.value, id=change.after["id"])

def on_event(event):
    if isinstance(event, CopyBoundary):
        write(generation=event.generation, begin=event.begin)

with Engine(sys.argv[1], state=sys.argv[2], tables=["public.item"], handler=handle, on_event=on_event) as engine:
    engine.wait()
"""
ROWS = 10


class Application:
    """A state, and the program that contains its engine."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.state = dsn, folder / "state"
        self._program, self._written = folder / "application.py", folder / "written.jsonl"
        self._program.write_text(PROGRAM)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run it; kill it at the end."""
        with self._written.open("ab") as written:
            command = [sys.executable, str(self._program), self.dsn, str(self.state)]
            process = subprocess.Popen(command, stdout=written, env={**os.environ})
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def copied(self) -> Sequence[int]:
        """Return the generations of the table that were copied whole."""
        lines = [json.loads(line) for line in self._written.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        return [line["generation"] for line in lines if line.get("begin") is False]

    def cdcctl(self, *arguments: str) -> Done:
        return cdcctl(*arguments, "--state", self.state, **self.variables)

    @property
    def variables(self) -> dict[str, str]:
        return {"TIDEMARK_CAPTURE__DSN": self.dsn}


@pytest.fixture
def application(cluster: Cluster, database: str, tmp_path: Path) -> Application:
    for table in ("item", "other"):
        cluster.sql(f"CREATE TABLE {table} (id int PRIMARY KEY)", database)
        cluster.sql(f"INSERT INTO {table} SELECT generate_series(1, {ROWS})", database)
    return Application(cluster.dsn(database), tmp_path)


def step(done: Done, table: str) -> str:
    """Return the step of a table, as the command printed it."""
    tables: dict[str, dict[str, str]] = json.loads(done.out)["tables"]
    return tables[table]["step"]


@pytest.mark.feature("I30")
def test_a_copy_is_requested_beside_a_running_engine_and_the_command_returns_after_it(
    application: Application, database: str
) -> None:
    with application.running():
        wait_until(lambda: application.copied() == [1])
        done = succeeded(application.cdcctl("table", "recopy", "item", "--deadline-s", "60", "--json"))
        assert step(done, f"{database}.public.item") == "done"
        wait_until(lambda: application.copied() == [1, 2])
        left_out = application.cdcctl("table", "recopy", "other", "--deadline-s", "60", "--json")
        assert step(left_out, f"{database}.public.other") == "ended"
        assert "not copied because" in left_out.err
        assert application.copied() == [1, 2]


@pytest.mark.feature("I30")
def test_a_request_beside_an_engine_can_be_cancelled_and_outlives_the_engine(
    application: Application, cluster: Cluster, database: str, tmp_path: Path
) -> None:
    request = ("table", "recopy", "item")
    with application.running() as process:
        wait_until(lambda: application.copied() == [1])
        with older_transaction(cluster, database):
            succeeded(application.cdcctl(*request, "--no-wait"))
            succeeded(application.cdcctl(*request, "--cancel"))
            assert json.loads(succeeded(application.cdcctl("status", "--json")).out)["recopy"] == {}
            with running_cdcctl(tmp_path, *request, "--state", application.state, **application.variables) as waiting:
                waiting.wait_for_err("waiting")
                process.kill()
                process.wait()
                done = waiting.ended()
    assert done.code != ExitCode.SUCCESS
    assert "1 tables have not been copied, and the engine does not run" in done.err
    assert "start the application" in done.err
    with application.running():
        wait_until(lambda: application.copied() == [1, 2])
    asked = succeeded(application.cdcctl(*request, "--no-wait"))
    assert "the engine does not run: the tables are copied when it is started" in asked.err


@pytest.mark.feature("I41")
def test_commands_for_daemons_name_the_process_of_the_engine_and_the_way(application: Application) -> None:
    commands = {
        ("realtime", "off"): "realtime cannot be switched",
        ("realtime", "on"): "realtime cannot be switched",
        ("table", "resume", "item"): "no pipeline writes its tables",
        ("rewind", "--yes"): "needs a stopped engine",
        ("archive", "repair", "--yes"): "needs a stopped engine",
    }
    with application.running() as process:
        wait_until(lambda: application.copied() == [1])
        owner = f"this state belongs to an engine in process {process.pid}"
        for command, why in commands.items():
            refused(application.cdcctl(*command), ExitCode.CONFIG, owner, why)
        for command in (("status",), ("realtime", "status")):
            shown = json.loads(succeeded(application.cdcctl(*command, "--json")).out)
            assert shown["engine"] == f"{owner}; {CONTROL_HINT}"
        refused(cdcctl("table", "recopy", "item", "--state", application.state), ExitCode.CONFIG, "needs the DSN")
        succeeded(application.cdcctl("check", "--deadline-s", "60"))
        assert process.poll() is None
    stopped = "this state belongs to an engine, which does not run"
    refused(application.cdcctl("realtime", "off"), ExitCode.CONFIG, stopped)
    shown = json.loads(succeeded(application.cdcctl("status", "--json")).out)
    assert shown["engine"] == f"{stopped}; start the application that contains the engine"
    broken = application.cdcctl("check", "--deadline-s", "2")
    assert "leg capture is broken: an engine, which does not run" in broken.err


@pytest.mark.feature("I41")
def test_a_command_that_has_the_lock_of_an_engine_is_not_shown_as_the_engine(application: Application) -> None:
    with application.running():
        wait_until(lambda: application.copied() == [1])
    with RoleLock.acquire(StateFolder(application.state), "sidecar"):  # as `cdcctl rewind` does
        shown = json.loads(succeeded(application.cdcctl("status", "--json")).out)
        assert shown["engine"].startswith("this state belongs to an engine, which does not run")
        refused(application.cdcctl("rewind", "--yes"), ExitCode.FENCED, f"process {os.getpid()}")
