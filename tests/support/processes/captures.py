"""Sidecars as separate processes over a state folder, and the comparison of their outbox with the source's tables."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from psycopg.rows import TupleRow

from tests.support.processes.forking import StartedProgram, start_program
from tests.support.processes.waiting import wait_until
from tests.support.processes.written_lines import complete_lines
from tests.support.servers.postgres import Cluster
from tidemark.io.process.config import CaptureConfig, Config, CopyConfig, SelectConfig
from tidemark.io.process.config_loading import parse_config
from tidemark.io.process.control import request
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch, GroupItem, LogicalMessage
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.model.position import Sequence
from tidemark.runtime.seed.initialise import initialise
from tidemark.wire.control import Json
from tidemark.wire.values import ValueKind

READY_S = 120.0
CAUGHT_UP_S = 120.0
ENDED_S = 120.0
POLL_S = 0.02


def config_for(cluster: Cluster, database: str, *, copy: bool = False, **selected: tuple[str, ...]) -> Config:
    """Return a configuration that captures one database."""
    return Config(
        capture=CaptureConfig(dsn=cluster.dsn(database)),
        select=SelectConfig(databases=(database,), **selected),
        copy=CopyConfig(enabled=copy),
    )


class Sidecar:
    """A state folder and sometimes a sidecar process over it."""

    role = "sidecar"

    def __init__(self, cluster: Cluster, database: str, root: Path, *, copy: bool = False, **options: str) -> None:
        self.cluster = cluster
        self.written_to = cluster  # where changes are made: the primary, if the sidecar reads a standby
        self.database = database
        self.folder = StateFolder(root / "state")
        self.log_path = root / f"{self.role}.log"
        self.process: StartedProgram | None = None
        self.program: tuple[str, ...] = ("-m", self.module)  # arguments of Python
        types = parse_config("", options, where="options").types  # fixed by init
        self.config = replace(config_for(cluster, database, copy=copy), types=types)
        self.options = {
            "TIDEMARK_CAPTURE__DSN": cluster.dsn(database),
            "TIDEMARK_SELECT__DATABASES": database,
            "TIDEMARK_COPY__ENABLED": str(copy).lower(),
            "TIDEMARK_METRICS__PORT": "0",
            "TIDEMARK_DELIVER__IDLE_POINTER_S": "0.3",
            **options,
        }

    @property
    def module(self) -> str:
        """The package that Python runs as the process."""
        return f"tidemark_{self.role}"

    def init(self, **outbox: int) -> None:
        """Create the state."""
        self.cluster.sql("CHECKPOINT")  # the seed replays WAL from here: a shared cluster has much of it
        config = self.config
        if outbox:
            config = replace(config, outbox=replace(config.outbox, **outbox))
        initialise(config, self.folder)

    def start(self, *, wait: bool = True) -> None:
        """Start the process and wait until it reports that it is ready."""
        ready_before = self._ready_count()
        with self.log_path.open("ab") as log:
            command = [sys.executable, *self.program, "--state", str(self.folder.root)]
            self.process = start_program(command, {**os.environ, **self.options}, log, log)
        process = self.process

        def is_ready() -> bool:
            if self._ready_count() > ready_before:
                return True
            assert process.poll() is None, self.reported()
            return False

        if wait:
            wait_until(is_ready, "its start", within_s=READY_S, reported=self.reported)

    def reported(self) -> str:
        """Return the end of the log."""
        return self.log_path.read_text()[-4000:]

    def _ready_count(self) -> int:
        return self.log_path.read_text().count('"event": "ready"') if self.log_path.exists() else 0

    def wait_for_rows(self, count: int) -> None:
        """Wait until this process has put that many values into the outbox."""
        with OutboxReader.open(self.folder) as reader:
            wanted = reader.head() + count // 100
            wait_until(lambda: reader.head() >= wanted, f"{count} rows", within_s=CAUGHT_UP_S, reported=self.reported)

    def status(self) -> Mapping[str, Json]:
        """Request the status of the process until it answers."""
        deadline = time.monotonic() + READY_S
        while not (answer := request(self.folder.socket(self.role), {"command": "status"}, READY_S)).get("ok"):
            assert time.monotonic() < deadline, answer
        return answer

    def metric(self, name: str) -> float:
        """Return a metric's value, by its exported name and labels."""
        port = next(event["port"] for event in reversed(self.events()) if event["event"] == "serving metrics")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))

    def refuses(self, code: ExitCode, *said: str) -> dict[str, Json]:
        """Start it, and check that it ends by itself; return its last event."""
        self.start(wait=False)
        return self.ended(code, *said)

    def ended(self, code: ExitCode, *said: str) -> dict[str, Json]:
        """Check that it ends by itself with `code` and one event that has these words and a hint; return the event."""
        assert self.process is not None
        found = self.process.wait(timeout=ENDED_S)
        last = self.events()[-1]
        assert (found, last["event"], last["exit_code"]) == (code, f"{self.role} ends", code), last
        for words in said:
            assert words in str(last["error"]), last
        assert last["hint"], last
        assert "Traceback" not in self.log_path.read_text()
        return last

    @property
    def running(self) -> bool:
        """Return whether the process runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(timeout=120)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=120)

    def close(self) -> None:
        """Stop every process that still runs."""
        if self.running:
            self.kill()

    def events(self) -> list[dict[str, Json]]:
        """Return the events of the log."""
        return [json.loads(line) for line in complete_lines(self.log_path) if line.startswith("{")]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the process has made the condition true."""
        wait_until(condition, what, within_s=CAUGHT_UP_S, reported=self.reported)

    def walsender(self, columns: str) -> TupleRow:
        """Return these columns of the only walsender that streams: one of an ended connection can linger beside it."""
        query = f"SELECT {columns} FROM pg_stat_replication JOIN pg_stat_ssl USING (pid) WHERE state = 'streaming'"
        found: list[TupleRow] = []

        def is_alone() -> bool:
            found[:] = self.cluster.sql(query)
            return len(found) == 1

        self.wait_until(is_alone, "one walsender that streams")
        return found[0]

    def wait_for_event(self, name: str, **fields: Json) -> dict[str, Json]:
        """Wait until the log has an event of that name and these fields; return the first one."""
        found: list[dict[str, Json]] = []

        def has_arrived() -> bool:
            found.extend(event for event in self.events() if event["event"] == name and fields.items() <= event.items())
            return bool(found)

        wait_until(has_arrived, f"the event {name!r}", within_s=CAUGHT_UP_S, reported=self.reported)
        return found[0]

    def catch_up(self, *, alive: bool = True) -> list[GroupItem]:
        """Wait until a message written now is in the outbox; return all other items. `alive`: this process must run."""
        prefix = f"sync-{time.monotonic_ns()}"
        with self.written_to.connect(self.database) as session:
            session.execute("SELECT pg_logical_emit_message(true, %s, '')", (prefix,))
        deadline = time.monotonic() + CAUGHT_UP_S
        with OutboxReader.open(self.folder) as reader:
            seen = reader.ledger().trimmed
            items: list[GroupItem] = []
            while True:
                head = reader.head()
                # NB: inside a group, messages come before the rows of the transactions that precede them.
                new = list(self.items(reader, seen, head))
                items += [
                    item for item in new if not (isinstance(item, LogicalMessage) and item.prefix.startswith("sync-"))
                ]
                if any(_is_message(item, prefix) for item in new):
                    return items
                seen = head
                if alive and self.process is not None:
                    assert self.process.poll() is None, self.log_path.read_text()[-4000:]
                assert time.monotonic() < deadline, self.log_path.read_text()[-4000:]
                time.sleep(POLL_S)

    def wait_until_delivered(self) -> None:
        """Wait until everything that was written is delivered; a pipeline may trim the outbox meanwhile."""
        with self.written_to.connect(self.database) as session:
            emitted = session.execute("SELECT pg_logical_emit_message(true, 'sync-delivered', '')::text").fetchone()
        assert emitted is not None
        lsn = parse_lsn(emitted[0])
        with StateStore.open(self.folder) as store:

            def is_delivered() -> bool:
                delivered = store.marks().delivered
                return delivered is not None and delivered.pointer.position.commit_lsn > lsn

            wait_until(is_delivered, "what was written last", within_s=CAUGHT_UP_S, reported=self.reported)

    def restart_lsn(self) -> Lsn:
        """Return where a start would begin to read."""
        with StateStore.open(self.folder) as store:
            start = store.marks().start
        assert start is not None
        return start.restart_lsn

    @staticmethod
    def items(reader: OutboxReader, after: Sequence, upto: Sequence) -> Iterator[GroupItem]:
        """Yield the changes in a range of the outbox."""
        for value in reader.read(after, upto):
            if value.header.kind is not ValueKind.TRANSACTIONS:
                yield value.item()


class OnDemandReader:
    """A registered reader that reads on request: the outbox need not keep what it has read."""

    def __init__(self, outbox: OutboxReader, name: str = "on_demand") -> None:
        self.items: list[GroupItem] = []
        self._outbox = outbox
        self._name = name
        self._confirmed = outbox.register(name).applied

    def read(self) -> list[GroupItem]:
        """Read all values of the outbox; return everything that was ever read."""
        head = self._outbox.head()
        self.items += Sidecar.items(self._outbox, self._confirmed, head)
        self._confirmed = self._outbox.confirm(self._name, head, head).applied
        return self.items

    def catch_up(self, process: Sidecar) -> list[GroupItem]:
        """Read until a message written now has arrived; return everything that was ever read."""
        prefix = f"end-{time.monotonic_ns()}"
        with process.written_to.connect(process.database) as session:
            session.execute("SELECT pg_logical_emit_message(true, %s, '')", (prefix,))
        process.wait_until(lambda: any(_is_message(item, prefix) for item in self.read()), "what was written last")
        return self.items


@contextmanager
def initialised(
    cluster: Cluster, database: str, root: Path, *, copy: bool = False, **options: str
) -> Iterator[Sidecar]:
    """Create the state of a database, for a sidecar that the caller starts."""
    sidecar = Sidecar(cluster, database, root, copy=copy, **options)
    sidecar.init()
    try:
        yield sidecar
    finally:
        sidecar.close()


@contextmanager
def running(cluster: Cluster, database: str, root: Path, *, copy: bool = False, **options: str) -> Iterator[Sidecar]:
    """Create the state of a database and run a sidecar over it."""
    with initialised(cluster, database, root, copy=copy, **options) as sidecar:
        sidecar.start()
        yield sidecar


def _is_message(item: GroupItem, prefix: str) -> bool:
    return isinstance(item, LogicalMessage) and item.prefix == prefix


def change_log(items: list[GroupItem], table: str) -> list[dict[str, object]]:
    """Return the rows of all batches of a table, in stream order."""
    batches = [item.rows for item in items if isinstance(item, ChangeBatch) and item.relation.name == table]
    rows: list[dict[str, object]] = [row for batch in batches for row in pa.RecordBatch.to_pylist(batch)]
    return sorted(rows, key=_position_of)


def _position_of(row: dict[str, object]) -> tuple[int, int]:
    commit_lsn, ordinal = row["_commit_lsn"], row["_ordinal"]
    assert isinstance(commit_lsn, int)
    assert isinstance(ordinal, int)
    return commit_lsn, ordinal


def replayed(rows: list[dict[str, object]], key: str = "id") -> dict[object, dict[str, object]]:
    """Return the rows of a table after these changes; raise if a row is there twice or a change does not fit."""
    positions = [_position_of(row) for row in rows]
    assert len(set(positions)) == len(positions), "a change came twice"
    table: dict[object, dict[str, object]] = {}
    for row in rows:
        before, after = row["_before"], row["_after"]
        if isinstance(after, dict):
            old = before[key] if isinstance(before, dict) else after[key]
            known = table.pop(old, None)
            assert (known is None) == (row["_op"] in ("i", "c")), f"{row['_op']} of {old}"
            table[after[key]] = after
        else:
            assert isinstance(before, dict)
            del table[before[key]]
    return table
