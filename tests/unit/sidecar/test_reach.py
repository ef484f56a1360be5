"""The case that the archiver has more WAL than a sidecar without a stream: only then it is to continue."""

import pytest
from tidemark_sidecar.reach import Reach

from tidemark.model.lsn import Lsn
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.daemon.stops import NodeOutOfReach

PATIENCE_S = 30.0
RECEIVED, BEHIND, PAST = Lsn(0x3000100), Lsn(0x3000000), Lsn(0x4000000)


@pytest.mark.feature("I22")
def test_an_unreachable_node_that_archives_is_given_up_after_a_bounded_time() -> None:
    reach = Reach(PATIENCE_S)
    reach.check(Link.STREAMING, RECEIVED, PAST, 10.0)
    reach.check(Link.CONNECTING, RECEIVED, PAST, 39.9)
    reach.check(Link.CONNECTING, RECEIVED, None, 40.0)  # not checked
    with pytest.raises(NodeOutOfReach, match="for 31 s: received up to 0/3000100, archived up to 0/4000000"):
        reach.check(Link.CONNECTING, RECEIVED, PAST, 41.0)


def test_a_stopped_node_that_archives_nothing_is_waited_for() -> None:
    reach = Reach(PATIENCE_S)
    for now_s in range(0, 10_000, 100):
        reach.check(Link.CONNECTING, RECEIVED, BEHIND, float(now_s))


@pytest.mark.parametrize("link", [Link.STREAMING, Link.PAUSED])
def test_the_time_for_an_unreachable_node_restarts_with_each_connection_and_each_capture(link: Link) -> None:
    reach = Reach(PATIENCE_S)
    reach.check(Link.CONNECTING, RECEIVED, PAST, 0.0)
    reach.check(link, RECEIVED, PAST, 29.0)
    reach.check(Link.CONNECTING, RECEIVED, PAST, 58.0)
    reach.forget()
    reach.check(Link.CONNECTING, RECEIVED, PAST, 100.0)
    reach.check(Link.CONNECTING, RECEIVED, PAST, 129.0)
