"""The state in a real LMDB: deliveries, epochs, readers, trimming, damage."""

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged import groups
from tidemark.io.host.disk import StateFull
from tidemark.io.readers.outbox import OutboxReader, OutboxTrimmed
from tidemark.io.state.environment import LOCK_FILE_BYTES, StateMissing
from tidemark.io.state.outbox_table import UnknownReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, Fenced, InternalError, StateError
from tidemark.model.lsn import Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch, Pointer, Position, Sequence
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import named
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress
from tidemark.wire.state.key import Key
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.state_keys import CONFIRMED, DELIVERED, LEDGER, STAGE
from tidemark.wire.state.values import Identity, Watermark

OWNER = Owner("sidecar", "host", "boot", 1, 1)
BOUND = 4 << 20
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, BOUND)


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


@pytest.fixture
def store(folder: StateFolder) -> Iterator[StateStore]:
    with StateStore.create(folder, IDENTITY) as made:
        yield made


@pytest.fixture
def reader(store: StateStore) -> Iterator[OutboxReader]:
    with OutboxReader.open(store.folder) as opened:
        yield opened


@pytest.fixture
def epoch(store: StateStore) -> Epoch:
    return store.begin_epoch(OWNER)


def deliver(store: StateStore, epoch: Epoch, commit_lsn: int, ids: int = 3, note: str = "x") -> Watermark:
    encoded = encode_group(groups.group(commit_lsn, [groups.batch(commit_lsn, range(ids), note)]))
    with store.transaction(epoch) as transaction:
        return transaction.deliver(encoded)


def settle(store: StateStore, epoch: Epoch) -> None:
    with store.transaction(epoch) as transaction:
        transaction.apply_confirmations()


def test_only_the_owner_reads_the_files(store: StateStore) -> None:
    root = store.folder.root
    files = [path for path in root.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"data.mdb", "lock.mdb", "heartbeat"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_the_lock_file_has_its_space_from_the_beginning(store: StateStore) -> None:
    found = (store.folder.lmdb / "lock.mdb").stat()
    assert found.st_size == LOCK_FILE_BYTES  # as LMDB itself would make it
    assert found.st_blocks * 512 >= LOCK_FILE_BYTES


def test_a_folder_without_state_is_refused_by_name(folder: StateFolder) -> None:
    with pytest.raises(StateMissing, match="no state in"):
        StateStore.open(folder)


def test_creating_a_state_twice_keeps_its_content(store: StateStore, epoch: Epoch) -> None:
    delivered = deliver(store, epoch, 100)
    with StateStore.create(store.folder, IDENTITY) as again:
        assert again.view().delivered == delivered


def test_the_state_of_another_system_is_refused(store: StateStore) -> None:
    other = Identity("main", SystemIdentifier(78), "0a0b", 15, 16 << 20, BOUND)
    with pytest.raises(StateError, match="belongs to capture 'main' of system 77"):
        StateStore.create(store.folder, other)


@pytest.mark.feature("I12")
def test_a_missing_stage_means_realtime(store: StateStore, epoch: Epoch) -> None:
    assert store.view().stage is Stage.REALTIME
    with store.transaction(epoch) as transaction:
        transaction.put(STAGE, Stage.HELD)
    assert store.view().stage is Stage.HELD


@pytest.mark.feature("I23")
def test_values_pointer_and_schema_version_appear_together_or_not_at_all(
    store: StateStore, reader: OutboxReader, epoch: Epoch
) -> None:
    encoded = encode_group(groups.group(100, [groups.batch(100, [1, 2])]))

    def fail_after_delivery() -> None:
        with store.transaction(epoch) as transaction:
            transaction.deliver(encoded)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_delivery()
    assert (reader.head(), store.view().delivered, store.relations()) == (0, None, {})
    delivered = deliver(store, epoch, 100)
    assert store.view().delivered == delivered
    assert (reader.head(), delivered.sequence) == (2, 2)
    assert list(store.relations().values()) == [(groups.DATABASE, groups.relation())]


@pytest.mark.feature("I23")
def test_a_delivery_never_moves_back(store: StateStore, epoch: Epoch) -> None:
    deliver(store, epoch, 100)
    with pytest.raises(InternalError, match="would move back"):
        deliver(store, epoch, 99)


def test_a_pointer_moves_without_values(store: StateStore, reader: OutboxReader, epoch: Epoch) -> None:
    deliver(store, epoch, 100)
    with store.transaction(epoch) as transaction:
        moved = transaction.deliver(encode_group(groups.group(200, [])))
    assert store.view().delivered == moved
    assert (moved.sequence, reader.head()) == (2, 2)


def test_the_stored_commit_time_is_that_of_the_last_commit_even_after_a_clock_was_set_back(
    store: StateStore, epoch: Epoch
) -> None:
    deliver(store, epoch, 200)
    set_back = replace(groups.group(300, []), transactions=(replace(groups.end(300), commit_time_us=100),))
    with store.transaction(epoch) as transaction:
        assert transaction.deliver(encode_group(set_back)).commit_time_us == 100
    with store.transaction(epoch) as transaction:
        idle = transaction.deliver(encode_group(replace(groups.group(400, []), transactions=())))
    assert idle.commit_time_us == 100, "no transaction ended"


@pytest.mark.feature("I21")
def test_the_older_epoch_fails_inside_its_transaction(store: StateStore, epoch: Epoch) -> None:
    younger = store.begin_epoch(OWNER)
    assert younger > epoch
    with pytest.raises(Fenced, match=r"epoch 1\.1 has ended"):
        deliver(store, epoch, 100)
    assert store.view().delivered is None
    deliver(store, younger, 100)


def test_what_is_read_is_what_was_delivered_in_order(store: StateStore, reader: OutboxReader, epoch: Epoch) -> None:
    sent = [groups.group(lsn, [groups.message(lsn, b"m" * lsn), groups.batch(lsn, [lsn])]) for lsn in (100, 200, 300)]
    for group in sent:
        with store.transaction(epoch) as transaction:
            transaction.deliver(encode_group(group))
    values = list(reader.read(Sequence(0), reader.head()))
    assert [value.header.sequence for value in values] == list(range(1, 10))
    assert [value.item() for value in values if value.header.kind == 5] == [group.items[0] for group in sent]
    assert reader.relation(values[1].header.schema_version) == groups.relation()


def test_a_plan_ends_at_the_end_of_a_group_and_contains_at_least_one(
    store: StateStore, reader: OutboxReader, epoch: Epoch
) -> None:
    for lsn in (100, 200, 300, 400):
        deliver(store, epoch, lsn)
    one = sum(header.payload_length for header in reader.headers(Sequence(0), Sequence(2)))
    assert reader.plan(Sequence(0), 1) == 2
    assert reader.plan(Sequence(2), one * 2 + 1000) == 6
    assert reader.plan(Sequence(0), 1 << 30) == 8
    assert reader.plan(Sequence(8), 1 << 30) == 8
    with pytest.raises(StateError, match="is not the end of a group"):
        reader.plan(Sequence(1), 1)
    with pytest.raises(StateError, match="ends at 8"):
        reader.plan(Sequence(9), 1)


def test_trimming_stays_below_the_lowest_confirmed_and_replayable_sequence_of_all_readers(
    store: StateStore, reader: OutboxReader, epoch: Epoch
) -> None:
    reader.register("spark")
    reader.register("other")
    watermarks = [deliver(store, epoch, lsn) for lsn in (100, 200, 300)]
    reader.confirm("spark", Sequence(4), Sequence(2))
    settle(store, epoch)
    assert (store.view().confirmed, reader.ledger().trimmed) == (None, 0)
    reader.confirm("other", Sequence(6), Sequence(6))
    settle(store, epoch)
    view = store.view()
    assert view.confirmed is not None
    assert (view.confirmed.pointer, view.confirmed.sequence) == (watermarks[1].pointer, 4)
    assert view.ledger.trimmed == 2
    with pytest.raises(OutboxTrimmed, match="contains 3 to 6"):
        list(reader.read(Sequence(0), Sequence(6)))
    assert [value.header.sequence for value in reader.read(Sequence(2), Sequence(6))] == [3, 4, 5, 6]


def test_the_ledger_counts_the_stored_values_exactly(store: StateStore, reader: OutboxReader, epoch: Epoch) -> None:
    reader.register("spark")
    for lsn in (100, 200, 300):
        deliver(store, epoch, lsn, note="n" * (lsn * 2000))
    reader.confirm("spark", Sequence(4), Sequence(2))
    settle(store, epoch)
    with store.transaction(epoch) as transaction:
        assert transaction.outbox.measured() == transaction.ledger()
    reader.confirm("spark", Sequence(6), Sequence(6))
    settle(store, epoch)
    assert reader.ledger().byte_count == 0
    assert deliver(store, epoch, 400).sequence == 8


def test_a_late_smaller_confirmation_changes_nothing(store: StateStore, reader: OutboxReader, epoch: Epoch) -> None:
    reader.register("spark")
    deliver(store, epoch, 100)
    deliver(store, epoch, 200)
    reader.confirm("spark", Sequence(4), Sequence(2))
    late = reader.confirm("spark", Sequence(2), Sequence(0))
    assert (late.applied, late.replayable) == (4, 2)
    with pytest.raises(StateError, match="the outbox ends at 4"):
        reader.confirm("spark", Sequence(5), Sequence(0))


def test_an_unregistered_reader_confirms_nothing(store: StateStore, reader: OutboxReader) -> None:
    with pytest.raises(UnknownReader):
        reader.confirm("nobody", Sequence(0), Sequence(0))
    with pytest.raises(UnknownReader), store.transaction(None) as transaction:
        transaction.drop_reader("nobody")
    with pytest.raises(ConfigError):
        reader.register("a/b")


def test_a_full_outbox_refuses_more_until_readers_confirm(
    store: StateStore, reader: OutboxReader, epoch: Epoch
) -> None:
    reader.register("spark")
    note = "n" * (1 << 20)
    for lsn in (100, 101, 102):
        deliver(store, epoch, lsn, ids=1, note=note)
    with pytest.raises(StateFull, match="the outbox is full"):
        deliver(store, epoch, 103, ids=1, note=note)
    full = reader.ledger()
    assert BOUND - (2 << 20) < full.byte_count <= BOUND
    with store.transaction(epoch) as transaction:  # a pointer needs no space
        transaction.deliver(encode_group(groups.group(102, [], ordinal=2_000_000)))
    reader.confirm("spark", Sequence(2), Sequence(2))
    settle(store, epoch)
    deliver(store, epoch, 103, ids=1, note=note)


def test_a_group_larger_than_the_bound_is_stored_in_an_empty_outbox(
    store: StateStore, reader: OutboxReader, epoch: Epoch
) -> None:
    reader.register("spark")
    deliver(store, epoch, 100)
    with pytest.raises(StateFull):
        deliver(store, epoch, 200, ids=1, note="n" * (2 * BOUND))
    reader.confirm("spark", Sequence(2), Sequence(0))  # applied, but Spark may still replay it
    deliver(store, epoch, 200, ids=1, note="n" * (2 * BOUND))
    assert len(list(reader.read(Sequence(2), reader.head()))) == 2


def overwrite(store: StateStore, key: Key[Watermark]) -> None:
    name = named(store.scope, key.name)
    database = store.environment.database("state")
    with store.environment.write() as transaction:
        stored = bytearray(transaction.get(name, db=database) or b"")
        stored[-1] ^= 1
        transaction.put(name, bytes(stored), db=database)


@pytest.mark.feature("I24")
def test_a_damaged_position_is_derived_from_the_outbox(store: StateStore, reader: OutboxReader, epoch: Epoch) -> None:
    reader.register("spark")
    deliver(store, epoch, 100)
    deliver(store, epoch, 200)
    reader.confirm("spark", Sequence(2), Sequence(0))
    settle(store, epoch)
    before = store.view()
    overwrite(store, DELIVERED)
    overwrite(store, CONFIRMED)
    with store.environment.write() as transaction:
        transaction.put(named(store.scope, LEDGER.name), b"rubbish", db=store.environment.database("state"))
    after = store.view()
    assert (after.delivered, after.confirmed, after.ledger) == (before.delivered, before.confirmed, before.ledger)


@pytest.mark.feature("I24")
def test_a_damaged_position_with_nothing_to_derive_it_from_halts(store: StateStore, epoch: Epoch) -> None:
    with store.transaction(epoch) as transaction:
        transaction.deliver(encode_group(groups.group(100, [])))
    overwrite(store, DELIVERED)
    with pytest.raises(DamagedValue, match="damaged value in the state: delivered"):
        store.view()


@pytest.mark.feature("I24")
def test_a_damaged_reader_keeps_all_values(store: StateStore, reader: OutboxReader, epoch: Epoch) -> None:
    reader.register("spark")
    deliver(store, epoch, 100)
    reader.confirm("spark", Sequence(2), Sequence(2))
    with store.environment.write() as transaction:
        transaction.put(named(store.scope, "spark"), b"rubbish", db=store.environment.database("readers"))
    settle(store, epoch)
    view = store.view()
    assert (view.damaged_readers, view.ledger.trimmed, view.confirmed) == (frozenset({"spark"}), 0, None)


def test_frequent_reads_do_not_grow_with_the_tables(store: StateStore, epoch: Epoch) -> None:
    deliver(store, epoch, 100)
    done = CopyProgress(CopyPhase.DONE, 1)
    with store.transaction(epoch) as transaction:
        transaction.put_copy(groups.DATABASE, Oid(20001), done)
        transaction.put_copy(groups.DATABASE, Oid(20002), done)
    with store.environment.write() as transaction:
        key = named(store.scope, f"{groups.DATABASE}/20001")
        transaction.put(key, b"rubbish", db=store.environment.database("copies"))
    with pytest.raises(DamagedValue):
        store.view()
    assert store.marks().delivered is not None
    assert store.copy(groups.DATABASE, Oid(20002)) == done
    assert store.copy(groups.DATABASE, Oid(20003)) is None


def test_schema_versions_are_read_again_after_a_restart(store: StateStore, epoch: Epoch) -> None:
    deliver(store, epoch, 100)
    with StateStore.open(store.folder) as again:
        younger = again.begin_epoch(OWNER)
        deliver(again, younger, 200)
        assert len(again.relations()) == 1


def test_a_new_outbox_continues_the_numbers_in_the_tables(folder: StateFolder) -> None:
    with StateStore.create(folder, IDENTITY, numbers_after=Sequence(500)) as store:
        epoch = store.begin_epoch(OWNER)
        assert deliver(store, epoch, 100).sequence == 502
        with OutboxReader.open(folder) as reader:
            assert [value.header.sequence for value in reader.read(Sequence(500), reader.head())] == [501, 502]


@pytest.mark.feature("A01")
def test_positions_of_eight_states_that_are_written_at_once_are_those_of_their_writers(tmp_path: Path) -> None:
    """The engines of a group write beside each other in one process: 10,000 positions."""

    def write(number: int) -> Watermark:
        with StateStore.create(StateFolder(tmp_path / str(number)), IDENTITY) as own:
            epoch = own.begin_epoch(OWNER)
            for at in range(1250):
                reached = Watermark(
                    Pointer(Position(TimelineId(1), Lsn(8 * (at + 1) + number), number), Lsn(at)), Sequence(0)
                )
                with own.transaction(epoch) as transaction:
                    transaction.put(DELIVERED, reached)
                with own.transaction(epoch) as transaction:
                    assert transaction.get(DELIVERED) == reached
            return reached

    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(write, range(8)))
    assert len(set(written)) == 8
    for number, last in enumerate(written):
        with StateStore.open(StateFolder(tmp_path / str(number))) as again:
            assert again.view().delivered == last
