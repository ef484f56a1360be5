"""Compiled and interpreted kernels give the same results for the same bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged.byte_targets.framing import framed, slow_kernel, slow_page
from tests.support.forged.wal_cases import Case, cut, damaged, wal_cases
from tests.support.oracles.twins import interpreted
from tidemark.wal import kernel, page, pglz

pytestmark = pytest.mark.skipif(not kernel.COMPILED, reason="the kernels are not compiled here")

slow_pglz = interpreted("tidemark.wal.pglz")


def test_one_of_them_is_compiled_and_one_is_not() -> None:
    assert kernel.COMPILED
    assert not slow_kernel.COMPILED


@given(wal_cases(), st.data())
def test_twins_find_the_same_records_and_defects(case: Case, data: st.DataObject) -> None:
    bad = data.draw(st.one_of(st.just(case.data), damaged(case)))
    cuts = data.draw(cut(len(bad)))
    start = data.draw(st.sampled_from([0, 0, *case.lsns]))
    fast = framed(page, case.first_lsn, bad, cuts, start)
    slow = framed(slow_page, case.first_lsn, bad, cuts, start)
    assert fast == slow


@given(st.binary(max_size=20_000), st.integers(0, 1 << 65), st.integers(0, 3 << 20))
def test_twins_treat_garbage_alike(data: bytes, lsn: int, start: int) -> None:
    assert framed(page, lsn, data, [], start) == framed(slow_page, lsn, data, [], start)


@given(st.binary(max_size=300), st.integers(0, 600))
def test_twins_expand_the_same(source: bytes, raw_bytes: int) -> None:
    fast, slow = bytearray(raw_bytes), bytearray(raw_bytes)
    assert pglz.expand(source, fast) == slow_pglz.expand(source, slow)
    assert fast == slow
