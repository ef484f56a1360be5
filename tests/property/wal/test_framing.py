from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.forged.wal_cases import Case, cut, damaged, wal_cases
from tidemark.model.lsn import Lsn
from tidemark.wal.kernel import COMPILED
from tidemark.wal.page import Framer, Invalid, RecordBlock

Found = list[tuple[int, int, bytes]]


def raws_of(block: RecordBlock) -> list[bytes]:
    spans = zip(block.offsets[: len(block)], block.lengths[: len(block)], strict=True)
    return [bytes(block.linear[begin : begin + length]) for begin, length in spans]


def frame(
    first_lsn: int, data: bytes, cuts: list[int], start_lsn: Lsn | None = None, *, reused: bool = False
) -> tuple[Found, str, int]:
    """Return records, last outcome and position."""
    framer = Framer(segment_bytes=1 << 20, start_lsn=start_lsn)
    found: Found = []
    for at, end in pairwise([0, *cuts, len(data)]):
        framer.feed(Lsn(first_lsn + at), memoryview(data)[at:end])
        while isinstance(outcome := framer.next_block(), RecordBlock):
            assert len(outcome) > 0
            found += zip(outcome.lsns, outcome.ends, raws_of(outcome), strict=False)
            assert (outcome.record_count, outcome.byte_count) == (len(outcome), sum(outcome.lengths[: len(outcome)]))
            assert (outcome.last_lsn, outcome.end_lsn) == found[-1][:2]
            if reused:
                framer.reuse(outcome)
        if isinstance(outcome, Invalid):
            return found, str(outcome), framer.position
    return found, "need more", framer.position


@given(wal_cases(), st.data())
def test_the_records_do_not_depend_on_where_the_input_is_cut(case: Case, data: st.DataObject) -> None:
    found, outcome, position = frame(case.first_lsn, case.data, data.draw(cut(len(case.data))))
    assert [(lsn, raw) for lsn, _, raw in found] == list(zip(case.lsns, case.records, strict=True))
    assert outcome == "need more"
    assert position == (found[-1][1] if found else case.first_lsn)


@given(wal_cases(), st.data())
def test_blocks_that_are_filled_again_give_the_same_records(case: Case, data: st.DataObject) -> None:
    bad = data.draw(st.one_of(st.just(case.data), damaged(case)))
    cuts = data.draw(cut(len(bad)))
    assert frame(case.first_lsn, bad, cuts, reused=True) == frame(case.first_lsn, bad, cuts)


@pytest.mark.skipif(not COMPILED, reason="interpreted, nothing is left out")
@given(wal_cases(), st.data())
def test_omitted_records_are_still_framed_and_checked(case: Case, data: st.DataObject) -> None:
    bad = data.draw(st.one_of(st.just(case.data), damaged(case)))
    cuts = data.draw(cut(len(bad)))
    found, outcome, position = frame(case.first_lsn, bad, cuts)
    framer = Framer(segment_bytes=1 << 20)
    framer.leave_out({0, 10})
    walked = 0
    for at, end in pairwise([0, *cuts, len(bad)]):
        framer.feed(Lsn(case.first_lsn + at), memoryview(bad)[at:end])
        while isinstance(block := framer.next_block(), RecordBlock):
            whole = found[walked : walked + block.record_count]
            walked += block.record_count
            assert raws_of(block) == said([raw for _, _, raw in whole])
            assert (block.last_lsn, block.end_lsn) == whole[-1][:2]
            assert block.byte_count == sum(len(raw) for _, _, raw in whole)
        if isinstance(block, Invalid):
            break
    assert walked == len(found)
    assert outcome == (str(block) if isinstance(block, Invalid) else "need more")
    assert framer.position == position


def said(raws: list[bytes]) -> list[bytes]:
    """Return the records of a block, without those that have no xid or the xid of the previous one."""
    kept: list[bytes] = []
    for raw in raws:
        if not kept or raw[17] not in {0, 10} or raw[4:8] not in (bytes(4), kept[-1][4:8]):
            kept.append(raw)
    return kept


@given(wal_cases(records_max=4))
@settings(max_examples=examples(10))
def test_byte_by_byte_gives_the_same_records(case: Case) -> None:
    data = case.data[:40_000]
    assert frame(case.first_lsn, data, list(range(1, len(data)))) == frame(case.first_lsn, data, [])


@given(wal_cases(records_max=12), st.data())
def test_any_prefix_gives_its_complete_records(case: Case, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, len(case.data)))
    found, outcome, _ = frame(case.first_lsn, case.data[:size], [])
    assert outcome == "need more"
    whole = [lsn for lsn, end, _ in frame(case.first_lsn, case.data, [])[0] if end <= case.first_lsn + size]
    got = [lsn for lsn, _, _ in found]
    assert got[: len(whole)] == whole[: len(got)]
    assert len(got) - len(whole) in (-1, 0, 1)  # a switch ends with its segment; padding may be missing


@given(wal_cases(records_max=12), st.data())
def test_a_start_at_any_record_gives_the_rest(case: Case, data: st.DataObject) -> None:
    if not case.lsns:
        return
    index = data.draw(st.integers(0, len(case.lsns) - 1))
    begin = data.draw(st.sampled_from([case.first_lsn, case.lsns[index]]))
    if begin != case.first_lsn:
        begin = Lsn(begin // 8192 * 8192)
    found, outcome, _ = frame(
        begin, case.data[begin - case.first_lsn :], data.draw(cut(len(case.data) - begin + case.first_lsn)),
        case.lsns[index],
    )  # fmt: skip
    assert [lsn for lsn, _, _ in found] == case.lsns[index:]
    assert outcome == "need more"


@given(wal_cases(records_max=12), st.data())
def test_damage_ends_the_records_and_never_changes_one(case: Case, data: st.DataObject) -> None:
    bad = data.draw(damaged(case))
    found, outcome, position = frame(case.first_lsn, bad, data.draw(cut(len(bad))))
    assert [(lsn, raw) for lsn, _, raw in found] == list(zip(case.lsns, case.records, strict=True))[: len(found)]
    assert outcome == "need more" or outcome.startswith("invalid WAL at ")
    assert position == (found[-1][1] if found else case.first_lsn)


@given(st.binary(max_size=20_000), st.integers(0, 3 << 20), st.integers(0, 3 << 20))
def test_garbage_is_no_record(data: bytes, lsn: int, start: int) -> None:
    assert frame(lsn, data, [len(data) // 2], Lsn(start))[0] == []
