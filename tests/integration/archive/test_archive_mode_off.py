"""WAL that was written while archive_mode was off: it is reported as missing, and not waited for (I31)."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.archive.test_archive_access import DEADLINE_S, WatchedNode, watched, write
from tests.support.processes.cdcctl import Done, cdcctl, refused, reported, succeeded
from tests.support.servers.archiving import archive_script
from tests.support.servers.postgres import Cluster, new_cluster
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import INVALID_LSN, Lsn, TimelineId, parse_lsn
from tidemark.model.position import NO_SEQUENCE, Pointer, Position
from tidemark.wire.state.state_keys import DELIVERED
from tidemark.wire.state.values import Watermark

SEGMENT_DIGITS = 16  # digits of a WAL file's name after its timeline


@pytest.fixture(scope="module")
def node() -> Iterator[Cluster]:
    with new_cluster(15, {"wal_keep_size": 0}, initdb=["--wal-segsize=1"]) as made:
        yield made


@pytest.fixture
def root() -> Iterator[Path]:
    """Create a folder that every user can read."""
    with tempfile.TemporaryDirectory(prefix="tm-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def number_of(segment: str) -> int:
    """Return the number of a segment of 1 MB within the first 4 GB of WAL."""
    return int(segment[-SEGMENT_DIGITS:], 16)


def run(made: WatchedNode, *arguments: str) -> Done:
    options = {
        "TIDEMARK_ARCHIVE__FOLDER": str(made.node.spool.folder),
        "TIDEMARK_CAPTURE__DSN": made.node.node.dsn(),
    }
    return cdcctl(*arguments, "--state", made.store.folder.root, **options)


def shown(made: WatchedNode) -> str:
    return succeeded(run(made, "status")).out.decode()


@pytest.mark.feature("I31")
@pytest.mark.feature("I28")
def test_wal_written_while_archive_mode_was_off_is_named_as_missing_and_not_waited_for(
    node: Cluster, root: Path
) -> None:
    with watched(node, root) as made:
        first = made.segment()
        made.seen()
        assert "archive_mode is off on the node" in shown(made)
        off = succeeded(run(made, "realtime", "off"))
        assert "WARNING: archive_mode is off on the node" in off.err
        assert "changes may be delivered late: archive_mode of the node is off" in off.err
        count = number_of(made.node.switch(2)[-1]) - number_of(first) + 1
        made.seen()
        missing = f"{count} segments from {first} on are missing and will not arrive"
        assert missing in shown(made)
        made.seen()
        assert made.watch.holes == 0, "each look was another process's"
        made.look()
        assert made.watch.holes == count
        assert not made.node_requests.switch_segment().result(DEADLINE_S), "nothing fills the archive: no switch helps"

        node.stop()
        node.configure(reload=False, archive_mode="on", archive_command="/bin/false")
        node.start()
        made.seen()
        assert made.store.archiving().waiting == 0, "what will not arrive is not waited for"
        write(node)
        current = made.segment()
        assert made.node_requests.switch_segment().result(DEADLINE_S), "no earlier segment is still to arrive"
        after = made.segment()
        write(node)
        assert not made.node_requests.switch_segment().result(DEADLINE_S), (
            "the one that was switched is still to arrive"
        )
        assert made.segment() == after
        node.configure(archive_command=f"{archive_script()} --spool {made.node.spool.folder} --free-bytes-min 0 %p %f")
        made.node.wait_for((made.node.spool.folder / current).exists)

        made.seen()
        assert missing in shown(made)
        checked = run(made, "check", "--deadline-s", "1")
        message, hint = reported(checked.err)
        assert missing in message
        assert "cdcctl archive repair" in hint
        assert "126" not in hint
        done = run(made, "realtime", "on")
        refused(done, ExitCode.CONFIG, "the archiver does not run", missing)
        assert "cdcctl archive repair" in reported(done.err)[1]

        delivered = Pointer(Position(TimelineId(1), node_end(made), 0), node_end(made))
        with made.store.transaction(None) as transaction:
            transaction.put(DELIVERED, Watermark(delivered, NO_SEQUENCE))
        made.node.switch(1)
        made.node.wait_until_archived()
        made.seen()
        archiving = made.store.archiving()
        assert (archiving.missing, archiving.off_lsn, archiving.on_lsn) == (0, INVALID_LSN, INVALID_LSN)


def node_end(made: WatchedNode) -> Lsn:
    """Return the end of the node's WAL."""
    return parse_lsn(str(made.node.node.sql("SELECT pg_current_wal_flush_lsn()::text")[0][0]))
