"""The oracle: what the server's own test_decoding prints, line by line, beside what we print for the same WAL.

The server's side is a logical slot read by SQL under the reference settings (test_decoding prints values as the reading
session is set). Our side is a fresh seed by a plain LOGIN REPLICATION role, the physical stream, and the renderer.
A *fence* is a transactional message of the test's own: both sides are read up to it, and leave it out.

After the lines come the catalogs: the mirror's rows must be the server's, row by row and place by place.
"""

import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Self

from tests.support.postgres import Cluster, sql
from tidemark.decode.catalog.layout import LOCAL_CATALOGS, PG_DATABASE
from tidemark.decode.catalog.mirror import CatalogMirror
from tidemark.decode.decoder import Decoded
from tidemark.decode.render.test_decoding import TestDecodingRenderer
from tidemark.decode.transactions import CommittedTransaction
from tidemark.io.node import REFERENCE_SETTINGS
from tidemark.model.change import MARKER_PREFIX, LogicalMessage
from tidemark.model.lsn import Lsn, Oid, parse_lsn
from tidemark.runtime.decode_run import LiveChanges
from tidemark.runtime.seeding import Seed, take_seed

FENCE = "tidemark-test-fence"
ROLE = "cdc"
DEADLINE_S = 120
CONTEXT_LINES = 3
CATALOG_ATTEMPTS = 5
REGPROC = 24  # printed by name, held as an OID

# The closed list of differences: types that come out raw until "Decode everything". Ranges, composites and domains over
# them are raw as well; the scripts name theirs with these prefixes.
RAW_TYPES = (
    "point|line|lseg|box|path|polygon|circle|xml|tsvector|tsquery|money|bit|bit varying|macaddr|macaddr8|pg_lsn"
    "|int4range|int8range|numrange|tsrange|tstzrange|daterange"
    "|int4multirange|int8multirange|nummultirange|tsmultirange|tstzmultirange|datemultirange"
    "|regclass|regtype|regnamespace|regproc|regprocedure|regoper|regoperator|regrole|regconfig|regdictionary|regcollation"
    "|aclitem|tid|raw_[a-z]+"
)
_RAW_VALUE = re.compile(rf"\[({RAW_TYPES})((?:\[\])?\]):(?:B?'(?:[^']|'')*')")

_fences = count(1)


def ensure_role(cluster: Cluster) -> None:
    """Make the role of the capture: it can log in and stream, nothing else."""
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
        cluster.sql(f"SELECT pg_create_logical_replication_slot('{self.slot}', 'test_decoding')", database)

    def lines(self) -> list[str]:
        """Return what was decoded since the last call, fences and our own messages left out."""
        return without_own_messages([line for _, line in self.rows()])

    def rows(self) -> list[tuple[Lsn, str]]:
        """Return the lines since the last call, all of them; the LSN of a COMMIT is its record's end."""
        with self.cluster.connect(self.database) as session:
            for setting in REFERENCE_SETTINGS:
                session.execute(setting)
            rows = sql(
                session,
                f"SELECT lsn::text, data FROM pg_logical_slot_get_changes('{self.slot}', NULL, NULL,"
                " 'include-xids', '1', 'skip-empty-xacts', '1', 'include-timestamp', '0')",
            )
        return [(parse_lsn(str(lsn)), str(data)) for lsn, data in rows]

    def drop(self) -> None:
        self.cluster.sql(f"SELECT pg_drop_replication_slot('{self.slot}')", self.database)


def without_own_messages(lines: Sequence[str]) -> list[str]:
    """Leave out fences and Tidemark's messages, and the BEGIN and COMMIT of transactions that have nothing else."""
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

    def __post_init__(self) -> None:
        ensure_role(self.cluster)
        self.seed: Seed = take_seed(self.dsn, self.databases, wait_s=DEADLINE_S)
        self.changes = LiveChanges(self.dsn, self.seed, wait_s=DEADLINE_S)
        self.renderer = renderer_of(self.seed)
        self.lines = {oid: [] for oid in self.seed.mirrors}

    @property
    def dsn(self) -> str:
        return self.cluster.dsn(self.databases[0], ROLE)

    def take(self, decoded: Decoded) -> None:
        """Print what was decoded."""
        for oid, line in rendered(self.renderer, decoded, self.fences.add):
            self.lines[oid].append(line)

    def read_until(self, fence: str) -> None:
        """Follow the stream until `fence` came by."""
        self._read_while(lambda: fence not in self.fences, fence)

    def settle(self) -> None:
        """Follow the stream until the snapshot is taken from which changes are given out."""
        self._read_while(lambda: self.changes.snapshot is None, "the snapshot")

    def _read_while(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while condition():
            assert time.monotonic() < deadline, f"{what} did not come"
            for decoded in self.changes.read(0.2):
                self.take(decoded)

    def taken_lines(self, database: str) -> list[str]:
        """Return the lines of one database since the last call."""
        (oid,) = (oid for oid, name in self.seed.databases.items() if name == database)
        taken, self.lines[oid] = self.lines[oid], []
        return taken

    def mirror(self, database: str) -> CatalogMirror:
        (oid,) = (oid for oid, name in self.seed.databases.items() if name == database)
        return self.seed.mirrors[oid]


def renderer_of(seed: Seed) -> TestDecodingRenderer:
    """Return a renderer for the databases of a seed."""
    dialects = {oid: mirror.dialect for oid, mirror in seed.mirrors.items()}
    return TestDecodingRenderer(seed.format.major, dialects, (FENCE,))


def rendered(
    renderer: TestDecodingRenderer, decoded: Decoded, on_fence: Callable[[str], object]
) -> Iterator[tuple[Oid, str]]:
    """Yield the lines of what was decoded, with their database."""
    if isinstance(decoded, CommittedTransaction):
        for item in decoded.items():
            if isinstance(item, LogicalMessage) and item.prefix == FENCE:
                on_fence(item.content.decode())
        for line in renderer.transaction(decoded):
            yield decoded.end.database, line
        decoded.release()
    elif renderer.shows(decoded):
        yield decoded.database, renderer.message(decoded)


class Oracle:
    """Both sides for one database: run something, then `check`."""

    def __init__(self, cluster: Cluster, database: str) -> None:
        self.cluster = cluster
        self.database = database
        self.server = ServerSide(cluster, database)
        self.ours = OurSide(cluster, [database])
        self.ours.settle()
        self.server.lines()  # nothing ran yet but the seed's own message

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
        found = self.ours.taken_lines(self.database)
        assert_same_lines(what, list(map(normalise, expected)), list(map(normalise, found)))
        self.check_catalogs(what)
        return expected

    def check_catalogs(self, what: str) -> None:
        """Compare the mirror's rows with the server's."""
        self.cluster.sql("CHECKPOINT")  # its RUNNING_XACTS record ends what a crash left open
        bad: list[str] = []
        for _ in range(CATALOG_ATTEMPTS):  # autovacuum changes statistics in between
            rows = server_catalogs(self.cluster, self.database, self.ours.mirror(self.database))
            self.ours.read_until(emit_fence(self.cluster, self.database))
            bad = list(catalog_differences(self.ours.mirror(self.database), rows))
            if not bad:
                return
        raise AssertionError(f"{what}: the mirror differs from the catalogs:\n" + "\n".join(bad[:20]))


def assert_same_lines(what: str, expected: Sequence[str], found: Sequence[str]) -> None:
    """Fail with the first line that differs, and some around it."""
    if list(expected) == list(found):
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


CatalogRows = dict[str, dict[str, dict[str, str]]]
"""By catalog, then ctid: columns as text."""


def server_catalogs(cluster: Cluster, database: str, mirror: CatalogMirror) -> CatalogRows:
    """Return the rows of the tracked catalogs by SQL, under one snapshot."""
    found: CatalogRows = {}
    with cluster.connect(database, autocommit=False) as session:
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        for catalog in (*LOCAL_CATALOGS, PG_DATABASE):
            store = mirror.shared.store if catalog is PG_DATABASE else mirror.store
            columns = store.heap(catalog).layout.fixed
            names = [column.name for column in columns]
            casts = ["::oid" if column.type_oid == REGPROC else "" for column in columns]
            selected = ", ".join(f'"{name}"{cast}::text' for name, cast in zip(names, casts, strict=True))
            where = " WHERE attnum > 0" if catalog.name == "pg_attribute" else ""
            rows = sql(session, f"SELECT ctid::text, {selected} FROM pg_catalog.{catalog.name}{where}")
            found[catalog.name] = {str(ctid): dict(zip(names, map(str, values), strict=True)) for ctid, *values in rows}
    return found


def catalog_differences(mirror: CatalogMirror, expected: CatalogRows) -> Iterator[str]:
    """Yield what the mirror has otherwise than the server."""
    for name, rows in expected.items():
        mirrored = {str(row.pop("ctid")): row for row in map(dict, mirror.rows(name))}
        for ctid in rows.keys() - mirrored.keys():
            yield f"{name} {ctid}: missing in the mirror: {rows[ctid]}"
        for ctid in mirrored.keys() - rows.keys():
            yield f"{name} {ctid}: only in the mirror: {mirrored[ctid]}"
        for ctid in rows.keys() & mirrored.keys():
            for column, value in rows[ctid].items():
                if not _same(mirrored[ctid][column], value):
                    yield f"{name} {ctid}.{column}: server {value!r}, mirror {mirrored[ctid][column]!r}"


def _same(mirrored: object, text: str) -> bool:
    if isinstance(mirrored, bool):
        return text == ("true" if mirrored else "false")
    if isinstance(mirrored, float):
        return struct.pack("<f", mirrored) == struct.pack("<f", float(text))
    return str(mirrored) == text


def without_raw_values(line: str) -> str:
    """Leave out the values of types on the closed list, NULL or not being told all the same."""
    return _RAW_VALUE.sub(r"[\1\2:raw", line)
