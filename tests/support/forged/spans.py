"""Hand-made row spans, for tests of the code that reads them."""

from collections.abc import Iterable

from tidemark.decode.arrow.batches import ABSENT, RowSpans


def add(rows: RowSpans, old: bytes | None, new: bytes | None, op: str = "i", before_kind: int = 0) -> None:
    """Add a row with made-up positions."""
    number = len(rows)
    rows.op += op.encode()
    rows.before_kind.append(before_kind)
    rows.timeline.append(1)
    rows.commit_lsn.append(1000 + number)
    rows.ordinal.append(number)
    rows.origin.append(number % 3)
    rows.lsn.append(500 + number)
    rows.xid.append(700)
    rows.commit_time_us.append(1_700_000_000_000_000 + number)
    for packed, at, length in ((old, rows.old_at, rows.old_length), (new, rows.new_at, rows.new_length)):
        at.append(ABSENT if packed is None else len(rows.data))
        length.append(ABSENT if packed is None else len(packed))
        rows.data += packed or b""


def inserts(packed: Iterable[bytes]) -> RowSpans:
    """Return the spans of inserts."""
    rows = RowSpans(bytearray())
    for one in packed:
        add(rows, None, one)
    return rows
