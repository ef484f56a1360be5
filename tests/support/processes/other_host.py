"""A pipeline of another user, who may not read the state folder: as on another host."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import pytest
import tidemark_ctl

import tidemark
from tests.support.processes.other_user import NOBODY
from tests.support.processes.written_lines import complete_lines
from tests.support.servers.postgres import free_port
from tidemark.pipeline.landing.metrics import SERVER_WAIT_SECONDS

STOP_S = 120
SMALL_SPARK = ("--master", "local[2]", "--driver-memory", "700m")


def as_nobody(command: list[str], environment: Mapping[str, str]) -> bool:
    """Return whether a command of the other user succeeds."""
    done = subprocess.run(
        command,
        check=False,
        cwd="/",
        env=environment,
        capture_output=True,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
    )
    return done.returncode == 0


@cache
def python_of_others() -> tuple[str, dict[str, str]]:
    """Return a Python that the other user can run, and its environment; that of the tests may be in a private home."""
    # NB: by name, as an editable installation has no folder of its own in the path.
    trees = dict.fromkeys(str(Path(str(package.__file__)).parents[1]) for package in (tidemark, tidemark_ctl))
    folders = [os.environ.get("PYTHONPATH", ""), *trees, sysconfig.get_path("purelib")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders)), "PYTHONDONTWRITEBYTECODE": "1"}
    for program in (sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"):
        with suppress(OSError):
            if as_nobody([program, "-c", "import tidemark_ctl, lmdb, pyarrow, pyspark"], environment):
                return program, environment
    pytest.skip("NOT TESTED: another user can run no Python with the packages")


class OtherHost:
    """The files of another user: a token, a certificate, a lake; and the pipeline that this user runs."""

    def __init__(self, root: Path, url: str, token: bytes, roots: Path | None) -> None:
        self.lake, self.log_path, self.runner = root / "lake", root / "log", root / "runner"
        self.root = root
        self.metrics_port = free_port()
        self._token = self.keep("token", token)
        self._options = ["--server", url, "--token-file", str(self._token), "--runner-folder", str(self.runner)]
        if roots is not None:
            self._options += ["--tls-roots", str(self.keep("roots.pem", roots.read_bytes()))]

    def keep(self, name: str, content: bytes) -> Path:
        path = self.root / name
        path.touch(0o600)
        path.write_bytes(content)
        os.chown(path, NOBODY, NOBODY)
        return path

    def start(self, *options: str, **variables: str) -> subprocess.Popen[bytes]:
        python, environment = python_of_others()
        command = [python, "-m", "tidemark_ctl", "spark", "run", *self._options, "--lake", str(self.lake)]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [*command, *SMALL_SPARK, "--metrics-port", str(self.metrics_port), *options],
                cwd=self.root,
                env={**environment, **variables, "HOME": str(self.root)},
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                stdout=log,
                stderr=log,
            )

    def waited_s(self) -> float:
        """Return how long it has waited for the server, by its metric."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{SERVER_WAIT_SECONDS}{{"))

    def log(self) -> str:
        return self.log_path.read_text()[-6000:]

    def events(self, name: str) -> list[dict[str, object]]:
        lines = complete_lines(self.log_path)
        return [event for line in lines if line.startswith("{") and (event := json.loads(line)).get("event") == name]


@contextmanager
def folder_of_others() -> Iterator[Path]:
    """Yield a folder of the other user; the folders of tests are private."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-other-"))
    os.chown(folder, NOBODY, NOBODY)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a pipeline that still runs."""
    if process.poll() is None:
        process.terminate()
        process.wait(STOP_S)
