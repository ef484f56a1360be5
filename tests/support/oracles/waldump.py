"""The output of `pg_waldump`."""

from pathlib import Path

from tests.support.servers.postgres import Cluster
from tidemark.model.lsn import Lsn, TimelineId, format_lsn
from tidemark.wal.segments import segment_name

SEGMENT_BYTES = 1 << 20


def waldump(node: Cluster, folder: Path, begin: Lsn, end: Lsn, *options: str) -> str:
    """Return its output for `[begin, end)` on timeline 1, in segments of 1 MB.

    NB: its arguments name the segments. Otherwise it would read the segment size from any file there, also from a
    segment that the server prepared, which is all zeros.
    """
    numbers = (begin // SEGMENT_BYTES, (end - 1) // SEGMENT_BYTES)
    names = (segment_name(TimelineId(1), number, SEGMENT_BYTES) for number in numbers)
    given = ("-p", str(folder), "-s", format_lsn(begin), "-e", format_lsn(end), *names)
    return node.run(node.server.client("pg_waldump"), *options, *given)
