"""Percentiles of the lag from commit to the outbox and to the lake, in seconds and bytes, with a clock set by hand."""

import threading
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.integration.operation.test_metrics import DASHBOARD
from tests.support.forged.deliveries import IDENTITY, group
from tests.support.processes.clocks import HandClock
from tests.support.servers.histories import empty_history
from tidemark.engine.selection import Selection
from tidemark.io.host.log_output import get_log
from tidemark.io.process.metrics import DELIVERY_LAG_BYTES, LAG_SECONDS, Metrics
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position, Sequence
from tidemark.pipeline.landing.feed import Feed
from tidemark.pipeline.landing.metrics import VISIBLE_BYTES, VISIBLE_SECONDS, PipelineMetrics
from tidemark.pipeline.landing.progress import PipelineProgress
from tidemark.pipeline.sinks.lake_batch import LakeBatch
from tidemark.runtime.capture.group_queue import GroupQueue
from tidemark.runtime.capture.signal import Signal
from tidemark.runtime.delivery.delivery import ApplicationThread, CopyKeep

GROUPS = 100
LAG_US, LAG_BYTES = 130_000, 3_000  # of the first group; that of each later one is this much greater
DEADLINE_S = 60.0
PERCENTILES = {0.5: 50, 0.95: 95, 0.99: 99}  # and the group that has it
pytestmark = pytest.mark.feature("P17")


def bucket_of(registry: CollectorRegistry, name: str, share: float) -> tuple[float, float]:
    """Return the bounds of the bucket with a percentile: PromQL's `histogram_quantile` interpolates between them."""
    samples = [sample for metric in registry.collect() for sample in metric.samples if sample.name == f"{name}_bucket"]
    below = sorted((float(sample.labels["le"]), sample.value) for sample in samples)
    rank = share * below[-1][1]
    for (lower, _), (upper, count) in pairwise([(0.0, 0.0), *below]):
        if count >= rank:
            return lower, upper
    raise AssertionError(below)


def check(registry: CollectorRegistry, seconds: str, byte_counts: str) -> None:
    for share, number in PERCENTILES.items():
        for name, unit in ((seconds, LAG_US / 1e6), (byte_counts, LAG_BYTES)):
            lower, upper = bucket_of(registry, name, share)
            assert lower < number * unit <= upper, (name, share)


class LaggingTarget:
    """Takes each group later than the one before."""

    counts = True

    def __init__(self, clock: HandClock, stopping: threading.Event) -> None:
        self.received_lsn = Lsn(0)
        self._clock = clock
        self._stopping = stopping
        self._taken = 0

    def begin(self) -> None:
        """Do nothing."""

    def deliver(self, group: ChangeGroup) -> None:
        self._taken += 1
        lsn = group.first.commit_lsn
        self._clock.now_us = lsn + self._taken * LAG_US  # a forged commit has its LSN as its time
        self.received_lsn = Lsn(lsn + self._taken * LAG_BYTES)
        if self._taken == GROUPS:
            self._stopping.set()

    def deliver_copied(self, group: ChangeGroup, progress: CopyKeep) -> None:
        raise NotImplementedError

    def drain(self, within_s: float) -> None:
        """Do nothing."""

    def idle(self) -> bool:
        return False

    def close(self) -> None:
        """Do nothing."""

    def abandon(self) -> None:
        raise NotImplementedError


def test_the_lag_to_the_outbox_has_percentiles_in_seconds_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, stopping, metrics = HandClock(), threading.Event(), Metrics(IDENTITY.capture)
    monkeypatch.setattr("tidemark.runtime.delivery.delivery.SystemClock", lambda: clock)
    target, waiting = LaggingTarget(clock, stopping), GroupQueue(1 << 24, Signal())
    for number in range(1, GROUPS + 1):
        waiting.put(group(1000 * number))
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as store:
        thread = ApplicationThread(
            waiting,
            target,
            empty_history(store),
            prelude=lambda: None,
            received_lsn=lambda: target.received_lsn,
            metrics=metrics,
            stopping=stopping,
        )
        thread.start()
        assert thread.join(DEADLINE_S)
    assert thread.error is None
    check(metrics.registry, LAG_SECONDS, DELIVERY_LAG_BYTES)


def test_the_lag_to_the_lake_has_percentiles_in_seconds_and_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, metrics = HandClock(), PipelineMetrics(IDENTITY.capture)
    monkeypatch.setattr("tidemark.pipeline.landing.progress.SystemClock", lambda: clock)
    store = StateStore.create(StateFolder(tmp_path / "state"), IDENTITY)
    progress = PipelineProgress(metrics, get_log("test"), StateCapture(store, Selection()), "spark", "lake")
    for number in range(1, GROUPS + 1):
        lsn, committed_us = Lsn(1000 * number), 1_000_000 * number
        clock.now_us = committed_us + number * LAG_US
        at = Position(TimelineId(1), lsn, 0)
        feed = Feed(LakeBatch("0a0b", Sequence(number), at, []), 1, 1, lsn, (committed_us,), (lsn,))
        progress.landed(feed, {}, Sequence(number), Lsn(lsn + number * LAG_BYTES), 0.1)
    check(metrics.registry, VISIBLE_SECONDS, VISIBLE_BYTES)


@pytest.mark.parametrize("name", [LAG_SECONDS, DELIVERY_LAG_BYTES, VISIBLE_SECONDS, VISIBLE_BYTES])
@pytest.mark.parametrize("share", PERCENTILES)
def test_the_dashboard_shows_the_percentiles(name: str, share: float) -> None:
    query = f"histogram_quantile({share}, sum by (capture, host, le) (rate({name}_bucket"
    assert query in DASHBOARD.read_text()
