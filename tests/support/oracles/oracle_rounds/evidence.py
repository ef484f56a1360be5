"""What a round leaves behind that did not end as it should: enough to decode it again without the server.

server.lines, ours.lines   what either printed, each entry a JSON string on a line of its own
statements.log             what each session did, when, and what became of it
server.log                 the server's
base, wal/, facts.json     the catalogs at the seed, all WAL behind it, and what else decoding begins from
"""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.oracles.oracle import OurSide
from tests.support.servers.postgres import Cluster
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.wal.segments import segment_name, segment_of

FIRST_TIMELINE = 1  # of a cluster that nobody promotes


@dataclass(frozen=True, slots=True)
class Facts:
    """What decoding begins from, beside the base."""

    command: str
    database: str
    database_oid: int
    segment_bytes: int
    snapshot: str  # S2; empty: it was never had
    begin_lsn: int  # of messages outside transactions
    fence: str  # where both sides ended; empty: ours did not come that far
    server_failed: bool  # what it printed is a beginning


def keep(
    folder: Path, node: Cluster, base: bytes, facts: Facts, *, log: Iterable[str], server: Sequence[str], ours: OurSide
) -> None:
    """Write everything."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_lines(folder / "server.lines", server)
    write_lines(folder / "ours.lines", ours.lines[ours.oid(facts.database)])
    (folder / "statements.log").write_text("".join(f"{line}\n" for line in log))
    (folder / "server.log").write_text(node.log)
    (folder / "base").write_bytes(base)
    (folder / "facts.json").write_text(json.dumps(asdict(facts), indent=1))
    _keep_wal(folder / "wal", node, ours.seed.lsn, facts.segment_bytes)


def _keep_wal(folder: Path, node: Cluster, begin_lsn: Lsn, segment_bytes: int) -> None:
    """Copy the segments from `begin_lsn` on, to where the server has come; if it is down, all that it has."""
    folder.mkdir()
    first = segment_name(FIRST_TIMELINE, segment_of(begin_lsn, segment_bytes), segment_bytes)
    last = None
    if node.running:
        last = segment_name(FIRST_TIMELINE, segment_of(parse_lsn(node.flush_lsn()), segment_bytes), segment_bytes)
    for path in (node.data / "pg_wal").iterdir():
        if path.is_file() and first <= path.name <= (last or path.name):
            shutil.copy(path, folder / path.name)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write entries that may hold newlines, and bytes that are no text."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def read_lines(path: Path) -> list[str]:
    """Read them back."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def read_facts(folder: Path) -> Facts:
    """Read what decoding begins from."""
    return Facts(**json.loads((folder / "facts.json").read_text()))
