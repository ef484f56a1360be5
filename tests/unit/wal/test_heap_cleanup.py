from struct import pack

import pytest

from tests.support.forged.wal import USER_TABLE, ForgedBlock
from tests.support.forged.wal_bodies import forged
from tidemark.model.lsn import Xid
from tidemark.wal.record import BadRecord, Record
from tidemark.wal.rmgr import RM_HEAP2, RM_SMGR, heap_cleanup, smgr
from tidemark.wal.rmgr.heap_cleanup import FREEZE_PAGE, PRUNE, VACUUM, FreezePlan, PageCleanup
from tidemark.wal.rmgr.smgr import FileCreated, FileTruncated
from tidemark.wal.versions import MAJORS, CleanupForm, wal_format

REDIRECTED, DEAD, UNUSED = ((1, 4), (2, 5)), (6, 7), (8, 9, 10)
PLANS = (FreezePlan(Xid(0), 0x8002, 0x0B02, (3,)), FreezePlan(Xid(55), 0x0002, 0x0302, (11, 12)))
TUPLES = (FreezePlan(Xid(0), 0x8002, 0x0B02, (3,)), FreezePlan(Xid(55), 0x0002, 0x0302, (11,)))
BY_FORM = {form: [major for major in MAJORS if wal_format(major).cleanup is form] for form in CleanupForm}


def record(opcode: int, main: bytes, data: bytes, major: int) -> Record:
    return forged(RM_HEAP2, opcode, main, [ForgedBlock(block=9, data=data)], major=major)


def parsed(opcode: int, main: bytes, data: bytes, major: int) -> PageCleanup:
    return heap_cleanup.parse(record(opcode, main, data, major), wal_format(major))


def test_each_form_is_that_of_the_majors_that_write_it() -> None:
    assert BY_FORM == {
        CleanupForm.FREEZE_TUPLES: [14, 15],
        CleanupForm.FREEZE_PLANS: [16],
        CleanupForm.PRUNE_FREEZE: [17, 18],
    }


@pytest.mark.parametrize("major", [14, 15, 16])
def test_a_prune_gives_redirected_dead_and_unused_line_pointers(major: int) -> None:
    main = pack("<IHH", 700, 2, 2) + (b"\x00" if major == 16 else b"")
    found = parsed(PRUNE, main, pack("<9H", 1, 4, 2, 5, 6, 7, 8, 9, 10), major)
    assert found[1:] == (REDIRECTED, DEAD, UNUSED, ())


@pytest.mark.parametrize("major", [14, 15, 16])
def test_the_second_pass_of_vacuum_gives_unused_line_pointers(major: int) -> None:
    assert parsed(VACUUM, pack("<H", 3), pack("<3H", 8, 9, 10), major)[1:] == ((), (), UNUSED, ())


@pytest.mark.parametrize("major", BY_FORM[CleanupForm.FREEZE_TUPLES])
def test_frozen_tuples_have_a_plan_each(major: int) -> None:
    data = pack("<IHHHBx", 0, 3, 0x8002, 0x0B02, 0) + pack("<IHHHBx", 55, 11, 0x0002, 0x0302, 0)
    assert parsed(FREEZE_PAGE, pack("<IH", 700, 2), data, major)[1:] == ((), (), (), TUPLES)


@pytest.mark.parametrize("major", BY_FORM[CleanupForm.FREEZE_PLANS])
def test_frozen_tuples_share_plans(major: int) -> None:
    plans = pack("<IHHBxH", 0, 0x8002, 0x0B02, 0, 1) + pack("<IHHBxH", 55, 0x0002, 0x0302, 0, 2)
    found = parsed(FREEZE_PAGE, pack("<IHB", 700, 2, 0), plans + pack("<3H", 3, 11, 12), major)
    assert found[1:] == ((), (), (), PLANS)


@pytest.mark.parametrize("opcode", sorted(heap_cleanup.OPCODES))
@pytest.mark.parametrize("major", BY_FORM[CleanupForm.PRUNE_FREEZE])
def test_one_record_prunes_and_freezes(opcode: int, major: int) -> None:
    plans = pack("<IHHBxH", 0, 0x8002, 0x0B02, 0, 1) + pack("<IHHBxH", 55, 0x0002, 0x0302, 0, 2)
    items = pack("<5H", 2, 1, 4, 2, 5) + pack("<3H", 2, 6, 7) + pack("<4H", 3, 8, 9, 10)
    data = pack("<Hxx", 2) + plans + items + pack("<3H", 3, 11, 12)
    found = parsed(opcode, pack("<BBI", 0, 0xF8, 700), data, major)
    assert found[1:] == (REDIRECTED, DEAD, UNUSED, PLANS)
    assert parsed(opcode, pack("<BB", 0, 0x80), pack("<4H", 3, 8, 9, 10), major)[1:] == ((), (), UNUSED, ())


def test_a_record_that_announces_more_than_it_has_is_a_bad_record() -> None:
    cases = [
        (15, PRUNE, pack("<IHH", 0, 2, 2)),
        (16, FREEZE_PAGE, pack("<IHB", 0, 2, 0)),
        (17, PRUNE, pack("<BB", 0, 0x50)),
    ]
    for major, opcode, main in cases:
        with pytest.raises(BadRecord, match="about a cleaned page are too few"):
            parsed(opcode, main, pack("<2H", 1, 1), major)


def test_a_file_is_created_and_truncated() -> None:
    created = smgr.parse(forged(RM_SMGR, smgr.CREATE, pack("<IIIi", 1663, 5, 16384, 0)))
    assert created == FileCreated(USER_TABLE, 0)
    truncated = forged(RM_SMGR, smgr.TRUNCATE, pack("<IIIIi", 7, 1663, 5, 16384, 7))
    assert smgr.parse(truncated) == FileTruncated(USER_TABLE, 7)
    assert smgr.parse(forged(RM_SMGR, smgr.TRUNCATE, pack("<IIIIi", 7, 1663, 5, 16384, 2))) is None
