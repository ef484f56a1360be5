"""The outbox server: who may connect, its bounds, and its program."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.support.forged import groups
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.other_user import NOBODY
from tests.support.processes.served_outbox import served_outbox
from tests.support.processes.spark_process import wait_for
from tests.support.servers.outbox_server import TOKEN, Certificate, outbox_server, token_file
from tests.support.servers.postgres import free_port
from tests.support.workloads.feeder import feed, make_state
from tests.support.workloads.stored_chunks import read_singly
from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.flight.outbox_server import MESSAGE_BYTES
from tidemark.io.flight.remote_errors import (
    CertificateExpired,
    CertificateRefused,
    NeedsTls,
    ServerBusy,
    ServerUnreachable,
    TokenRefused,
    translated_error,
)
from tidemark.io.flight.server_address import BadServerAddress, BadToken, ServerAddress, unix_url
from tidemark.io.flight.server_token import load_server_token, make_server_token
from tidemark.io.process.config import ServerConfig
from tidemark.io.readers.opened_outbox import open_once
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.environment import StateReplaced
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ExitCode, StateError
from tidemark.model.position import NO_SEQUENCE, Sequence
from tidemark.model.secret import Secret
from tidemark.runtime.serving.program import ALIVE_S, STOP_S
from tidemark.wire.envelope import DamagedValue
from tidemark.wire.keys import slot
from tidemark.wire.outbox_requests import REQUEST, REQUEST_BYTES_MAX, VALUES, OutboxRequest, ValuesRequest
from tidemark.wire.values import CHUNK_BYTES

if TYPE_CHECKING:
    from tidemark.io.readers.outbox import StoredChunks
    from tidemark.wire.outbox import OutboxValue
    from tidemark.wire.values import ValueHeader

LARGE = 3 * MESSAGE_BYTES
ALL = VALUES.write(ValuesRequest(((NO_SEQUENCE, Sequence(2)),)))
AS_NOBODY = f"""
import os, sys
from pathlib import Path
from tidemark.io.flight.flight_outbox import FlightOutbox
from tidemark.io.flight.server_address import ServerAddress

url, token, state = sys.argv[1:]
address = ServerAddress.parse(url, Path(token))
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
assert not os.access(state, os.R_OK) and not os.access(state, os.X_OK)
outbox = FlightOutbox(address)
outbox.register("query", is_required=False)
assert len(list(outbox.read(0, outbox.head()))) == 2
outbox.confirm("query", outbox.head(), outbox.head())
"""


def stored_in(outbox: OutboxReader) -> list[bytes]:
    """Return the stored chunks of the first two values, read one by one."""
    return [chunk for _, chunk in read_singly(outbox, 0, 2)]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    make_state(tmp_path / "state", bytes_max=64 << 20)
    feed(tmp_path / "state", [groups.insert(100, groups.text_relation("note"), "n" * LARGE)])
    return tmp_path / "state"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Certificate.of_years(tmp_path_factory.mktemp("tls") / "valid", 2020, 2050)


class RawClient:
    """A client of Flight alone, without ours."""

    def __init__(self, url: str) -> None:
        self._client = flight.FlightClient(url)
        self._options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer " + TOKEN)])

    def act(self, kind: str, body: bytes) -> None:
        list(self._client.do_action(flight.Action(kind, body), self._options))

    def stream(self, ticket: bytes) -> flight.FlightStreamReader:
        return self._client.do_get(flight.Ticket(ticket), self._options)


def connected(url: str, roots: bytes = b"", token: bytes = TOKEN) -> FlightOutbox:
    return FlightOutbox(ServerAddress(url, Secret(token), roots))


def answers(outbox: FlightOutbox) -> bool:
    """Return whether a server answers, and has a place for a stream."""
    try:
        return len(list(outbox.read(NO_SEQUENCE, Sequence(2)))) == 2
    except ServerUnreachable:
        return False


def test_a_port_serves_with_tls_and_only_with_the_token(state: Path, certificate: Certificate, tmp_path: Path) -> None:
    with outbox_server(state, certificate) as (_, url):
        address = ServerAddress.parse(url, token_file(tmp_path), certificate.path)
        assert len(list(FlightOutbox(address).read(NO_SEQUENCE, Sequence(2)))) == 2
        assert "0123456789abcdef" not in repr(address)
        with pytest.raises(TokenRefused, match=r"the outbox server at .* refuses the token") as raised:
            connected(url, certificate.path.read_bytes(), b"another token of the right length")
        assert "STATE/server.token" in raised.value.hint
        with pytest.raises(TokenRefused):
            FlightOutbox(ServerAddress(url, None, certificate.path.read_bytes()))
        with pytest.raises(CertificateRefused, match="refused: self-signed certificate") as refused:
            connected(url)
        assert "tlsRoots" in refused.value.hint
        with pytest.raises(NeedsTls, match=r"the server at grpc://127.* uses TLS") as plain:
            connected(url.replace("grpc+tls", "grpc"))
        assert "grpc+tls://HOST:PORT" in plain.value.hint


def test_an_expired_certificate_is_named(state: Path, tmp_path: Path) -> None:
    expired = Certificate.of_years(tmp_path / "expired", 2020, 2021)
    with outbox_server(state, expired) as (_, url), pytest.raises(CertificateExpired, match="has expired") as raised:
        connected(url, expired.path.read_bytes())
    assert "server.tls_certificate" in raised.value.hint


def test_a_server_that_is_gone_is_named_and_reached_again_when_it_returns(state: Path) -> None:
    with outbox_server(state) as (_, url):
        outbox = connected(url)
        assert outbox.head() == 2
    with pytest.raises(ServerUnreachable, match=r"the outbox server at .* does not answer"):
        outbox.head()
    with outbox_server(state, port=urlsplit(url).port or 0):
        wait_for(lambda: answers(outbox), "a new connection")


def test_a_slow_reader_costs_only_itself(state: Path) -> None:
    with outbox_server(state, streams_max=2) as (_, url), OutboxReader.open(StateFolder(state)) as local:
        outbox = connected(url)
        slow = RawClient(url).stream(ALL)
        assert 0 < slow.read_chunk().data.nbytes <= MESSAGE_BYTES + 1024
        assert len(list(outbox.read(NO_SEQUENCE, Sequence(2)))) == 2, "another stream"
        local.register("lake")
        feed(state, [groups.insert(200, groups.text_relation("note"), "b")])
        local.confirm("lake", Sequence(4), Sequence(4))
        feed(state, [groups.insert(300, groups.text_relation("note"), "c")])
        assert local.ledger().trimmed == 4, "it keeps no value"
        slow.cancel()


def test_the_server_opens_no_value_that_it_sends(state: Path) -> None:
    with OutboxReader.open(StateFolder(state)) as local:
        stored = stored_in(local)
        key = slot(local.scope, Sequence(1), 1)
        with local.environment.write() as transaction:
            transaction.put(key, bytes(len(stored[1])), db=local.environment.database("outbox"))
        damaged = [stored[0], bytes(len(stored[1])), *stored[2:]]
    with outbox_server(state) as (_, url):
        assert RawClient(url).stream(ALL).read_all().column("chunk").to_pylist() == damaged
        with pytest.raises(DamagedValue, match="outbox value 1"):
            list(connected(url).read(NO_SEQUENCE, Sequence(1)))


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: another user needs root")
def test_another_user_registers_reads_and_confirms_without_the_state_folder(state: Path, tmp_path: Path) -> None:
    token = token_file(tmp_path)
    with outbox_server(state) as (_, url):
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, url, str(token), str(state)],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
    with OutboxReader.open(StateFolder(state)) as local:
        reader = local.registered("query")
    assert reader is not None
    assert (reader.applied, reader.replayable, reader.is_required) == (2, 2, False)


def test_a_large_value_is_read_in_pieces(state: Path) -> None:
    read = peak = 0
    with OutboxReader.open(StateFolder(state)) as local:
        before = pa.total_allocated_bytes()
        tracemalloc.start()
        try:
            for copied in local.stored_chunks([(NO_SEQUENCE, Sequence(2))], MESSAGE_BYTES):
                read += copied.ends[-1]
                peak = max(peak, pa.total_allocated_bytes() - before)
            traced = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert read > LARGE
    assert peak <= 2 * MESSAGE_BYTES
    assert traced < CHUNK_BYTES


def test_streams_beyond_the_bound_are_refused_and_a_closed_one_frees_its_place(state: Path) -> None:
    many = [groups.insert(lsn, groups.text_relation("note"), "n" * LARGE) for lsn in (200, 300)]
    feed(state, many)  # more than gRPC reads ahead: the stream waits for its reader
    with outbox_server(state, streams_max=1) as (_, url):
        outbox = FlightOutbox(ServerAddress(url, Secret(TOKEN)), busy_s=0)
        slow = RawClient(url).stream(VALUES.write(ValuesRequest(((NO_SEQUENCE, outbox.head()),))))
        slow.read_chunk()
        with pytest.raises(ServerBusy, match="busy: at most 1 streams run at once") as raised:
            list(outbox.read(NO_SEQUENCE, Sequence(2)))
        assert "server.streams_max" in raised.value.hint
        assert outbox.head() > 2, "requests have their own bound"
        slow.cancel()
        assert len(list(connected(url).read(NO_SEQUENCE, Sequence(2)))) == 2, "a client waits for a place"


def test_an_internal_error_of_the_server_is_not_called_a_missing_answer(state: Path) -> None:
    def failing() -> OutboxReader:
        raise KeyError("a bug")

    with outbox_server(state, opened=failing) as (_, url), pytest.raises(StateError, match="failed: ") as raised:
        connected(url)
    assert not isinstance(raised.value, ServerUnreachable)
    assert "Traceback" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_client_ends_a_stream_of_which_nothing_arrives(state: Path) -> None:
    is_stuck, goes_on = threading.Event(), threading.Event()

    def opened() -> OutboxReader:
        if is_stuck.is_set():
            goes_on.wait()
        return open_once(StateFolder(state))

    with outbox_server(state, opened=opened) as (_, url):
        outbox = FlightOutbox(ServerAddress(url, Secret(TOKEN)), call_s=0.2)
        is_stuck.set()
        try:
            with pytest.raises(ServerUnreachable, match=r"does not answer: it sent nothing of a stream in 0\.2 s"):
                next(outbox.read(NO_SEQUENCE, Sequence(2)))
        finally:
            goes_on.set()


class CuttingReader(OutboxReader):
    """Reads values of which the server can send only the first message."""

    streams = 0

    def stored_chunks(self, ranges: "Iterable[tuple[Sequence, Sequence]]", bytes_max: int) -> "Iterator[StoredChunks]":
        type(self).streams += 1
        yield next(super().stored_chunks(ranges, bytes_max))
        raise flight.FlightUnavailableError("cut off")


def test_a_patient_client_pauses_before_it_resumes_a_stream_that_broke_without_a_value(state: Path) -> None:
    with CuttingReader.open(StateFolder(state)) as reader, outbox_server(state, opened=lambda: reader) as (_, url):
        outbox = FlightOutbox(ServerAddress(url, Secret(TOKEN)), outage_s=1.0)
        with pytest.raises(ServerUnreachable, match="does not answer"):
            list(outbox.read(NO_SEQUENCE, Sequence(2)))
    assert 2 <= CuttingReader.streams <= 5, "after 0.1, 0.2 and 0.4 s"


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("facts", b"{}" + b" " * REQUEST_BYTES_MAX, "at most 65536"),
        ("facts", b"rubbish", "not a request of kind facts"),
        ("other", b"{}", "no request is of kind 'other'"),
        ("headers", REQUEST.write(OutboxRequest(upto=Sequence(20_000))), "at most 10000"),
    ],
)
def test_a_request_beyond_the_bounds_is_refused(state: Path, kind: str, body: bytes, message: str) -> None:
    with outbox_server(state) as (_, url), pytest.raises(flight.FlightServerError, match=message):
        RawClient(url).act(kind, body)


@pytest.mark.parametrize(
    ("ticket", "message"), [(b"rubbish", "not a request for values"), (b" " * (REQUEST_BYTES_MAX + 1), "at most 65536")]
)
def test_a_ticket_beyond_the_bounds_is_refused(state: Path, ticket: bytes, message: str) -> None:
    with outbox_server(state) as (_, url), pytest.raises(flight.FlightServerError, match=message):
        RawClient(url).stream(ticket).read_all()


def test_an_error_in_a_stream_ends_it_by_name(state: Path) -> None:
    with outbox_server(state) as (_, url), pytest.raises(StateError, match=r"the outbox of .* ends at 2"):
        list(connected(url).read(NO_SEQUENCE, Sequence(9)))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "grpc+tls://127.0.0.1",
        "grpc+tls://:5",
        "grpc+tls://host:port",
        "grpc://db1:5000",
        "grpc+unix://relative",
        "grpc+unix:",
    ],
)
def test_an_address_that_cannot_be_one_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(BadServerAddress, match=r"address of|unencrypted"):
        ServerAddress.parse(url, token_file(tmp_path))


def test_a_port_needs_a_token_that_others_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(BadToken, match="requires a token"):
        ServerAddress.parse("grpc+tls://db1:5000")
    path = token_file(tmp_path)
    path.chmod(0o644)
    with pytest.raises(BadToken, match="accessible to all users") as open_to_others:
        ServerAddress.parse("grpc+tls://db1:5000", path)
    assert open_to_others.value.hint.startswith(f"chmod o-rwx {path}, and consider replacing the token ")
    path.chmod(0o600)
    path.write_bytes("schlüssel mit umlaut".encode())
    with pytest.raises(BadToken, match="not printable ASCII"):
        ServerAddress.parse("grpc+tls://db1:5000", path)
    token_file(tmp_path)
    with pytest.raises(BadServerAddress, match=r"the certificates .* cannot be read"):
        ServerAddress.parse("grpc+tls://db1:5000", path, tmp_path / "missing")


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_file_of_roots_must_have_a_certificate(certificate: Certificate, tmp_path: Path, *, is_empty: bool) -> None:
    path = certificate.key
    if is_empty:  # without roots, those of the host would be used
        path = tmp_path / "empty"
        path.touch()
    with pytest.raises(BadServerAddress, match=f"^{path} has no certificate in PEM$") as raised:
        ServerAddress.parse("grpc+tls://db1:5000", token_file(tmp_path), path)
    assert "tlsRoots" in raised.value.hint


def test_the_token_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    make_server_token(ServerConfig(), folder)
    made = load_server_token(ServerConfig(), folder)
    make_server_token(ServerConfig(), folder)
    assert load_server_token(ServerConfig(), folder) == made
    assert stat.S_IMODE((tmp_path / "server.token").stat().st_mode) == 0o600
    with pytest.raises(BadToken, match="cannot be read"):
        make_server_token(ServerConfig(token_file=str(tmp_path / "missing")), folder)


@pytest.fixture
def served(state: Path) -> Iterator[subprocess.Popen[str]]:
    with served_outbox(state) as process:
        yield process


def test_the_program_serves_a_unix_socket_of_the_owner_and_is_shown(state: Path, served: subprocess.Popen[str]) -> None:
    path = state / "server.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    outbox = FlightOutbox(ServerAddress.parse(f"grpc+unix://{path}"))
    assert outbox.head() == 2
    feed(state, [groups.insert(200, groups.text_relation("note"), "b")])
    assert outbox.head() == 4, "a new epoch, as after a hand-over, disconnects nobody"
    shown = json.loads(succeeded(cdcctl("status", "--json", "--state", state)).out)
    assert shown["server"] == {"pid": served.pid}
    second = cdcctl("run", "server", "--state", state)
    assert (second.code, "a server already runs" in second.err) == (ExitCode.FENCED, True)
    served.terminate()
    assert served.wait(30) == ExitCode.SUCCESS
    shown = json.loads(succeeded(cdcctl("status", "--json", "--state", state)).out)
    assert (shown["server"], shown["last_end"]["server"]["reason"]) == ("not running", "SIGTERM")


@pytest.mark.parametrize("name", ["a b#c?d", "100%", "a%20b", "ä[日]", 'x\\"{|}^'])
def test_the_state_folder_may_have_any_name(name: str) -> None:
    with tempfile.TemporaryDirectory() as root:
        state = Path(root, name)
        make_state(state)
        feed(state, [groups.insert(100, groups.text_relation("note"), "n")])
        with served_outbox(state):
            assert (state / "server.sock").is_socket()
            assert FlightOutbox(ServerAddress.parse(unix_url(state / "server.sock"))).head() == 2
            assert [found.name for found in Path(root).iterdir()] == [name]


def test_a_unix_socket_may_be_given_without_escapes_where_its_url_is_unambiguous() -> None:
    given = {"/ä b/server.sock": "/%C3%A4%20b/server.sock", "/100%/a%20b": "/100%25/a%20b"}
    assert {path: ServerAddress.parse(f"grpc+unix://{path}").url[12:] for path in given} == given
    for path in ("/a#b/server.sock", "/a?b/server.sock"):
        with pytest.raises(BadServerAddress) as raised:
            ServerAddress.parse(f"grpc+unix://{path}")
        assert "%3F and %23" in str(raised.value.hint)


def test_a_path_too_long_for_the_socket_is_refused_at_the_start(tmp_path: Path) -> None:
    state = tmp_path / ("x" * 100)
    make_state(state)
    done = cdcctl("run", "server", "--state", state)
    event = json.loads(done.err.splitlines()[-1])
    assert (done.code, event["event"]) == (ExitCode.CONFIG, "server ends")
    assert f"cannot listen at {state}/server.sock: this path has {len(str(state)) + 12} bytes" in event["error"]
    assert "at most 107" in event["error"]
    assert "serve a port" in event["hint"]
    assert "at most 95 bytes" in event["hint"]
    assert not (state / "server.lock").exists()
    make_server_token(ServerConfig(), StateFolder(state))
    with served_outbox(state, "--listen", f"127.0.0.1:{free_port()}", "--insecure-loopback"):
        pass


def test_a_comma_in_the_path_of_the_socket_is_refused_at_the_start(tmp_path: Path) -> None:
    make_state(tmp_path / "a,b")
    done = cdcctl("run", "server", "--state", tmp_path / "a,b")
    assert done.code == ExitCode.CONFIG
    assert f"{tmp_path}/a,b/server.sock: gRPC has no unix socket whose path contains a comma" in done.err


def test_a_stalled_client_does_not_delay_the_end_of_the_program(state: Path, served: subprocess.Popen[str]) -> None:
    client = RawClient(f"grpc+unix://{state / 'server.sock'}")
    stalled = client.stream(ALL)
    stalled.read_chunk()
    served.terminate()
    assert served.wait(10 * STOP_S) == ExitCode.SUCCESS
    shown = json.loads(succeeded(cdcctl("status", "--json", "--state", state)).out)
    assert (shown["server"], shown["last_end"]["server"]["reason"]) == ("not running", "SIGTERM")
    stalled.cancel()


def contents_of(values: "Iterable[OutboxValue]") -> "list[tuple[ValueHeader, bytes]]":
    return [(value.header, bytes(value.payload)) for value in values]


def cut_stream(
    state: Path, served: subprocess.Popen[str]
) -> "tuple[FlightOutbox, Iterator[OutboxValue], list[OutboxValue]]":
    """Return a patient client, and a stream of more than is under way, with its first value; the server is killed."""
    for number in range(2, 10):
        feed(state, [groups.insert(100 * number, groups.text_relation("note"), "n" * LARGE)])
    address = ServerAddress.parse(f"grpc+unix://{state / 'server.sock'}")
    outbox = FlightOutbox(address, outage_s=10 * STOP_S)
    values = outbox.read(NO_SEQUENCE, Sequence(18))
    found = [next(values)]
    served.kill()
    served.wait()
    return outbox, values, found


def test_a_patient_client_outlives_a_restart_of_the_server_in_a_request_and_in_a_stream(
    state: Path, served: subprocess.Popen[str]
) -> None:
    outbox, values, found = cut_stream(state, served)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(outbox.head)
        with pytest.raises(ServerUnreachable):
            FlightOutbox(outbox.address)
        assert not waiting.done()
        with served_outbox(state):
            assert waiting.result(10 * STOP_S) == 18
            found += values
    with OutboxReader.open(StateFolder(state)) as local:
        stored = contents_of(local.read(NO_SEQUENCE, Sequence(18)))
    assert contents_of(found) == stored


def test_a_stream_does_not_continue_with_the_values_of_another_outbox(
    state: Path, served: subprocess.Popen[str]
) -> None:
    _, values, _ = cut_stream(state, served)
    make_state(state.parent / "new", "0c0d")
    state.rename(state.parent / "old")
    (state.parent / "new").rename(state)
    with served_outbox(state), pytest.raises(StateReplaced, match="has another outbox than before its restart"):
        list(values)


def test_the_program_ends_for_a_restart_if_its_state_is_replaced(state: Path, served: subprocess.Popen[str]) -> None:
    outbox = FlightOutbox(ServerAddress.parse(f"grpc+unix://{state / 'server.sock'}"))
    make_state(state.parent / "new", "0c0d")
    state.rename(state.parent / "old")
    (state.parent / "new").rename(state)
    assert served.wait(10 * ALIVE_S) == ExitCode.UNEXPECTED
    assert served.stderr is not None
    assert "was replaced or removed while this process used it" in served.stderr.read()
    with pytest.raises(ServerUnreachable):
        outbox.head()


def test_no_reader_gets_a_former_state_that_the_process_has_open(state: Path) -> None:
    folder = StateFolder(state)
    with StateStore.open(folder):
        assert open_once(folder).head() == 2
        state.rename(state.parent / "old")
        for _ in range(2):
            with pytest.raises(StateReplaced, match="was replaced or removed"):
                open_once(folder)
        make_state(state.parent / "new", "0c0d")
        (state.parent / "new").rename(state)
        with pytest.raises(StateReplaced):
            open_once(folder)
    assert open_once(folder).outbox_id == "0c0d"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "127.0.0.1:0"), "is served only with TLS"),
        (("--listen", "0.0.0.0:0", "--insecure-loopback"), "is not a loopback address"),
        (("--listen", "nowhere"), "is not HOST:PORT"),
    ],
)
def test_a_port_without_tls_is_refused(state: Path, arguments: tuple[str, ...], message: str) -> None:
    make_server_token(ServerConfig(), StateFolder(state))
    refused = cdcctl("run", "server", "--state", state, *arguments)
    assert (refused.code, message in refused.err) == (ExitCode.CONFIG, True), refused.err


def test_a_batch_of_arrow_has_the_stored_bytes(state: Path) -> None:
    with outbox_server(state) as (_, url), OutboxReader.open(StateFolder(state)) as local:
        sent = RawClient(url).stream(ALL).read_all()
        expected = stored_in(local)
    assert sent.column("chunk").to_pylist() == expected


def test_a_call_that_a_stopping_server_cancels_is_an_outage() -> None:
    cancelled = flight.FlightCancelledError("Flight cancelled call, with message: CANCELLED")
    assert isinstance(translated_error(cancelled, ServerAddress("grpc://127.0.0.1:1")), ServerUnreachable)
