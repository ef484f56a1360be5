"""Bases and journal: a mirror restored from any base and its journal equals the mirror that was never stopped."""

from collections.abc import Iterator

import pytest

from tests.support.oracles.catalogs import Observed, differences, flush_lsn, observe, play
from tests.support.servers.postgres import Cluster, new_cluster, sql
from tests.support.workloads.ddl_script import REWRITES, STEPS
from tests.support.workloads.random_sessions.crew import storm
from tidemark.decode.catalog.databases import DatabaseMirrors
from tidemark.decode.catalog.heap import CatalogHeap
from tidemark.decode.catalog.history import (
    Base,
    DamagedHistory,
    Journal,
    OpenTransactionStart,
    dump_base,
    dump_entry,
    journal_head,
    load_base,
    replay,
)
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.store import CatalogStore
from tidemark.model.lsn import FullXid, Lsn, SystemIdentifier, TimelineId, Xid

SYSTEM = SystemIdentifier(7_000_000_000_000_000_001)
TIMELINE = TimelineId(1)
BASES = 25


@pytest.fixture(scope="module")
def quiet() -> Iterator[Cluster]:
    """A server that changes no catalog by itself."""
    with new_cluster(15, {"autovacuum": "off", "wal_keep_size": "2GB"}) as cluster:
        yield cluster


def state_of(heap: CatalogHeap) -> tuple[object, ...]:
    return heap.file, heap.rows, heap.inserter, heap.deleter


def state(store: CatalogStore) -> tuple[object, ...]:
    """Return everything that determines a store's later content."""
    opened = {
        xid: (
            *(changes.subjects, changes.rewriting),
            {locator: (pending.owner, state_of(pending.heap)) for locator, pending in changes.pending.items()},
            {catalog: view.file for catalog, view in changes.views.items()},
        )
        for xid, changes in store.open.items()
    }
    return {oid: state_of(heap) for oid, heap in store.heaps.items()}, opened, store.top_of, store.marks.aborted


def save(mirror: CatalogMirror, lsn: Lsn, major: int) -> bytes:
    base = Base(SYSTEM, TIMELINE, lsn, major, FullXid(1 << 32 | 5), DatabaseMirrors([mirror]))
    return dump_base(base)


def follow_with_history(observed: Observed) -> tuple[list[bytes], bytes, Lsn]:
    """Follow to the present; return the bases saved on the way, the journal, and its end."""
    with observed.cluster.connect(observed.database) as session:
        sql(session, "CHECKPOINT")
        sql(session, "SELECT pg_logical_emit_message(true, 'history-test', '')")
        until = flush_lsn(session)
    records = list(observed.wal.read(until))
    step = len(records) // BASES
    major = observed.cluster.major
    bases, journal = [], [journal_head(major, SYSTEM)]
    for number, record in enumerate(records):
        if number % step == 0:
            bases.append(save(observed.mirror, record.lsn, major))
        top_xid = record.top_xid or observed.follower.top_of.get(record.xid, record.xid)
        if observed.follower.follow(record):
            journal.append(dump_entry(record, TIMELINE, top_xid))
    return bases, b"".join(journal), records[-1].end_lsn


def assert_history_leads_here(observed: Observed, bases: list[bytes], journal: bytes, end: Lsn) -> None:
    for data in bases:
        base = load_base(data, "base")
        replay(base, Journal(journal, "journal"), end)
        mirror = base.mirrors[observed.mirror.database]
        assert state(mirror.store) == state(observed.mirror.store)
        assert state(mirror.shared.store) == state(observed.mirror.shared.store)
        assert list(mirror.relations()) == list(observed.mirror.relations())


@pytest.mark.parametrize("steps", [STEPS, REWRITES], ids=["ddl", "rewrites"])
def test_any_base_and_the_journal_after_it_lead_to_the_same_mirror(quiet: Cluster, steps: tuple[str, ...]) -> None:
    name = f"history_{len(steps)}"
    quiet.sql(f"CREATE DATABASE {name}")
    observed = observe(quiet, name)
    play(observed, steps, checkpoint_every=7)
    bases, journal, end = follow_with_history(observed)
    assert differences(observed) == []
    assert_history_leads_here(observed, bases, journal, end)


def test_bases_saved_during_much_ddl_contain_open_transactions(quiet: Cluster) -> None:
    quiet.sql("CREATE DATABASE stormy")
    observed = observe(quiet, "stormy")
    with storm(quiet, "stormy", 11, rewrites=0.15) as crew:
        crew.wait_for(250)
    bases, journal, end = follow_with_history(observed)
    assert differences(observed) == []
    loaded = [load_base(data, "base") for data in bases]
    assert any(base.mirrors[observed.mirror.database].store.open for base in loaded)
    assert_history_leads_here(observed, bases, journal, end)


def test_the_journal_is_a_small_part_of_wal(quiet: Cluster) -> None:
    quiet.sql("CREATE DATABASE rows")
    quiet.sql("CREATE TABLE t (id int PRIMARY KEY, v text)", "rows")
    observed = observe(quiet, "rows")
    observed.catch_up()
    quiet.sql("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i", "rows")
    quiet.sql("UPDATE t SET v = v || 'y'", "rows")
    with quiet.connect("rows") as session:
        until = flush_lsn(session)
    raw = [(len(record.raw), observed.follower.follow(record)) for record in observed.wal.read(until)]
    assert sum(size for size, kept in raw if kept) < sum(size for size, _ in raw) / 100


def test_a_base_keeps_what_a_restart_needs_beside_the_mirror(quiet: Cluster) -> None:
    observed = observe(quiet)
    starts = (OpenTransactionStart(Xid(9), Lsn(100)), OpenTransactionStart(Xid(11), Lsn(90)))
    mirrors = DatabaseMirrors([observed.mirror])
    base = Base(SYSTEM, TimelineId(3), Lsn(1 << 40), 15, FullXid(5 << 32 | 12), mirrors, starts, {Xid(12): Xid(9)})
    loaded = load_base(dump_base(base), "base")
    assert (loaded.system_identifier, loaded.timeline, loaded.lsn) == (SYSTEM, 3, 1 << 40)
    assert (loaded.major, loaded.next_xid) == (15, 5 << 32 | 12)
    assert loaded.open_transactions == starts
    assert loaded.top_of == {12: 9}
    (mirror,) = loaded.mirrors.values()
    assert mirror.dialect == observed.mirror.dialect
    assert mirror.shared.database(mirror.database) == observed.mirror.shared.database(mirror.database)


def test_a_base_that_is_cut_off_or_changed_is_damaged(quiet: Cluster) -> None:
    observed = observe(quiet)
    data = save(observed.mirror, Lsn(1), 15)
    for at in range(0, len(data), len(data) // 40):
        with pytest.raises(DamagedHistory, match="the file"):
            load_base(data[:at], "the file")
        changed = bytearray(data)
        changed[at] ^= 0x10
        with pytest.raises(DamagedHistory, match="the file"):
            load_base(bytes(changed), "the file")
