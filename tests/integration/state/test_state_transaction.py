"""One transaction over a real LMDB: each value if it is missing or damaged, and the limits of each operation."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.forged import groups
from tidemark.io.host.disk import StateFull
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.environment import Environment
from tidemark.io.state.outbox_transaction import FREE_BYTES_MIN
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.io.state.state_transaction import StateTransaction
from tidemark.model.errors import Fenced, InternalError, StateError
from tidemark.model.lsn import FullXid, Lsn, Oid, SystemIdentifier, TimelineId
from tidemark.model.mode import Stage
from tidemark.model.position import Epoch, Pointer, Position, Sequence
from tidemark.model.relation import KnownDatabase
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import named
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.copy_progress import CopyPhase, CopyProgress, Recopies, Recopy
from tidemark.wire.state.event_logs import Loss, LossLog, Rewind, RewindLog, Switch, SwitchLog
from tidemark.wire.state.history_index import HistoryIndex, JournalFile, JournalMark
from tidemark.wire.state.key import Key
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.process_log import Owner, ProcessEnd, ProcessLog
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.state_keys import (
    BEGINNING,
    CONFIRMED,
    DELIVERED,
    FOLLOWED,
    HAND_OVER,
    LEDGER,
    MARKER_KEYS,
    PROCESSES,
    STAGE,
    TERM,
)
from tidemark.wire.state.values import (
    Beginning,
    Followed,
    FollowedDeliverer,
    HandOver,
    Identity,
    MarkerKeys,
    Term,
    Watermark,
)

OWNER = Owner("sidecar", "host", "boot", 1, 1)
BOUND = 4 << 20
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, BOUND)
ValueT = TypeVar("ValueT")
PLACE = Position(TimelineId(1), Lsn(100), 0)
SWITCH = Switch(1, Stage.REALTIME, Stage.ARCHIVE, "the ring is full", None, "")
LOSS = Loss(1, PLACE, Lsn(1), Lsn(2), TimelineId(1), Lsn(3), 4)
REWIND = Rewind(1, TimelineId(1), Lsn(2), PLACE, TimelineId(2), Lsn(2), 4)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as made:
        yield made


@pytest.fixture
def reader(store: StateStore) -> Iterator[OutboxReader]:
    with OutboxReader.open(store.folder) as opened:
        yield opened


def moved(store: StateStore, move: Callable[[StateTransaction], ValueT]) -> ValueT:
    """Run one operation in a transaction."""
    with store.transaction(None) as transaction:
        return move(transaction)


def put(store: StateStore, key: Key[ValueT], value: ValueT) -> None:
    """Store one value in a transaction."""
    moved(store, lambda transaction: transaction.put(key, value))


def deliver(store: StateStore, commit_lsn: int, *, rows: int = 1, note: str = "x", timeline: int = 1) -> Watermark:
    group = groups.group(commit_lsn, [groups.batch(commit_lsn, range(rows), note)] if rows else [])
    last = replace(group.last, position=replace(group.last.position, timeline=TimelineId(timeline)))
    return moved(store, lambda transaction: transaction.deliver(encode_group(replace(group, last=last))))


def damage(store: StateStore, name: str, database: str = "state") -> None:
    with store.environment.write() as transaction:
        transaction.put(named(store.scope, name), b"rubbish", db=store.environment.database(database))


def pointer(timeline: int, lsn: int) -> Pointer:
    return Pointer(Position(TimelineId(timeline), Lsn(lsn), 0), Lsn(lsn - 8))


FOLLOWS = Followed(pointer(1, 200), pointer(1, 100), has_start=True)


@pytest.mark.parametrize("key", [DELIVERED, CONFIRMED], ids=lambda key: key.name)
def test_a_watermark_moves_forward_only_and_a_later_timeline_is_forward(store: StateStore, key: Key[Watermark]) -> None:
    for forward in (pointer(1, 200), pointer(1, 200), pointer(1, 208), pointer(2, 100)):
        put(store, key, Watermark(forward, Sequence(5)))
    for backward in (pointer(2, 99), pointer(1, 1000)):
        with pytest.raises(InternalError, match=f"{key.name} would move back"):
            put(store, key, Watermark(backward, Sequence(5)))
    assert moved(store, lambda transaction: transaction.get(key)) == Watermark(pointer(2, 100), Sequence(5))


def test_a_follower_moves_forward_only_until_it_delivers(store: StateStore) -> None:
    moved(store, lambda transaction: transaction.put(FOLLOWED, FOLLOWS))
    behind = replace(FOLLOWS, pointer=pointer(1, 199))
    with pytest.raises(InternalError, match="followed would move back"):
        moved(store, lambda transaction: transaction.put(FOLLOWED, behind))
    moved(store, lambda transaction: transaction.drop(FOLLOWED))
    moved(store, lambda transaction: transaction.put(FOLLOWED, behind))


@pytest.mark.parametrize("ledger", [OutboxLedger(Sequence(4), Sequence(3)), OutboxLedger(Sequence(5), Sequence(2))])
def test_numbers_of_the_outbox_never_move_back(store: StateStore, ledger: OutboxLedger) -> None:
    moved(store, lambda transaction: transaction.put(LEDGER, OutboxLedger(Sequence(5), Sequence(3))))
    with pytest.raises(InternalError, match="ledger would move back"):
        moved(store, lambda transaction: transaction.put(LEDGER, ledger))


def test_an_epoch_never_moves_back(store: StateStore) -> None:
    store.begin_epoch(OWNER)
    store.begin_epoch(OWNER)
    with pytest.raises(InternalError, match="term would move back"):
        moved(store, lambda transaction: transaction.put(TERM, Term(Epoch(TimelineId(1), 1), OWNER)))


@pytest.mark.parametrize("backward", [Reader(Sequence(4), Sequence(3), 2), Reader(Sequence(5), Sequence(2), 2)])
def test_the_sequences_of_a_reader_never_move_back(store: StateStore, backward: Reader) -> None:
    moved(store, lambda transaction: transaction.put_reader("lake", Reader(Sequence(5), Sequence(3), 1)))
    with pytest.raises(InternalError, match="reader would move back"):
        moved(store, lambda transaction: transaction.put_reader("lake", backward))
    moved(store, lambda transaction: transaction.put_reader("other", backward))


def test_the_generation_of_a_copy_never_moves_back_until_the_copy_is_dropped(store: StateStore) -> None:
    def put_copy(generation: int) -> None:
        progress = CopyProgress(CopyPhase.DONE, generation)
        moved(store, lambda transaction: transaction.put_copy(Oid(1), Oid(7), progress))

    put_copy(2)
    put_copy(2)
    with pytest.raises(InternalError, match="copy would move back"):
        put_copy(1)
    moved(store, lambda transaction: transaction.drop_copy(Oid(1), Oid(7)))
    put_copy(1)


def test_the_attempts_to_return_are_never_numbered_back(store: StateStore) -> None:
    put(store, HAND_OVER, HandOver(3, TimelineId(1), Lsn(500)))
    put(store, HAND_OVER, HandOver(3))
    with pytest.raises(InternalError, match="handover would move back"):
        put(store, HAND_OVER, HandOver(2, TimelineId(2), Lsn(600)))


def test_a_value_that_is_damaged_is_replaced_without_a_comparison(store: StateStore) -> None:
    moved(store, lambda transaction: transaction.put(DELIVERED, Watermark(pointer(2, 100), Sequence(5))))
    damage(store, DELIVERED.name)
    moved(store, lambda transaction: transaction.put(DELIVERED, Watermark(pointer(1, 8), Sequence(0))))
    moved(store, lambda transaction: transaction.put_reader("lake", Reader(Sequence(5), Sequence(5), 1)))
    damage(store, "lake", "readers")
    moved(store, lambda transaction: transaction.put_reader("lake", Reader(Sequence(0), Sequence(0), 1)))


@pytest.mark.feature("I21")
def test_an_epoch_that_never_began_is_over_and_the_error_names_the_present_one(store: StateStore) -> None:
    with pytest.raises(Fenced, match="the current one is none"), store.transaction(Epoch(TimelineId(1), 1)):
        pass
    store.begin_epoch(OWNER)
    with pytest.raises(Fenced, match=r"the current one is 1\.1 owned by"), store.transaction(Epoch(TimelineId(1), 2)):
        pass


def test_keys_that_every_process_may_write_do_not_depend_on_the_deliverer(store: StateStore) -> None:
    damage(store, TERM.name)
    moved(store, lambda transaction: transaction.put(STAGE, Stage.HELD))
    assert moved(store, lambda transaction: transaction.stage()) is Stage.HELD


@pytest.mark.feature("I21")
def test_an_epoch_follows_all_that_is_known_on_the_latest_timeline_of_them(store: StateStore) -> None:
    def next_epoch() -> Epoch:
        return moved(store, lambda transaction: transaction.begin_epoch(OWNER))

    assert [next_epoch(), next_epoch()] == [Epoch(TimelineId(1), 1), Epoch(TimelineId(1), 2)]
    deliver(store, 100, timeline=3)
    assert next_epoch() == Epoch(TimelineId(3), 3)
    followed = Followed(pointer(4, 200), pointer(4, 200), has_start=True)
    moved(store, lambda transaction: transaction.put(FOLLOWED, followed))
    assert next_epoch() == Epoch(TimelineId(4), 4)
    led = replace(followed, leader=FollowedDeliverer(Epoch(TimelineId(2), 9), Lsn(1)))
    moved(store, lambda transaction: transaction.put(FOLLOWED, led))
    assert next_epoch() == Epoch(TimelineId(4), 10)
    led = replace(followed, leader=FollowedDeliverer(Epoch(TimelineId(5), 3), Lsn(1)))
    moved(store, lambda transaction: transaction.put(FOLLOWED, led))
    assert next_epoch() == Epoch(TimelineId(5), 11)


@pytest.mark.feature("I24")
def test_requested_copies_are_kept_and_forgotten_where_they_are_damaged(store: StateStore) -> None:
    assert store.recopies() == Recopies()
    asked = Recopies({"1/7": Recopy("public.account", 1, Lsn(500), 2)})
    moved(store, lambda transaction: transaction.put_recopies(asked))
    assert store.recopies() == asked
    damage(store, "recopies")
    assert store.recopies() == Recopies()


@pytest.mark.feature("I24")
def test_records_for_operators_are_kept_and_dropped_if_damaged(store: StateStore) -> None:
    assert moved(
        store,
        lambda transaction: (
            transaction.switches(),
            transaction.losses(),
            transaction.rewinds(),
            transaction.marker_keys(),
        ),
    ) == (
        SwitchLog(),
        LossLog(),
        RewindLog(),
        MarkerKeys(),
    )

    def note(transaction: StateTransaction) -> None:
        transaction.record_switch(SWITCH)
        transaction.record_loss(LOSS)
        transaction.record_rewind(REWIND)
        transaction.put(MARKER_KEYS, MarkerKeys({"sidecar": "aa"}))

    def reported() -> tuple[tuple[Switch, ...], tuple[Loss, ...], tuple[Rewind, ...], dict[str, str]]:
        view = store.view()
        return view.switches.kept, view.losses.kept, view.rewinds.kept, dict(store.marker_keys().names)

    moved(store, note)
    assert reported() == ((SWITCH,), (LOSS,), (REWIND,), {"sidecar": "aa"})
    moved(store, note)
    assert reported() == ((SWITCH, SWITCH), (LOSS, LOSS), (REWIND, REWIND), {"sidecar": "aa"})
    for name in ("switches", "losses", "rewinds", "markerkeys"):
        damage(store, name)
    assert reported() == ((), (), (), {})
    moved(store, note)
    assert reported() == ((SWITCH,), (LOSS,), (REWIND,), {"sidecar": "aa"})


@pytest.mark.feature("I24")
def test_how_processes_ended_is_kept_and_forgotten_where_it_is_damaged(store: StateStore) -> None:
    assert store.processes() == ProcessLog()
    known = ProcessLog({"sidecar": OWNER}, {"archiver": ProcessEnd(7, 5, "corrupt WAL")})
    moved(store, lambda transaction: transaction.put(PROCESSES, known))
    assert store.processes() == known
    damage(store, "processes")
    assert store.processes() == ProcessLog()


@pytest.mark.feature("P22")
def test_a_group_of_a_first_copy_moves_no_position(store: StateStore) -> None:
    before = deliver(store, 200)
    copied = replace(encode_group(groups.group(100, [groups.batch(100, [1])])), moves_delivered=False)
    after = moved(store, lambda transaction: transaction.deliver(copied))
    assert (after.pointer, after.sequence) == (before.pointer, before.sequence + 2)
    assert store.view().delivered == after


def test_a_position_may_stay_where_it_is_and_the_first_may_have_no_commit(store: StateStore) -> None:
    idle = encode_group(replace(groups.group(100, []), transactions=()))
    first = moved(store, lambda transaction: transaction.deliver(idle))
    assert (first.commit_time_us, first.sequence) == (0, 0)
    assert moved(store, lambda transaction: transaction.deliver(idle)) == first


def test_a_pointer_goes_into_an_outbox_that_is_over_its_bound(store: StateStore, reader: OutboxReader) -> None:
    reader.register("spark")
    deliver(store, 100, note="n" * (2 * BOUND))
    assert store.view().ledger.byte_count > BOUND
    assert deliver(store, 200, rows=0).pointer.position.commit_lsn == 200
    with pytest.raises(StateFull):
        deliver(store, 300)


def test_a_group_without_values_is_confirmed_once_all_before_it_is(store: StateStore, reader: OutboxReader) -> None:
    deliver(store, 100, rows=0)
    assert store.view().confirmed is None, "there is no reader"
    damage(store, "spark", "readers")
    deliver(store, 100, rows=0)
    assert store.view().confirmed is None, "a damaged reader may hold what it cannot tell"
    moved(store, lambda transaction: transaction.drop_reader("spark"))
    before = store.view().delivered
    reader.register("spark")
    deliver(store, 200)
    deliver(store, 300, rows=0)
    assert store.view().confirmed == before, "what was confirmed while there was no reader"
    reader.confirm("spark", Sequence(2), Sequence(2))
    idle = deliver(store, 400, rows=0)
    assert store.view().confirmed == idle
    deliver(store, 500)
    assert store.view().confirmed == idle
    reader.register("other")
    reader.confirm("spark", Sequence(4), Sequence(4))
    deliver(store, 600, rows=0)
    assert store.view().confirmed == idle, "the other one has not read so far"
    moved(store, lambda transaction: transaction.drop_reader("other"))
    damage(store, "spark", "readers")
    deliver(store, 600, rows=0)
    assert store.view().confirmed == idle


def test_nothing_is_confirmed_or_trimmed_while_no_reader_is_registered(store: StateStore) -> None:
    deliver(store, 100)
    before = store.view()
    assert moved(store, lambda transaction: transaction.apply_confirmations()) == before.ledger
    assert store.view() == before


def test_a_reader_that_confirms_what_is_no_end_of_a_group_is_refused(store: StateStore, reader: OutboxReader) -> None:
    reader.register("spark")
    deliver(store, 100)
    for held in (1, 9):  # inside a group, and beyond the outbox
        word = Reader(Sequence(held), Sequence(0), 0)
        with store.transaction(None) as transaction:
            transaction.put_reader("spark", word)
        with pytest.raises(StateError, match=f"readers confirmed {held}, which is not the end of a group"):
            moved(store, lambda transaction: transaction.apply_confirmations())
    assert store.view().confirmed is None


def test_the_lowest_confirmed_sequence_of_the_readers_is_recorded_once(store: StateStore, reader: OutboxReader) -> None:
    for name in ("spark", "other"):
        reader.register(name)
    first, second = deliver(store, 100), deliver(store, 200)
    reader.confirm("spark", Sequence(4), Sequence(0))
    reader.confirm("other", Sequence(2), Sequence(0))
    moved(store, lambda transaction: transaction.apply_confirmations())
    assert store.view().confirmed == first
    reader.confirm("other", Sequence(4), Sequence(0))
    moved(store, lambda transaction: transaction.apply_confirmations())
    assert store.view().confirmed == second
    moved(store, lambda transaction: transaction.drop(CONFIRMED))
    moved(store, lambda transaction: transaction.put(LEDGER, replace(transaction.ledger(), trimmed=Sequence(4))))
    moved(store, lambda transaction: transaction.apply_confirmations())
    assert store.view().confirmed is None, "what is trimmed was confirmed: there is no header to read it from"


def test_confirmed_values_stay_confirmed_when_another_reader_begins_after_them(
    store: StateStore, reader: OutboxReader
) -> None:
    reader.register("spark")
    deliver(store, 100)
    second = deliver(store, 200)
    reader.confirm("spark", Sequence(4), Sequence(0))
    moved(store, lambda transaction: transaction.apply_confirmations())
    reader.register("other")
    reader.confirm("other", Sequence(2), Sequence(2))
    moved(store, lambda transaction: transaction.apply_confirmations())
    assert store.view().confirmed == second


def test_an_outbox_is_full_while_one_of_its_readers_has_unconfirmed_values(
    store: StateStore, reader: OutboxReader
) -> None:
    for name in ("spark", "other"):
        reader.register(name)
    deliver(store, 100)
    reader.confirm("spark", Sequence(2), Sequence(0))
    with pytest.raises(StateFull, match="readers have applied 0 of 1 to 2"):
        deliver(store, 200, note="n" * (2 * BOUND))
    reader.confirm("other", Sequence(2), Sequence(0))
    deliver(store, 200, note="n" * (2 * BOUND))


@pytest.mark.feature("I24")
def test_a_damaged_confirmation_halts_if_a_reader_is_damaged_or_has_confirmed_nothing(
    store: StateStore, reader: OutboxReader
) -> None:
    first = deliver(store, 100)
    deliver(store, 200)
    reader.register("spark")
    damage(store, CONFIRMED.name)
    with pytest.raises(DamagedValue, match="confirmed"):
        store.view()
    reader.confirm("spark", Sequence(2), Sequence(0))
    assert store.view().confirmed == first
    reader.register("other")
    reader.confirm("other", Sequence(4), Sequence(0))
    assert store.view().confirmed == first
    damage(store, "spark", "readers")
    with pytest.raises(DamagedValue, match="confirmed"):
        store.view()


@pytest.mark.feature("I24")
def test_a_damaged_confirmation_is_derived_from_the_delivered_position_if_no_reader_is_required(
    store: StateStore, reader: OutboxReader
) -> None:
    reader.register("query", is_required=False)
    deliver(store, 100)
    damage(store, CONFIRMED.name)
    delivered = store.view().delivered
    assert store.view().confirmed == delivered
    reader.register("spark")
    assert store.view().confirmed == delivered, "and is whole again"


def test_a_required_reader_is_registered_if_the_position_derived_from_the_outbox_is_before_the_confirmed_one(
    store: StateStore, reader: OutboxReader
) -> None:
    reader.register("spark")
    deliver(store, 100)
    reader.confirm("spark", Sequence(2), Sequence(0))
    confirmed = deliver(store, 200, rows=0)
    moved(store, lambda transaction: transaction.drop_reader("spark"))
    damage(store, DELIVERED.name)
    reader.register("spark")
    assert store.view().confirmed == confirmed


@pytest.mark.feature("I24")
def test_a_damaged_ledger_is_counted_again_or_halts_where_nothing_is_left_to_count(store: StateStore) -> None:
    assert store.view().ledger == OutboxLedger()
    damage(store, LEDGER.name)
    with pytest.raises(DamagedValue, match="ledger"):
        store.view()
    moved(store, lambda transaction: transaction.drop(LEDGER))
    assert store.view().ledger == OutboxLedger()
    deliver(store, 100)
    before = store.view().ledger
    assert before.byte_count
    damage(store, LEDGER.name)
    assert store.view().ledger == before


@pytest.mark.feature("I24")
def test_a_damaged_delivery_without_an_outbox_to_derive_it_from_halts(store: StateStore) -> None:
    damage(store, DELIVERED.name)
    with pytest.raises(DamagedValue, match="delivered"):
        store.view()


def test_the_journal_mark_moves_on_with_what_is_durable_and_back_where_the_journal_was_cut(store: StateStore) -> None:
    def marked(move: Callable[[StateTransaction], None]) -> int:
        moved(store, move)
        return store.view().journal.end_lsn

    def index(*ends: int) -> HistoryIndex:
        entries = [JournalFile(f"j{number}", TimelineId(1), Lsn(number), Lsn(end)) for number, end in enumerate(ends)]
        return HistoryIndex(journals=tuple(entries))

    assert (store.view().journal, store.view().history) == (JournalMark(), HistoryIndex())
    assert marked(lambda transaction: transaction.rely_on_journal(Lsn(500))) == 500
    assert marked(lambda transaction: transaction.rely_on_journal(Lsn(400))) == 500
    assert marked(lambda transaction: transaction.put_history(index(300, 0))) == 500, "it is being written"
    assert marked(lambda transaction: transaction.put_history(index(300, 600))) == 500
    assert marked(lambda transaction: transaction.put_history(index(300, 450))) == 450
    assert marked(lambda transaction: transaction.put_history(index(300))) == 300
    assert store.view().history == index(300)
    assert marked(lambda transaction: transaction.put_history(index())) == 0


def test_databases_that_join_the_capture_are_added_to_its_beginning(store: StateStore) -> None:
    reported = {Oid(2): KnownDatabase("two", "LATIN1")}
    moved(store, lambda transaction: transaction.record_databases(reported))
    assert store.view().beginning is store.beginning() is None
    begun = Beginning(TimelineId(1), Lsn(1), FullXid(5), {Oid(1): "one"}, encodings={Oid(1): "UTF8"})
    moved(store, lambda transaction: transaction.put(BEGINNING, begun))
    moved(store, lambda transaction: transaction.record_databases({}))
    assert store.view().beginning == begun
    moved(store, lambda transaction: transaction.record_databases(reported))
    after = replace(begun, databases={Oid(1): "one", Oid(2): "two"}, encodings={Oid(1): "UTF8", Oid(2): "LATIN1"})
    assert store.view().beginning == store.beginning() == after
    moved(store, lambda transaction: transaction.record_databases({Oid(2): KnownDatabase("two", "UTF8")}))
    assert store.view().beginning == replace(after, encodings={Oid(1): "UTF8", Oid(2): "UTF8"})


def test_a_database_whose_name_another_one_took_is_recorded_until_it_is_captured_again(store: StateStore) -> None:
    """NB: the group of a copy reports only its own database."""
    one, two = Oid(1), Oid(2)
    reports: list[tuple[dict[Oid, str], list[Oid]]] = [
        ({one: "shop"}, []),
        ({one: "shop", two: "new"}, []),
        ({two: "new"}, []),  # `shop` left the capture, and no other one has its name
        ({two: "shop"}, [one]),
        ({Oid(3): "other"}, [one]),
        ({two: "renamed"}, [one]),
        ({one: "shop", two: "renamed"}, []),
        ({one: "renamed", two: "shop"}, []),  # exchanged
    ]
    moved(store, lambda transaction: transaction.put(BEGINNING, Beginning(TimelineId(1), Lsn(1), FullXid(3), {})))
    for names, replaced in reports:
        known = {oid: KnownDatabase(name, "UTF8") for oid, name in names.items()}
        moved(store, partial(StateTransaction.record_databases, known=known))
        beginning = store.view().beginning
        assert beginning is not None
        assert list(beginning.replaced) == replaced


def test_the_hand_over_record_is_as_it_was_written(store: StateStore) -> None:
    assert store.view().hand_over == store.hand_over() == HandOver()
    met = HandOver(3, TimelineId(1), Lsn(500))
    moved(store, lambda transaction: transaction.put(HAND_OVER, met))
    assert store.view().hand_over == store.hand_over() == met


def test_the_copies_of_a_capture_are_separate_and_end_with_their_table(store: StateStore) -> None:
    done, waiting = CopyProgress(CopyPhase.DONE, 1), CopyProgress(CopyPhase.WAITING, 0)
    moved(store, lambda transaction: transaction.put_copy(Oid(1), Oid(7), done))
    moved(store, lambda transaction: transaction.put_copy(Oid(1), Oid(8), waiting))
    assert store.view().copies == {(Oid(1), Oid(7)): done, (Oid(1), Oid(8)): waiting}
    moved(store, lambda transaction: transaction.drop_copy(Oid(1), Oid(7)))
    assert store.view().copies == {(Oid(1), Oid(8)): waiting}


def test_refused_copies_are_found_by_their_phase_beside_a_copy_that_is_damaged(store: StateStore) -> None:
    refused = CopyProgress(CopyPhase.REFUSED, 1, refused_name="app.public.large")
    named_so = CopyProgress(CopyPhase.DONE, 2, refused_name=CopyPhase.REFUSED.value)
    moved(store, lambda transaction: transaction.put_copy(Oid(1), Oid(7), refused))
    moved(store, lambda transaction: transaction.put_copy(Oid(1), Oid(8), named_so))
    damage(store, "1/9", "copies")
    with pytest.raises(DamagedValue):
        store.view()
    assert store.refused_copies() == {(Oid(1), Oid(7)): refused}


def test_readers_of_another_capture_in_the_same_database_are_separate(store: StateStore, reader: OutboxReader) -> None:
    reader.register("spark")
    for key in (b"", b"\xff" * 8):  # before and after all of ours
        with store.environment.write() as transaction:
            transaction.put(key + b"other", b"rubbish", db=store.environment.database("readers"))
    assert set(store.view().readers) == {"spark"}


def test_disk_space_is_reserved_and_the_bound_itself_may_be_reached(
    store: StateStore, reader: OutboxReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader.register("spark")
    deliver(store, 100, note="n" * (1 << 20))
    wanted = encode_group(groups.group(200, [groups.batch(200, [1], "n" * (1 << 20))]))
    least = wanted.byte_count + FREE_BYTES_MIN
    monkeypatch.setattr(Environment, "free_bytes", lambda _: least - 1)
    with pytest.raises(StateFull, match="are free under"):
        moved(store, lambda transaction: transaction.deliver(wanted))
    monkeypatch.setattr(Environment, "free_bytes", lambda _: least)
    ledger = store.view().ledger
    identity = replace(store.identity, outbox_bytes_max=ledger.byte_count + wanted.byte_count)
    for more, fits in ((-1, False), (0, True)):
        bounded = replace(identity, outbox_bytes_max=identity.outbox_bytes_max + more)
        with store.environment.write() as written:
            transaction = StateTransaction(store.environment, written, store.scope, bounded)
            if fits:
                assert transaction.deliver(wanted).sequence == 4
            else:
                with pytest.raises(StateFull, match="the outbox is full"):
                    transaction.deliver(wanted)


def test_a_relation_version_has_one_number_however_often_it_is_delivered(
    store: StateStore, reader: OutboxReader
) -> None:
    other = groups.relation("other", 20000)
    batches = [groups.batch(100, [1]), groups.batch(100, [2]), groups.batch(100, [3], of=other)]
    encoded = encode_group(groups.group(100, batches))
    moved(store, lambda transaction: transaction.deliver(encoded))
    deliver(store, 200)
    assert [relation.name for _, relation in store.relations().values()] == ["account", "other"]
    versions = [
        value.header.schema_version for value in reader.read(Sequence(0), reader.head()) if value.header.relation
    ]
    assert versions == [1, 1, 2, 1]
