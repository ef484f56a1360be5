"""Begins and ends of transactions as JSON lines around those of their changes, with counts (P11).

A transaction is told of if something of it is given out. Its begin stands before the first of that, its end behind the
last; one that goes on over several groups, or over a restart, has one of each all the same.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from tidemark.decode.codecs.codec import without_escapes
from tidemark.decode.render.placed_lines import Placed
from tidemark.model.change import ChangeGroup, TransactionEnd
from tidemark.model.lsn import Oid, format_lsn

BEFORE_ALL, BEHIND_ALL = -1, 1 << 40  # in place of ordinals
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def is_counted(group: ChangeGroup) -> bool:
    """Tell if the group comes with its transactions' counts: all of them or none."""
    first = next(iter(group.transactions), None)
    return bool(group.begun) or (first is not None and first.tables is not None)


class TransactionBounds:
    """Puts begins and ends around lines, as `bound` writes them."""

    def __init__(self, bound: Callable[[str, TransactionEnd], bytes]) -> None:
        """`bound` is told which of the two it is, begin or end."""
        self._bound = bound
        self._waiting: dict[int, TransactionEnd] = {}  # begun, and nothing of them given out so far
        self._open: set[int] = set()  # told of
        self._ending: deque[TransactionEnd] = deque()  # of the group at hand, in commit order

    def begin(self, group: ChangeGroup) -> None:
        """Take the transactions of a group."""
        self._waiting.update((end.commit_lsn, end) for end in group.begun)
        self._ending.extend(group.transactions)

    def of(self, commit_lsns: Sequence[int]) -> list[Placed]:
        """Return the bounds that stand before the last of the group's next lines, whose commit LSNs are given."""
        found: list[Placed] = []
        for commit_lsn in commit_lsns:
            begun = self._waiting.pop(commit_lsn, None)
            if begun is not None:
                self._open.add(commit_lsn)
                found.append((commit_lsn, BEFORE_ALL, self._bound("begin", begun)))
        while commit_lsns and self._ending and self._ending[0].commit_lsn < commit_lsns[-1]:
            found += self._end()
        return found

    def ends(self) -> list[Placed]:
        """Return what stands behind the group's last line."""
        found: list[Placed] = []
        while self._ending:
            found += self._end()
        return found

    def _end(self) -> list[Placed]:
        end = self._ending.popleft()
        is_new = self._waiting.pop(end.commit_lsn, None) is not None
        if end.commit_lsn not in self._open and (not end.tables or is_new):
            return []
        self._open.discard(end.commit_lsn)
        return [(end.commit_lsn, BEHIND_ALL, self._bound("end", end))]


def json_line(told: object) -> bytes:
    """Return a JSON object as a line of UTF-8."""
    return f"{dumped(told)}\n".encode()


def dumped(told: object) -> str:
    """Return JSON."""
    return without_escapes(json.dumps(told, ensure_ascii=False, separators=(",", ":")))  # JSON is UTF-8


def bound_line(databases: Mapping[Oid, str], op: str, end: TransactionEnd) -> bytes:
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
    return json_line(told)
