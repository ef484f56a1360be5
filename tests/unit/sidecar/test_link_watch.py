"""The case that the archiver has more WAL than a sidecar without a stream: only then it is to continue."""

import pytest
from tidemark_sidecar.link_watch import LinkWatch

from tidemark.model.lsn import Lsn
from tidemark.runtime.capture.source_thread import Link
from tidemark.runtime.daemon.stops import NodeOutOfReach

DOWN_S_MAX = 30.0
RECEIVED, BEHIND, PAST = Lsn(0x3000100), Lsn(0x3000000), Lsn(0x4000000)


@pytest.mark.feature("I22")
def test_a_node_that_archives_out_of_reach_is_given_up_when_the_time_is_over() -> None:
    link_watch = LinkWatch(DOWN_S_MAX)
    link_watch.check(Link.STREAMING, RECEIVED, PAST, 10.0)
    link_watch.check(Link.CONNECTING, RECEIVED, PAST, 39.9)
    link_watch.check(Link.CONNECTING, RECEIVED, None, 40.0)  # not checked
    with pytest.raises(NodeOutOfReach, match="for 31 s: received up to 0/3000100, archived up to 0/4000000"):
        link_watch.check(Link.CONNECTING, RECEIVED, PAST, 41.0)


def test_a_stopped_node_that_archives_nothing_is_waited_for() -> None:
    link_watch = LinkWatch(DOWN_S_MAX)
    for now_s in range(0, 10_000, 100):
        link_watch.check(Link.CONNECTING, RECEIVED, BEHIND, float(now_s))


@pytest.mark.parametrize("link", [Link.STREAMING, Link.PAUSED])
def test_the_time_begins_again_with_each_link_and_each_capture(link: Link) -> None:
    link_watch = LinkWatch(DOWN_S_MAX)
    link_watch.check(Link.CONNECTING, RECEIVED, PAST, 0.0)
    link_watch.check(link, RECEIVED, PAST, 29.0)
    link_watch.check(Link.CONNECTING, RECEIVED, PAST, 58.0)
    link_watch.forget()
    link_watch.check(Link.CONNECTING, RECEIVED, PAST, 100.0)
    link_watch.check(Link.CONNECTING, RECEIVED, PAST, 129.0)
