"""`cdcctl realtime` on a real archiving node: complete when it returns, idempotent, and with a clear result."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.captures import Sidecar, change_log, replayed
from tests.support.processes.cdcctl import Done, cdcctl, refused, reported, running, succeeded
from tests.support.processes.failover import HANGS_SOON, RING_BYTES, Pair, paired
from tests.support.servers.archiving import ArchivingServer
from tests.support.servers.postgres import Cluster
from tidemark.io.state.locking.heartbeat import Slot
from tidemark.io.state.state import StateStore
from tidemark.model.change import GroupItem
from tidemark.model.errors import ExitCode
from tidemark.model.mode import Stage
from tidemark.runtime.daemon.stage_transition import HandoverPoint
from tidemark.wire.control import Json
from tidemark.wire.marker import MarkerKind
from tidemark.wire.state.state_keys import STAGE

EFFECTS_OF_OFF = ("stop-capture", "write-stop-marker", "switch-segment")


def realtime(pair: Pair, *arguments: str, **environment: str) -> Done:
    options = {**pair.sidecar.options, **environment}
    return cdcctl("realtime", *arguments, "--state", pair.sidecar.folder.root, **options)


def shown(done: Done) -> dict[str, Json]:
    parsed: dict[str, Json] = json.loads(done.out)
    return parsed


def ids(items: list[GroupItem]) -> list[object]:
    return list(replayed(change_log(items, "account")))


@pytest.mark.feature("I16")
def test_off_and_on_are_complete_when_they_return_and_change_nothing_a_second_time(pair: Pair) -> None:
    pair.insert(1)
    off = shown(succeeded(realtime(pair, "off", "--json")))
    assert (off["stage"], off["delivering"]) == ("held", "archiver")
    assert shown(succeeded(realtime(pair, "off", "--json"))) == off
    pair.insert(2)
    assert ids(pair.catch_up()) == [1, 2]
    on = shown(succeeded(realtime(pair, "on", "--json")))
    assert (on["stage"], on["delivering"]) == ("realtime", "sidecar")
    assert shown(succeeded(realtime(pair, "on", "--json"))) == on
    pair.insert(3)
    assert ids(pair.catch_up()) == [1, 2, 3]
    found = shown(succeeded(realtime(pair, "status", "--json", "--switches", "4")))
    kept = found["switches"]
    assert isinstance(kept, list)
    moves = [(each["before"], each["after"]) for each in kept if isinstance(each, dict)]
    assert moves == [("held", "archive"), ("archive", "returning"), ("returning", "returned"), ("returned", "realtime")]
    assert (found["switches_ever"], found["hand_over"]) == (5, None)
    assert found["reason"] == "the sidecar continues from the ring"
    for role in ("sidecar", "archiver"):
        process = found[role]
        assert isinstance(process, dict)
        assert process["pid"]
    text = succeeded(realtime(pair, "status")).out.decode()
    assert "realtime -> held" in text
    assert "the operator switched realtime off" in text


@pytest.mark.feature("I16")
def test_off_with_a_dead_sidecar_fences_it_and_on_returns_to_realtime_when_it_is_started(
    node: ArchivingServer, tmp_path: Path
) -> None:
    patient = {"TIDEMARK_WATCHDOG__RESTART_S": "600", "TIDEMARK_ARCHIVE__KEEP_BYTES": str(1 << 30)}
    with paired(node, tmp_path, options=patient) as pair:
        pair.insert(1)
        pair.catch_up()
        before = shown(realtime(pair, "status", "--json"))["epoch"]
        pair.sidecar.kill()
        points = tmp_path / "points"
        off = succeeded(realtime(pair, "off", "--json", TIDEMARK_FAILPOINT_LOG=str(points)))
        assert "moved from realtime to held without it" in off.err
        effects = [name for name in points.read_text().split() if name in {point.value for point in HandoverPoint}]
        assert effects == [f"{when}-{effect}" for effect in EFFECTS_OF_OFF for when in ("before", "after")], (
            "cdcctl performs the effects of a transition as a daemon does"
        )
        assert (shown(off)["stage"], shown(off)["delivering"]) == ("held", "archiver")
        (switch,) = pair.switches()
        assert switch.epoch is not None
        assert str(switch.epoch) not in (before, shown(off)["epoch"]), "cdcctl acquired another epoch between theirs"
        (stop,) = [marker for marker in pair.markers() if marker.kind is MarkerKind.STOP]
        assert (stop.epoch, stop.reason) == (switch.epoch, switch.reason)
        pair.insert(2)
        assert ids(pair.catch_up()) == [1, 2]
        on = realtime(pair, "on")
        assert on.code == ExitCode.UNEXPECTED
        message, hint = reported(on.err)
        assert "the sidecar does not run" in message
        assert "cdcctl run sidecar" in hint
        assert pair.stage is Stage.ARCHIVE
        pair.sidecar.start()
        pair.wait_for_stage(Stage.REALTIME)
        pair.insert(3)
        assert ids(pair.catch_up()) == [1, 2, 3]


def test_off_with_both_dead_reports_that_no_process_delivers_until_the_archiver_is_started(pair: Pair) -> None:
    pair.insert(1)
    pair.sidecar.kill()
    pair.archiver.kill()
    off = succeeded(realtime(pair, "off", "--json"))
    assert "nothing is delivered until the archiver is started" in off.err
    assert (shown(off)["stage"], shown(off)["delivering"]) == ("held", "nobody")
    refused(realtime(pair, "on"), ExitCode.CONFIG, "the archiver does not run")
    assert pair.stage is Stage.HELD
    pair.archiver.start()
    assert shown(succeeded(realtime(pair, "off", "--json")))["delivering"] == "archiver"
    pair.insert(2)
    assert ids(pair.catch_up()) == [1, 2]


@pytest.fixture
def hanging_soon(node: ArchivingServer, tmp_path: Path) -> Iterator[Pair]:
    with paired(node, tmp_path, options=HANGS_SOON) as both:
        yield both


def test_off_waits_for_the_watchdog_where_the_sidecar_hangs(hanging_soon: Pair) -> None:
    pair = hanging_soon
    pair.catch_up()
    assert pair.sidecar.process is not None
    pair.sidecar.process.send_signal(signal.SIGSTOP)
    off = shown(succeeded(realtime(pair, "off", "--json")))
    assert (off["stage"], off["delivering"]) == ("held", "archiver")
    assert pair.sidecar.process.wait(timeout=120) == -signal.SIGKILL


def test_off_kills_a_sidecar_that_hangs_only_by_force(hanging_soon: Pair) -> None:
    pair = hanging_soon
    pair.catch_up()
    pair.archiver.kill()
    assert pair.sidecar.process is not None
    pair.sidecar.process.send_signal(signal.SIGSTOP)
    refused(realtime(pair, "off"), ExitCode.FENCED, "the sidecar hangs", "no archiver runs")
    assert pair.stage is Stage.REALTIME
    off = succeeded(realtime(pair, "off", "--force", "--json"))
    assert pair.sidecar.process.wait(timeout=120) == -signal.SIGKILL
    assert shown(off)["stage"] == "held"


def test_a_switch_that_waits_for_an_archiver_that_hangs_names_it(hanging_soon: Pair) -> None:
    pair = hanging_soon
    succeeded(realtime(pair, "off"))
    assert pair.archiver.process is not None
    with StateStore.open(pair.sidecar.folder, read_only=True) as store:
        heartbeat = store.environment.heartbeat
        pair.wait_for(lambda: bool(heartbeat.age_s(Slot.ARCHIVER)), "the end of its start, which may take a minute")
    pair.archiver.process.send_signal(signal.SIGSTOP)
    hung = f"the archiver, which hangs: check the mount of its archive, or kill process {pair.archiver.process.pid}"

    def hangs() -> bool:
        archiver = shown(realtime(pair, "status", "--json"))["archiver"]
        return isinstance(archiver, dict) and archiver["hangs"] is True

    pair.wait_for(hangs, "its last heartbeat to be old")
    on = realtime(pair, "on", "--deadline-s", "1")
    assert f"not on after 1 s: waiting for {hung}" in reported(on.err)[0]
    off = realtime(pair, "off", "--deadline-s", "1")
    assert f"not off after 1 s: waiting for {hung}" in reported(off.err)[0]
    pair.archiver.kill()
    pair.archiver.start()
    assert shown(succeeded(realtime(pair, "on", "--json")))["delivering"] == "sidecar"


def test_after_the_deadline_it_reports_the_state_that_it_found(pair: Pair) -> None:
    assert pair.archiver.process is not None
    pair.archiver.process.send_signal(signal.SIGSTOP)
    off = realtime(pair, "off", "--json", "--deadline-s", "1")
    assert off.code == ExitCode.UNEXPECTED
    assert "not off after 1 s" in reported(off.err)[0]
    assert (shown(off)["stage"], shown(off)["delivering"]) == ("held", "nobody")
    pair.archiver.process.send_signal(signal.SIGCONT)
    assert shown(succeeded(realtime(pair, "off", "--json")))["delivering"] == "archiver"
    pair.node.configure(archive_command="false")
    missing = "waiting for the archiver to reach the try-start marker: the node's archive_command fails with"
    asked: list[Done] = []

    def is_reported() -> bool:
        asked.append(realtime(pair, "on", "--json", "--deadline-s", "2"))
        return missing in asked[-1].err

    pair.wait_for(is_reported, missing)
    assert asked[-1].code == ExitCode.UNEXPECTED
    assert shown(asked[-1])["stage"] == "returning"


def with_another_key(pair: Pair, path: Path) -> None:
    """Restart the archiver with a marker key that differs from the sidecar's."""
    path.write_text("f00d" * 8)
    path.chmod(0o600)
    pair.archiver.options["TIDEMARK_MARKERS__KEY_FILE"] = str(path)
    pair.archiver.stop()
    pair.archiver.start()


def with_one_key(pair: Pair) -> None:
    del pair.archiver.options["TIDEMARK_MARKERS__KEY_FILE"]
    pair.archiver.stop()
    pair.archiver.start()


KEYS_DIFFER = "the sidecar and the archiver were started with different keys of the markers"


def test_on_is_refused_where_the_archiver_would_not_accept_the_sidecars_marker(pair: Pair, tmp_path: Path) -> None:
    succeeded(realtime(pair, "off"))
    assert shown(realtime(pair, "status", "--json"))["marker_keys"] == "one"
    with_another_key(pair, tmp_path / "other.key")
    refused(realtime(pair, "on"), ExitCode.CONFIG, KEYS_DIFFER)
    assert pair.stage is Stage.HELD
    for asked in (("status",), ("realtime", "status")):
        place = ("--state", pair.sidecar.folder.root)
        found = shown(succeeded(cdcctl(*asked, "--json", *place, **pair.sidecar.options)))
        assert KEYS_DIFFER in str(found["marker_keys"])
        assert "markers.key_file" in str(found["marker_keys"])
    with_one_key(pair)
    assert shown(succeeded(realtime(pair, "on", "--json")))["delivering"] == "sidecar"


def test_a_return_is_not_waited_for_where_its_marker_will_not_be_accepted(pair: Pair, tmp_path: Path) -> None:
    succeeded(realtime(pair, "off"))
    ((archive_command,),) = pair.node.sql("SHOW archive_command")
    pair.node.configure(archive_command="false")
    realtime(pair, "on", "--deadline-s", "0")
    pair.wait_for_stage(Stage.RETURNING)
    with_another_key(pair, tmp_path / "other.key")
    refused(realtime(pair, "on"), ExitCode.CONFIG, KEYS_DIFFER)
    with_one_key(pair)
    pair.node.configure(archive_command=str(archive_command))
    assert shown(succeeded(realtime(pair, "on", "--json")))["delivering"] == "sidecar"


def test_a_sidecar_does_not_return_to_an_archiver_that_would_not_accept_its_marker(pair: Pair, tmp_path: Path) -> None:
    with_another_key(pair, tmp_path / "other.key")
    pair.sidecar.kill()
    pair.wait_for_stage(Stage.ARCHIVE)
    pair.sidecar.start()
    said = pair.sidecar.wait_for_event("cannot return")
    assert KEYS_DIFFER in str(said["error"])
    pair.insert(1)
    assert ids(pair.catch_up()) == [1]
    assert pair.stage is Stage.ARCHIVE
    with_one_key(pair)
    pair.wait_for_stage(Stage.REALTIME)


def test_off_reports_the_reasons_for_a_delay_of_changes(pair: Pair) -> None:
    pair.node.configure(archive_command="false")
    pair.node.sql("SELECT pg_switch_wal()")
    failing = "changes may be delivered late: the node's archive_command fails with"
    pair.wait_for(lambda: failing in succeeded(realtime(pair, "off")).err, failing)
    spool = pair.archiving.spool.folder
    away = spool.rename(spool.with_name("away"))
    assert "changes may be delivered late: cannot list the archive folder" in succeeded(realtime(pair, "off")).err
    away.rename(spool)


@pytest.mark.feature("I16")
def test_on_waits_until_the_archiver_is_nearer_than_a_quarter_of_the_ring(pair: Pair, tmp_path: Path) -> None:
    succeeded(realtime(pair, "off"))
    ((archive_command,),) = pair.node.sql("SHOW archive_command")
    pair.node.configure(archive_command="false")
    pair.node.sql("INSERT INTO account SELECT n, repeat('x', 1000) FROM generate_series(1, 4000) n")
    arguments = ("realtime", "on", "--json", "--state", pair.sidecar.folder.root)
    with running(tmp_path, *arguments, **pair.sidecar.options) as on:
        on.wait_for_err(f"{RING_BYTES // 4 + (1 << 20)} are allowed")
        assert pair.stage is Stage.ARCHIVE
        pair.node.configure(archive_command=str(archive_command))
        assert shown(succeeded(on.ended()))["delivering"] == "sidecar"
    assert len(ids(pair.catch_up())) == 4000


def test_a_switch_without_an_archive_or_at_a_standby_is_refused_with_the_reason(
    cluster: Cluster, tmp_path: Path
) -> None:
    plain = Sidecar(cluster, "postgres", tmp_path)
    plain.init()
    place = ("--state", plain.folder.root)
    refused(cdcctl("realtime", "off", *place, **plain.options), ExitCode.CONFIG, "no archive is configured")
    with StateStore.open(plain.folder) as store, store.transaction(None) as transaction:
        transaction.put(STAGE, Stage.FOLLOWER)
    for direction in ("on", "off"):
        refused(cdcctl("realtime", direction, *place, **plain.options), ExitCode.CONFIG, "this node is a standby")
