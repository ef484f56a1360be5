"""`cdcctl rewind` where only the file beside LMDB has the confirmation of a dead branch: the sidecar was killed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forged.confirmations import confirm_in_the_file
from tests.support.processes.cdcctl import refused, succeeded
from tests.support.servers.diverged_primary import DATABASE, DivergedPrimary, branching
from tests.support.servers.postgres import Cluster
from tests.support.servers.standby import wait_until_replayed
from tidemark.io.state.confirmed_file import TAKEN
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import TimelineId, format_lsn, parse_lsn
from tidemark.model.position import Position


@pytest.fixture
def diverged(primary: Cluster, tmp_path: Path) -> Iterator[DivergedPrimary]:
    options = {
        "TIDEMARK_DELIVER__CONSUMER": "jsonl",
        "TIDEMARK_DELIVER__JSONL_FILE": str(tmp_path / "delivered.jsonl"),
    }
    with branching(primary, tmp_path, prepare=make_table, **options) as made:
        yield made


def make_table(primary: Cluster) -> None:
    primary.sql("CREATE TABLE busy (id int PRIMARY KEY)")


def test_a_dead_branch_that_the_state_of_a_killed_sidecar_does_not_have_is_rewound(diverged: DivergedPrimary) -> None:
    primary, sidecar = diverged.primary, diverged.sidecar
    sidecar.init()
    sidecar.start()
    sidecar.wait_until(lambda: diverged.is_copied, "the copies")
    sidecar.stop()
    wait_until_replayed(diverged.standby, primary)
    diverged.keep_standby_back()
    ((text,),) = primary.sql("SELECT pg_current_wal_insert_lsn()", DATABASE)
    dead = Position(TimelineId(1), parse_lsn(str(text)), 0)
    primary.sql("INSERT INTO busy VALUES (1)")
    confirm_in_the_file(sidecar.folder, dead)
    diverged.lose_primary()
    before = diverged.view.start
    assert before is not None
    assert before.position.commit_lsn < diverged.fork_lsn <= dead.commit_lsn
    done = succeeded(diverged.rewind())
    assert f"{TAKEN}: {dead}, after {before.position}\n" in done.err
    assert f"timeline 1 from {format_lsn(diverged.fork_lsn)}" in done.err
    (rewound,) = diverged.view.rewinds.kept
    assert rewound.delivered == dead
    refused(diverged.rewind(), ExitCode.CONFIG, "the node has all changes up to")
