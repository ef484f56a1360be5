"""The cost of a small commit in Python from the socket to the consumer: numbers of calls, no times."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

from tests.support.processes.captures import config_for
from tests.support.processes.waiting import let_pass
from tests.support.servers.postgres import Cluster
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import Metrics
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.runtime.capture.capture import Capture, CaptureSettings
from tidemark.runtime.capture.consumers import NullConsumer
from tidemark.runtime.capture.wal_source import WalSettings, from_node
from tidemark.runtime.context import CaptureContext
from tidemark.runtime.seed.initialise import initialise
from tidemark.wal.kernel import COMPILED

DEADLINE_S = 60.0
POLL_S = 0.2
WARM, COUNTED = 40, 60
CALLS_MAX = 270  # of Python functions for a commit of one row, in the thread that delivers; 241 at the time of writing
OTHERS_MAX = 10  # in the network and decode threads, which such a commit bypasses: less than 1
QUIET_S = 0.01
SLEEPS_MAX = 0.5  # nearly 0: it waits for WAL alone, so a commit wakes it once
APPLICATION, OTHERS = "application", ("network", "decode")


class OneByOne(NullConsumer):
    """Reads the rows of each batch, and reports that."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Semaphore(0)

    def on_events(self, groups: Iterator[ChangeGroup]) -> bool:
        for group in groups:
            for item in group.items:
                if isinstance(item, ChangeBatch):
                    self.came.release(item.rows.num_rows)
        return True


class Calls:
    """Counts calls by thread, while it is enabled."""

    def __init__(self) -> None:
        self.by_thread: Counter[str] = Counter()
        self.sleeps = 0  # of the application thread
        self.is_counting = False

    def __call__(self, _frame: FrameType, event: str, argument: object) -> None:
        if not self.is_counting:
            return
        name = threading.current_thread().name
        if event == "call":
            self.by_thread[name] += 1
        elif event == "c_call" and argument is time.sleep and name == APPLICATION:
            self.sleeps += 1


@pytest.fixture
def calls() -> Iterator[Calls]:
    counted = Calls()
    threading.setprofile(counted)
    yield counted
    threading.setprofile(None)


def wait_for(consumer: OneByOne, capture: Capture) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not consumer.came.acquire(timeout=POLL_S):
        assert capture.poll() is None
        assert time.monotonic() < deadline


@pytest.mark.skipif(not COMPILED, reason="interpreted kernels are Python")
def test_a_commit_on_its_own_is_received_decoded_and_delivered_by_one_thread_and_few_calls(
    cluster: Cluster, database: str, tmp_path: Path, calls: Calls
) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY, note text)", database)
    cluster.sql("CHECKPOINT")
    folder, config = StateFolder(tmp_path / "state"), config_for(cluster, database)
    initialise(config, folder)
    consumer = OneByOne()
    with StateStore.open(folder) as store, RoleLock.acquire(folder, "sidecar") as lock:
        context = CaptureContext(store, Metrics("main"), get_log("test"))
        make_wal_source = partial(from_node, context, WalSettings.of(config, store.identity.segment_bytes))
        capture = Capture(
            context, CaptureSettings.of(config), store.begin_epoch(lock.owner), make_wal_source, consumer=consumer
        )
        capture.start()
        try:
            with cluster.connect(database) as session:
                for number in range(WARM + COUNTED):
                    calls.is_counting = number >= WARM
                    session.execute("INSERT INTO account VALUES (%s, 'x')", (number,))
                    wait_for(consumer, capture)
                    let_pass(QUIET_S, "commits on their own come more slowly than deliver.rate_max")
            calls.is_counting = False
        finally:
            capture.stop()
    assert calls.by_thread[APPLICATION] / COUNTED < CALLS_MAX, calls.by_thread
    assert sum(calls.by_thread[name] for name in OTHERS) / COUNTED < OTHERS_MAX, calls.by_thread
    assert calls.sleeps / COUNTED < SLEEPS_MAX
