"""Compiled and interpreted kernels do the same with the same bytes."""

from itertools import pairwise
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.twins import interpreted
from tests.support.wal_cases import Case, cut, damaged, wal_cases
from tidemark.model.lsn import Lsn
from tidemark.wal import kernel, page, pglz

pytestmark = pytest.mark.skipif(not kernel.COMPILED, reason="the kernels are not compiled here")

slow_kernel = interpreted("tidemark.wal.kernel")
slow_page = interpreted("tidemark.wal.page", stand_in={"tidemark.wal.kernel": slow_kernel})
slow_pglz = interpreted("tidemark.wal.pglz")


def columns(module: ModuleType, first_lsn: int, data: bytes, cuts: list[int], start_lsn: int) -> list[str]:
    """Return all that comes out, as text that names what it is."""
    framer = module.Framer(segment_bytes=1 << 20, start_lsn=start_lsn)
    told: list[str] = []
    for begin, end in pairwise([0, *cuts, len(data)]):
        framer.feed(Lsn(first_lsn + begin), memoryview(data)[begin:end])
        outcome = framer.next_block()
        while hasattr(outcome, "lsns"):
            for row in range(len(outcome)):
                names = ("lsns", "ends", "xids", "rmgrs", "infos", "lengths")
                told.append(" ".join(str(getattr(outcome, name)[row]) for name in names))
            outcome = framer.next_block()
        told.append(f"{outcome} {framer.position}")
        if hasattr(outcome, "defect"):
            break
    return told


def test_one_of_them_is_compiled_and_one_is_not() -> None:
    assert kernel.COMPILED
    assert not slow_kernel.COMPILED


@given(wal_cases(), st.data())
@settings(deadline=None)
def test_twins_find_the_same_records_and_defects(case: Case, data: st.DataObject) -> None:
    bad = data.draw(st.one_of(st.just(case.data), damaged(case)))
    cuts = data.draw(cut(len(bad)))
    start = data.draw(st.sampled_from([0, 0, *case.lsns]))
    fast = columns(page, case.first_lsn, bad, cuts, start)
    slow = columns(slow_page, case.first_lsn, bad, cuts, start)
    assert fast == slow


@given(st.binary(max_size=20_000), st.integers(0, 1 << 65), st.integers(0, 3 << 20))
@settings(deadline=None)
def test_twins_make_the_same_of_garbage(data: bytes, lsn: int, start: int) -> None:
    assert columns(page, lsn, data, [], start) == columns(slow_page, lsn, data, [], start)


@given(st.binary(max_size=300), st.integers(0, 600))
@settings(deadline=None)
def test_twins_expand_the_same(source: bytes, raw_bytes: int) -> None:
    fast, slow = bytearray(raw_bytes), bytearray(raw_bytes)
    assert pglz.expand(source, fast) == slow_pglz.expand(source, slow)
    assert fast == slow
