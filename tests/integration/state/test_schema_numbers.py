"""Schema versions that no value names are deleted; a number never has two versions."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged import groups
from tidemark.io.host.disk import StateFull
from tidemark.io.readers.outbox import OutboxReader, OutboxTrimmed
from tidemark.io.state import schema_numbers
from tidemark.io.state.schema_numbers import NAMES_KEPT
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import Oid, SystemIdentifier
from tidemark.model.position import Sequence
from tidemark.wire.outbox import encode_group
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.values import Identity

IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)
STEP = 8


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateStore]:
    """A state that searches for unneeded versions after each five new ones, and keeps those of two dropped tables."""
    monkeypatch.setattr(schema_numbers, "VERSIONS_A_CHECK", 4)
    monkeypatch.setattr(schema_numbers, "DROPPED_KEPT", 2)
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as created:
        yield created


@pytest.fixture
def reader(store: StateStore) -> Iterator[OutboxReader]:
    with OutboxReader.open(store.folder) as opened:
        opened.register("spark")
        yield opened


class TableFeed:
    """Delivers one row of a table at a time, at rising positions."""

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self.commit_lsn = 96

    def insert(self, name: str, oid: int, *, drops: bool = False) -> None:
        self.commit_lsn += STEP
        relation = groups.relation(name, oid)
        group = groups.insert(self.commit_lsn, relation, None)
        with self.store.transaction(None) as transaction:
            transaction.deliver(encode_group(group))
            if drops:
                transaction.drop_versions(groups.DATABASE, relation.oid)

    def insert_eight(self, *, drop: bool) -> None:
        """Insert into each of the tables t1 to t8."""
        for number in range(1, 9):
            self.insert(f"t{number}", 20_000 + number, drops=drop)

    def confirm(self, reader: OutboxReader) -> None:
        """Let the reader confirm all, and trim."""
        head = self.store.view().ledger.head
        reader.confirm("spark", head, head)
        with self.store.transaction(None) as transaction:
            transaction.apply_confirmations()


def names(store: StateStore) -> dict[int, str]:
    return {int(number): relation.name for number, (_, relation) in store.relations().items()}


def test_versions_of_dropped_tables_are_deleted(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert("stays", 20_000)
    source.insert_eight(drop=True)
    assert len(names(store)) == 9, "values name them"
    source.confirm(reader)
    assert names(store) == {1: "stays", 8: "t7", 9: "t8"}
    source.insert("stays", 20_000)
    source.insert("next", 30_000)
    assert names(store) == {1: "stays", 8: "t7", 9: "t8", 10: "next"}


def test_a_version_that_a_value_names_is_kept(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert_eight(drop=True)
    head = store.view().ledger.head
    source.insert("t2", 20_002)
    source.insert("t8", 20_008)
    reader.confirm("spark", head, head)
    with store.transaction(None) as transaction:
        transaction.apply_confirmations()
    assert names(store) == {2: "t2", 6: "t6", 7: "t7", 8: "t8"}
    found = list(reader.read(head, reader.head()))
    assert [reader.relation(value.header.schema_version).name for value in found if value.header.schema_version] == [
        "t2",
        "t8",
    ]


def test_a_table_with_ever_new_names_keeps_versions_of_the_latest(store: StateStore, reader: OutboxReader) -> None:
    """As a job that renames a table to a name with the time, and back."""
    source = TableFeed(store)
    for number in range(1, 40):
        source.insert(f"t_{number}", 20_000)
        source.insert("t", 20_000)
        source.confirm(reader)
        assert {"t", f"t_{number}"} <= set(names(store).values())
        assert len(names(store)) <= NAMES_KEPT + 5
        if number % 10 == 0:
            store.read_versions()  # as a process that begins an epoch
    assert store.latest_versions()[groups.DATABASE, Oid(20_000)].name == "t"


@pytest.mark.parametrize("is_stored_together", [True, False])
def test_a_table_that_gets_earlier_columns_or_keys_again_has_new_numbers(
    store: StateStore,
    is_stored_together: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Of its versions, the one with the greatest number is the newest: a query gets its columns."""
    first = groups.text_relation("note")
    identity, note = first.columns
    assert note.type is not None
    renamed, keyed = groups.text_relation("remark"), replace(first, primary_key=(), identity_columns=())
    retyped = replace(first, columns=(identity, replace(note, typmod=7)))
    labelled = replace(first, columns=(identity, replace(note, type=replace(note.type, display_name="other"))))
    versions = [first, renamed, first, keyed, first, retyped, first, labelled, first]
    encoded = [encode_group(groups.insert(100 + 8 * each, of, "a")) for each, of in enumerate(versions)]
    if is_stored_together:
        with store.transaction(None) as transaction:
            for group in encoded:
                transaction.deliver(group)
    else:
        for group in encoded:
            with store.transaction(None) as transaction:
                transaction.deliver(group)
            store.read_versions()
    with OutboxReader.open(store.folder) as outbox:
        found = outbox.headers(Sequence(0), outbox.head())
    numbers = [int(header.schema_version) for header in found if header.row_count and header.schema_version]
    assert numbers == [1, 2, 3, 4, 5, 6, 7, 8, 7], "descriptions of its types may alternate"
    assert [store.relations()[SchemaVersion(number)][1] for number in numbers] == versions


def test_a_table_that_is_renamed_back_has_new_numbers(store: StateStore) -> None:
    source = TableFeed(store)
    for name in ("a", "b", "a", "a"):
        source.insert(name, 20_000)
    assert names(store) == {1: "a", 2: "b", 3: "a"}
    store.read_versions()
    source.insert("a", 20_000)
    assert names(store) == {1: "a", 2: "b", 3: "a"}
    assert store.latest_versions()[groups.DATABASE, Oid(20_000)].name == "a"


def test_a_table_that_is_renamed_back_in_one_transaction_has_new_numbers(store: StateStore) -> None:
    a, b, other = groups.relation("a", 20_000), groups.relation("b", 20_000), groups.relation("other", 20_001)
    batches = [groups.batch(104, [number], of=of) for number, of in enumerate((a, other, b, a, b, a, other, a))]
    for commit_lsn in (104, 112):
        with store.transaction(None) as transaction:
            transaction.deliver(encode_group(groups.group(commit_lsn, batches)))
    first = {1: "a", 2: "other", 3: "b", 4: "a", 5: "b", 6: "a"}
    assert names(store) == first | {7: "b", 8: "a", 9: "b", 10: "a"}
    with OutboxReader.open(store.folder) as reader:
        named = [int(value.header.schema_version) for value in reader.read(Sequence(0), reader.head())]
    assert [number for number in named if number] == [1, 2, 3, 4, 5, 6, 2, 6, 6, 2, 7, 8, 9, 10, 2, 10]


def test_the_newest_version_with_each_name_of_a_table_stays(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    for name in ("a", "b", "a2", "b2", "c", "d"):
        source.insert(name, 20_000)
    source.confirm(reader)
    assert set(names(store).values()) == {"a", "b", "a2", "b2", "c", "d"}


def test_no_number_is_used_again(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    seen: dict[int, str] = {}
    for number in range(1, 60):
        source.insert(f"t{number}", 20_000 + number, drops=True)
        for known, name in names(store).items():
            assert seen.setdefault(known, name) == name
        if number % 7 == 0:
            source.confirm(reader)
        if number % 20 == 0:
            store.read_versions()  # as a process that begins an epoch
            dropped = range(20_001, 20_001 + number)
            store.drop_versions(lambda _, oid: oid in dropped)  # noqa: B023 - called at once
    assert len(names(store)) <= 2 + 4 + 7 + 1
    assert len(seen) == 59
    gone = min(set(seen) - set(names(store)))
    with pytest.raises(OutboxTrimmed, match=f"schema version {gone} is not in the outbox"):
        reader.relation(SchemaVersion(gone))


def test_a_deleted_version_that_comes_back_has_another_number(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert_eight(drop=True)
    reader.confirm("spark", store.view().ledger.head, store.view().ledger.head)
    source.commit_lsn += STEP
    again = groups.relation("t1", 20_001)
    with store.transaction(None) as transaction:  # deletes it, and names it
        transaction.apply_confirmations()
        transaction.deliver(encode_group(groups.insert(source.commit_lsn, again, None)))
    assert names(store) == {7: "t7", 8: "t8", 9: "t1"}


def test_a_transaction_that_fails_deletes_nothing(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert_eight(drop=True)
    head = store.view().ledger.head
    reader.confirm("spark", head, head)
    with suppress(StateFull), store.transaction(None) as transaction:
        transaction.apply_confirmations()
        raise StateFull("as a full disk")
    assert len(names(store)) == 8
    source.confirm(reader)
    assert names(store) == {7: "t7", 8: "t8"}


def test_tables_that_were_dropped_before_the_start_are_found_there(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert_eight(drop=False)
    store.read_versions()
    store.drop_versions(lambda _, oid: oid < 20_006)
    source.confirm(reader)
    assert names(store) == {4: "t4", 5: "t5", 6: "t6", 7: "t7", 8: "t8"}


def test_a_deleted_version_that_comes_back_is_stored_once(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert_eight(drop=True)
    reader.confirm("spark", store.view().ledger.head, store.view().ledger.head)
    again, other = groups.relation("t1", 20_001), groups.relation("t8", 20_008)
    at = source.commit_lsn + STEP
    batches = [groups.batch(at, [number], of=of) for number, of in enumerate((again, other) * 3)]
    with store.transaction(None) as transaction:  # deletes it, and names it several times
        transaction.apply_confirmations()
        transaction.deliver(encode_group(groups.group(at, batches)))
    assert names(store) == {7: "t7", 8: "t8", 9: "t1"}


def test_a_version_that_the_same_transaction_named_is_kept(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert_eight(drop=True)
    head = store.view().ledger.head
    reader.confirm("spark", head, head)
    again = groups.relation("t1", 20_001)
    with store.transaction(None) as transaction:
        transaction.deliver(encode_group(groups.insert(source.commit_lsn + STEP, again, None)))
        transaction.apply_confirmations()
    (value,) = reader.read(head, reader.head(), lambda header: header.relation == again.oid)
    assert reader.relation(value.header.schema_version) == again


def test_versions_are_deleted_though_the_readers_always_have_many_before_them(
    store: StateStore, reader: OutboxReader
) -> None:
    source = TableFeed(store)
    heads = list[Sequence]()
    for number in range(1, 60):
        source.insert(f"t{number}", 20_000 + number, drops=True)
        heads.append(store.view().ledger.head)
        if number > 20:
            reader.confirm("spark", heads[number - 20], heads[number - 20])
            with store.transaction(None) as transaction:
                transaction.apply_confirmations()
    assert len(names(store)) <= 20 + 20 + 4 + 2 + 1


@pytest.mark.parametrize("restarts", [False, True])
def test_versions_of_dropped_tables_are_deleted_in_a_state_without_an_outbox(
    store: StateStore, *, restarts: bool
) -> None:
    """Tables leave the selection there, and are dropped later. `restarts`: nobody remembers which were dropped."""
    for number in range(1, 31):
        relation = groups.relation(f"t{number}", 20_000 + number)
        with store.transaction(None) as transaction:
            kept = transaction.kept_version(groups.DATABASE, relation)
            assert transaction.kept_version(groups.DATABASE, relation) == kept
        if restarts:
            store.read_versions()
            store.drop_versions(lambda _, oid: oid < relation.oid)  # noqa: B023 - it is called at once
        else:
            with store.transaction(None) as transaction:
                transaction.drop_versions(groups.DATABASE, relation.oid)
    assert names(store)[kept] == "t30"
    assert len(names(store)) <= 5 + 2 + 1


def test_a_table_with_a_copy_is_not_dropped(store: StateStore, reader: OutboxReader) -> None:
    source = TableFeed(store)
    source.insert_eight(drop=False)
    with store.transaction(None) as transaction:
        transaction.put_copy(groups.DATABASE, Oid(20_001), CopyProgress(CopyPhase.DONE, 0))
        transaction.put_copy(groups.DATABASE, Oid(20_002), CopyProgress(CopyPhase.LEFT, 0))
    store.read_versions()
    store.drop_versions(lambda _, oid: oid < 20_006)  # the catalogs may be older than the creation of a table
    source.confirm(reader)
    assert names(store) == {1: "t1", 2: "t2", 4: "t4", 5: "t5", 6: "t6", 7: "t7", 8: "t8"}
