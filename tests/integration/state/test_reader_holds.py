"""Readers that hold too much of the outbox lapse, alone: on a real state, in the transactions of a delivery."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forged import groups
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.workloads.feeder import feed, make_state
from tidemark.io.host.disk import StateFull
from tidemark.io.readers.outbox import OutboxReader, ReaderLapsed
from tidemark.io.state.outbox_table import UnknownReader
from tidemark.io.state.reader_holds import held_bytes
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode, StateError
from tidemark.model.position import Sequence
from tidemark.wire.outbox import encode_group
from tidemark.wire.state.outbox_ledger import OutboxLedger
from tidemark.wire.state.readers import Reader
from tidemark.wire.state.state_keys import CONFIRMED

OUTBOX = 1 << 20
NOTE = "n" * 20_000  # a group has 2 values, and about 21 kB
GROUPS = 20  # over a quarter of the outbox


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make_state(tmp_path / "state", bytes_max=OUTBOX)
    return tmp_path / "state"


@pytest.fixture
def outbox(state: Path) -> Iterator[OutboxReader]:
    with OutboxReader.open(StateFolder(state)) as opened:
        opened.register("lake")
        yield opened


def deliver(state: Path, first: int, count: int = GROUPS) -> None:
    feed(state, [groups.insert(100 * lsn, groups.text_relation("note"), NOTE) for lsn in range(first, first + count)])


def apply(state: Path, hold_bytes: int = 0, wanted_bytes: int = 0) -> set[str]:
    """Apply the confirmations as a delivery does; return the readers that lapsed."""
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.apply_confirmations(hold_bytes, wanted_bytes)
    return set(transaction.lapsed)


def confirm(outbox: OutboxReader, name: str, sequence: int) -> None:
    outbox.confirm(name, Sequence(sequence), Sequence(sequence))


def marked(state: Path) -> tuple[OutboxLedger, dict[str, Reader], int]:
    with StateStore.open(StateFolder(state)) as store:
        marks = store.marks()
    return marks.ledger, marks.readers, marks.confirmed.sequence if marks.confirmed else 0


@pytest.mark.feature("L04")
def test_a_forgotten_reader_lapses_beyond_its_bytes_and_stops_no_other(state: Path, outbox: OutboxReader) -> None:
    outbox.register("forgotten", is_required=False)
    for round_ in range(5):  # twice the outbox: the feeder would wait for ever if it stayed full
        deliver(state, 1 + round_ * GROUPS)
        confirm(outbox, "lake", outbox.head())
    assert apply(state) == set()
    ledger, readers, confirmed = marked(state)
    assert readers["forgotten"].is_lapsed
    assert readers["forgotten"].lapsed_lsn == 100
    assert not readers["lake"].is_lapsed
    assert (ledger.trimmed, confirmed) == (ledger.head, ledger.head)


def test_a_reader_within_its_bytes_keeps_its_values(state: Path, outbox: OutboxReader) -> None:
    outbox.register("behind", is_required=False)
    deliver(state, 1, 10)
    confirm(outbox, "lake", 20)
    assert apply(state) == set()
    ledger, _, confirmed = marked(state)
    assert (ledger.trimmed, confirmed) == (0, 20), "it counts for the trim, and not for the confirmed position"
    assert apply(state, hold_bytes=100_000) == {"behind"}
    assert marked(state)[0].trimmed == 20


def test_a_reader_is_not_blamed_for_what_a_required_one_needs(state: Path, outbox: OutboxReader) -> None:
    outbox.register("query", is_required=False)
    deliver(state, 1)
    confirm(outbox, "lake", 4)
    assert apply(state, hold_bytes=50_000) == set()
    confirm(outbox, "query", 2)
    assert apply(state, hold_bytes=50_000) == set()


def test_required_readers_never_lapse(state: Path, outbox: OutboxReader) -> None:
    outbox.register("second")
    deliver(state, 1)
    confirm(outbox, "lake", outbox.head())
    assert apply(state, hold_bytes=1) == set()
    assert marked(state)[0].trimmed == 0


def test_readers_that_are_not_required_do_not_count_for_the_confirmed_position(state: Path) -> None:
    with OutboxReader.open(StateFolder(state)) as outbox, StateStore.open(StateFolder(state)) as store:
        outbox.register("query", is_required=False)
        deliver(state, 1)
        confirm(outbox, "query", 20)
        apply(state)
        marks = store.marks()
        assert (marks.confirmed, marks.ledger.trimmed) == (None, 20)
        assert marks.horizon == marks.delivered, "what the outbox has is confirmed"
        outbox.register("lake")
        confirm(outbox, "lake", 22)
        apply(state)
        assert store.marks().horizon == marks.horizon, "and stays so"
        deliver(state, 1 + GROUPS, 2)
        assert store.marks().horizon == marks.horizon, "a required reader has not read so far"
        confirm(outbox, "lake", 42)
        apply(state)
        horizon = store.marks().horizon
        assert horizon is not None
        assert horizon.sequence == 42, "a required one counts"
        with store.transaction(None) as transaction:
            transaction.drop_reader("lake")
        assert store.marks().horizon == store.marks().delivered


@pytest.mark.parametrize("recorded", ["an old position", "none"])
def test_a_required_reader_that_begins_behind_trimmed_values_stops_no_delivery(
    state: Path, outbox: OutboxReader, recorded: str
) -> None:
    """In a state whose confirmed position is older than its oldest value, too: earlier versions left such states."""
    with StateStore.open(StateFolder(state)) as store:
        deliver(state, 1, 5)
        confirm(outbox, "lake", 4)
        apply(state)
        old = store.marks().confirmed
        with store.transaction(None) as transaction:
            transaction.drop_reader("lake")
        outbox.register("query", is_required=False)
        deliver(state, 6)
        confirm(outbox, "query", 40)
        apply(state)
        assert old is not None
        assert outbox.register("lake").applied == outbox.ledger().trimmed == 40 > old.sequence
        with store.transaction(None) as transaction:
            transaction.drop(CONFIRMED)
            if recorded != "none":
                transaction.put(CONFIRMED, old)
        apply(state)
        deliver(state, 6 + GROUPS, 1)
        confirm(outbox, "lake", 42)
        apply(state)
        confirmed = store.marks().confirmed
        assert confirmed is not None
        assert confirmed.sequence == 42


def test_without_a_required_reader_the_foremost_one_never_lapses(state: Path) -> None:
    with OutboxReader.open(StateFolder(state)) as outbox:
        for name in ("one", "two", "three"):
            outbox.register(name, is_required=False)
        deliver(state, 1)
        assert apply(state, hold_bytes=50_000) == set(), "nobody is behind another one"
        confirm(outbox, "one", 20)
        confirm(outbox, "two", 18)
        assert apply(state, hold_bytes=50_000) == set(), "there is space"
        assert apply(state, hold_bytes=50_000, wanted_bytes=OUTBOX) == {"three"}
        ledger, readers, _ = marked(state)
        assert ledger.trimmed == 18
        assert {name for name, reader in readers.items() if reader.is_lapsed} == {"three"}


def test_a_second_query_makes_the_first_one_lapse_only_when_the_outbox_is_full(state: Path) -> None:
    with OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register("behind", is_required=False)
        deliver(state, 1, 2 * GROUPS)
        outbox.register("latest", is_required=False)
        confirm(outbox, "latest", outbox.head())
        deliver(state, 1 + 2 * GROUPS, 1)
        assert not marked(state)[1]["behind"].is_lapsed
        assert held_bytes(marked(state)[1], marked(state)[0])["behind"] > OUTBOX // 4
        confirm(outbox, "latest", outbox.head())
        deliver(state, 2 + 2 * GROUPS, GROUPS)
        readers = marked(state)[1]
        assert (readers["behind"].is_lapsed, readers["latest"].is_lapsed) == (True, False)


@pytest.mark.parametrize("is_required", [True, False])
def test_a_group_that_does_not_fit_beside_what_a_forgotten_reader_holds_is_accepted(
    state: Path, *, is_required: bool
) -> None:
    with OutboxReader.open(StateFolder(state)) as outbox:
        outbox.register("lake", is_required=is_required)
        outbox.register("forgotten", is_required=False)
        deliver(state, 1, 10)
        confirm(outbox, "lake", outbox.head())
        assert 0 < held_bytes(marked(state)[1], marked(state)[0])["forgotten"] < OUTBOX // 4, "it does not lapse"
        large = encode_group(groups.insert(2000, groups.text_relation("note"), OUTBOX * "n"))
        with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
            transaction.apply_confirmations(wanted_bytes=large.byte_count)
            transaction.deliver(large)
        with (
            StateStore.open(StateFolder(state)) as store,
            pytest.raises(StateFull, match="readers have applied 20 of 1 to 22"),
            store.transaction(None) as transaction,
        ):
            transaction.deliver(large)
        confirm(outbox, "lake", outbox.head())
        assert apply(state, wanted_bytes=large.byte_count) == {"forgotten"}


def test_a_reader_holds_at_most_half_of_the_outbox_of_the_state(state: Path, outbox: OutboxReader) -> None:
    outbox.register("forgotten", is_required=False)
    deliver(state, 1, 30)
    confirm(outbox, "lake", 40)
    assert apply(state, hold_bytes=OUTBOX) == set()
    confirm(outbox, "lake", outbox.head())
    assert apply(state, hold_bytes=OUTBOX) == {"forgotten"}


def test_the_bytes_that_a_reader_holds_are_known_to_a_64th_of_the_outbox(state: Path, outbox: OutboxReader) -> None:
    outbox.register("query", is_required=False)
    deliver(state, 1)
    confirm(outbox, "lake", 30)
    ledger, readers, _ = marked(state)
    exact = sum(header.payload_length for header in outbox.headers(Sequence(0), Sequence(30)))
    assert exact - 2 * (OUTBOX // 64 + 21_000) < held_bytes(readers, ledger)["query"] <= 1.02 * exact
    confirm(outbox, "query", 30)
    ledger, readers, _ = marked(state)
    assert held_bytes(readers, ledger) == {"query": 0}


def test_a_lapsed_reader_gets_an_error_with_the_range_and_can_be_resumed(state: Path, outbox: OutboxReader) -> None:
    outbox.register("query", is_required=False)
    deliver(state, 1, 1)
    confirm(outbox, "query", 2)
    deliver(state, 2)
    confirm(outbox, "lake", 20)
    assert apply(state) == set()
    confirm(outbox, "lake", outbox.head())
    assert apply(state) == {"query"}
    with pytest.raises(ReaderLapsed, match="values 3 to 42 of the outbox were trimmed, commits from 0/C8 on") as error:
        outbox.check_active("query")
    assert "cdcctl reader resume query" in error.value.hint
    with pytest.raises(ReaderLapsed, match="values 3 to 42"):
        confirm(outbox, "query", 40)
    shown = json.loads(succeeded(cdcctl("reader", "list", "--json", "--state", state)).out)["readers"]
    assert "values from 3 on were trimmed, commits from 0/C8 on" in shown["query"]["lapsed"]
    assert (shown["lake"]["required"], shown["query"]["required"]) == (True, False)
    assert "lapsed" not in shown["lake"]
    said = succeeded(cdcctl("reader", "resume", "query", "--state", state)).out
    assert said == b"reader query continues after value 42; values 3 to 42 were trimmed\n"
    outbox.check_active("query")
    resumed = outbox.registered("query")
    assert resumed is not None
    assert [resumed.start(Sequence(at)) for at in (0, 2, 41, 42, 50)] == [0, 42, 42, 42, 50]
    again = cdcctl("reader", "resume", "query", "--state", state)
    assert (again.code, again.err.count("has not lapsed")) == (ExitCode.STATE, 1)
    with StateStore.open(StateFolder(state)) as store, pytest.raises(UnknownReader), store.transaction(None) as change:
        change.resume_reader("nobody")


def test_a_reader_that_lapses_twice_skips_both_ranges(state: Path, outbox: OutboxReader) -> None:
    outbox.register("query", is_required=False)
    for first in (1, 1 + GROUPS):
        deliver(state, first)
        confirm(outbox, "lake", outbox.head())
        assert apply(state) == {"query"}
        with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
            resumed = transaction.resume_reader("query")
        assert resumed.start(Sequence(0)) == outbox.head()


def test_lapsed_readers_alone_are_as_none(state: Path, outbox: OutboxReader) -> None:
    outbox.register("query", is_required=False)
    deliver(state, 1)
    confirm(outbox, "lake", outbox.head())
    assert apply(state) == {"query"}
    with StateStore.open(StateFolder(state)) as store:
        with store.transaction(None) as transaction:
            transaction.drop_reader("lake")
        deliver(state, 1 + GROUPS, 1)
        marks = store.marks()
        assert marks.horizon == marks.delivered
    assert apply(state) == set()


def test_the_ledger_keeps_marks_only_of_its_values(state: Path, outbox: OutboxReader) -> None:
    deliver(state, 1)
    before = marked(state)[0]
    assert 10 < len(before.marks) <= 64
    confirm(outbox, "lake", 30)
    apply(state)
    after = marked(state)[0]
    assert after.marks == tuple(mark for mark in before.marks if mark.sequence > 30)
    assert after.written_bytes == before.written_bytes == before.byte_count
    assert after.bytes_between(Sequence(0), Sequence(30)) == 0
    assert 0 < after.bytes_between(Sequence(30), after.head) <= after.byte_count
    assert OutboxLedger(Sequence(8), Sequence(8)).bytes_between(Sequence(0), Sequence(8)) == 0


def test_a_reader_that_is_not_registered_is_active(outbox: OutboxReader) -> None:
    outbox.check_active("nobody")
    with pytest.raises(StateError):
        confirm(outbox, "nobody", 0)
