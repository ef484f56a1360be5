"""The cost of a transaction's end: proportional to its catalog changes, and zero for databases without any."""

from tests.support.forged.byte_targets.catalogs import records_of
from tests.support.forged.byte_targets.small_base import BASE, sessions
from tests.unit.decoder.test_small_transactions import calls_outside_kernels
from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.history import load_base
from tidemark.decode.catalog.new_databases import mirror_of
from tidemark.model.lsn import Oid, Xid

UTF8 = 6  # pg_enc
OTHER_XID = Xid(1 << 20)
LSN = load_base(BASE.read_bytes(), "base").lsn


def mirrors(others: int) -> DatabaseMirrors:
    """The mirrors of a saved base, and of `others` similar databases; ended transactions are settled."""
    first = load_base(BASE.read_bytes(), "base").mirrors
    like = next(iter(first.values()))
    more = [
        mirror_of(list(load_base(BASE.read_bytes(), "base").mirrors[like.database].store.heaps.values()), *rest)
        for rest in ((like, Oid(90_000 + number), like.store.tablespace, UTF8) for number in range(others))
    ]
    made = DatabaseMirrors([*first.values(), *more])
    made.abort({OTHER_XID})
    return made


def calls_of_ends(made: DatabaseMirrors, xid: Xid) -> int:
    def end() -> None:
        made.abort({xid})
        made.selection_changes(xid)
        made.commit({xid}, LSN)

    return calls_outside_kernels(end)


def begin_ddl(made: DatabaseMirrors) -> Xid:
    """Let a transaction change the catalogs of the first database; return its xid."""
    (ddl,) = (content for name, content in sessions() if name == "ddl")
    return next(record.xid for record in records_of(ddl, LSN) if made.redo(record, record.xid))


def test_ends_of_transactions_cost_nothing_for_databases_that_they_never_touched() -> None:
    few, many = mirrors(1), mirrors(20)
    assert calls_of_ends(few, OTHER_XID) == calls_of_ends(many, OTHER_XID)
    assert begin_ddl(few) == begin_ddl(many)
    assert calls_of_ends(few, OTHER_XID) == calls_of_ends(many, OTHER_XID)


def test_the_end_of_a_transaction_that_changed_catalogs_is_reported_once() -> None:
    for ends in ("commit", "abort"):
        made = mirrors(2)
        xid = begin_ddl(made)
        reported = [made.commit({xid}, LSN) if ends == "commit" else made.abort({xid}) for _ in range(2)]
        assert reported == [True, False]
        assert not any(mirror.store.open for mirror in made.values())
