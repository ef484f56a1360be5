"""The limit of a start: the waits that it bounds, and the steps that ask for it."""

import math
from dataclasses import replace

import pytest

from tidemark.embedding.start_deadline import StartDeadline, StartTimedOut
from tidemark.io.node.node import Blocker
from tidemark.io.process.config import CaptureConfig, Config
from tidemark.model.errors import NodeUnreachable
from tidemark.model.lsn import FullXid, Lsn


class MovedClock:
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return 0


@pytest.mark.feature("A27")
@pytest.mark.parametrize(
    ("dsn", "within_s", "expected"),
    [
        ("host=db", 5.5, "5"),
        ("host=db", 0.5, "2"),
        ("host=db", 900.0, "10"),
        ("host=db", math.inf, "10"),
        ("host=db connect_timeout=3", 5.0, "3"),
        ("host=db connect_timeout=0", 5.0, "5"),
        ("host=db connect_timeout=60", 5.0, "5"),
    ],
)
def test_no_attempt_to_connect_outlasts_the_limit(dsn: str, within_s: float, expected: str) -> None:
    config = replace(Config(), capture=CaptureConfig(dsn=dsn))
    bounded = StartDeadline(within_s, MovedClock()).bounded(config)
    assert f"connect_timeout={expected}" in bounded.capture.dsn
    assert "host=db" in bounded.capture.dsn


@pytest.mark.feature("A27")
def test_a_step_after_the_limit_ends_the_start_and_is_named() -> None:
    clock = MovedClock()
    deadline = StartDeadline(5.0, clock)
    clock.now_s += 4.9
    deadline.check("early")
    deadline.replaying(Lsn(0), Lsn(0x10), Lsn(0x20))
    deadline.repeating(NodeUnreachable("gone"), 1, 3)
    clock.now_s += 0.1
    with pytest.raises(StartTimedOut, match=r"the start took longer than 5 s: it has replayed WAL up to 0/10 of 0/20"):
        deadline.replaying(Lsn(0), Lsn(0x10), Lsn(0x20))
    with pytest.raises(StartTimedOut, match=r"attempt 1 of 3 to read the catalogs failed: gone"):
        deadline.repeating(NodeUnreachable("gone"), 1, 3)
    with pytest.raises(StartTimedOut, match=r"it has waited 10 s for older transactions: process 7 \(idle\)"):
        deadline.waiting([Blocker(FullXid(5), 7, None, "idle")], 10.0)
