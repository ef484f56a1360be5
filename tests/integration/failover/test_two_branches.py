"""An archive with two branches: that of the node, and one of another server that archived into the same folder."""

from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.failover import archiving_node, paired
from tests.support.processes.waiting import wait_until
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster
from tests.support.servers.standby import promote, standby_of, wait_until_replayed
from tidemark.model.errors import ExitCode
from tidemark.model.mode import Stage

ARCHIVED_S = 60
SLOW_RESTART = {"TIDEMARK_WATCHDOG__RESTART_S": "20"}


def archive_by_mistake(wrong: Cluster, spool: Path) -> None:
    """Promote a server that was stopped to the next timeline that the archive does not have, and stop it again."""
    (wrong.data / "standby.signal").touch()
    restore = {"restore_command": f"cp {spool}/%f %p", "recovery_target_timeline": "current"}
    wrong.configure(reload=False, primary_conninfo="", **restore)
    wrong.start()
    promote(wrong)
    wrong.sql("INSERT INTO account VALUES (100, 'of the wrong server')")
    wrong.sql("SELECT pg_switch_wal()")
    wait_until(
        lambda: len(list(spool.glob("00000003*"))) > 1, "timeline 3", within_s=ARCHIVED_S, reported=lambda: wrong.log
    )
    wrong.stop()


@pytest.mark.feature("I33")
def test_a_server_that_was_promoted_by_mistake_and_filled_the_archive_does_not_stop_delivery(tmp_path: Path) -> None:
    with archiving_node() as archiving:
        wrong, spool = archiving.node, archiving.spool.folder
        wrong.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        with standby_of(wrong) as right:
            wait_until_replayed(right, wrong)
            promote(right)
            wrong.stop()
            with paired(ArchivingServer(right, archiving.spool), tmp_path, options=SLOW_RESTART) as pair:
                pair.insert(1)
                pair.switch_off()
                pair.insert(2)
                pair.catch_up()
                archive_by_mistake(wrong, spool)
                pair.insert(3)
                pair.catch_up()
                pair.archiver.stop()
                right.stop()
                last = pair.archiver.refuses(ExitCode.CORRUPT_WAL, "timeline 3", "timeline 2", "does not answer")
                assert f"move {spool}/00000003* out of the archive" in str(last["hint"])
                right.start()
                pair.archiver.start()
                pair.insert(4)
                pair.catch_up()
                pair.switch_on()
                pair.wait_for_stage(Stage.REALTIME)
                pair.insert(5)
                pair.catch_up()
                pair.switch_off()
                pair.archiver.stop()
                pair.insert(6)
                right.sql("SELECT pg_switch_wal()")
                right.stop()
                for path in spool.glob("00000003*"):
                    path.rename(tmp_path / path.name)
                pair.archiver.start()
                pair.wait_for(lambda: list(replayed(change_log(pair.delivered(), "account")))[-1:] == [6], "row 6")
                assert list(replayed(change_log(pair.delivered(), "account"))) == [1, 2, 3, 4, 5, 6]


@pytest.mark.feature("I33")
def test_a_server_that_was_promoted_by_mistake_after_the_wal_that_was_read_is_not_followed(tmp_path: Path) -> None:
    with archiving_node() as archiving:
        node, spool = archiving.node, archiving.spool.folder
        node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        with paired(archiving, tmp_path, options=SLOW_RESTART) as pair:
            pair.insert(1)
            pair.switch_off()
            pair.insert(2)
            pair.catch_up()
            with standby_of(node) as wrong:
                wait_until_replayed(wrong, node)
                promote(wrong)
                wrong.sql("INSERT INTO account VALUES (100, 'of the wrong server')")
                wrong.sql("SELECT pg_switch_wal()")
                wait_until(
                    lambda: len(list(spool.glob("00000002*"))) > 1,
                    "timeline 2",
                    within_s=ARCHIVED_S,
                    reported=lambda: wrong.log,
                )
            pair.insert(3)
            pair.catch_up()
            pair.switch_on()
            pair.wait_for_stage(Stage.REALTIME)
            pair.insert(4)
            pair.catch_up()
            assert list(replayed(change_log(pair.delivered(), "account"))) == [1, 2, 3, 4]
