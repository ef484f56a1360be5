"""A delivery that waits for further commits, up to a minute: a stop ends the wait, and nothing else shortens it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.forged import groups
from tests.support.processes.captures import running
from tests.support.processes.waiting import let_pass
from tests.support.servers.postgres import Cluster
from tidemark.engine.batching import BURST, DeliveryPacing
from tidemark.io.readers.outbox import OutboxReader
from tidemark.model.change import ChangeBatch, ChangeGroup
from tidemark.model.position import Sequence
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.group_reader import GroupReader
from tidemark.runtime.capture.stream_lease import StreamLease

LINGER_S = 60.0
SLOWEST = {
    "TIDEMARK_DELIVER__LINGER_MS": "60000",
    "TIDEMARK_DELIVER__RATE_MAX": "0.01",
    "TIDEMARK_DELIVER__IDLE_POINTER_S": "0.2",
}
PROMPT_S = 20.0  # far below the linger time, on any machine
SHORT_S = 0.05
BETWEEN_S = 0.5  # longer than the first poll of the target, and than the wait for an idle pointer


class NeverEmpty:
    """A decoder that has changes at any time."""

    has_more = is_collecting = True

    def next_group(self) -> ChangeGroup | None:
        return groups.group(100, [])


class Silent:
    """An input from which nothing arrives."""

    def read_leased(self, timeout_s: float, collect: Callable[[], None]) -> bool:
        raise AssertionError((timeout_s, collect))


class Lingering:
    """A reader whose next delivery is due in a minute, with a decoder that has changes now."""

    def __init__(self) -> None:
        lease = StreamLease()
        lease.offer()
        lease.drained()
        pacing = DeliveryPacing(rate_max=1 / LINGER_S, linger_s=LINGER_S)
        for _ in range(2 * BURST):
            pacing.delivered(time.monotonic())
        self.queue = GroupQueue(1 << 20, lease.woken)
        self.reader = GroupReader(self.queue, lease, Silent(), pacing)
        self.reader.decode_with(NeverEmpty())
        self.received: list[ChangeGroup | None] = []
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _receive(self) -> None:
        self.received.append(self.reader.receive(LINGER_S))

    def has_ended(self, within_s: float) -> bool:
        """Return whether the call ends within a time."""
        self._thread.join(within_s)
        return not self._thread.is_alive()


def test_the_end_of_the_queue_ends_the_wait_for_further_commits() -> None:
    lingering = Lingering()
    lingering.start()
    assert not lingering.has_ended(SHORT_S)
    lingering.queue.close()
    assert lingering.has_ended(PROMPT_S)
    assert lingering.received == [None]


def test_a_full_group_ends_the_wait_for_further_commits() -> None:
    lingering = Lingering()
    lingering.start()
    assert not lingering.has_ended(SHORT_S)
    full = groups.group(200, [])
    assert lingering.queue.put(full)
    assert lingering.has_ended(PROMPT_S)
    assert lingering.received == [full]


def test_a_shorter_poll_of_the_target_does_not_shorten_the_wait_for_further_commits() -> None:
    assert Lingering().reader.receive(SHORT_S) is None


def test_a_sidecar_that_waits_for_further_commits_stops_at_once(
    cluster: Cluster, database: str, tmp_path: Path
) -> None:
    cluster.sql("CREATE TABLE account (id int PRIMARY KEY)", database)
    with (
        running(cluster, database, tmp_path, copy=False, **SLOWEST) as sidecar,
        OutboxReader.open(sidecar.folder) as reader,
    ):
        for number in range(BURST + 2):  # the last one at the latest waits
            cluster.sql(f"INSERT INTO account VALUES ({number})", database)
            let_pass(BETWEEN_S, "commits that come together are delivered together")
        delivered = reader.head()
        began_s = time.monotonic()
        assert sidecar.stop() == 0
        assert time.monotonic() - began_s < PROMPT_S
        assert reader.head() == delivered
        rows = [item for item in sidecar.items(reader, Sequence(0), delivered) if isinstance(item, ChangeBatch)]
        assert len(rows) <= BURST + 1
