"""Framing of pages into records, by both builds of the kernel."""

from itertools import pairwise
from types import ModuleType

from tests.support.forged.byte_targets.target import Bytes, ByteTarget
from tests.support.forged.wal import PAGE, SEGMENT, ForgedBlock, WalWriter, body, record
from tests.support.oracles.twins import interpreted
from tidemark.model.lsn import Lsn
from tidemark.wal import page
from tidemark.wal.versions import MAJORS

FIRST_PAGES = (0, 1, SEGMENT // PAGE - 1)  # in a segment
PIECES = (1 << 30, PAGE, 1000, 7)

slow_kernel = interpreted("tidemark.wal.kernel")
slow_page = interpreted("tidemark.wal.page", stand_in={"tidemark.wal.kernel": slow_kernel})


def framed(module: ModuleType, first_lsn: int, data: bytes, cuts: list[int], start_lsn: int) -> list[str]:
    """Return the output of framing by `module` for `data`, fed in pieces, as comparable text."""
    framer = module.Framer(segment_bytes=SEGMENT, start_lsn=start_lsn)
    reported: list[str] = []
    for begin, end in pairwise([0, *cuts, len(data)]):
        framer.feed(Lsn(first_lsn + begin), memoryview(data)[begin:end])
        outcome = framer.next_block()
        while hasattr(outcome, "lsns"):
            for row in range(len(outcome)):
                names = ("lsns", "ends", "xids", "rmgrs", "infos", "lengths")
                reported.append(" ".join(str(getattr(outcome, name)[row]) for name in names))
            outcome = framer.next_block()
        reported.append(f"{outcome} {framer.position}")
        if hasattr(outcome, "defect"):
            break
    return reported


def run(data: bytes) -> None:
    """Frame WAL that begins at a page; the first bytes define its beginning, the cuts and the start."""
    given = Bytes(data)
    first_lsn = SEGMENT + FIRST_PAGES[given.number() % len(FIRST_PAGES)] * PAGE
    piece = PIECES[given.number() % len(PIECES)]
    start = given.number(2) * 8
    wal = given.rest()[: 4 * PAGE]
    cuts = list(range(piece, len(wal), max(piece, len(wal) // 64)))
    start_lsn = first_lsn + start if start else 0
    fast = framed(page, first_lsn, wal, cuts, start_lsn)
    assert fast == framed(slow_page, first_lsn, wal, cuts, start_lsn)


def _seed(writer: WalWriter, *head: int) -> bytes:
    return bytes([*head, 0, 0, 0, 0])[:4] + bytes(writer.data)


def _seeds() -> dict[str, bytes]:
    found = {}
    for major in MAJORS:
        writer = WalWriter(major=major)
        writer.add(body(b"row", [ForgedBlock(data=b"x" * 50)]), xid=7)
        writer.add(body(bytes(9000)))
        writer.add(body(b"last"))
        found[f"pages_of_{major}"] = _seed(writer, 0, 1)
    torn = WalWriter()
    torn.add(body(b"whole"))
    torn.overwrite(torn.tear(record(body(bytes(2 * PAGE)), prev=torn.prev)))
    found["overwritten_contrecord"] = _seed(torn, 0, 2)
    switch = WalWriter(2 * SEGMENT - PAGE)
    switch.add(body(b"before"))
    switch.switch()
    switch.add(body(b"after"))
    found["segment_switch"] = _seed(switch, 2)
    return found


TARGET = ByteTarget("framing", run, _seeds())
