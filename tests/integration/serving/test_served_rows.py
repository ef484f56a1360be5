"""The format `tidemark` over a server gives what it gives over the state folder; read as Spark reads, without Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.forged import groups
from tests.support.servers.outbox_server import outbox_server, token_file
from tests.support.workloads.feeder import RandomTables, feed, make_state
from tidemark.io.flight.remote_errors import ServerUnreachable, TokenRefused
from tidemark.io.readers.outbox import OutboxReader
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.errors import ConfigError
from tidemark.pipeline.source.format import OutboxSource
from tidemark.pipeline.source.offsets import OutboxReplaced
from tidemark.pipeline.source.remedies import stating_remedies

TABLE = "public.table 0"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served") / "state"
    make_state(root)
    feed(root, RandomTables(5).groups(60))
    return root


@pytest.fixture(scope="module")
def server(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the options of a query that reads from a server."""
    token = token_file(tmp_path_factory.mktemp("token"))
    with outbox_server(state) as (_, url):
        yield {"server": url, "tokenFile": str(token)}


def read_all(options: dict[str, str]) -> list[dict[str, object]]:
    source = OutboxSource(options)
    reader = source.reader(source.schema())
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"table": TABLE},
        {"table": TABLE, "columns": "before_after"},
        {"table": TABLE, "columns": "debezium"},
        {"table": TABLE, "columns": "raw", "startingPosition": "0/2900"},
    ],
)
def test_a_server_gives_the_rows_of_the_state(state: Path, server: dict[str, str], options: dict[str, str]) -> None:
    rows = read_all({"state": str(state), **options})
    assert rows == read_all({**server, **options})
    assert len(rows) > 10


def test_a_stream_registers_and_confirms_over_a_server(state: Path, server: dict[str, str]) -> None:
    source = OutboxSource({**server, "table": TABLE, "reader": "far", "startingPosition": "earliest"})
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    rows = [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == read_all({"state": str(state), "table": TABLE})
    reader.latestOffset(end, ReadAllAvailable())
    reader.commit(end)
    with OutboxReader.open(StateFolder(state)) as outbox:
        registered = outbox.registered("far")
    assert registered is not None
    assert (registered.applied, registered.replayable) == (end["sequence"], end["sequence"])
    assert not registered.is_required


def test_a_stream_ends_if_the_outbox_behind_the_server_is_another_one(tmp_path: Path) -> None:
    make_state(tmp_path / "state")
    feed(tmp_path / "state", [groups.insert(100, groups.text_relation("note"), "a")])
    with outbox_server(tmp_path / "state") as (_, url):
        source = OutboxSource({"server": url, "tokenFile": str(token_file(tmp_path)), "reader": "far"})
        reader = source.streamReader(source.schema())
        start = reader.initialOffset()
        make_state(tmp_path / "new", "0c0d")
        (tmp_path / "state").rename(tmp_path / "old")
        (tmp_path / "new").rename(tmp_path / "state")
        with pytest.raises(OutboxReplaced, match=r"to outbox 0a0b, but the outbox server at .* has 0c0d: delete Spark"):
            reader.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("options", [{}, {"state": "STATE", "server": "grpc+tls://db1:5000"}])
def test_a_query_names_either_a_state_or_a_server(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="requires the option state or the option server: use option"):
        OutboxSource(options).schema()


def test_errors_of_the_connection_are_one_line_with_the_remedy(server: dict[str, str], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text("a token of another capture")
    with pytest.raises(TokenRefused) as refused:
        OutboxSource({**server, "tokenFile": str(wrong), "table": TABLE}).schema()
    assert "refuses the token: the token is in STATE/server.token of" in str(refused.value)
    with pytest.raises(ServerUnreachable) as gone:
        OutboxSource({**server, "server": "grpc://127.0.0.1:1", "table": TABLE}).schema()
    assert "does not answer: " in str(gone.value)
    assert str(gone.value).endswith("check that `cdcctl run server` runs there, and host, port and firewall")
    assert "\n" not in str(refused.value) + str(gone.value)


def test_a_remedy_is_stated_once() -> None:
    with pytest.raises(ConfigError) as raised, stating_remedies(), stating_remedies():
        raise ConfigError("it failed", hint="mend it")
    assert str(raised.value) == "it failed: mend it"
