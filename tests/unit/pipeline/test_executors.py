"""The report of a cluster without executors, and its time."""

import socket
import threading
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from tidemark.io.host.log_output import configure_logs, get_log
from tidemark.pipeline.driver.executors import (
    ABSENT_S,
    AGAIN_S,
    COUNT_EVERY_S,
    NO_EXECUTORS,
    ExecutorWatch,
    MasterUnreachable,
    wait_for_master,
)
from tidemark.pipeline.landing.metrics import EXECUTORS, PipelineMetrics

MASTER = "spark://127.0.0.1:7077"
REPORT_S = 10.0  # documented for operators


@pytest.fixture(autouse=True)
def every_level() -> Iterator[None]:
    """Enable events of all levels, which an earlier test may have disabled."""
    before = structlog.get_config()
    configure_logs("json", "debug")
    yield
    structlog.configure(**before)


def executors(metrics: PipelineMetrics) -> float | None:
    return metrics.registry.get_sample_value(EXECUTORS, {"capture": "main"})


def test_absent_executors_are_reported_within_ten_seconds_and_once_a_minute_and_their_return_once() -> None:
    metrics = PipelineMetrics("main")
    events: list[tuple[float, str]] = []
    with capture_logs() as lines:
        watch = ExecutorWatch(MASTER, metrics, get_log("test"))
        for now_s in range(100):
            watch.record(0 if now_s < 90 else 2, float(now_s))
            events += [(now_s, line["event"]) for line in lines]
            lines.clear()
    assert events == [(ABSENT_S, NO_EXECUTORS), (ABSENT_S + AGAIN_S, NO_EXECUTORS), (90, "spark has executors")]
    assert ABSENT_S + COUNT_EVERY_S < REPORT_S
    assert executors(metrics) == 2


def test_a_short_absence_of_executors_is_not_reported() -> None:
    metrics = PipelineMetrics("main")
    with capture_logs() as lines:
        watch = ExecutorWatch(MASTER, metrics, get_log("test"))
        watch.record(0, 0.0)
        watch.record(0, ABSENT_S - 1)
        watch.record(1, ABSENT_S)
        watch.record(0, ABSENT_S + 1)
    assert lines == []
    assert executors(metrics) == 0


def test_a_local_master_counts_as_one_executor_and_requires_no_wait() -> None:
    metrics = PipelineMetrics("main")
    ExecutorWatch("local[2]", metrics, get_log("test"))
    assert executors(metrics) == 1
    assert wait_for_master("local[2]", threading.Event(), get_log("test"), once=True)


def test_an_unreachable_master_is_reported_and_awaited_except_with_once() -> None:
    stop = threading.Event()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        master = f"spark://127.0.0.1:{listener.getsockname()[1]}"  # bound, but not listening
        with pytest.raises(MasterUnreachable, match=master):
            wait_for_master(master, stop, get_log("test"), once=True)
        with capture_logs() as lines:
            waiting = threading.Thread(
                target=wait_for_master, args=(master, stop, get_log("test")), kwargs={"once": False}
            )
            waiting.start()
            while not lines:
                assert waiting.is_alive()
            listener.listen()
            waiting.join()
        assert [line["event"] for line in lines] == ["spark master does not answer"]
        assert wait_for_master(f"spark://[::1]:1,{master.removeprefix('spark://')}", stop, get_log("test"), once=True)
