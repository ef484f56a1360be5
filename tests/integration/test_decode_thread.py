"""The decode thread as its owner sees it."""

import threading
from collections.abc import Iterator

from tidemark.engine.progress import Progress
from tidemark.engine.ring import Ring
from tidemark.model.change import ChangeGroup
from tidemark.model.lsn import Lsn, TimelineId
from tidemark.model.position import Position
from tidemark.runtime.decoding import DecodeThread, WalReader
from tidemark.runtime.handoff import Handoff
from tidemark.runtime.signal import Signal
from tidemark.wal.segments import ReadSegment


class Stuck(WalReader):
    """A reader that does not come back from its slice until it is told to, and then fails."""

    def __init__(self) -> None:
        self.inside, self.leave = threading.Event(), threading.Event()
        self.cpu_s = 0.0

    def feed(self, segment: ReadSegment) -> Iterator[ChangeGroup]:
        self.inside.set()
        assert self.leave.wait(30)
        raise ZeroDivisionError(segment.start_lsn)


def test_a_stop_tells_whether_the_thread_may_still_write_to_the_journal() -> None:
    ring, reader, arrived = Ring(1 << 20, Lsn(8192)), Stuck(), Signal()
    thread = DecodeThread(
        ring,
        arrived,
        reader,
        Handoff(1 << 16, arrived),
        delivered=Position(TimelineId(1), Lsn(8192), 0),
        progress=Progress(),
        idle_pointer_s=1.0,
    )
    ring.put(ReadSegment(Lsn(8192), bytes(100), TimelineId(1)))
    thread.start()
    assert reader.inside.wait(30)
    assert not thread.stop(0.01)
    reader.leave.set()
    assert thread.stop()
    assert isinstance(thread.error, ZeroDivisionError)
