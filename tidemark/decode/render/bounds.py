"""Begins and ends of transactions as JSON lines around those of their changes, with counts (P11).

A transaction is told of if something of it is given out. Its begin stands before the first of that, its end behind the
last; one that goes on over several groups, or over a restart, has one of each all the same.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta

from tidemark.decode.codecs.codec import without_escapes
from tidemark.model.change import ChangeGroup, TransactionEnd
from tidemark.model.lsn import Lsn, Oid, format_lsn

Line = tuple[int, int, str]  # commit LSN, ordinal, text
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_counted(group: ChangeGroup) -> bool:
    """Tell if the group comes with its transactions' counts: all of them or none."""
    first = next(iter(group.transactions), None)
    return bool(group.begun) or (first is not None and first.tables is not None)


class TransactionBounds:
    """Puts begins and ends around lines, as `bound` writes them."""

    def __init__(self, bound: Callable[[str, TransactionEnd], str]) -> None:
        """`bound` is told which of the two it is, begin or end."""
        self._bound = bound
        self._waiting: dict[Lsn, TransactionEnd] = {}  # begun, and nothing of them given out so far
        self._open: set[Lsn] = set()  # told of

    def around(self, lines: Iterable[Line], group: ChangeGroup) -> Iterator[str]:
        """Give out the lines of a group, which are in stream order, with what bounds them."""
        self._waiting.update((end.commit_lsn, end) for end in group.begun)
        ends = iter(group.transactions)
        following = next(ends, None)
        for commit_lsn, _, line in lines:
            while following is not None and following.commit_lsn < commit_lsn:
                yield from self._end(following)
                following = next(ends, None)
            begun = self._waiting.pop(Lsn(commit_lsn), None)
            if begun is not None:
                self._open.add(begun.commit_lsn)
                yield self._bound("begin", begun)
            yield line
        while following is not None:
            yield from self._end(following)
            following = next(ends, None)

    def _end(self, end: TransactionEnd) -> Iterator[str]:
        is_new = self._waiting.pop(end.commit_lsn, None) is not None
        if end.commit_lsn in self._open or (end.tables and not is_new):
            self._open.discard(end.commit_lsn)
            yield self._bound("end", end)


def bound_line(databases: Mapping[Oid, str], op: str, end: TransactionEnd) -> str:
    """Return begin or end as a JSON line; `databases` are the names of the databases, by OID."""
    told: dict[str, object] = {
        "op": op,
        "database": databases.get(end.database, str(end.database)),
        "position": f"{end.timeline}:{format_lsn(end.commit_lsn)}:{0 if op == 'begin' else end.item_count}",
        "xid": end.xid,
        "full_xid": end.full_xid,
        "commit_time": (_EPOCH + timedelta(microseconds=end.commit_time_us)).isoformat().replace("+00:00", "Z"),
        "items": end.item_count,
    }
    if end.origin:
        told["origin"] = end.origin
    if end.gid is not None:
        told["gid"] = end.gid
    if op == "end":
        told["tables"] = [
            {"schema": table.namespace, "table": table.name, "count": table.count} for table in end.tables or ()
        ]
    return without_escapes(json.dumps(told, ensure_ascii=False, separators=(",", ":")))
