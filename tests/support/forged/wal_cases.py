"""Hypothesis strategies for WAL: valid, torn, switched, damaged, and cut anywhere."""

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.support.forged.wal import PAGE, SEGMENT, ForgedBlock, WalWriter, body, record
from tidemark.model.lsn import Lsn

LENGTHS = st.one_of(st.integers(0, 200), st.integers(8000, 8300), st.integers(0, 30_000))


@dataclass(frozen=True)
class Case:
    """WAL, its first LSN, and its records."""

    first_lsn: Lsn
    data: bytes
    lsns: list[Lsn]
    records: list[bytes]
    end_lsn: Lsn


@st.composite
def wal_cases(draw: st.DrawFn, *, records_max: int = 25) -> Case:
    """Draw valid WAL of any major: records of all lengths, segment switches, and crashes that tear records."""
    major = draw(st.integers(14, 18))
    first_page = draw(st.sampled_from([0, 1, SEGMENT // PAGE - 2]))
    writer = WalWriter(SEGMENT + first_page * PAGE, major=major)
    for step in draw(st.lists(st.sampled_from("rrrrrrrrfst"), max_size=records_max)):
        match step:
            case "r":
                content = bytes(draw(LENGTHS)) or b"-"
                writer.add(
                    body(content, [ForgedBlock(data=b"row")]),
                    xid=draw(st.one_of(st.integers(0, 2), st.integers(0, 1 << 32 - 1))),
                )
            case "f":  # a record that ends with its page
                disk_space = -writer.begin() % PAGE
                if disk_space >= 32:
                    writer.write(record(bytes(disk_space - 24), prev=writer.prev))
            case "s":
                writer.switch()
            case "t":
                disk_space = -writer.begin() % PAGE
                writer.overwrite(writer.tear(record(bytes(disk_space + draw(LENGTHS)), prev=writer.prev)))
    return Case(writer.first_lsn, bytes(writer.data), writer.lsns, writer.records, writer.lsn)


@st.composite
def cut(draw: st.DrawFn, size: int, pieces_max: int = 12) -> list[int]:
    """Draw offsets at which to cut `size` bytes."""
    return sorted(draw(st.lists(st.integers(0, size), max_size=pieces_max)))


@st.composite
def damaged(draw: st.DrawFn, case: Case) -> bytes:
    """Draw `case`'s bytes with some overwritten, most of them in the headers of pages and records."""
    data = bytearray(case.data)
    headers = [lsn - case.first_lsn for lsn in case.lsns] + list(range(0, len(data), PAGE))
    locations = st.tuples(st.sampled_from(headers or [0]), st.integers(0, 47)).map(sum)
    for place in draw(st.lists(st.one_of(locations, st.integers(0, len(data))), min_size=1, max_size=4)):
        if place < len(data):
            data[place] = draw(st.one_of(st.integers(0, 255), st.just(data[place] ^ 1), st.just(0)))
    return bytes(data)
