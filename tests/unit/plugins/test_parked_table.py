"""The table of parked changes: no change twice and none lost, its bound, its damage, a state of an earlier version."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import lmdb
import pytest

from tests.support.forged.groups import DATABASE, position, relation
from tests.unit.engine.test_poison import batch_at
from tests.unit.plugins.test_group_transforms import EPOCH
from tidemark import FlatJson
from tidemark.io.parked.parked_table import ParkedFull, ParkedTable, UnknownParked, parked_ledger
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.change import Op
from tidemark.model.lsn import Oid, SystemIdentifier, TimelineId
from tidemark.model.position import Epoch
from tidemark.model.relation import KnownDatabase
from tidemark.runtime.plugins.poison_handling import batch_of, parked_change, row_bytes
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import named
from tidemark.wire.parked import ParkedChange, ParkedLedger, SkippedChange, decode_parked, encode_parked
from tidemark.wire.state.state_keys import PARKED
from tidemark.wire.state.values import Identity

LATER = Epoch(TimelineId(1), EPOCH.number + 1)
NO_LIMIT = 1 << 30
OTHER = Oid(DATABASE + 1)


def new_store(root: Path) -> StateStore:
    identity = Identity("main", SystemIdentifier(7), "00" * 16, 15, 16 << 20, 1 << 24)
    return StateStore.create(StateFolder(root / "state"), identity)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with new_store(tmp_path) as made:
        yield made


def change(lsn: int = 100, epoch: Epoch = EPOCH) -> ParkedChange:
    return parked_change(batch_at(lsn, 1), "KeyError", epoch, 5)


def park(store: StateStore, *changes: ParkedChange, row: bytes = b"row", bytes_max: int = NO_LIMIT) -> list[int]:
    with store.transaction(None) as transaction:
        return [ParkedTable(transaction).park(each, row, bytes_max).number for each in changes]


def numbers(store: StateStore) -> list[int]:
    with store.reading() as transaction:
        return [each.number for each in ParkedTable(transaction).changes()]


@pytest.mark.feature("P16")
def test_a_change_that_comes_again_replaces_itself_and_equal_places_in_one_epoch_are_several_rows(
    store: StateStore,
) -> None:
    assert park(store, change(200), change(100), change(100)) == [1, 2, 3], "a transform multiplied a row"
    assert numbers(store) == [2, 3, 1], "in the order of the stream"
    again = replace(change(100, LATER), reason="ValueError")
    assert park(store, again, again, again) == [2, 3, 4]
    with store.reading() as transaction:
        found = {each.number: each for each in ParkedTable(transaction).changes()}
    assert (found[2].reason, found[2].failures, found[1].failures) == ("ValueError", 2, 1)
    assert parked_ledger(store).count == 4


@pytest.mark.feature("P16")
def test_the_bound_is_exact_and_freed_by_what_is_dropped(store: StateStore) -> None:
    park(store, change(100))
    one = parked_ledger(store).byte_count
    with pytest.raises(ParkedFull, match=r"public.account at 1:0/C8:1 cannot be parked: 1 parked changes have"):
        park(store, change(200), bytes_max=2 * one - 1)
    assert numbers(store) == [1], "nothing of it is stored"
    park(store, change(200), bytes_max=2 * one)
    with store.transaction(None) as transaction:
        assert ParkedTable(transaction).drop([1]) == 1
    assert parked_ledger(store) == ParkedLedger(2, 1, one, 0)
    assert park(store, change(300), bytes_max=2 * one) == [3], "a number is never used again"


def test_requests_and_failures_are_counted_and_a_damaged_ledger_is_counted_again(store: StateStore) -> None:
    park(store, change(100), change(200), change(300))
    with store.transaction(None) as transaction:
        table = ParkedTable(transaction)
        assert table.request([1, 3]) == 2
        table.record_failure(3, "OSError")
        with pytest.raises(UnknownParked, match="no parked change has the number 9"):
            table.drop([1, 9])
        before = table.ledger()
    assert (before.requested, before.count) == (1, 3)
    with store.reading() as transaction:
        ((requested, row),) = ParkedTable(transaction).requested()
    assert (requested.number, requested.is_requested, row) == (1, True, b"row")
    with store.environment.write() as raw:
        raw.put(named(store.scope, PARKED.name), b"damaged", db=store.environment.database("state"))
    assert parked_ledger(store) == before
    park(store, change(100, LATER))
    assert parked_ledger(store).requested == 0


@pytest.mark.feature("P16")
def test_a_damaged_change_blocks_no_other_and_is_dropped_with_all(store: StateStore) -> None:
    park(store, change(100), change(200))
    with store.transaction(None) as transaction:
        key, value = next(iter(transaction.stored("parked")))
        transaction.store("parked", key, value[:-1] + bytes([value[-1] ^ 1]))
    with store.transaction(None) as transaction:
        table = ParkedTable(transaction)
        assert table.damaged() == [f"relation {relation().oid} of database 16384 at 1:0/64:1"]
        assert (table.request(None), table.request([2])) == (1, 1)
    assert park(store, change(100, LATER), change(300)) == [3, 4]
    assert numbers(store) == [3, 2, 4]
    assert parked_ledger(store).count == 4
    with store.transaction(None) as transaction:
        assert ParkedTable(transaction).drop([2]) == 1
        assert ParkedTable(transaction).drop(None) == 3
    assert parked_ledger(store) == ParkedLedger(4)
    assert park(store, change(100, LATER)) == [5]


@pytest.mark.feature("P16")
def test_a_copy_drops_what_its_rows_replace_and_nothing_else(store: StateStore) -> None:
    other = replace(change(100), relation=relation("other", 9))
    park(store, change(200), change(300), replace(change(400), op=Op.COPY.value), other)
    with store.transaction(None) as transaction:
        assert ParkedTable(transaction).drop_of(DATABASE, relation().oid, change(200).position) == 2
    assert sorted(numbers(store)) == [2, 4]


def named_now(names: Mapping[Oid, str]) -> Mapping[Oid, KnownDatabase]:
    return {oid: KnownDatabase(name, "UTF8") for oid, name in names.items()}


def parked_in(store: StateStore) -> list[tuple[int, str]]:
    with store.reading() as transaction:
        return sorted((each.number, each.database) for each in ParkedTable(transaction).changes())


def test_changes_follow_the_renames_of_their_databases(store: StateStore) -> None:
    other, later = replace(change(100), database="new", database_oid=OTHER), change(300)
    park(store, change(100), change(100), other, later)
    with store.transaction(None) as transaction:
        table = ParkedTable(transaction)
        table.rename_databases(named_now({DATABASE: "shop_of_last_year", OTHER: "shop"}))
        table.rename_databases(named_now({Oid(9): "x"}))
    assert parked_in(store) == [
        (1, "shop_of_last_year"), (2, "shop_of_last_year"), (3, "shop"), (4, "shop_of_last_year"),
    ]  # fmt: skip
    ledger = parked_ledger(store)
    with store.transaction(None) as transaction:
        table = ParkedTable(transaction)
        assert table.drop_of(OTHER, relation().oid, later.position) == 1
        assert table.request(None) == 3
    assert (ledger.count, ledger.last_number, parked_ledger(store).count) == (4, 4, 3)
    assert park(store, change(400)) == [5]


def test_databases_that_exchange_their_names_exchange_their_changes(store: StateStore) -> None:
    park(store, change(100), replace(change(100), database="new", database_oid=OTHER))
    with store.transaction(None) as transaction:
        ParkedTable(transaction).rename_databases(named_now({DATABASE: "new", OTHER: "shop"}))
    assert parked_in(store) == [(1, "new"), (2, "shop")]


def test_equal_places_in_two_databases_of_one_name_are_two_changes(store: StateStore) -> None:
    """As of copies of a database that was dropped, and of the one that has its name now."""
    park(store, change(100), replace(change(100, LATER), database_oid=OTHER))
    with store.transaction(None) as transaction:
        assert ParkedTable(transaction).drop_of(OTHER, relation().oid, change(100).position) == 1
    assert numbers(store) == [1]


def test_a_skipped_change_that_comes_again_is_counted_once(store: StateStore) -> None:
    for lsn in (100, 200, 100):
        with store.transaction(None) as transaction:
            ParkedTable(transaction).skip(SkippedChange(lsn, position(lsn), "i", "shop", "public.account", "KeyError"))
    with store.reading() as transaction:
        skips = ParkedTable(transaction).skips()
    assert (skips.count, [each.at_us for each in skips.kept]) == (2, [100, 200])


def test_a_parked_batch_is_the_batch_again_with_the_epoch_of_its_process() -> None:
    poison = batch_at(100, 1)
    stored = encode_parked(parked_change(poison, "KeyError", EPOCH, 5), row_bytes(poison))
    read, row = decode_parked(stored)
    found = batch_of(replace(read, number=7), row, LATER)
    assert (found.table, found.key, found.columns, found.relation) == (
        poison.table, poison.key, poison.columns, poison.relation,
    )  # fmt: skip
    assert (found.epoch, found.parked_number, found.position) == (LATER, 7, poison.position)
    assert found.arrow.equals(poison.arrow)
    assert [each.parked_number for each in (*found, *FlatJson().serialized(found, 0))] == [7, 7]
    assert [each.parked_number for each in (*poison, *FlatJson().serialized(poison, 0))] == [0, 0]
    for cut in range(len(stored)):
        with pytest.raises(DamagedValue):
            decode_parked(stored[:cut])


def test_a_state_of_an_earlier_version_has_no_parked_changes_and_gets_the_table(tmp_path: Path) -> None:
    new_store(tmp_path).close()
    folder = StateFolder(tmp_path / "state")
    with lmdb.open(str(folder.lmdb), max_dbs=32) as raw:
        database = raw.open_db(b"parked")
        with raw.begin(write=True) as transaction:
            transaction.drop(database, delete=True)
    with StateStore.open(folder, read_only=True) as read:
        assert parked_ledger(read) == ParkedLedger()
    with StateStore.open(folder) as written:
        assert park(written, change()) == [1]
