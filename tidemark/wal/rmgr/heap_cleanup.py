"""Records that clean a heap page (`heapam_xlog.h`): pruning, VACUUM's second pass, freezing.

Up to PostgreSQL 16 each of them is a record of its own (opcodes PRUNE, VACUUM and FREEZE_PAGE); from 17 on the three
opcodes name the reason, and all have one form. If the record has an image of the page, its data may be missing.
"""

from collections.abc import Iterator
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from tidemark.model.lsn import Xid
from tidemark.wal.record import BadRecord, BlockRef, Record
from tidemark.wal.rmgr.heap import OPCODE_MASK
from tidemark.wal.versions import CleanupForm, WalFormat

PRUNE = 0x10  # from 17 on XLOG_HEAP2_PRUNE_ON_ACCESS
VACUUM = 0x20  # from 17 on XLOG_HEAP2_PRUNE_VACUUM_SCAN
FREEZE_PAGE = 0x30  # from 17 on XLOG_HEAP2_PRUNE_VACUUM_CLEANUP
OPCODES = frozenset({PRUNE, VACUUM, FREEZE_PAGE})

_HAS_FREEZE_PLANS = 1 << 4  # XLHP_HAS_FREEZE_PLANS
_HAS_REDIRECTIONS = 1 << 5
_HAS_DEAD_ITEMS = 1 << 6
_HAS_NOW_UNUSED_ITEMS = 1 << 7
_PRUNE = Struct("<IHH")  # conflict horizon, nredirected, ndead
_FREEZE_PAGE = Struct("<IH")  # conflict horizon, count of tuples or plans
_FREEZE_TUPLE = Struct("<IHHHBx")  # xmax, offset, infomask2, infomask, frzflags
_FREEZE_PLAN = Struct("<IHHBxH")  # xmax, infomask2, infomask, frzflags, count of tuples
_PRUNE_FREEZE = Struct("<BB")  # reason, flags
_PLANS_HEAD = Struct("<Hxx")  # count of plans
_COUNT = Struct("<H")


class FreezePlan(NamedTuple):
    """Tuples that get the same header."""

    xmax: Xid
    infomask2: int
    infomask: int
    offsets: tuple[int, ...]


class PageCleanup(NamedTuple):
    """What a record does to the line pointers of a page, and then to its tuples."""

    block: BlockRef
    redirected: tuple[tuple[int, int], ...]  # offset, and the one to which it now refers
    dead: tuple[int, ...]
    unused: tuple[int, ...]
    frozen: tuple[FreezePlan, ...]


def parse(record: Record, fmt: WalFormat) -> PageCleanup:
    """Parse a HEAP2 record with one of `OPCODES`, whose page has no image."""
    block = record.need_block(0)
    items = _Items(record, block.data)
    opcode = record.info & OPCODE_MASK
    if fmt.cleanup is CleanupForm.PRUNE_FREEZE:
        return _prune_freeze(block, items, record.read(_PRUNE_FREEZE)[1])
    if opcode == PRUNE:
        _, redirected, dead = record.read(_PRUNE)
        return PageCleanup(block, _pairs(items.take(2 * redirected)), items.take(dead), items.rest(), ())
    if opcode == VACUUM:
        return PageCleanup(block, (), (), items.rest(), ())
    _, count = record.read(_FREEZE_PAGE)
    if fmt.cleanup is CleanupForm.FREEZE_PLANS:
        plans = items.plans(count)
        return PageCleanup(block, (), (), (), tuple(items.with_offsets(plans)))
    return PageCleanup(block, (), (), (), tuple(items.tuples(count)))


def _prune_freeze(block: BlockRef, items: "_Items", flags: int) -> PageCleanup:
    plans = items.plans(items.read(_PLANS_HEAD)[0]) if flags & _HAS_FREEZE_PLANS else []
    redirected = _pairs(items.take(2 * items.read(_COUNT)[0])) if flags & _HAS_REDIRECTIONS else ()
    dead = items.take(items.read(_COUNT)[0]) if flags & _HAS_DEAD_ITEMS else ()
    unused = items.take(items.read(_COUNT)[0]) if flags & _HAS_NOW_UNUSED_ITEMS else ()
    return PageCleanup(block, redirected, dead, unused, tuple(items.with_offsets(plans)))


def _pairs(offsets: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(zip(offsets[::2], offsets[1::2], strict=True))


class _Items:
    """Reads the data of a block from front to back."""

    def __init__(self, record: Record, data: bytes) -> None:
        self._record = record
        self._data = data
        self._at = 0

    def read(self, layout: Struct) -> tuple[int, ...]:
        try:
            values = layout.unpack_from(self._data, self._at)
        except struct_error as error:
            what = f"{len(self._data)} bytes about a cleaned page are too few"
            raise BadRecord(self._record.lsn, what) from error
        self._at += layout.size
        return values

    def take(self, count: int) -> tuple[int, ...]:
        """Return `count` offsets."""
        return self.read(Struct(f"<{count}H"))

    def rest(self) -> tuple[int, ...]:
        """Return all offsets that follow."""
        return self.take((len(self._data) - self._at) // _COUNT.size)

    def plans(self, count: int) -> list[tuple[int, ...]]:
        return [self.read(_FREEZE_PLAN) for _ in range(count)]

    def with_offsets(self, plans: list[tuple[int, ...]]) -> Iterator[FreezePlan]:
        """Yield plans with their offsets, which follow in the order of the plans."""
        for xmax, infomask2, infomask, _flags, count in plans:
            yield FreezePlan(Xid(xmax), infomask2, infomask, self.take(count))

    def tuples(self, count: int) -> Iterator[FreezePlan]:
        for _ in range(count):
            xmax, offset, infomask2, infomask, _flags = self.read(_FREEZE_TUPLE)
            yield FreezePlan(Xid(xmax), infomask2, infomask, (offset,))
