"""Four sessions that write records of every kind, in an order that a test draws."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from tests.support.forged.forged_records import (
    Wal,
    external,
    locator,
    packed_chunk,
    packed_row,
)
from tests.support.forged.groups import DATABASE, relation
from tidemark.decode.datum.varlena import ExternalPointer
from tidemark.model.lsn import Oid
from tidemark.model.relation import Relation, ReplicaIdentity
from tidemark.wal.rmgr import RM_HEAP, RM_HEAP2, RM_STANDBY, RM_XACT, heap, heap2, standby, xact

ACCOUNT, LEDGER, TOAST = 16385, 16390, 16388
HEAP, VIEW = 16400, 16500  # transient heaps by session; a materialized view
RM_BTREE = 11
POINTER = ExternalPointer(104, 100, 0, Oid(77), Oid(TOAST))
TOAST_TABLE = Relation(Oid(TOAST), "pg_toast", "pg_toast_16385", "t", "p", (), ReplicaIdentity.NOTHING)
Act = Callable[[int, int], object]  # by xid, on a table
VERBS = (
    "insert",
    "replicated",
    "update",
    "key",
    "delete",
    "many",
    "toast",
    "chunks",
    "own_chunks",
    "own_chunks",
    "many_own_chunks",
    "removed_chunk",
    "unchanged",
    "speculative",
    "guess",
    "resolve",
    "lock",
    "index",
    "message",
)
DDL_VERBS = ("command_id", "invalidations", "held_lock")
CATALOG_VERBS = ("alter", "rewrite", "rewrite", "end_rewrite", "refresh")
ENDS = ("commit", "commit", "abort", "prepare", "elsewhere", "truncate")
NESTED = (
    "savepoint",
    "savepoint",
    "two_savepoints",
    "unwritten_savepoint",
    "unwritten_rollback",
    "rollback",
    "far_rollback",
    "release",
)
OF_DDL = (
    *CATALOG_VERBS,
    "guess",
    "resolve",
    "insert",
    "update",
    "delete",
    "many",
    "toast",
    "chunks",
    "own_chunks",
    "many_own_chunks",
    "savepoint",
    "rollback",
    "release",
)
DDL_STEPS = st.lists(  # long: a transaction needs rows after a change of a catalog, and more after another change
    st.tuples(st.sampled_from(OF_DDL * 2 + ("commit", "abort")), st.integers(0, 1)), min_size=20, max_size=60
)
STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS * 2 + DDL_VERBS + CATALOG_VERBS + ENDS + NESTED), st.integers(0, 3)), max_size=60
)


class Sessions:
    """Four sessions that write to two tables; each verb is a method of the same name."""

    def __init__(self, stream: Wal) -> None:
        self.stream = stream
        self.next_xid = 800
        self.tops = [0, 0, 0, 0]
        self.subs: list[list[int]] = [[], [], [], []]
        self.released: list[list[int]] = [[], [], [], []]
        self.number = 0
        self.values: dict[int, list[ExternalPointer]] = {}  # values whose rows have not been written, by session
        self.heaps: dict[int, int] = {}  # open transient heaps: the xid that made it, by session
        self.guesses: dict[int, tuple[int, int, int]] = {}  # speculative rows: xid, table and place, by session

    def play(self, verb: str, session: int) -> None:
        self.number += 1
        if not self.tops[session]:
            self.tops[session] = self._new_xid()
        acts: dict[str, Act] = {
            "insert": lambda xid, table: self.stream.insert(xid, table, packed_row(self.number)),
            "replicated": lambda xid, table: self.stream.insert(xid, table, packed_row(self.number), origin=517),
            "update": lambda xid, table: self.stream.update(xid, table, packed_row(self.number)),
            "key": self._key,
            "delete": self.stream.delete,
            "many": lambda xid, table: self.stream.multi_insert(xid, table, [packed_row(1), packed_row(2, b"odd")]),
            "toast": self._toast,
            "chunks": lambda xid, _: self._chunks(session, xid),
            "own_chunks": lambda xid, table: self._own_chunks(session, xid, table),
            "many_own_chunks": lambda xid, table: self._many_own_chunks(session, xid, table),
            "removed_chunk": lambda xid, _: self.stream.delete(xid, TOAST),
            "unchanged": lambda xid, table: self.stream.update(xid, table, packed_row(self.number, external(POINTER))),
            "speculative": self._speculative,
            "guess": lambda xid, table: self._guess(session, xid, table),
            "resolve": lambda _xid, _table: self._resolve(session),
            "lock": lambda xid, table: self._other(RM_HEAP, heap.LOCK, xid, table),
            "index": lambda xid, table: self._other(RM_BTREE, 0, xid, table),
            "message": lambda xid, _: self.stream.message(b"p", b"m", xid=xid if self.number % 2 else 0),
            "command_id": lambda xid, _: self.stream.record(RM_HEAP2, heap2.NEW_CID, bytes(30), xid=xid),
            "invalidations": lambda xid, _: self.stream.record(RM_XACT, xact.INVALIDATIONS, bytes(20), xid=xid),
            "held_lock": lambda xid, _: self.stream.record(RM_STANDBY, standby.LOCK, bytes(16), xid=xid),
            "elsewhere": lambda xid, table: self._other(RM_HEAP, heap.INSERT, xid, table, database=9),
            "truncate": self.stream.truncate,
        }
        if verb in acts:
            acts[verb](self._current(session), (ACCOUNT, LEDGER)[self.number % 2])
        elif verb in CATALOG_VERBS:
            self._change_catalog(verb, session)
        elif verb in NESTED:
            self._nest(verb, session)
        elif verb in ("commit", "abort"):
            end = self.stream.commit if verb == "commit" else self.stream.abort
            end(self.tops[session], *self.released[session], *self.subs[session])
            self.tops[session], self.subs[session], self.released[session] = 0, [], []
            self.heaps.pop(session, None)
            self.guesses.pop(session, None)
        elif verb == "prepare" and not self.subs[session] + self.released[session]:
            self.stream.prepare(self.tops[session], b"gid")
            self.stream.commit_prepared(self.tops[session], b"gid")
            self.tops[session] = 0
            self.heaps.pop(session, None)
            self.guesses.pop(session, None)

    def _change_catalog(self, verb: str, session: int) -> None:
        xid, top, heap_oid = self._current(session), self.tops[session], HEAP + session
        table = (ACCOUNT, LEDGER)[self.number % 2]
        if verb == "alter":
            self.stream.change_catalog(xid, table, relation(f"named_{self.number}", table), top=top)
            return
        if verb == "end_rewrite":
            if self.heaps.pop(session, None):
                self.stream.change_catalog(xid, heap_oid, None, top=top)
            return
        if session not in self.heaps:
            of = table if verb == "rewrite" else VIEW
            transient = replace(relation("pg_temp", heap_oid), rewrite_of=Oid(of))
            self.stream.change_catalog(xid, heap_oid, transient, top=top)
            self.heaps[session] = xid
        self._fill(xid, heap_oid)

    def _fill(self, xid: int, heap_oid: int) -> None:
        if self.number % 3 == 0:
            self.stream.multi_insert(xid, heap_oid, [packed_row(self.number), packed_row(2, b"odd")])
        elif self.number % 3 == 1:
            self._toast(xid, heap_oid)
        self.stream.insert(xid, heap_oid, packed_row(self.number))

    def _roll_back(self, session: int, first: int) -> None:
        """Abort the subtransactions from `first` on."""
        gone = self.subs[session][first:]
        del self.subs[session][first:]
        self.stream.abort(*gone)
        if self.heaps.get(session) in gone:
            del self.heaps[session]
        if session in self.guesses and self.guesses[session][0] in gone:
            del self.guesses[session]

    def _nest(self, verb: str, session: int) -> None:
        if verb == "savepoint":
            sub = self._new_xid()
            if self.number % 2:
                self.stream.assign(self.tops[session], sub)
            self.stream.insert(sub, ACCOUNT, packed_row(self.number), top=0 if self.number % 2 else self.tops[session])
            self.subs[session].append(sub)
        elif verb == "two_savepoints":
            outer, inner = self._new_xid(), self._new_xid()
            self.stream.assign_outer(self.tops[session], outer)
            self.stream.insert(inner, ACCOUNT, packed_row(self.number), top=self.tops[session])
            self.subs[session] += [outer, inner]
        elif verb == "unwritten_rollback":
            self.stream.abort(self._new_xid(), top=self.tops[session])
        elif verb == "unwritten_savepoint":  # a savepoint without a row
            sub = self._new_xid()
            self._other((RM_BTREE, RM_HEAP)[self.number % 2], heap.LOCK, sub, ACCOUNT, top=self.tops[session])
            self.subs[session].append(sub)
        elif verb == "rollback" and self.subs[session]:
            self._roll_back(session, len(self.subs[session]) - 1)
        elif verb == "far_rollback" and self.subs[session]:
            self._roll_back(session, self.number % len(self.subs[session]))
        elif verb == "release":  # the next change belongs to the transaction itself again
            self.released[session] += self.subs[session]
            self.subs[session] = []

    def _new_xid(self) -> int:
        self.next_xid += 1
        return self.next_xid

    def _current(self, session: int) -> int:
        return self.subs[session][-1] if self.subs[session] else self.tops[session]

    def _key(self, xid: int, table: int) -> None:
        flag = heap.UPDATE_CONTAINS_OLD_KEY if self.number % 2 else heap.UPDATE_CONTAINS_OLD_TUPLE
        self.stream.update(xid, table, packed_row(self.number), old=packed_row(1, None), old_flag=flag)

    def _toast(self, xid: int, table: int) -> None:
        self.stream.insert(xid, TOAST, packed_chunk(77, 0, bytes([self.number]) * 100))
        self.stream.insert(xid, table, packed_row(self.number, external(POINTER)))

    def _chunks(self, session: int, xid: int) -> None:
        """Write a value of up to three chunks, compressed or not."""
        contents = [bytes([self.number % 256, part]) * (50 + part) for part in range(1 + self.number % 3)]
        size = sum(map(len, contents))
        pointer = ExternalPointer(size + 4 + self.number % 2 * 9, size, 0, Oid(1000 + self.number), Oid(TOAST))
        for part, content in enumerate(contents):
            self.stream.insert(xid, TOAST, packed_chunk(pointer.value_id, part, content, short=self.number % 5 == 0))
        self.values.setdefault(session, []).append(pointer)

    def _own_chunks(self, session: int, xid: int, table: int) -> None:
        """Write a row that points to the last value, perhaps of another transaction."""
        pointers = self.values.pop(session, [POINTER])
        packed = packed_row(self.number, external(pointers[-1]))
        if self.number % 4 == 0:
            self._guess_row(session, xid, table, packed)
        elif self.number % 4 == 1:
            self.stream.update(xid, table, packed)
        else:
            self.stream.insert(xid, table, packed)

    def _many_own_chunks(self, session: int, xid: int, table: int) -> None:
        pointers = self.values.get(session, [POINTER])
        is_last = self.number % 2 == 0
        rows = [packed_row(1), *(packed_row(self.number, external(pointer)) for pointer in pointers)]
        self.stream.multi_insert(xid, table, rows, last=is_last)
        if is_last:
            self.values.pop(session, None)

    def _guess(self, session: int, xid: int, table: int) -> None:
        """Insert a speculative row that is confirmed later, or never."""
        self._guess_row(session, xid, table, packed_row(self.number))

    def _guess_row(self, session: int, xid: int, table: int, packed: bytes) -> None:
        top = self.tops[session]
        first = top if xid != top and xid not in self.stream.decoder.transactions.top_of else 0
        flags = heap.INSERT_IS_SPECULATIVE
        self.stream.insert(xid, table, packed, flags=flags, offset=self.number, top=first)
        self.guesses[session] = xid, table, self.number

    def _resolve(self, session: int) -> None:
        xid, table, offset = self.guesses.pop(session, (0, 0, 0))
        if xid and self.number % 3:
            self.stream.confirm(xid, table, offset=offset)
        elif xid:
            self.stream.delete(xid, table, flags=heap.DELETE_IS_SUPER, offset=offset)

    def _speculative(self, xid: int, table: int) -> None:
        flags = heap.INSERT_IS_SPECULATIVE
        self.stream.insert(xid, table, packed_row(self.number), flags=flags, offset=self.number)
        if self.number % 3:
            self.stream.confirm(xid, table, offset=self.number)
        else:
            self.stream.delete(xid, table, flags=heap.DELETE_IS_SUPER, offset=self.number)

    def _other(self, rmgr: int, info: int, xid: int, table: int, *, database: int = DATABASE, top: int = 0) -> None:
        file = locator(table, Oid(database))
        self.stream.record(rmgr, info, bytes(8), xid=xid, top=top, file=file, data=b"x")


def new_wal(script: Wal | None = None) -> Wal:
    """Return a new stream; with `script`, its records can change the catalog as those of the other stream did."""
    stream = Wal(relation(), relation("ledger", LEDGER), TOAST_TABLE, replace(relation("view", VIEW), kind="m"))
    if script is not None:
        stream.catalog.script = script.catalog.script
    return stream


def played(steps: list[tuple[str, int]]) -> Wal:
    stream = new_wal()
    sessions = Sessions(stream)
    for verb, session in steps:
        sessions.play(verb, session)
    return stream
