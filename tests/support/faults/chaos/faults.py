"""Faults. A fault is a generator: it yields the number of ticks to wait, and its end heals it.

However it ends, also by `close()`, its `finally` repairs everything that it broke.
"""

import random
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.faults.chaos.keeper import Does, Keeper
from tests.support.faults.chaos.world import ChaosWorld
from tests.support.faults.stopped_writer import StoppedWriter
from tests.support.processes.cdcctl import running
from tests.support.servers.postgres import StopMode
from tidemark.engine.handover import Event
from tidemark.io.state.environment import WritePoint
from tidemark.model.errors import ExitCode
from tidemark.model.mode import Stage
from tidemark.runtime.daemon.stage_transition import HandoverPoint

Steps = Generator[int, None, None]
Fault = Callable[[ChaosWorld, random.Random], Steps]
# The campaign has no standby: `test_follower` arms the failpoints of a promotion.
AT_PROMOTION = (HandoverPoint.BEFORE_FIND_START, HandoverPoint.AFTER_FIND_START)
POINTS = tuple(point for point in HandoverPoint if point not in AT_PROMOTION)
BACK_AFTER_S = (0.0, 0.3, 1.5, 5.0)  # a start takes more than a second; the archiver waits 3 s
KEPT_BACK_BYTES = 64 << 20  # that the state keeps free for confirmations
SEGMENTS_GONE_MAX = 12
ATTEMPTS_MAX = 5
WAL_GONE = "has already been removed"  # in the server's message


@dataclass(frozen=True, slots=True)
class ChaosKind:
    """A fault, the resources that it needs exclusively, and its frequency."""

    run: Fault
    needs: frozenset[str]
    weight: int = 2


def kill_sidecar(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGKILL."""
    world.sidecar.kill(dice.choice(BACK_AFTER_S))
    yield 20


def kill_archiver(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGKILL."""
    world.archiver.kill(dice.choice(BACK_AFTER_S))
    yield 20


def kill_both(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGKILL of both, as in a crash of the host."""
    for keeper in world.keepers:
        keeper.kill(dice.choice(BACK_AFTER_S))
    yield 20


def stop_in_order(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGTERM, as at an upgrade."""
    dice.choice(world.keepers).stop(dice.choice(BACK_AFTER_S))
    yield 20


def freeze_sidecar(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGSTOP, for less or more than the watchdog's time-out."""
    yield from _frozen(world.sidecar, dice)


def freeze_archiver(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGSTOP."""
    yield from _frozen(world.archiver, dice)


def _frozen(keeper: Keeper, dice: random.Random) -> Steps:
    keeper.freeze()
    try:
        yield dice.choice((10, 100, 400))
    finally:
        keeper.thaw()


def die_at_failpoint(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGKILL before or after an effect."""
    yield from _failpoint(world, dice, "kill")


def freeze_at_failpoint(world: ChaosWorld, dice: random.Random) -> Steps:
    """SIGSTOP before or after an effect; by the time of SIGCONT the other process delivers."""
    yield from _failpoint(world, dice, "stop")


def linger_at_failpoint(world: ChaosWorld, dice: random.Random) -> Steps:
    """One thread blocks before or after an effect, while the capture's threads continue."""
    yield from _failpoint(world, dice, "wait")


def _failpoint(world: ChaosWorld, dice: random.Random, does: Does) -> Steps:
    sidecar = world.sidecar
    sidecar.arm(dice.choice(POINTS), does)
    sidecar.stop(0)
    try:
        yield dice.choice((60, 200))
        world.wish = "off"
        yield dice.choice((60, 200))
        sidecar.thaw()
        world.wish = "on"
        yield dice.choice((60, 200))
    finally:
        world.wish = "on"
        sidecar.met()
        sidecar.thaw()
        if sidecar.armed is not None:  # it is still the armed process
            sidecar.disarm()
            sidecar.kill()


def stuck_writer(world: ChaosWorld, dice: random.Random) -> Steps:
    """A process stops inside a write transaction: no other process can write until it is killed."""
    with StoppedWriter(world.store.folder, dice.choice(list(WritePoint))) as writer:
        for _ in range(100):
            yield 10
            if writer.process.poll() is not None:
                return


def cut_connection(world: ChaosWorld, dice: random.Random) -> Steps:
    """Break all connections to the node several times in a row."""
    for _ in range(dice.choice((1, 1, 4))):
        world.cable.cut()
        yield 5


def unplug(world: ChaosWorld, dice: random.Random) -> Steps:
    """The processes cannot connect to the node; the node runs and archives."""
    world.cable.unplug()
    try:
        yield dice.choice((40, 200, 600))
    finally:
        world.cable.plug()


def pause_target(world: ChaosWorld, dice: random.Random) -> Steps:
    """The target accepts nothing: outbox, group queue and ring fill up."""
    world.target.pause()
    try:
        yield dice.choice((100, 300, 800))
    finally:
        world.target.resume()


def node_down(world: ChaosWorld, dice: random.Random) -> Steps:
    """The node is stopped, cleanly or not, and started again."""
    world.server.advance()
    world.is_node_up = False
    world.node.node.stop(dice.choice((StopMode.FAST, StopMode.IMMEDIATE, StopMode.KILL)))
    try:
        yield dice.choice((10, 100, 200))
    finally:
        world.start_node()


def operator_off(world: ChaosWorld, dice: random.Random) -> Steps:
    """The operator switches realtime off, and on again."""
    world.wish = "off"
    try:
        yield dice.choice((20, 150, 400))
    finally:
        world.wish = "on"


def operator_on(world: ChaosWorld, _dice: random.Random) -> Steps:
    """The operator switches realtime on, where that is allowed."""
    world.wish = "on"
    yield 5


def operate_by_cdcctl(world: ChaosWorld, dice: random.Random) -> Steps:
    """`cdcctl realtime off`, then `on`, with any processes running; a slow command is killed."""
    state, options = world.pair.sidecar.folder.root, world.sidecar.options
    try:
        for switch in ("off", "on"):
            with running(world.root, "realtime", switch, "--state", state, **options) as asked:
                for _ in range(dice.choice((2, 30))):
                    yield 10
                    if asked.process.poll() is not None:
                        break
                assert asked.process.poll() != ExitCode.INTERNAL, asked.err
    finally:
        world.wish = "on"


def wal_gone(world: ChaosWorld, dice: random.Random) -> Steps:
    """The node removes WAL that a stopped sidecar has not read."""
    world.sidecar.stop(60)
    try:
        yield from _wal_removed(world)
        yield dice.choice((5, 50))
    finally:
        world.sidecar.back_now()


def wal_gone_meanwhile(world: ChaosWorld, dice: random.Random) -> Steps:
    """The node removes WAL that a running sidecar has not received, because it was disconnected for too long."""
    world.cable.unplug()
    try:
        segment = _segment_written(world)
        yield from _wal_removed(world)
        yield dice.choice((1, 5))
        with _moved_away(world, segment):
            world.cable.plug()
            yield dice.choice((5, 20))
    finally:
        world.cable.plug()


def _wal_removed(world: ChaosWorld) -> Steps:
    """Let the node write and checkpoint until its current segment is removed from `pg_wal`."""
    segment = _segment_written(world)
    for _ in range(SEGMENTS_GONE_MAX):
        yield 10
        world.server.advance()  # the oracle's slot keeps WAL from its oldest open transaction on
        world.node.switch()
        world.node.node.sql("CHECKPOINT")
        if not _has_segment(world, segment):
            return


@contextmanager
def _moved_away(world: ChaosWorld, segment: str) -> Iterator[None]:
    """Remove an archived segment from `pg_wal` where the oracle's slot keeps it: walsenders cannot find it then."""
    kept_as = world.node.node.data / segment
    file = world.node.node.data / "pg_wal" / segment
    is_moved = file.exists() and (file.parent / "archive_status" / f"{segment}.done").exists()
    if is_moved:
        world.has_all_wal = False
        file.rename(kept_as)
    try:
        yield
    finally:
        if is_moved:
            kept_as.rename(file)
            world.has_all_wal = True


def _segment_written(world: ChaosWorld) -> str:
    ((segment,),) = world.node.node.sql("SELECT pg_walfile_name(pg_current_wal_flush_lsn())")
    return str(segment)


def _has_segment(world: ChaosWorld, segment: str) -> bool:
    return bool(world.node.node.sql(f"SELECT 1 FROM pg_ls_waldir() WHERE name = '{segment}'"))


def full_spool(world: ChaosWorld, dice: random.Random) -> Steps:
    """The archive's disk is full for less than `archive.hold_s`: the node keeps its WAL for that time."""
    world.spool_disk.fill()
    try:
        yield dice.choice((40, 200))
    finally:
        world.spool_disk.empty()


def stalled_archive(world: ChaosWorld, dice: random.Random) -> Steps:
    """Archiving fails, and the sidecar dies: only the node has the WAL that the sidecar needs to return."""
    world.spool_disk.fill()
    try:
        world.sidecar.kill(dice.choice(BACK_AFTER_S))
        yield dice.choice((200, 600))
    finally:
        world.spool_disk.empty()


def full_state(world: ChaosWorld, dice: random.Random) -> Steps:
    """The state's disk is full: delivery, or the whole process, waits for space."""
    world.state_disk.fill(leave_bytes=dice.choice((0, 0, KEPT_BACK_BYTES)))
    try:
        yield dice.choice((40, 200))
    finally:
        world.state_disk.empty()


def _kind(run: Fault, *needs: str, weight: int = 2) -> ChaosKind:
    return ChaosKind(run, frozenset(needs), weight)


KINDS: Mapping[str, ChaosKind] = {
    "kill sidecar": _kind(kill_sidecar, "sidecar", weight=4),
    "kill archiver": _kind(kill_archiver, "archiver", weight=4),
    "kill both": _kind(kill_both, "sidecar", "archiver"),
    "stop in order": _kind(stop_in_order, "sidecar", "archiver"),
    "freeze sidecar": _kind(freeze_sidecar, "sidecar"),
    "freeze archiver": _kind(freeze_archiver, "archiver"),
    "die at failpoint": _kind(die_at_failpoint, "sidecar", "operator", weight=4),
    "freeze at failpoint": _kind(freeze_at_failpoint, "sidecar", "operator", weight=4),
    "linger at failpoint": _kind(linger_at_failpoint, "sidecar", "operator"),
    "stuck writer": _kind(stuck_writer, "writer", weight=1),
    "cut connection": _kind(cut_connection, "cable"),
    "unplug": _kind(unplug, "cable"),
    "pause target": _kind(pause_target, "target", weight=3),
    "node down": _kind(node_down, "node", weight=3),
    "operator off": _kind(operator_off, "operator", weight=3),
    "cdcctl": _kind(operate_by_cdcctl, "operator"),
    "operator on": _kind(operator_on, "operator", weight=1),
    "WAL gone": _kind(wal_gone, "sidecar", "node", "spool"),
    "WAL gone meanwhile": _kind(wal_gone_meanwhile, "cable", "node", "spool"),
    "full spool": _kind(full_spool, "spool", weight=1),
    "stalled archive": _kind(stalled_archive, "sidecar", "spool"),
    "full state": _kind(full_state, "state", weight=1),
}


def switch_off_until_reached(world: ChaosWorld, point: HandoverPoint, does: Does = "kill") -> None:
    """Switch off until the sidecar has hit `point`; switch on again if it was not delivering then."""
    sidecar = world.sidecar
    sidecar.arm(point, does)
    sidecar.stop(0)
    before = sidecar.hit[point]

    def is_reached() -> bool:
        return (does != "kill" and sidecar.met() is not None) or sidecar.hit[point] > before

    while not is_reached():
        world.wish = "on"
        # NB: between two checks it may take the epoch, find its ring full, and hit the failpoint because of that.
        world.wait_for(
            lambda: is_reached() or (sidecar.is_armed and world.owner == ("sidecar", sidecar.pid)), "the epoch"
        )
        world.wish = "off"
        world.wait_for(lambda: is_reached() or not world.wish, point.value)
    world.wish = ""


def lose_wal_meanwhile(world: ChaosWorld) -> None:
    """The node removes WAL that a running sidecar needs, and the archiver continues from the archive."""
    for _ in range(ATTEMPTS_MAX):
        world.wish = "on"
        world.wait_for_stage(Stage.REALTIME)
        world.wait_for(lambda: world.owner == ("sidecar", world.sidecar.pid), "the sidecar's epoch")
        pid, before = world.sidecar.pid, world.view.switches.count
        world.cable.unplug()
        try:
            segment = _segment_written(world)
            world.node.switch()
            world.node.wait_until_archived()
            world.node.node.sql("CHECKPOINT")
            with _moved_away(world, segment):
                assert not _has_segment(world, segment), f"{segment} is archived, and is there"
                world.cable.plug()
                world.wait_for(lambda: world.view.switches.count > before, "a switch")  # noqa: B023 - at once
        finally:
            world.cable.plug()
        if any(WAL_GONE in switch.reason for switch in world.view.switches.kept):
            assert world.sidecar.pid == pid, world.reported()
            world.wait_for_stage(Stage.REALTIME)
            return
    raise AssertionError(f"the sidecar never found its WAL gone: {world.reported()}")


def freeze_behind_the_move(world: ChaosWorld) -> None:
    """Switch off; freeze the sidecar once that is durable; thaw it after the archiver has begun to deliver."""
    switch_off_until_reached(world, HandoverPoint.BEFORE_STOP_CAPTURE, "stop")
    world.wait_for(lambda: world.owner[0] == "archiver", "the archiver's epoch")
    world.sidecar.thaw()
    world.wish = "on"
    world.wait_for_stage(Stage.REALTIME)


def linger_behind_the_move(world: ChaosWorld) -> None:
    """Switch off; the sidecar still delivers for a while after that is durable, and the archiver begins to deliver."""
    switch_off_until_reached(world, HandoverPoint.BEFORE_STOP_CAPTURE, "wait")
    world.wait_for(lambda: world.owner[0] == "archiver", "the archiver's epoch")
    world.wish = "on"
    world.wait_for_stage(Stage.REALTIME)


def return_without_archive(world: ChaosWorld) -> None:
    """Archiving fails, and the sidecar dies: realtime returns with the node's WAL."""
    for _ in range(2 * ATTEMPTS_MAX):
        before = world.view.switches.count
        with world.spool_disk.kept_full():  # NB: the archiver clears segments that are no longer needed
            world.sidecar.kill(max(BACK_AFTER_S))
            world.wait_for_stage(Stage.ARCHIVE, Stage.RETURNING)
            world.wait_for_stage(Stage.REALTIME)
        switches = world.view.switches
        made = switches.kept[-(switches.count - before) :]
        if any(switch.reason == Event.ARCHIVE_STALLED.value for switch in made):
            return
    raise AssertionError(
        f"realtime never came back without the archive: {world.reported()}"
    )  # enough was archived each time
