"""Archives of whole segments, damaged in any way: a reader returns original records, or names LSN and file."""

import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.wal import PAGE, SEGMENT, SYSTEM, ForgedBlock, WalWriter, body
from tidemark.io.archive.archive import ArchiveFolder, Hole
from tidemark.model.errors import CorruptWal
from tidemark.model.lsn import Lsn, SystemIdentifier
from tidemark.runtime.replay.archive_damage import find_damage
from tidemark.runtime.replay.decode_run import InvalidWal
from tidemark.wal.page import Framer, Invalid, RecordBlock
from tidemark.wal.segments import segment_name

SEGMENTS = 3
OF = SystemIdentifier(SYSTEM)
USED = 5 * PAGE  # of each segment: a switch follows
NAME = re.compile(r"\b[0-9A-F]{24}\b")
LSN = re.compile(r"\b0/[0-9A-F]+\b")


@cache
def sound() -> tuple[list[bytes], list[Lsn]]:
    """Return segments, the second of which begins inside a record, and the LSNs of their records."""
    writer = WalWriter()
    writer.add(body(bytes(PAGE)), xid=7)
    while writer.lsn < 2 * SEGMENT - 300:
        writer.add(body(b"row", [ForgedBlock(data=bytes(50_000))]), xid=8)
    for _ in range(SEGMENTS - 1):
        for size in (40, 5000, 20_000, 70):
            writer.add(body(b"row", [ForgedBlock(data=bytes(size))]), xid=9)
        writer.switch()
    data = bytes(writer.data)
    return [data[at : at + SEGMENT] for at in range(0, len(data), SEGMENT)], writer.lsns


def read(folder: Path) -> tuple[list[int], CorruptWal | Hole | None]:
    """Return the LSNs of the records that a reader returns, and its end."""
    archive = ArchiveFolder(folder, complete_only=True, of=OF)
    framer = Framer(archive.format, system_identifier=OF, segment_bytes=SEGMENT, start_lsn=sound()[1][0])
    found: list[int] = []
    try:
        for piece in archive.read_what_is_there(Lsn(SEGMENT)):
            framer.follow(piece.timeline)
            framer.feed(piece.start_lsn, piece.data)
            while isinstance(outcome := framer.next_block(), RecordBlock):
                found += outcome.lsns[: len(outcome)]
            if isinstance(outcome, Invalid):
                return found, archive.damage(outcome.lsn, outcome.reason) or InvalidWal(outcome)
    except (CorruptWal, Hole) as error:
        return found, error
    return found, None


def overwritten(content: bytes, at: int, other: bytes) -> bytes:
    return content[:at] + other + content[at + len(other) :]


PLACES = st.one_of(
    st.integers(0, USED),
    st.integers(0, 4).flatmap(lambda page: st.integers(page * PAGE, page * PAGE + 40)),
    st.integers(0, SEGMENT - 1),
)
DAMAGES: dict[str, st.SearchStrategy[Callable[[bytes, bytes], bytes]]] = {
    "cut off": st.integers(0, SEGMENT - 1).map(lambda at: lambda whole, _: whole[:at]),
    "a bit turned": st.tuples(PLACES, st.integers(0, 7)).map(
        lambda drawn: lambda whole, _: overwritten(whole, drawn[0], bytes([whole[drawn[0]] ^ 1 << drawn[1]]))
    ),
    "zeroed": st.tuples(PLACES, st.sampled_from([1, 24, 512, PAGE, SEGMENT])).map(
        lambda drawn: lambda whole, _: overwritten(whole, drawn[0], bytes(min(drawn[1], SEGMENT - drawn[0])))
    ),
    "a number forged": st.tuples(PLACES, st.sampled_from([b"\xff" * 4, b"\0\0\0\x40", b"\x18\0\0\0", b"\1\0"])).map(
        lambda drawn: lambda whole, _: overwritten(whole, min(drawn[0], SEGMENT - 4), drawn[1])
    ),
    "a recycled tail": st.integers(1, SEGMENT // PAGE - 1).map(
        lambda page: lambda whole, other: whole[: page * PAGE] + other[page * PAGE :]
    ),
    "pages changed about": st.integers(0, 3).map(
        lambda page: (
            lambda whole, _: overwritten(
                whole,
                page * PAGE,
                whole[(page + 1) * PAGE : (page + 2) * PAGE] + whole[page * PAGE : (page + 1) * PAGE],
            )
        )
    ),
    "another segment": st.just(lambda _, other: other),
}


@pytest.mark.feature("I32")
@pytest.mark.parametrize("kind", DAMAGES)
@settings(max_examples=examples(40))
@given(st.data())
def test_damage_is_named_by_lsn_and_file_or_makes_no_difference(kind: str, data: st.DataObject) -> None:
    segments, lsns = sound()
    victim = data.draw(st.integers(0, len(segments) - 1))
    other = segments[data.draw(st.sampled_from([at for at in range(len(segments)) if at != victim]))]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        for number, content in enumerate(segments):
            spoilt = data.draw(DAMAGES[kind])(content, other) if number == victim else content
            (folder / segment_name(1, number + 1, SEGMENT)).write_bytes(spoilt)
        found, error = read(folder)
        damage = find_damage(folder, OF, lsns[0])
    assert found == lsns[: len(found)]
    assert (error is None) == (damage is None)
    if error is None or damage is None:
        assert found == lsns
    else:
        for reported in (str(error), damage.reason):
            assert NAME.search(reported), reported
            assert LSN.search(reported) or "truncated" in reported or "cluster" in reported, reported
        assert damage.start_lsn < damage.end_lsn


def test_a_sound_archive_is_read_completely(tmp_path: Path) -> None:
    segments, lsns = sound()
    for number, content in enumerate(segments):
        (tmp_path / segment_name(1, number + 1, SEGMENT)).write_bytes(content)
    assert read(tmp_path) == (lsns, None)
    assert find_damage(tmp_path, OF, lsns[0]) is None
