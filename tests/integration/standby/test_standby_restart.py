"""A standby as the source that restarts after it sent WAL which it had received and not replayed yet."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import NewCluster
from tests.integration.standby.test_standby_source import sidecar_at
from tests.support.oracles.oracle import ROLE, ensure_role
from tests.support.processes.captures import change_log
from tests.support.processes.cdcctl import Running, running
from tests.support.processes.waiting import wait_until
from tests.support.servers.postgres import SUPERUSER, Cluster, StopMode
from tests.support.servers.proxies import cable
from tests.support.servers.standby import promote, standby_of, wait_until_replayed
from tidemark import Batch, Engine
from tidemark.io.node.node_errors import AheadOfNode, StandbyBehind, StandbyPromoted, TimelineUnknown
from tidemark.io.node.replication import WalStream
from tidemark.model.errors import ExitCode
from tidemark.model.lsn import Lsn, parse_lsn
from tidemark.runtime.seed.steady_stream import REPLAY_S_MAX, SteadyStream

pytestmark = pytest.mark.feature("I33")
DEADLINE_S = 60.0
FOLLOWING = "changes follow from here on"
BEHIND = "is ahead of the WAL flush position"  # StartReplication (walsender.c)
Goes = Callable[[Cluster, Cluster], Cluster]


@pytest.fixture
def primary(new_cluster: NewCluster) -> Cluster:
    made = new_cluster(15, autovacuum="off")
    ensure_role(made)
    made.sql("CREATE TABLE account (id int PRIMARY KEY)")
    made.sql("CHECKPOINT")
    return made


def by_promotion(primary: Cluster, standby: Cluster) -> Cluster:
    """Continue without the primary; return the node to write to."""
    del primary
    promote(standby)
    return standby


def by_replay(primary: Cluster, standby: Cluster) -> Cluster:
    """Continue with the primary; return the node to write to."""
    primary.start()
    standby.configure(recovery_min_apply_delay=0)
    return primary


def hold_replay(primary: Cluster, standby: Cluster) -> None:
    """Let the standby replay nothing more, but receive it, and send it to its readers; a restart begins a long delay.

    NB: the server logs a reload before its startup process sees it, so a delay alone can miss the next commit.
    """
    wait_until_replayed(standby, primary)
    standby.sql("SELECT pg_wal_replay_pause()")
    wait_until(lambda: standby.sql("SELECT pg_get_wal_replay_pause_state()") == [("paused",)], "the pause")
    standby.configure(reload=False, recovery_min_apply_delay="1h")


def restart_behind(primary: Cluster, standby: Cluster) -> None:
    """Restart the standby without its primary: it has lost how far it had received WAL."""
    primary.stop()
    standby.restart()


def insert(cluster: Cluster, number: int) -> None:
    cluster.sql(f"INSERT INTO account VALUES ({number})")


def inserted(tail: Running) -> list[int]:
    return [json.loads(line)["after"]["id"] for line in tail.out]


@pytest.mark.parametrize("goes_on", [by_promotion, by_replay])
def test_tail_waits_for_the_replay_of_what_it_has_printed(
    primary: Cluster, standby: Cluster, tmp_path: Path, goes_on: Goes
) -> None:
    with running(tmp_path, "tail", standby.dsn("postgres", ROLE)) as tail:
        tail.wait_for_err(FOLLOWING)
        hold_replay(primary, standby)
        insert(primary, 1)
        tail.wait_for_lines(1)
        restart_behind(primary, standby)
        tail.wait_for_err(BEHIND)
        insert(goes_on(primary, standby), 2)
        tail.wait_for_lines(2)
        assert inserted(tail) == [1, 2]


@pytest.mark.parametrize("goes_on", [by_promotion, by_replay])
def test_a_sidecar_waits_for_the_replay_of_what_it_has_delivered(
    primary: Cluster, standby: Cluster, tmp_path: Path, goes_on: Goes
) -> None:
    with sidecar_at(standby, primary, tmp_path) as sidecar:
        insert(primary, 1)
        sidecar.catch_up()
        hold_replay(primary, standby)
        insert(primary, 2)
        sidecar.catch_up()
        restart_behind(primary, standby)
        sidecar.wait_for_event("lost the connection to the node", kind=StandbyBehind.__name__)
        sidecar.written_to = goes_on(primary, standby)
        insert(sidecar.written_to, 3)
        rows = [row["_after"] for row in change_log(sidecar.catch_up(), "account")]
        assert rows == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_an_engine_waits_for_the_replay_of_what_it_has_delivered(
    primary: Cluster, standby: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[object] = []

    def handle(batch: Batch) -> None:
        found.extend((change.after or {})["id"] for change in batch)

    with Engine(standby.dsn(), state=tmp_path / "state", handler=handle, settings={"copy": {"enabled": False}}):
        hold_replay(primary, standby)
        insert(primary, 1)
        wait_until(lambda: found == [1])
        restart_behind(primary, standby)
        wait_until(lambda: BEHIND in caplog.text)
        insert(by_promotion(primary, standby), 2)
        wait_until(lambda: found == [1, 2])


def test_only_a_node_that_may_reach_a_position_is_waited_for(primary: Cluster) -> None:
    ahead = Lsn(parse_lsn(primary.flush_lsn()) + (1 << 30))
    with standby_of(primary) as standby:
        for node, expected in ((standby, StandbyBehind), (primary, AheadOfNode)):
            with WalStream(node.dsn()) as stream:
                stream.start(ahead, stream.identify().timeline)
                with pytest.raises(expected, match=BEHIND):
                    stream.read(DEADLINE_S)


def test_a_stream_waits_for_a_standby_for_ten_minutes_also_if_its_answer_comes_late(primary: Cluster) -> None:
    ahead, now_s, failed_s = Lsn(parse_lsn(primary.flush_lsn()) + (1 << 30)), 0.0, list[float]()

    def read_for(step_s: float) -> None:
        nonlocal now_s
        while now_s < 2 * REPLAY_S_MAX:
            now_s += step_s
            stream.read(0.0)  # the connection is made, and its error has most likely not arrived
            stream.read(DEADLINE_S)

    with standby_of(primary) as standby:
        with WalStream(standby.dsn()) as identified:
            node = identified.identify()
        with (
            SteadyStream(
                standby.dsn(),
                node.system_identifier,
                ahead,
                node.timeline,
                on_disconnect=lambda _error: failed_s.append(now_s),
                now=lambda: now_s,
            ) as stream,
            pytest.raises(StandbyBehind, match=BEHIND),
        ):
            read_for(REPLAY_S_MAX / 5)
    assert failed_s == [REPLAY_S_MAX / 5]
    assert now_s == failed_s[0] + REPLAY_S_MAX * 6 / 5, "the first error after the limit"


def test_a_promotion_during_the_start_of_a_stream_is_no_other_history(primary: Cluster) -> None:
    ahead = Lsn(parse_lsn(primary.flush_lsn()) + (1 << 30))
    with (
        standby_of(primary) as standby,
        WalStream(standby.dsn()) as begun,
        WalStream(standby.dsn()) as identified,
    ):
        timeline = identified.identify().timeline
        begun.start(ahead, timeline)
        promote(standby)
        with pytest.raises(StandbyBehind):
            begun.read(DEADLINE_S)
        with pytest.raises(StandbyPromoted):
            identified.start(ahead, timeline)
        with pytest.raises(TimelineUnknown):
            identified.start(ahead, timeline)


def test_a_tail_that_printed_a_dead_branch_names_what_to_do_without_a_state(primary: Cluster, tmp_path: Path) -> None:
    with standby_of(primary) as standby, cable(primary.port) as way:
        dsn = f"host=127.0.0.1 port={way.port} dbname=postgres user={SUPERUSER}"
        with running(tmp_path, "tail", dsn) as tail:
            tail.wait_for_err(FOLLOWING)
            wait_until_replayed(standby, primary)
            standby.stop()
            insert(primary, 1)
            tail.wait_for_lines(1)
            primary.stop(StopMode.KILL)
            standby.start()
            promote(standby)
            insert(standby, 2)
            way.lead_to(standby.port)
            done = tail.ended()
    assert done.code == ExitCode.CORRUPT_WAL
    assert "timeline 2 begins at" in done.err
    assert "changes that were printed from there on are not in the node" in done.err
    assert "cdcctl rewind" not in done.err
