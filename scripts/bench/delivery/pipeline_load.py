"""A load on a server with sidecar and pipeline, and what their processes use meanwhile."""

import json
import re
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

from scripts.bench.measuring.commands import CDCCTL, ROOT
from tests.support.processes.captures import Sidecar
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, free_port
from tidemark.io.readers.outbox import OutboxReader

DATABASE = "visible"
KEYS = 10_000  # of a table, chosen at random: two data files of a replica, which each batch then writes again
CLIENTS = 4
DEADLINE_S = 180.0
FAMILIES = ("server", "sidecar", "driver", "JVM", "Python helpers")
PROGRESS = "made progress: "
LOGGING = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
logger.streaming.name = org.apache.spark.sql.execution.streaming
logger.streaming.level = info
"""
"""Spark's logging: the progress of each batch, with the time of its stages."""


@dataclass(frozen=True, slots=True)
class CommitLoad:
    """Commits a second of one upserted row each, over tables with names of a prefix and a number."""

    name: str
    commits_a_second: int
    prefix: str
    tables: int
    keys: int = KEYS

    @property
    def names(self) -> list[str]:
        """Return the names of the tables."""
        return [f"{self.prefix}{number}" for number in range(1, self.tables + 1)]

    def script(self) -> str:
        """Return the transaction for pgbench."""
        return (
            f"\\set t random(1, {self.tables})\n\\set k random(1, {self.keys})\n"
            f"INSERT INTO {self.prefix}:t VALUES (:k, 'row :k', 1) "
            "ON CONFLICT (id) DO UPDATE SET count = {0}.count + 1;\n".replace("{0}", f"{self.prefix}:t")
        )


class RunningPipeline:
    """`cdcctl spark run` over the state of a sidecar."""

    def __init__(self, sidecar: Sidecar, root: Path) -> None:
        self._sidecar = sidecar
        self.lake = root / "lake"
        self._log_path = root / "pipeline.log"
        self._logging = root / "log4j2.properties"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0

    def prepare(self) -> None:
        """Create the archive of Spark's classes."""
        subprocess.run([*CDCCTL, "spark", "prepare", "--state", str(self._sidecar.folder.root)], cwd=ROOT, check=True)

    def start(self, *options: str) -> None:
        """Start it."""
        self._logging.write_text(LOGGING)
        self.started_s = time.time()
        with self._log_path.open("ab") as log:
            state = str(self._sidecar.folder.root)
            self._process = subprocess.Popen(
                [
                    *(*CDCCTL, "spark", "run", "--state", state, "--lake", str(self.lake), "--master", "local[2]"),
                    *("--metrics-port", str(self._port), *options),
                    *("--conf", f"spark.driver.extraJavaOptions=-Dlog4j2.configurationFile={self._logging}"),
                ],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """Stop it."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(DEADLINE_S)

    def log(self) -> str:
        """Return the end of its log."""
        return self._log_path.read_text(errors="replace")[-4000:]

    def table(self, name: str) -> Path:
        """Return the folder of a table in the lake."""
        return self.lake / DATABASE / "public" / name

    def wait_until_drained(self) -> None:
        """Wait until the lake contains all values of the outbox."""
        status = self._sidecar.folder.root / "pipeline-spark.json"

        def is_drained() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.log()
            try:
                sequence = json.loads(status.read_text())["sequence"]
            except FileNotFoundError:
                return False
            with OutboxReader.open(self._sidecar.folder) as outbox:
                return bool(0 < sequence == outbox.head())

        self._sidecar.wait_until_delivered()
        wait_until(is_drained, "all changes in the lake", within_s=DEADLINE_S, reported=self.log)

    def counters(self) -> dict[str, float]:
        """Return the counters of its metrics, with the stage of a batch where they have one."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        found = {}
        for line in lines:
            parts = re.fullmatch(r"(\w+_total)\{(.*)\} (\S+)", line)
            if parts is not None:
                stage = re.search(r'stage="(\w+)"', parts[2])
                found[parts[1] + (f":{stage[1]}" if stage else "")] = float(parts[3])
        return found

    def cpu_s(self) -> dict[tuple[str, int], float]:
        """Return the CPU seconds of its processes, by family and process id."""
        assert self._process is not None
        driver = psutil.Process(self._process.pid)
        found = {("driver", driver.pid): _own_cpu_s(driver)}
        for child in driver.children(recursive=True):
            try:
                family = "JVM" if child.name().startswith("java") else "Python helpers"
                found[family, child.pid] = _own_cpu_s(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def log_bytes(self) -> int:
        """Return the size of its log."""
        return self._log_path.stat().st_size

    def spark_stages_ms(self, begin: int, end: int) -> dict[str, float]:
        """Return the mean milliseconds of Spark's stages in the batches that the log has in a range of its bytes."""
        text = self._log_path.read_bytes()[begin:end].decode(errors="replace")
        total: Counter[str] = Counter()
        count = 0
        decoder = json.JSONDecoder()
        for at in re.finditer(PROGRESS, text):
            try:
                progress, _ = decoder.raw_decode(text, at.end())
            except ValueError:
                continue
            if "addBatch" in progress["durationMs"]:
                count += 1
                total.update(progress["durationMs"])
        return {name: round(value / max(1, count), 1) for name, value in sorted(total.items())}


def _own_cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process with its children, also of those that ended."""
    process = psutil.Process(pid)
    total = 0.0
    for member in (process, *process.children(recursive=True)):
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def create_tables(cluster: Cluster, loads: Sequence[CommitLoad]) -> None:
    """Create the tables of the loads, each with a row."""
    names = dict.fromkeys(name for load in loads for name in load.names)
    for name in names:
        cluster.sql(f"CREATE TABLE {name} (id bigint PRIMARY KEY, label text, count integer)", DATABASE)


def insert_a_row(cluster: Cluster, loads: Sequence[CommitLoad]) -> None:
    """Insert a row into each table."""
    names = dict.fromkeys(name for load in loads for name in load.names)
    statements = "; ".join(f"INSERT INTO {name} VALUES (0, 'first', 0)" for name in names)
    cluster.sql(f"DO $$ BEGIN {statements}; END $$", DATABASE)


@contextmanager
def loaded(cluster: Cluster, load: CommitLoad, seconds: int, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a load meanwhile."""
    script = folder / f"{load.prefix}-{load.commits_a_second}.sql"
    script.write_text(load.script())
    program = cluster.server.client("pgbench")
    command = [str(program), "-n", "-c", str(CLIENTS), "-R", str(load.commits_a_second), "-T", str(seconds)]
    command += ["-f", str(script), cluster.dsn(DATABASE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


KeyT = TypeVar("KeyT")


def difference(before: Mapping[KeyT, float], after: Mapping[KeyT, float]) -> dict[KeyT, float]:
    """Return what was added to each value."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}
