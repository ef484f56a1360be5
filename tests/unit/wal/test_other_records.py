from struct import pack

import pytest

from tests.support.forged.wal_bodies import POSTGRES_EPOCH_US, checkpoint_body, commit_body, forged, prepare_body
from tidemark.model.lsn import Oid, Xid
from tidemark.wal.record import BadRecord
from tidemark.wal.rmgr import (
    RM_DBASE,
    RM_LOGICALMSG,
    RM_RELMAP,
    RM_STANDBY,
    RM_XACT,
    RM_XLOG,
    dbase,
    message,
    relmap,
    standby,
    xact,
    xlog,
)
from tidemark.wal.versions import MAJORS, UnsupportedMajor, wal_format, wal_format_of_magic

majors = pytest.mark.parametrize("major", MAJORS)


@majors
def test_a_commit_with_every_part_gives_them_all(major: int) -> None:
    fmt = wal_format(major)
    found = xact.parse(forged(RM_XACT, xact.COMMIT_PREPARED | 0x80, commit_body(fmt), xid=0, major=major), fmt)
    assert isinstance(found, xact.Commit)
    assert (found.xid, found.prepared, found.gid) == (690, True, "the gid")
    assert (found.database, found.tablespace, found.subxids) == (5, 1663, (701, 702))
    assert found.dropped_files == ((1663, 5, 16390),)
    assert (found.time_us, found.origin_lsn) == (POSTGRES_EPOCH_US + 5_000_000, 0x2000000)
    assert found.origin_time_us == POSTGRES_EPOCH_US + 1_000_000


@majors
def test_an_abort_with_every_part_gives_them_all(major: int) -> None:
    fmt = wal_format(major)
    body = commit_body(fmt, abort=True)
    found = xact.parse(forged(RM_XACT, xact.ABORT_PREPARED | 0x80, body, xid=0, major=major), fmt)
    assert isinstance(found, xact.Abort)
    assert (found.xid, found.database, found.subxids, found.prepared, found.gid) == (
        690,
        5,
        (701, 702),
        True,
        "the gid",
    )


def test_a_commit_with_only_a_time_is_valid() -> None:
    found = xact.parse(forged(RM_XACT, xact.COMMIT, pack("<q", 0)), wal_format(15))
    assert isinstance(found, xact.Commit)
    assert (found.xid, found.time_us, found.database, found.prepared, found.gid) == (
        700,
        POSTGRES_EPOCH_US,
        0,
        False,
        None,
    )


def test_the_end_of_a_prepared_transaction_must_name_it() -> None:
    with pytest.raises(BadRecord, match="without its xid"):
        xact.parse(forged(RM_XACT, xact.COMMIT_PREPARED, pack("<q", 0)), wal_format(15))


@majors
def test_a_prepare_gives_its_identifier_and_subtransactions(major: int) -> None:
    fmt = wal_format(major)
    found = xact.parse(forged(RM_XACT, xact.PREPARE, prepare_body(fmt), major=major), fmt)
    assert found == xact.Prepare(Xid(690), Oid(5), POSTGRES_EPOCH_US + 5_000_000, (Xid(701), Xid(702)), "the gid")


def test_a_prepare_with_another_magic_is_a_bad_record() -> None:
    body = bytearray(prepare_body(wal_format(15)))
    body[0] ^= 1
    with pytest.raises(BadRecord, match="with magic 57F94535"):
        xact.parse(forged(RM_XACT, xact.PREPARE, bytes(body)), wal_format(15))


def test_an_assignment_gives_the_top_transaction() -> None:
    found = xact.parse(forged(RM_XACT, xact.ASSIGNMENT, pack("<IiII", 690, 2, 701, 702)), wal_format(15))
    assert found == xact.Assignment(Xid(690), (Xid(701), Xid(702)))


def test_counts_below_zero_or_over_the_end_are_bad_records() -> None:
    for count in (-1, 3, 1 << 30):
        with pytest.raises(BadRecord, match=f"{count} subtransactions"):
            xact.parse(forged(RM_XACT, xact.ASSIGNMENT, pack("<IiII", 690, count, 1, 2)), wal_format(15))
        with pytest.raises(BadRecord, match=f"{count} items of 16 bytes"):
            xact.parse(forged(RM_XACT, 0x80, pack("<qIi", 0, 8, count) + bytes(32)), wal_format(15))


@majors
@pytest.mark.parametrize("shutdown", [True, False])
def test_a_checkpoint_has_redo_next_xid_and_the_fields_of_its_major(major: int, shutdown: bool) -> None:  # noqa: FBT001
    fmt = wal_format(major)
    info = xlog.CHECKPOINT_SHUTDOWN if shutdown else xlog.CHECKPOINT_ONLINE
    found = xlog.parse(forged(RM_XLOG, info, checkpoint_body(fmt), major=major), fmt)
    assert isinstance(found, xlog.Checkpoint)
    assert (found.shutdown, found.redo, found.timeline, found.prev_timeline) == (shutdown, 0x3000028, 2, 1)
    assert found.full_page_writes
    assert found.wal_level == (2 if major >= 17 else None)
    assert (found.next_xid, found.oldest_active_xid) == (1 << 32 | 750, 740)


def test_records_that_change_the_meaning_of_wal_are_parsed() -> None:
    fmt = wal_format(17)

    def parse(info: int, main: bytes) -> xlog.XlogRecord | None:
        return xlog.parse(forged(RM_XLOG, info, main, major=17), fmt)

    assert parse(xlog.PARAMETER_CHANGE, pack("<6iBB", 100, 8, 10, 0, 64, 1, 0, 0)) == xlog.WalLevelChange(1)
    assert parse(xlog.CHECKPOINT_REDO, pack("<i", 2)) == xlog.WalLevelChange(2)
    assert parse(xlog.FPW_CHANGE, b"\x00") == xlog.FullPageWritesChange(full_page_writes=False)
    end = parse(xlog.END_OF_RECOVERY, pack("<qIIi", 0, 3, 2, 2))
    assert isinstance(end, xlog.EndOfRecovery)
    assert (end.timeline, end.prev_timeline, end.wal_level) == (3, 2, 2)
    overwritten = parse(xlog.OVERWRITE_CONTRECORD, pack("<Qq", 0x5000, 0))
    assert isinstance(overwritten, xlog.OverwrittenContrecord)
    assert overwritten.overwritten_lsn == 0x5000
    assert parse(0x30, b"") is None


def test_running_transactions_are_split_into_top_and_sub() -> None:
    main = pack("<iiB3xIII3I", 2, 1, 1, 760, 740, 759, 740, 745, 746)
    assert standby.parse(forged(RM_STANDBY, standby.RUNNING_XACTS, main)) == standby.RunningXacts(
        Xid(760), Xid(740), Xid(759), (Xid(740), Xid(745)), (Xid(746),), overflowed=True
    )
    assert standby.parse(forged(RM_STANDBY, 0x00, bytes(16))) is None
    with pytest.raises(BadRecord, match="3 and 1 running xids"):
        standby.parse(forged(RM_STANDBY, standby.RUNNING_XACTS, pack("<iiB3xIII", 3, 1, 0, 0, 0, 0)))


@majors
def test_a_relation_map_gives_the_files_of_mapped_relations(major: int) -> None:
    fmt = wal_format(major)
    slots = fmt.relmap_slots
    content = pack("<ii", 0x592717, 2) + pack("<IIII", 1259, 16500, 1249, 16501) + bytes(8 * (slots - 2) + 4)
    content += bytes(4 if slots == 62 else 0)
    assert len(content) == (512 if slots == 62 else 524)
    found = relmap.parse(forged(RM_RELMAP, 0, pack("<IIi", 5, 1663, len(content)) + content, major=major), fmt)
    assert found == relmap.RelmapUpdate(Oid(5), Oid(1663), {Oid(1259): Oid(16500), Oid(1249): Oid(16501)})


def test_a_relation_map_of_other_size_or_magic_is_a_bad_record() -> None:
    for size, magic, count in ((8, 0x592717, -1), (8, 0x592717, 63), (8, 0, 0), (9, 0x592717, 0)):
        with pytest.raises(BadRecord, match="relation map"):
            relmap.parse(forged(RM_RELMAP, 0, pack("<IIiii", 5, 0, size, magic, count)), wal_format(15))


def test_a_message_is_split_into_prefix_and_content() -> None:
    main = pack("<IB3xQQ", 5, 1, 7, 4) + b"prefix\0" + b"\0\1\2\3"
    assert message.parse(forged(RM_LOGICALMSG, 0, main)) == message.MessageBody(Oid(5), True, b"prefix", b"\0\1\2\3")
    for bad in (main[:-1], main + b"x", main[:23], pack("<IB3xQQ", 5, 1, 0, 0), pack("<IB3xQQ", 5, 1, 1 << 63, 4)):
        with pytest.raises(BadRecord):
            message.parse(forged(RM_LOGICALMSG, 0, bad))


def test_every_major_has_its_magic() -> None:
    assert [wal_format_of_magic(wal_format(major).page_magic).major for major in MAJORS] == list(MAJORS)
    with pytest.raises(UnsupportedMajor, match="PostgreSQL 13 is not supported"):
        wal_format(13)
    with pytest.raises(UnsupportedMajor, match="page magic D106"):
        wal_format_of_magic(0xD106)


@majors
def test_records_of_databases_are_distinguished_in_every_major(major: int) -> None:
    fmt = wal_format(major)
    copied = dbase.parse(forged(RM_DBASE, 0x01, pack("<IIII", 16400, 1663, 1, 1664), major=major), fmt)
    assert copied == dbase.DatabaseCopied(Oid(16400), Oid(1663), Oid(1), Oid(1664))
    removed = dbase.parse(forged(RM_DBASE, fmt.dbase_drop | 1, pack("<IiII", 16400, 2, 1663, 1664), major=major), fmt)
    assert removed == dbase.DatabaseRemoved(Oid(16400), (Oid(1663), Oid(1664)))
    begun = dbase.parse(forged(RM_DBASE, 0x10, pack("<II", 16400, 0), major=major), fmt)
    reported = dbase.DatabaseBegun(Oid(16400), Oid(0)) if major > 14 else dbase.DatabaseRemoved(Oid(16400), ())
    assert begun == reported
    assert dbase.parse(forged(RM_DBASE, 0x30, b"", major=major), fmt) is None
    for info, main in ((0, b"1234"), (fmt.dbase_drop, pack("<Ii", 1, 2)), (fmt.dbase_drop, pack("<Ii", 1, -1))):
        with pytest.raises(BadRecord):
            dbase.parse(forged(RM_DBASE, info, main, major=major), fmt)
