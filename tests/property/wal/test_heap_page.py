"""A changed heap page compared with a dict of its tuples, through any changes that fit."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.wal import ForgedBlock
from tests.support.forged.wal_bodies import forged, packed
from tidemark.model.lsn import Lsn, Xid
from tidemark.wal.heap_page import HeapPage, new_page
from tidemark.wal.record import BadRecord
from tidemark.wal.rmgr import RM_HEAP2, heap
from tidemark.wal.rmgr.heap_cleanup import PRUNE, FreezePlan, PageCleanup

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = forged(RM_HEAP2, PRUNE, b"", [ForgedBlock()]).need_block(0)
LSN = Lsn(77)
ROOM = 8192 - 24


@dataclass
class Stored:
    """A tuple as it should be on the page."""

    packed: bytes
    xmin: int
    xmax: int


def space(row: bytes) -> int:
    size = len(row) + 18
    return size + -size % 8


def cleanup(
    *, redirected: tuple[tuple[int, int], ...] = (), dead: tuple[int, ...] = (), unused: tuple[int, ...] = ()
) -> PageCleanup:
    return PageCleanup(BLOCK, redirected, dead, unused, ())


@given(st.data())
def test_a_page_has_the_tuples_that_the_changes_leave(data: st.DataObject) -> None:
    page, model, lines = new_page(), dict[int, Stored](), dict[int, str]()
    for xid in range(3, data.draw(st.integers(10, 120))):
        changed = HeapPage(page, LSN)
        kind = data.draw(st.sampled_from(["insert", "insert", "insert", "xmax", "prune", "unused"]))
        if kind == "insert":
            free = [offset for offset, state in lines.items() if state == "unused"]
            offset = data.draw(st.sampled_from([*free, max(lines, default=0) + 1]))
            row = packed(bytes([xid]) * data.draw(st.integers(1, 1500)))
            used = sum(space(stored.packed) for stored in model.values()) + 4 * max([*lines, offset])
            if used + space(row) > ROOM:
                continue
            changed.insert(offset, row, Xid(xid), Xid(xid % 2))
            model[offset], lines[offset] = Stored(row, xid, xid % 2), "tuple"
        elif kind == "xmax" and model:
            offset = data.draw(st.sampled_from(sorted(model)))
            changed.set_xmax(offset, Xid(1000 + xid), 0x10)
            model[offset].xmax = 1000 + xid
        elif kind == "prune" and model:
            offset = data.draw(st.sampled_from(sorted(model)))
            del model[offset]
            lines[offset] = data.draw(st.sampled_from(["dead", "unused", "redirected"]))
            given_as = {"dead": cleanup(dead=(offset,)), "unused": cleanup(unused=(offset,))}
            changed.clean(given_as.get(lines[offset], cleanup(redirected=((offset, 1),))))
        elif kind == "unused":
            gone = [offset for offset, state in lines.items() if state in ("dead", "redirected")]
            changed.clean(cleanup(unused=tuple(gone)))
            lines.update(dict.fromkeys(gone, "unused"))
        found = {offset: (row[5:], xmin, xmax) for offset, row, xmin, xmax in heap.page_tuples(bytes(page))}
        assert found == {offset: (one.packed[5:], one.xmin, one.xmax) for offset, one in model.items()}


def test_xmax_replaces_what_described_the_one_before() -> None:
    page = new_page()
    HeapPage(page, LSN).insert(1, packed(b"row", columns=0x2002, infomask=0x1CD2 | 0x0100), Xid(700))
    HeapPage(page, LSN).set_xmax(1, Xid(9), 0x01 | 0x02 | 0x08)
    found = heap.page_tuple(bytes(page), 1)
    assert found is not None
    assert found[0][:4] == (0x0002).to_bytes(2, "little") + (0x0102 | 0x1000 | 0x0080 | 0x0010).to_bytes(2, "little")
    assert found[1:] == (700, 9)


def test_a_frozen_tuple_gets_the_header_of_its_plan() -> None:
    page = new_page()
    HeapPage(page, LSN).insert(1, packed(b"row"), Xid(700), Xid(701))
    HeapPage(page, LSN).clean(PageCleanup(BLOCK, (), (), (), (FreezePlan(Xid(0), 0x8002, 0x0B02, (1,)),)))
    found = heap.page_tuple(bytes(page), 1)
    assert found is not None
    assert found[0][:4] == bytes.fromhex("0280020b")
    assert found[2] == 0


def test_an_undone_insertion_has_no_inserter() -> None:
    page = new_page()
    HeapPage(page, LSN).insert(1, packed(b"row"), Xid(700))
    HeapPage(page, LSN).undo_insert(1)
    found = heap.page_tuple(bytes(page), 1)
    assert found is not None
    assert found[1] == 0


def test_a_change_that_does_not_fit_the_page_is_a_bad_record() -> None:
    page = new_page()
    HeapPage(page, LSN).insert(1, packed(b"row"), Xid(700))
    changes: list[tuple[Callable[[HeapPage], None], str]] = [
        (lambda one: one.insert(1, packed(b"row"), Xid(700)), "which is in use"),
        (lambda one: one.insert(292, packed(b"row"), Xid(700)), "new tuple at line pointer 292"),
        (lambda one: one.insert(2, packed(b"x" * 8200), Xid(700)), "of a new tuple in"),
        (lambda one: one.set_xmax(2, Xid(1), 0), "line pointer 2 of 1"),
        (lambda one: one.clean(cleanup(dead=(5,))), "line pointer 5 of 1"),
    ]
    for change, text in changes:
        with pytest.raises(BadRecord, match=text):
            change(HeapPage(page, LSN))
    with pytest.raises(BadRecord, match="a page with bounds 0, 0, 0"):
        HeapPage(bytearray(8192), LSN)
