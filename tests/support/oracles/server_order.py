"""The only place where the server's decoder departs from the order of WAL: after a transactional message.

It stores a message under the end of its record (`logicalmsg_decode`, decode.c, all majors), a change under the
beginning of its record. So a message ties with the changes of the next record. If that record belongs to another
subtransaction, the merge of subtransactions may emit one or all of its changes first. We emit the order of WAL.
"""

from collections.abc import Sequence

MESSAGE = "message: transactional: 1 "
RECORD_ROWS_MAX = 291  # MaxHeapTuplesPerPage: the maximum of changes by one record


def in_wal_order(server: Sequence[str], wal: Sequence[str]) -> list[str]:
    """Return the server's lines in the order of `wal`: a message after a tied change is moved before it."""
    ordered = list(server)
    for at, line in enumerate(wal[: len(ordered)]):
        if line != ordered[at] and line.startswith(MESSAGE):
            behind = _found_behind(ordered, at, line)
            if behind is not None:
                ordered.insert(at, ordered.pop(behind))
    return ordered


def _found_behind(lines: Sequence[str], at: int, message: str) -> int | None:
    """Return the index of `message` after the rows of one record; None if it is not there."""
    begun = lines[at].startswith("BEGIN")
    for behind in range(at, min(len(lines), at + RECORD_ROWS_MAX + 2)):
        if lines[behind] == message:
            tables = {line.split(":", 1)[0] for line in lines[at + begun : behind]}
            return behind if len(tables) == 1 else None
    return None
