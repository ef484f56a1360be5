"""Copies of test clusters that run independently: hot standbys that stream, and restored backups."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import Cluster, cluster_without_data
from tidemark.model.lsn import parse_lsn

REPLAYED_S = 120


@contextmanager
def copy_of(original: Cluster, **settings: str | int) -> Iterator[Cluster]:
    """Make a cold copy of `original`, which is stopped for it; the copy is not started, and removed at the end."""
    with cluster_without_data(original.major) as copy:
        original.stop()
        # NB: clients of every major do not exist (`servers.SAME_MAJOR_ONLY`), so no pg_basebackup.
        subprocess.run(["cp", "-a", str(original.data), str(copy.data)], check=True)
        original.start()
        copy.configure(reload=False, port=copy.port, unix_socket_directories=f"'{copy.folder}'", **settings)
        yield copy


@contextmanager
def standby_of(primary: Cluster, **settings: str | int) -> Iterator[Cluster]:
    """Start a hot standby of `primary`, which is stopped for the copy; it is removed at the end."""
    with copy_of(primary, primary_conninfo=primary.dsn(), **settings) as standby:
        (standby.data / "standby.signal").touch()
        standby.start()
        yield standby


def wait_until_replayed(standby: Cluster, primary: Cluster) -> None:
    """Wait until `standby` shows all that `primary` has committed by now."""
    wanted = parse_lsn(primary.flush_lsn())
    _wait_for(standby, lambda: parse_lsn(str(standby.sql("SELECT pg_last_wal_replay_lsn()")[0][0])) >= wanted)


def promote(standby: Cluster) -> None:
    """Promote a standby, and wait until it accepts writes."""
    ((promoted,),) = standby.sql("SELECT pg_promote()")
    assert promoted


def recover(copy: Cluster, restore_command: str, *, before: str = "") -> None:
    """Start a copy and let it recover from an archive, to its end or up to an LSN, onto a new timeline."""
    target = {"recovery_target_lsn": before, "recovery_target_inclusive": "off", "recovery_target_action": "promote"}
    copy.configure(reload=False, restore_command=restore_command, **(target if before else {}))
    (copy.data / "recovery.signal").touch()
    copy.start()
    _wait_for(copy, lambda: copy.sql("SELECT pg_is_in_recovery()") == [(False,)])


def _wait_for(cluster: Cluster, condition: Callable[[], bool]) -> None:
    wait_until(condition, "the replay of the WAL", within_s=REPLAYED_S, reported=lambda: cluster.log[-3000:])
