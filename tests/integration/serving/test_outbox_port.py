"""One suite for both implementations of the port `OutboxPort`: a state folder, and a server over Arrow Flight."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.forged import groups
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.outbox_server import TOKEN, outbox_server, token_file
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.flight.flight_outbox import FlightOutbox, ranges_of
from tidemark.io.flight.server_address import ServerAddress
from tidemark.io.readers.opened_outbox import open_once
from tidemark.io.readers.outbox import OutboxReader, OutboxTrimmed, ReaderLapsed
from tidemark.io.readers.reader_register import StateReaders
from tidemark.io.readers.reader_use import OtherReaderKind, ReaderTakenOver
from tidemark.io.state.outbox_table import UnknownReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError, ExitCode, StateError
from tidemark.model.lsn import FullXid, Lsn, Oid, TimelineId
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.model.secret import Secret
from tidemark.pipeline.source.outbox_port import OutboxPort
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.outbox import OutboxValue
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.state.readers import ReaderKind
from tidemark.wire.state.state_keys import BEGINNING
from tidemark.wire.state.values import Beginning
from tidemark.wire.values import ValueHeader, ValueKind

GROUPS = 40
PIPELINE, QUERY = ReaderKind.PIPELINE, ReaderKind.QUERY
BEGUN = Beginning(TimelineId(1), Lsn(1), FullXid(5), {Oid(1): "one"}, encodings={Oid(1): "UTF8"})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make_state(tmp_path / "state")
    feed(tmp_path / "state", RandomTables(5).groups(GROUPS))
    return tmp_path / "state"


@pytest.fixture
def stored(state: Path) -> list[OutboxValue]:
    """Return what the state contains, read from LMDB."""
    with OutboxReader.open(StateFolder(state)) as opened:
        return list(opened.read(NO_SEQUENCE, opened.head()))


@pytest.fixture(params=["state", "server"])
def outbox(state: Path, request: pytest.FixtureRequest) -> Iterator[OutboxPort]:
    if request.param == "state":
        yield open_once(StateFolder(state))
        return
    with outbox_server(state) as (_, url):
        yield FlightOutbox(ServerAddress(url, Secret(TOKEN)))


def found(values: Iterator[OutboxValue]) -> list[tuple[ValueHeader, bytes]]:
    return [(value.header, value.payload) for value in values]


def test_it_is_the_outbox_of_the_state(outbox: OutboxPort, state: Path, stored: list[OutboxValue]) -> None:
    assert (outbox.outbox_id, outbox.identity.outbox_id) == ("0a0b", "0a0b")
    assert outbox.outbox_bytes_max == outbox.identity.outbox_bytes_max == 16 << 20
    ledger = outbox.ledger()
    assert (ledger.trimmed, ledger.head, outbox.head()) == (0, len(stored), len(stored))
    assert ledger.byte_count > 0
    assert outbox.beginning() is None
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.put(BEGINNING, BEGUN)
    assert outbox.beginning() == BEGUN
    assert outbox.place


def test_values_and_headers_are_those_that_are_stored(outbox: OutboxPort, stored: list[OutboxValue]) -> None:
    head = outbox.head()
    assert found(outbox.read(NO_SEQUENCE, head)) == found(iter(stored))
    assert outbox.headers(NO_SEQUENCE, head) == [value.header for value in stored]
    assert outbox.headers(head, head) == []
    assert found(outbox.read(head, head)) == []
    ends = [value.header for value in stored if value.header.ends_group]
    assert list(outbox.group_ends(NO_SEQUENCE)) == ends
    assert list(outbox.group_ends(ends[2].sequence)) == ends[3:]
    assert list(outbox.group_ends(head)) == []


def test_only_wanted_values_are_read(outbox: OutboxPort, stored: list[OutboxValue]) -> None:
    def is_batch(header: ValueHeader) -> bool:
        return header.kind is ValueKind.BATCH

    expected = [value for value in stored if is_batch(value.header)]
    assert 0 < len(expected) < len(stored)
    assert found(outbox.read(NO_SEQUENCE, outbox.head(), is_batch)) == found(iter(expected))
    assert found(outbox.read(NO_SEQUENCE, outbox.head(), lambda _: False)) == []


def test_batches_are_planned_by_bytes_and_end_at_group_ends(outbox: OutboxPort, stored: list[OutboxValue]) -> None:
    ends = {value.header.sequence for value in stored if value.header.ends_group}
    at, planned = NO_SEQUENCE, []
    while (end := outbox.plan(at, 30_000)) != at:
        planned.append(end)
        at = end
    assert set(planned) <= ends
    assert 3 < len(planned) < len(ends)
    assert at == outbox.head()


def test_relations_have_their_versions(outbox: OutboxPort, state: Path, stored: list[OutboxValue]) -> None:
    with OutboxReader.open(StateFolder(state)) as opened:
        expected = opened.relations()
    assert outbox.relations() == expected
    assert len(expected) > 3
    assert {outbox.relation(version).oid for version in expected} == {relation.oid for _, relation in expected.values()}
    version = next(value.header.schema_version for value in stored if value.header.kind is ValueKind.BATCH)
    assert outbox.relation(version) == expected[version][1]
    with pytest.raises(DamagedValue, match="schema version 999"):
        outbox.relation(SchemaVersion(999))


def test_a_reader_registers_confirms_and_lapses(outbox: OutboxPort, state: Path, stored: list[OutboxValue]) -> None:
    assert outbox.registered("query") is None
    with pytest.raises(UnknownReader, match="'query' is not registered"):
        outbox.confirm("query", NO_SEQUENCE, NO_SEQUENCE)
    with pytest.raises(ConfigError, match="not a reader's name"):
        outbox.register("no name")
    assert not outbox.register("query", is_required=False).is_required
    assert outbox.register("lake").is_required
    ends = [value.header.sequence for value in stored if value.header.ends_group]
    confirmed = outbox.confirm("query", ends[1], ends[0])
    assert (confirmed.applied, confirmed.replayable) == (ends[1], ends[0])
    assert outbox.registered("query") == confirmed
    outbox.check_active("query")
    with pytest.raises(StateError, match="but the outbox ends at"):
        outbox.confirm("query", Sequence(9999), NO_SEQUENCE)
    outbox.confirm("lake", ends[-1], ends[-1])
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.apply_confirmations(hold_bytes=1)
    trimmed, last = outbox.ledger(), stored[-1].header
    assert (trimmed.trimmed_lsn, trimmed.trimmed_time_us) == (last.pointer.position.commit_lsn, last.commit_time_us)
    with pytest.raises(ReaderLapsed, match=f"values {ends[0] + 1} to {ends[-1]} of the outbox were trimmed") as raised:
        outbox.check_active("query")
    assert "cdcctl reader resume query" in raised.value.hint
    with pytest.raises(ReaderLapsed):
        outbox.confirm("query", ends[2], ends[2])
    for attempt in (lambda: outbox.plan(ends[0], 1), lambda: outbox.headers(ends[0], ends[1])):
        with pytest.raises(OutboxTrimmed, match=f"values after {ends[0]} were requested"):
            attempt()
    with pytest.raises(OutboxTrimmed):
        next(outbox.read(ends[0], ends[1]))
    with pytest.raises(StateError, match="ends at"):
        outbox.plan(Sequence(9999), 1)


@pytest.mark.parametrize(("kind", "other"), [(PIPELINE, QUERY), (QUERY, PIPELINE)])
def test_a_reader_belongs_to_a_pipeline_or_to_a_query(outbox: OutboxPort, kind: ReaderKind, other: ReaderKind) -> None:
    assert outbox.register("mine", kind=kind).kind is kind
    assert outbox.register("mine", kind=kind).kind is kind
    before = outbox.registered("mine")
    with pytest.raises(OtherReaderKind, match=r"^reader 'mine' belongs to a (pipeline|streaming query)") as refused:
        outbox.register("mine", kind=other)
    assert refused.value.exit_code == ExitCode.CONFIG
    assert "another name" in refused.value.hint
    assert "`cdcctl reader drop mine`" in refused.value.hint
    assert outbox.registered("mine") == before


@pytest.mark.parametrize("kind", [PIPELINE, QUERY])
def test_the_first_use_of_a_reader_that_an_earlier_version_registered_states_its_kind(
    outbox: OutboxPort, kind: ReaderKind
) -> None:
    earlier = outbox.register("mine")
    assert (earlier.kind, earlier.run) == (ReaderKind.UNSTATED, 0)
    registered = outbox.register("mine", kind=kind)
    assert registered == replace(earlier, kind=kind, run=registered.run)
    assert outbox.register("mine").kind is kind, "a client of an earlier version changes nothing"


def test_only_the_newest_run_of_a_query_confirms(outbox: OutboxPort, stored: list[OutboxValue]) -> None:
    first, second = (outbox.register("mine", kind=QUERY).run for _ in range(2))
    assert 0 < first < second
    end = next(value.header.sequence for value in stored if value.header.ends_group)
    with pytest.raises(ReaderTakenOver, match="another query, which started later, uses reader 'mine'") as fenced:
        outbox.confirm("mine", end, end, run=first)
    assert fenced.value.exit_code == ExitCode.FENCED
    with pytest.raises(ReaderTakenOver):
        outbox.check_newest_run("mine", first)
    outbox.check_newest_run("mine", second)
    assert outbox.confirm("mine", NO_SEQUENCE, NO_SEQUENCE, run=second).applied == NO_SEQUENCE
    assert outbox.confirm("mine", end, end).applied == end, "a client of an earlier version has no number"


def test_a_reader_that_was_dropped_and_registered_again_uses_no_earlier_number(outbox: OutboxPort, state: Path) -> None:
    first = outbox.register("mine", kind=QUERY).run
    with OutboxReader.open(StateFolder(state)) as opened:
        StateReaders(opened).drop("mine")
    assert outbox.register("mine", kind=QUERY).run > first


@pytest.fixture(params=["state", "server"])
def place(state: Path, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Return the options of `cdcctl reader` for each place of the outbox."""
    if request.param == "state":
        yield ["--state", str(state)]
        return
    with outbox_server(state) as (_, url):
        yield ["--server", url, "--token-file", str(token_file(state.parent))]


def test_readers_are_listed_resumed_and_dropped_in_a_state_and_at_a_server(place: list[str], state: Path) -> None:
    with OutboxReader.open(StateFolder(state)) as outbox:
        head = outbox.head()
        outbox.register("lake")
        outbox.register("query", is_required=False, kind=QUERY)
        outbox.confirm("lake", head, head)
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.apply_confirmations(hold_bytes=1)
    shown = json.loads(succeeded(cdcctl("reader", "list", "--json", *place)).out)
    lake, query = shown["readers"]["lake"], shown["readers"]["query"]
    assert (lake["kind"], query["kind"]) == ("unstated", "query")
    assert (lake["behind"], lake["required"], lake["lag_s"]) == (0, True, 0.0)
    assert (query["behind"], query["required"]) == (head, False)
    assert "values from 1 on were trimmed" in query["lapsed"]
    assert shown["damaged"] == []
    said = succeeded(cdcctl("reader", "resume", "query", *place)).out.decode()
    assert said == f"reader query continues after value {head}; values 1 to {head} were trimmed\n"
    again = cdcctl("reader", "resume", "query", *place)
    assert (again.code, again.err.count("has not lapsed")) == (ExitCode.STATE, 1)
    assert succeeded(cdcctl("reader", "drop", "query", "--yes", *place)).out == b"reader query dropped\n"
    gone = cdcctl("reader", "drop", "query", "--yes", *place)
    assert (gone.code, gone.err.count("reader 'query' is not registered")) == (ExitCode.CONFIG, 1)
    with OutboxReader.open(StateFolder(state)) as outbox:
        assert outbox.registered("query") is None
        assert outbox.registered("lake") is not None


def test_the_readers_of_a_server_need_its_token_and_one_place(state: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_bytes(TOKEN[::-1])
    with outbox_server(state) as (_, url):
        refused = cdcctl("reader", "list", "--server", url, "--token-file", str(wrong))
        without = cdcctl("reader", "list", "--server", url)
        both = cdcctl("reader", "list", "--server", url, "--state", str(state))
        no_tls = cdcctl(
            "reader", "list", "--server", f"grpc+tls://{url.partition('://')[2]}", "--token-file", str(wrong)
        )
    unreachable = cdcctl("reader", "list", "--server", url, "--token-file", str(wrong))
    assert (refused.code, refused.err.count("refuses the token")) == (ExitCode.CONFIG, 1)
    assert (without.code, without.err.count("--token-file")) == (ExitCode.CONFIG, 1)
    assert (unreachable.code, unreachable.err.count("does not answer")) == (ExitCode.NODE_UNREACHABLE, 1)
    assert (no_tls.code, no_tls.err.count("does not use TLS")) == (ExitCode.CONFIG, 1)
    assert [line.split()[0] for line in no_tls.err.splitlines()] == ["cdcctl:", "hint:"]
    assert (both.code, both.err.count("--state or --server")) == (ExitCode.CONFIG, 1)
    assert all("Traceback" not in ended.err for ended in (refused, without, both, unreachable))


def test_a_new_state_in_the_folder_is_seen(outbox: OutboxPort, state: Path) -> None:
    make_state(state.parent / "new", "0c0d")
    state.rename(state.parent / "old")
    (state.parent / "new").rename(state)
    again = open_once(StateFolder(state)) if isinstance(outbox, OutboxReader) else outbox
    assert again.outbox_id == "0c0d"
    assert again.head() == 0


def test_a_server_of_another_outbox_gives_its_relations(state: Path) -> None:
    make_state(state.parent / "new", "0c0d")
    feed(state.parent / "new", [groups.insert(100, groups.relation("other", 20_000), "a")])
    with outbox_server(state) as (_, url):
        outbox = FlightOutbox(ServerAddress(url, Secret(TOKEN)))
        version = SchemaVersion(1)
        assert outbox.relation(version).name.startswith("table ")
        state.rename(state.parent / "old")
        (state.parent / "new").rename(state)
        assert outbox.outbox_id == outbox.identity.outbox_id == "0c0d"
        assert outbox.relation(version).name == "other"


def test_sequences_are_requested_as_ranges() -> None:
    numbers = [Sequence(number) for number in (1, 2, 3, 7, 9, 10)]
    assert ranges_of(numbers) == [(0, 3), (6, 7), (8, 10)]
    assert ranges_of([]) == []
