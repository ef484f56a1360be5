"""A node that went on along another timeline, and processes that start anew behind the fork."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.archiving import Archiving
from tests.support.captures import change_log, replayed
from tests.support.failover import Pair, archiving_node, paired
from tidemark.io.state import StateStore
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import TimelineId
from tidemark.model.mode import Stage
from tidemark.wire.state import DELIVERED


@pytest.fixture
def node() -> Iterator[Archiving]:
    with archiving_node() as made:
        made.node.sql("CREATE TABLE account (id int PRIMARY KEY, note text)")
        yield made


@pytest.fixture
def pair(node: Archiving, tmp_path: Path) -> Iterator[Pair]:
    with paired(node, tmp_path, options={"TIDEMARK_WATCHDOG__RESTART_S": "20"}) as both:
        yield both


def fork(node: Archiving) -> None:
    """Let the node recover to the end of its WAL and go on on the next timeline."""
    node.node.stop()
    node.node.configure(reload=False, restore_command=f"cp {node.spool.folder}/%f %p")
    (node.node.data / "recovery.signal").touch()
    node.node.start()
    node.wait_for(lambda: node.node.sql("SELECT pg_is_in_recovery()") == [(False,)])


def test_both_processes_start_anew_behind_a_fork_with_a_catalog_base_from_before_it(
    node: Archiving, pair: Pair
) -> None:
    pair.insert(1)
    pair.catch_up()
    fork(node)
    node.switch()  # no restart begins on the page of the fork any more
    pair.insert(2)
    pair.catch_up()
    pair.sidecar.stop()
    pair.sidecar.start()
    pair.insert(3)
    pair.catch_up()
    pair.switch_off()
    pair.insert(4)
    pair.catch_up()
    pair.switch_on()
    pair.wait_for_stage(Stage.REALTIME)
    pair.insert(5)
    assert list(replayed(change_log(pair.catch_up(), "account"))) == [1, 2, 3, 4, 5]


def test_a_node_that_stayed_behind_on_an_older_timeline_is_refused(node: Archiving, tmp_path: Path) -> None:
    pair = Pair(node, tmp_path)
    pair.sidecar.init()
    with StateStore.open(pair.sidecar.folder) as store, store.transaction(None) as moving:
        before = moving.delivered()
        assert before is not None
        ahead = replace(before.pointer.position, timeline=TimelineId(2))
        moving.put(DELIVERED, replace(before, pointer=replace(before.pointer, position=ahead)))
    pair.insert(1)
    pair.sidecar.refuses(ExitCode.CORRUPT_WAL, "timeline 1", "timeline 2")
