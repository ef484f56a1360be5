"""A standalone cluster of Spark on this host, whose processes can be killed and started again."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from tests.support.processes.jvm import jvm_options
from tests.support.processes.spark_process import wait_for
from tests.support.servers.postgres import free_port
from tidemark.pipeline.driver.java import java_home

SPARK_HOME = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
REGISTERED = re.compile(r"Successfully registered with master")
STARTED = re.compile(r"I have been elected leader|Starting Spark master at")
STOP_S = 60


class SparkCluster:
    """A master that keeps its state, and workers of one core; the processes of one user, below one folder."""

    def __init__(self, root: Path, environment: Mapping[str, str], user: int | None = None) -> None:
        self._root, self._user = root, user
        self._port = free_port()
        self.url = f"spark://127.0.0.1:{self._port}"
        recovery = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={root}/recovery"
        self._environment = {
            **environment,
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(java_home(os.environ, root)),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_MASTER_OPTS": recovery,
            "JAVA_TOOL_OPTIONS": jvm_options(),  # also of executors, which a worker starts
        }
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._starts = 0

    def __enter__(self) -> Self:
        self.start_master()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for process in (*self._workers, self._master):
            if process is not None:
                kill(process)

    def start_master(self) -> None:
        """Start the master at its address, with the state that an earlier one kept."""
        self._master = self._start(
            [MASTER, "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0"], STARTED
        )

    def kill_master(self) -> None:
        """SIGKILL."""
        assert self._master is not None
        kill(self._master)

    def add_worker(self) -> None:
        """Start another worker, and wait until the master knows it."""
        folder = self._root / f"work-{len(self._workers)}"
        options = ["--host", "127.0.0.1", "--webui-port", "0", "-c", "1", "-m", "1g", "-d", str(folder)]
        self._workers.append(self._start([WORKER, *options, self.url], REGISTERED))

    def kill_worker(self) -> None:
        """Kill the oldest worker and its executor."""
        kill(self._workers.pop(0))

    def _start(self, command: list[str], started: re.Pattern[str]) -> subprocess.Popen[bytes]:
        self._starts += 1
        log = self._root / f"cluster-{self._starts}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", *command],
                stdout=out,
                stderr=out,
                env=self._environment,
                cwd=self._root,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
                start_new_session=True,
            )
        wait_for(lambda: started.search(log.read_text()) is not None, command[0], log.read_text)
        return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_S)
