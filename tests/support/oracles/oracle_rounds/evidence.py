"""The files that are kept of a failed round: enough to decode it again without the server.

server.lines, ours.lines   the output of each side, one entry a line as a JSON string
statements.log             the statements of each session, with time and outcome
server.log                 the server's log
base, wal/, facts.json     the catalogs at the seed, all WAL after it, and the other input of decoding
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

FIRST_TIMELINE = 1  # of a cluster without a promotion


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of decoding, except for the base."""

    command: str
    database: str
    database_oid: int
    segment_bytes: int
    snapshot: str  # S2; empty: not reached
    begin_lsn: int  # of messages outside transactions
    fence: str  # the end of both sides; empty: ours did not reach it
    server_failed: bool  # its output is incomplete


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
    """Copy the segments from `begin_lsn` to the server's current one; if it is down, all that exist."""
    folder.mkdir()
    first = segment_name(FIRST_TIMELINE, segment_of(begin_lsn, segment_bytes), segment_bytes)
    last = None
    if node.running:
        last = segment_name(FIRST_TIMELINE, segment_of(parse_lsn(node.flush_lsn()), segment_bytes), segment_bytes)
    for path in (node.data / "pg_wal").iterdir():
        if path.is_file() and first <= path.name <= (last or path.name):
            shutil.copy(path, folder / path.name)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write entries that may contain newlines, and bytes that are not text."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def read_lines(path: Path) -> list[str]:
    """Read the entries."""
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def read_facts(folder: Path) -> Facts:
    """Read the input of decoding."""
    return Facts(**json.loads((folder / "facts.json").read_text()))
