"""What one delivery of a quiet stream calls: Python functions by thread and name, without times.

TPC-B transactions come one by one to a capture in this process, so each is one delivery. Counts do not depend on the
machine's load; calls of compiled kernels into each other are not seen.
"""

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

from tests.support.processes.captures import config_for
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.runtime.capture.capture import Capture
from tidemark.runtime.capture.capture_settings import CaptureSettings
from tidemark.runtime.capture.wal_source import WalSettings, from_node
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.delivery.consumers import NullConsumer
from tidemark.runtime.seed.initialise import initialise

MAJOR = 15
DATABASE = "postgres"
WARM = 40
QUIET_S = 0.01  # more than the interval of deliver.rate_max: each commit is then a delivery
POLL_S = 0.2
CHECK_S = 0.001
DELIVERED_S_MAX = 60.0
NAME_LENGTH = 40  # of a file, from its end
APPLICATION = "application"  # the thread that delivers
SETUP = """
    CREATE TABLE account (id int PRIMARY KEY, branch int, balance int, filler char(84));
    CREATE TABLE teller (id int PRIMARY KEY, branch int, balance int, filler char(84));
    CREATE TABLE branch (id int PRIMARY KEY, balance int, filler char(88));
    CREATE TABLE history (teller int, branch int, account int, delta int, at timestamp, filler char(22));
    INSERT INTO account SELECT n, 1, 0, '' FROM generate_series(1, 1000) n;
    INSERT INTO teller VALUES (1, 1, 0, '');
    INSERT INTO branch VALUES (1, 0, '');
"""
TRANSACTION = b"""
    BEGIN;
    UPDATE account SET balance = balance + 1 WHERE id = (SELECT count(*) FROM history) % 1000 + 1;
    UPDATE teller SET balance = balance + 1 WHERE id = 1;
    UPDATE branch SET balance = balance + 1 WHERE id = 1;
    INSERT INTO history VALUES (1, 1, 1, 1, now());
    END;
"""


class Awaited(NullConsumer):
    """Counts transactions, and reports each."""

    def __init__(self) -> None:
        super().__init__()
        self._came = threading.Semaphore(0)

    def has_come(self) -> bool:
        """Wait for a transaction, but not for long."""
        return self._came.acquire(timeout=POLL_S)

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        """Count."""
        for group in groups:
            self._came.release(len(group.transactions))
        return True


class CallCounts:
    """The calls by thread and function, while it is enabled."""

    def __init__(self) -> None:
        self.python: Counter[tuple[str, str]] = Counter()
        self.builtin: Counter[tuple[str, str]] = Counter()
        self.by_delivery: list[int] = []  # Python calls of the thread that delivers
        self.is_counting = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Count one call; for `threading.setprofile`."""
        if not self.is_counting:
            return
        thread = threading.current_thread().name
        if event == "call":
            self.python[thread, _described(frame.f_code)] += 1
        elif event == "c_call":
            self.builtin[thread, str(getattr(argument, "__qualname__", argument))] += 1

    def end_delivery(self) -> None:
        """Note the calls since the last delivery."""
        if self.is_counting:
            self.by_delivery.append(self.by_thread(self.python)[APPLICATION] - sum(self.by_delivery))

    @staticmethod
    def by_thread(counted: Counter[tuple[str, str]]) -> Counter[str]:
        """Return the sums of one kind of calls."""
        sums: Counter[str] = Counter()
        for (thread, _), count in counted.items():
            sums[thread] += count
        return sums


def _described(code: CodeType) -> str:
    return f"{code.co_filename[-NAME_LENGTH:]}:{code.co_firstlineno} {code.co_qualname}"


def count_calls(
    cluster: Cluster,
    database: str,
    folder: Path,
    commits: int,
    *,
    setup: str = SETUP,
    commit: bytes = TRANSACTION,
    to_outbox: bool = False,
) -> CallCounts:
    """Return the calls of `commits` deliveries; `commit` has the statements of one. Without an outbox: discard them."""
    cluster.sql(setup, database)
    cluster.sql("CHECKPOINT")
    state, config = StateFolder(folder / "state"), config_for(cluster, database)
    initialise(config, state)
    consumer, calls = Awaited(), CallCounts()
    threading.setprofile(calls)
    with StateStore.open(state) as store, RoleLock.acquire(state, "sidecar") as lock:
        context = CaptureContext(store, Metrics("main"), get_log("bench"))
        make_wal_source = partial(from_node, context, WalSettings.of(config, store.identity.segment_bytes))
        epoch = store.begin_epoch(lock.owner)
        custom = None if to_outbox else consumer
        capture = Capture(context, CaptureSettings.of(config), epoch, make_wal_source, consumer=custom)
        capture.start()
        try:
            with cluster.connect(database) as session:
                for number in range(WARM + commits):
                    calls.is_counting = number >= WARM
                    before_lsn = parse_lsn(cluster.sql("SELECT pg_current_wal_insert_lsn()")[0][0] or "")
                    session.execute(commit)
                    if to_outbox:
                        _wait_for(partial(_is_stored, capture, before_lsn), capture)
                    else:
                        _wait_for(consumer.has_come, capture)
                    time.sleep(QUIET_S)
                    calls.end_delivery()
            calls.is_counting = False
        finally:
            threading.setprofile(None)
            capture.stop()
    return calls


def _is_stored(capture: Capture, before_lsn: Lsn) -> bool:
    """Return whether a commit after `before_lsn` is in the outbox."""
    delivered = capture.progress.delivered
    if delivered is None or delivered.position.commit_lsn < before_lsn:
        time.sleep(CHECK_S)
        return False
    return True


def _wait_for(is_delivered: Callable[[], bool], capture: Capture) -> None:
    until_s = time.monotonic() + DELIVERED_S_MAX
    while not is_delivered():
        error = capture.poll()
        if error is not None:
            raise error
        if time.monotonic() > until_s:
            raise SystemExit(f"a commit was not delivered within {DELIVERED_S_MAX:.0f} s")


def show(calls: CallCounts, commits: int, least: float) -> None:
    """Print what is called at least `least` times a delivery."""
    for kind, counted in (("Python", calls.python), ("built-in", calls.builtin)):
        print(f"{kind} calls a delivery:")
        for thread, count in calls.by_thread(counted).most_common():
            print(f"{count / commits:8.1f}  {thread}")
        for (thread, name), count in counted.most_common():
            if count / commits >= least:
                print(f"{count / commits:8.1f}  {thread:12} {name}")


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=100)
    parser.add_argument("--least", type=float, default=0.5, help="calls a delivery of what is listed")
    parser.add_argument("--outbox", action="store_true", help="deliver to the outbox instead of discarding the changes")
    given = parser.parse_args()
    with new_cluster(MAJOR) as cluster, tempfile.TemporaryDirectory() as folder:
        calls = count_calls(cluster, DATABASE, Path(folder), given.commits, to_outbox=given.outbox)
        show(calls, given.commits, given.least)


if __name__ == "__main__":
    main()
