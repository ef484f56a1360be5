"""An archive folder that is missing for a moment, or hangs, as a network file system does."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.captures import change_log, replayed
from tests.support.processes.cdcctl import cdcctl, succeeded
from tests.support.processes.failover import Pair, archiving_node, paired
from tidemark.model.mode import Stage


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with archiving_node() as node:
        node.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        with paired(node, tmp_path) as both:
            yield both


def take_away(pair: Pair) -> None:
    """Remove the folder until the archiver has noticed."""
    spool = pair.archiving.spool.folder
    spool.rename(aside := spool.with_name("away"))
    try:
        reported = "the archive cannot be listed"
        pair.wait_for(lambda: reported in pair.archiver.log_path.read_text(), "the archiver's word")
    finally:
        aside.rename(spool)


@pytest.mark.parametrize("stage", [Stage.REALTIME, Stage.HELD])
def test_an_archive_that_is_unavailable_for_a_moment_is_waited_for(pair: Pair, stage: Stage) -> None:
    pair.insert(1)
    pair.archiving.switch()
    pair.archiving.wait_until_archived()
    if stage is Stage.HELD:
        pair.switch_off()
    pair.catch_up()
    take_away(pair)
    pair.insert(2)
    if stage is Stage.REALTIME:
        pair.switch_off()
    pair.archiving.switch()  # the server, whose archive_command failed, would try again only after a minute
    assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2]
    assert pair.archiver.running, pair.reported()


@pytest.mark.feature("I41")
def test_an_archive_that_hangs_blocks_neither_realtime_nor_the_operator(pair: Pair) -> None:
    pair.insert(1)
    pair.catch_up()
    pair.node.configure(archive_command="false")
    ledger = pair.archiving.spool.ledger
    ledger.unlink()
    os.mkfifo(ledger)  # opening it blocks for ever
    reported = pair.sidecar.wait_for_event("the archive cannot be listed")
    assert "does not respond" in str(reported["error"])
    place = ("--json", "--state", pair.sidecar.folder.root)
    shown = json.loads(succeeded(cdcctl("status", *place, **pair.sidecar.options)).out)
    assert "does not respond" in shown["archive"]
    assert [shown[role]["hangs"] for role in ("sidecar", "archiver")] == [False, False]
    pair.insert(2)
    assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2]
    assert pair.switch_off()["stage"] == "held"


def test_realtime_continues_beside_an_archive_that_cannot_be_read(pair: Pair) -> None:
    pair.insert(1)
    pair.catch_up()
    history = pair.archiving.spool.folder / "00000002.history"
    history.symlink_to(pair.archiving.spool.folder / "a disk that is away")
    pair.sidecar.wait_for_event("the archive cannot be listed")
    pair.insert(2)
    assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2]
    assert (pair.sidecar.running, pair.stage) == (True, Stage.REALTIME)
