"""The oracle: the output of the server's own test_decoding, compared line by line with ours for the same WAL.

The server's side is a logical slot read by SQL under the reference settings (test_decoding prints values by the
settings of the reading session). Our side is a new seed by a plain LOGIN REPLICATION role, the physical stream, and
the renderer. A *fence* is a transactional message of the test: both sides are read up to it, and omit it.

After the lines, the catalogs are compared: the mirror's rows must equal the server's, row by row and TID by TID.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Self

import psycopg

from tests.support.oracles.oracle_catalogs import catalog_differences, server_catalogs
from tests.support.oracles.plugin_lines import PluginLines
from tests.support.oracles.server_order import in_wal_order
from tests.support.servers.postgres import Cluster, sql
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.catalog.redo import SeedOvertaken
from tidemark.decode.transactions.decoder import Decoded
from tidemark.decode.transactions.ports import SpillPort
from tidemark.decode.transactions.reorder_buffer.committed_transaction import CommittedTransaction
from tidemark.io.node.node import REFERENCE_SETTINGS
from tidemark.model.change import LogicalMessage
from tidemark.model.lsn import Lsn, Oid, parse_lsn
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.runtime.replay.decode_run import MEMORY_BYTES_DEFAULT
from tidemark.runtime.seed.live_changes import LiveChanges
from tidemark.runtime.seed.seeding import Seed, read_seed

FENCE = "tidemark-test-fence"
ROLE = "cdc"
SEEDS_MAX = 4
DEADLINE_S = 120
SERVER_DECODES_S = 900  # for test_decoding to decode the output of a long run
CONTEXT_LINES = 3
CATALOG_ATTEMPTS = 20
SQL_ASCII = "SQL_ASCII"  # the encoding without a check: text is any bytes

# The closed list of differences: names, which are not in WAL, and types that only their own C code can read. The
# scripts give columns of these types names that begin with `raw_`.
NAME_TYPES = "reg(?:proc|procedure|oper|operator|role|config|dictionary|collation)"
OTHER_TYPES = re.compile(rf"({NAME_TYPES}|aclitem|raw_[a-z]+)((?:\[\])?)")
_OTHER_VALUE = re.compile(rf"\[{OTHER_TYPES.pattern}\]:(?:'(?:[^']|'')*')")

_fences = count(1)


class ServerCannotDecode(Exception):
    """The server's decoder failed on WAL that the server wrote; `lines` are those before the failure."""

    def __init__(self, reported: str, lines: list[str]) -> None:
        super().__init__(f"test_decoding ended by itself after {len(lines)} lines: {reported}")
        self.lines = lines


def ensure_role(cluster: Cluster) -> None:
    """Create the role of the capture, with LOGIN and REPLICATION only."""
    if not cluster.sql(f"SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}'"):
        cluster.sql(f"CREATE ROLE {ROLE} LOGIN REPLICATION")


def emit_fence(cluster: Cluster, database: str) -> str:
    """Write a fence into WAL; return its content."""
    content = f"fence {next(_fences)}"
    cluster.sql(f"SELECT pg_logical_emit_message(true, '{FENCE}', '{content}')", database)
    return content


class ServerSide:
    """test_decoding in one database."""

    def __init__(self, cluster: Cluster, database: str) -> None:
        self.cluster = cluster
        self.database = database
        self.slot = f"oracle_{database}"
        # NB: stored bytes need not be text: SQL_ASCII accepts any, and C functions may store them elsewhere.
        encoding = f"SELECT pg_encoding_to_char(encoding)::text FROM pg_database WHERE datname = '{database}'"
        is_bytes = cluster.sql(encoding) == [(SQL_ASCII,)]
        self._as_bytes = f"convert_to(data, '{SQL_ASCII}')" if is_bytes else "textsend(data)"
        cluster.sql(f"SELECT pg_create_logical_replication_slot('{self.slot}', 'test_decoding')", database)

    def lines(self) -> list[str]:
        """Return the lines since the last call, without fences and our own messages."""
        rows, failure = self.decodable_rows()
        lines = without_tidemarks_messages([line for _, line in rows])
        if failure:
            raise ServerCannotDecode(failure, lines)
        return lines

    def decodable_rows(self) -> tuple[list[tuple[Lsn, str]], str]:
        """Return all lines since the last call; if the server's decoder fails, those before, and its error."""
        starts = self.cluster.starts
        try:
            return list(self.rows()), ""
        except psycopg.errors.QueryCanceled:
            raise
        except psycopg.DatabaseError as error:
            self._wait_behind(error, starts)
            return self._read_before(), str(error).splitlines()[0]

    def rows(self, at_a_time: int | None = None) -> Iterator[tuple[Lsn, str]]:
        """Yield all lines since the last call, at once, or by `at_a_time` changes and the rest of a transaction.

        The LSN of a COMMIT is its record's end.
        """
        with self.cluster.connect(self.database) as session:
            for setting in (*REFERENCE_SETTINGS, f"SET statement_timeout = '{SERVER_DECODES_S}s'"):
                session.execute(setting)
            query = (
                f"SELECT lsn::text, {self._as_bytes}"
                f" FROM pg_logical_slot_get_changes('{self.slot}', NULL, {at_a_time or 'NULL'},"
                " 'include-xids', '1', 'skip-empty-xacts', '1', 'include-timestamp', '0')"
            )
            while rows := sql(session, query):
                yield from ((parse_lsn(lsn), data.decode("utf-8", "surrogateescape")) for lsn, data in rows)
                if at_a_time is None:
                    return
                sql(session, "CHECKPOINT")  # saves the slot's position: a server that crashes would begin again

    def _read_before(self) -> list[tuple[Lsn, str]]:
        """Return the lines before an error: first many transactions at a time, then fewer, then one by one."""
        rows: list[tuple[Lsn, str]] = []
        for at_a_time in (3000, 100, 1):
            starts = self.cluster.starts
            try:
                rows.extend(row for row in self.rows(at_a_time))  # keep the lines before the error
            except psycopg.DatabaseError as error:
                self._wait_behind(error, starts)
        return rows

    def _wait_behind(self, error: psycopg.Error, starts: int) -> None:
        """Wait for a restart if the plugin crashed the server: then the session is lost without an error message."""
        if error.sqlstate is None:
            self.cluster.until_it_started_again(starts)

    def drop(self) -> None:
        self.cluster.sql(f"SELECT pg_drop_replication_slot('{self.slot}')", self.database)


def without_tidemarks_messages(lines: Sequence[str]) -> list[str]:
    """Remove fences and Tidemark's messages, and the BEGIN and COMMIT of transactions with nothing else."""
    kept: list[str] = []
    for line in lines:
        if line.startswith(tuple(f"message: transactional: 1 prefix: {own}," for own in (FENCE, MARKER_PREFIX))):
            continue
        if line.startswith("COMMIT ") and kept and kept[-1] == line.replace("COMMIT", "BEGIN", 1):
            kept.pop()
            continue
        kept.append(line)
    return kept


@dataclass
class OurSide:
    """Our own lines for one or several databases of a cluster, live."""

    cluster: Cluster
    databases: Sequence[str]
    lines: dict[Oid, list[str]] = field(default_factory=dict)
    fences: set[str] = field(default_factory=set)
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    spill: SpillPort | None = None
    proxy_port: int | None = None  # of a proxy on this host that leads to the server

    def __post_init__(self) -> None:
        ensure_role(self.cluster)
        self.seed: Seed = self._seed()
        self.changes = LiveChanges(
            self.dsn, self.seed, memory_bytes=self.memory_bytes, spill=self.spill, wait_s=DEADLINE_S
        )
        self.changes.decoding.decoder.keep_names()
        self.renderer = renderer_of(self.seed)
        self.lines = {oid: [] for oid in self.seed.mirrors}

    def _seed(self) -> Seed:
        """Seed; again if a load rewrites catalogs during all attempts, as an operator would repeat the command."""
        for _ in range(SEEDS_MAX - 1):
            with suppress(SeedOvertaken):
                return read_seed(self.dsn, self.databases, wait_s=DEADLINE_S)
        return read_seed(self.dsn, self.databases, wait_s=DEADLINE_S)

    @property
    def dsn(self) -> str:
        way: dict[str, str | int] = {"host": "127.0.0.1", "port": self.proxy_port} if self.proxy_port else {}
        return self.cluster.dsn(self.databases[0], ROLE, **way)

    def receive(self, decoded: Decoded) -> None:
        """Print decoded transactions."""
        for oid, line in printed(self.renderer, decoded, self.fences.add):
            self.lines[oid].append(line)
        if isinstance(decoded, CommittedTransaction):
            self.finish(decoded)

    def finish(self, transaction: CommittedTransaction) -> None:
        """Release a printed transaction."""
        transaction.release()

    def read_until(self, fence: str) -> None:
        """Follow the stream until `fence` was read."""
        self._read_while(lambda: fence not in self.fences, fence)

    def settle(self) -> None:
        """Follow the stream until the snapshot from which changes are emitted is complete."""
        self._read_while(lambda: self.changes.snapshot is None, "the snapshot")

    def _read_while(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while condition():
            assert time.monotonic() < deadline, f"{what} did not come"
            for decoded in self.changes.read(0.2):
                self.receive(decoded)

    def new_lines(self, database: str) -> list[str]:
        """Return the lines of one database since the last call."""
        oid = self.oid(database)
        new, self.lines[oid] = self.lines[oid], []
        return new

    def oid(self, database: str) -> Oid:
        """Return the OID of one of the databases."""
        (oid,) = (oid for oid, name in self.seed.databases.items() if name == database)
        return oid

    def mirror(self, database: str) -> CatalogMirror:
        return self.seed.mirrors[self.oid(database)]

    def check_catalogs(self, what: str, primary: Cluster | None = None) -> None:
        """Compare the mirror's rows with the server's; `primary`: that of the standby from which we read."""
        database, server = self.databases[0], primary or self.cluster
        server.sql("CHECKPOINT")  # its RUNNING_XACTS record ends transactions that a crash left open
        bad: list[str] = []
        for _ in range(CATALOG_ATTEMPTS):  # autovacuum may change statistics in between
            rows = server_catalogs(server, database, self.mirror(database))
            self.read_until(emit_fence(server, database))
            bad = list(catalog_differences(self.mirror(database), rows))
            if not bad:
                return
        raise AssertionError(f"{what}: the mirror differs from the catalogs:\n" + "\n".join(bad[:20]))


def renderer_of(seed: Seed) -> PluginLines:
    """Return a renderer for the databases of a seed."""
    dialects = {oid: mirror.dialect for oid, mirror in seed.mirrors.items()}
    return PluginLines(seed.format.major, dialects, (FENCE,))


def rendered(renderer: PluginLines, decoded: Decoded, on_fence: Callable[[str], object]) -> Iterator[tuple[Oid, str]]:
    """Yield the lines of decoded transactions, with their database, and release the transactions."""
    yield from printed(renderer, decoded, on_fence)
    if isinstance(decoded, CommittedTransaction):
        decoded.release()


def printed(renderer: PluginLines, decoded: Decoded, on_fence: Callable[[str], object]) -> Iterator[tuple[Oid, str]]:
    """Yield the lines of decoded transactions, with their database."""
    if isinstance(decoded, CommittedTransaction):
        for item in decoded.items():
            if isinstance(item, LogicalMessage) and item.prefix == FENCE:
                on_fence(item.content.decode())
        for line in renderer.of(decoded):
            yield decoded.end.database, line
    elif renderer.shows(decoded):
        yield decoded.database, renderer.message(decoded)


class Oracle:
    """Both sides for one database: run statements, then `check`."""

    def __init__(self, cluster: Cluster, database: str) -> None:
        self.cluster = cluster
        self.database = database
        self.server = ServerSide(cluster, database)
        self.ours = OurSide(cluster, [database])
        self.ours.settle()
        self.server.lines()  # only the seed's own message so far

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.ours.changes.close()
        if self.cluster.running:
            self.server.drop()

    def check(self, what: str, normalise: Callable[[str], str] = str) -> list[str]:
        """Compare all lines since the last check, then the catalogs; return the lines."""
        fence = emit_fence(self.cluster, self.database)
        self.ours.read_until(fence)
        expected = self.server.lines()
        found = self.ours.new_lines(self.database)
        assert_same_lines(what, list(map(normalise, expected)), list(map(normalise, found)))
        self.ours.check_catalogs(what)
        return expected


def assert_same_lines(what: str, expected: Sequence[str], found: Sequence[str]) -> None:
    """Fail with the first differing line, and some lines around it."""
    expected = in_wal_order(expected, found)
    if expected == list(found):
        return
    pairs = zip(expected, found, strict=False)
    at = next((at for at, (left, right) in enumerate(pairs) if left != right), min(len(expected), len(found)))
    begin = max(0, at - CONTEXT_LINES)
    raise AssertionError(
        f"{what}: line {at} differs ({len(expected)} lines of test_decoding, {len(found)} of ours)\n"
        + "".join(f"  both: {line[:300]}\n" for line in expected[begin:at])
        + "".join(f"server: {line[:2000]}\n" for line in expected[at : at + CONTEXT_LINES])
        + "".join(f"  ours: {line[:2000]}\n" for line in found[at : at + CONTEXT_LINES])
    )


def without_other_values(line: str) -> str:
    """Remove the values of the closed list: values of some types, NULL or not."""
    return _OTHER_VALUE.sub(r"[\1\2]:other", line)
