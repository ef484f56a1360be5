"""One suite for both implementations of the port `CapturePort`: a state folder, and a server over Arrow Flight."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import flight

from tests.support.processes.captures import Sidecar
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.servers.outbox_server import TOKEN, outbox_server
from tests.support.servers.postgres import Cluster, database_in
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.engine.selection import Selection
from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.flight.server_address import ServerAddress
from tidemark.io.flight.server_capture import ServerCapture
from tidemark.io.host.clock import host_name
from tidemark.io.readers.accepted_breaks import accept_breaks
from tidemark.io.readers.opened_outbox import open_once
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.readers.resume_requests import request_resume, requested_keys
from tidemark.io.readers.state_capture import StateCapture
from tidemark.io.state.outbox_table import UnknownReader
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.model.secret import Secret
from tidemark.pipeline.landing.capture_port import CapturePort
from tidemark.wire.capture_facts import CaptureFacts
from tidemark.wire.outbox_requests import PROGRESS_BYTES_MAX, REQUEST, OutboxRequest, Query
from tidemark.wire.state.state_keys import MARKER_KEYS
from tidemark.wire.state.values import MarkerKeys

READER = "lake"
SELECTION = Selection(exclude_tables=("public.secret",))
PLACES = ["state", "server"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make_state(tmp_path / "state")
    feed(tmp_path / "state", RandomTables(5).groups(3))
    with OutboxReader.open(StateFolder(tmp_path / "state")) as outbox:
        outbox.register(READER)
    return tmp_path / "state"


def captures(folder: StateFolder, place: str) -> Iterator[CapturePort]:
    if place == "state":
        yield StateCapture(open_once(folder), SELECTION)
        return
    with outbox_server(folder.root, selection=SELECTION) as (_, url):
        yield ServerCapture(FlightOutbox(ServerAddress(url, Secret(TOKEN))))


@pytest.fixture(params=PLACES)
def capture(state: Path, request: pytest.FixtureRequest) -> Iterator[CapturePort]:
    yield from captures(StateFolder(state), request.param)


def test_the_facts_are_those_of_the_state(capture: CapturePort, state: Path) -> None:
    assert capture.facts() == CaptureFacts(host_name(), str(state), (), awaits_promotion=False)
    with StateStore.open(StateFolder(state)) as store, store.transaction(None) as transaction:
        transaction.put(MARKER_KEYS, MarkerKeys({"sidecar": "b", "archiver": "a", "earlier": "b"}))
    assert capture.facts().marker_keys == ("a", "b")


def test_the_operators_requests_are_seen_and_closed(capture: CapturePort, state: Path) -> None:
    assert (capture.resume_requests(READER), capture.accepted_breaks(READER)) == ([], {})
    request_resume(state, READER, "5.16384")
    request_resume(state, f"{READER}-2", "5.7")
    capture.request_resume(READER, "5")
    assert sorted(capture.resume_requests(READER)) == ["5", "5.16384"]
    capture.close_request(READER, "5.16384")
    capture.close_request(READER, "5.1")
    assert requested_keys(state, READER) == ["5"]
    accept_breaks(state, READER, {"5": "1:0/10:0"})
    assert capture.accepted_breaks(READER) == {"5": "1:0/10:0"}


def test_no_key_names_another_file(capture: CapturePort, state: Path) -> None:
    (state / "resume-lake-").mkdir()
    (state / "place").touch()
    for attempt in (capture.request_resume, capture.close_request):
        with pytest.raises(ConfigError, match="not a key of a table"):
            attempt(READER, "/../place")
    assert (state / "place").exists()


def test_progress_is_recorded_in_the_state_and_shown(capture: CapturePort, state: Path) -> None:
    assert capture.progress(READER) == b""
    fault = dict.fromkeys(("database", "relation"), "5") | {"table": "t", "target": "log", "kind": "paused"}
    fault |= {"reason": "a 'quote' and ümlaut " * 500, "after": "0/1"}
    content = {"reader": READER, "lake": "/lake", "lsn": "0/1", "tables": 1, "faults": [fault] * 100}
    capture.record_progress(READER, json.dumps(content).encode())
    assert json.loads(capture.progress(READER)) == content
    assert (state / f"pipeline-{READER}.json").stat().st_mode & 0o777 == 0o600
    shown = json.loads(succeeded(cdcctl("status", "--json", "--state", state)).out)["lake"][READER]
    assert len(shown["not_written"]) == 100


@pytest.mark.parametrize("place", PLACES)
def test_the_captured_tables_are_those_that_the_configuration_selects(
    cluster: Cluster, tmp_path: Path, place: str
) -> None:
    with database_in(cluster, f"captured_{place}") as database:
        cluster.sql("CREATE TABLE customer (id int PRIMARY KEY, name text); CREATE TABLE secret (id int)", database)
        sidecar = Sidecar(cluster, database, tmp_path, copy=True)
        sidecar.init()
        for capture in captures(sidecar.folder, place):
            found = capture.captured_tables()
            assert [relation.qualified_name for relation in found.values()] == ["public.customer"]
            ((of, relation),) = found.items()
            assert of[1] == relation.oid
            assert [column.name for column in relation.live_columns] == ["id", "name"]


def test_a_server_changes_files_only_of_a_registered_reader(state: Path) -> None:
    before = sorted(path.name for path in state.iterdir())
    with outbox_server(state) as (_, url):
        capture = ServerCapture(FlightOutbox(ServerAddress(url, Secret(TOKEN))))
        for name in ("other", "../lake"):
            for attempt in (
                lambda name=name: capture.record_progress(name, b"{}"),
                lambda name=name: capture.request_resume(name, "5"),
                lambda name=name: capture.accepted_breaks(name),
            ):
                with pytest.raises(UnknownReader, match="is not registered"):
                    attempt()
        with pytest.raises(ConfigError, match="JSON object"):
            capture.record_progress(READER, b"[]")
    assert sorted(path.name for path in state.iterdir()) == before


@pytest.mark.parametrize(
    ("query", "body", "message"),
    [
        (Query.RECORD_PROGRESS, b" " * (PROGRESS_BYTES_MAX + 1), f"at most {PROGRESS_BYTES_MAX}"),
        (Query.REQUEST_RESUME, REQUEST.write(OutboxRequest(key="5" * (64 << 10))), "at most 65536"),
        (Query.CAPTURE, b"{}", "the token is wrong"),
    ],
)
def test_a_request_about_the_capture_is_bounded_and_needs_the_token(
    state: Path, query: Query, body: bytes, message: str
) -> None:
    token = TOKEN if "token" not in message else TOKEN[::-1]
    options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + token)])
    with outbox_server(state) as (_, url), pytest.raises(flight.FlightError, match=message):
        list(flight.FlightClient(url).do_action(flight.Action(query.value, body), options))
