"""The one place where the server's decoder leaves the order of WAL: behind a transactional message.

It files a message under the end of its record (`logicalmsg_decode`, decode.c, all majors), a change under the beginning
of its own. So a message ties with what the next record changes, and if that belongs to another subtransaction, the
merge of subtransactions may take the change first, or all that its record changes. Ours is the order of WAL.
"""

from collections.abc import Sequence

MESSAGE = "message: transactional: 1 "
RECORD_ROWS_MAX = 291  # MaxHeapTuplesPerPage: what one record can change


def in_wal_order(server: Sequence[str], wal: Sequence[str]) -> list[str]:
    """Return the server's lines, messages that came behind a tied change put in front of it, as `wal` has them."""
    ordered = list(server)
    for at, line in enumerate(wal[: len(ordered)]):
        if line != ordered[at] and line.startswith(MESSAGE):
            behind = _found_behind(ordered, at, line)
            if behind is not None:
                ordered.insert(at, ordered.pop(behind))
    return ordered


def _found_behind(lines: Sequence[str], at: int, message: str) -> int | None:
    """Return where `message` stands behind the rows of one record; None if it does not."""
    begun = lines[at].startswith("BEGIN")
    for behind in range(at, min(len(lines), at + RECORD_ROWS_MAX + 2)):
        if lines[behind] == message:
            tables = {line.split(":", 1)[0] for line in lines[at + begun : behind]}
            return behind if len(tables) == 1 else None
    return None
