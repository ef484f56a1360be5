"""The watchdog of the other process, and the kill of a hung one: real processes, with time as an argument."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.faults.stopped_writer import StoppedWriter
from tidemark.io.host.clock import boot_id, boot_ns, host_name, own_start_ticks, process_start_ticks
from tidemark.io.host.process_kill import kill_process
from tidemark.io.process.watchdog import Condition, Watch
from tidemark.io.state.environment import Environment, WritePoint
from tidemark.io.state.locking.heartbeat import SLOT_BYTES, HeartbeatFile, Slot
from tidemark.io.state.locking.locks import RoleLock
from tidemark.io.state.state import StateStore
from tidemark.io.state.state_folder import StateFolder
from tidemark.model.lsn import SystemIdentifier
from tidemark.model.mode import Role
from tidemark.wire.state.process_log import Owner
from tidemark.wire.state.values import Identity

NS = 1_000_000_000
IDENTITY = Identity("main", SystemIdentifier(77), "0a0b", 15, 16 << 20, 4 << 20)
STALE_S, RESTART_S = 15.0, 3.0
ALIVE, RESTARTING, GONE, HUNG = Condition
SIDECAR = Role.SIDECAR.value


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with StateStore.create(StateFolder(tmp_path / "state"), IDENTITY) as made:
        yield made


@pytest.fixture
def watch(store: StateStore) -> Watch:
    return watch_on(store)


def watch_on(store: StateStore) -> Watch:
    return Watch(store.folder, store.environment.heartbeat, Role.SIDECAR, stale_s=STALE_S, restart_s=RESTART_S)


def looks(watch: Watch, began_ns: int, *seconds: float) -> list[Condition]:
    return [watch.condition(began_ns + int(second * NS)) for second in seconds]


def test_a_process_that_was_never_seen_is_waited_for_as_long_as_for_a_heartbeat(watch: Watch) -> None:
    assert looks(watch, boot_ns(), 0, 3, 14.9, 15, 100) == [RESTARTING, RESTARTING, RESTARTING, GONE, GONE]


def test_a_free_lock_means_a_restart_at_first_and_its_end_later(store: StateStore, watch: Watch) -> None:
    began = boot_ns()
    with RoleLock.acquire(store.folder, SIDECAR):
        assert looks(watch, began, 0) == [ALIVE]
    assert looks(watch, began, 1, 2, 3.9, 4, 100) == [RESTARTING, RESTARTING, RESTARTING, GONE, GONE]


def test_every_end_of_a_process_begins_a_new_wait_for_its_restart(store: StateStore, watch: Watch) -> None:
    began = boot_ns()
    assert looks(watch, began, 0, 15) == [RESTARTING, GONE]
    with RoleLock.acquire(store.folder, SIDECAR):
        assert looks(watch, began, 16) == [ALIVE]
    assert looks(watch, began, 17, 19.9, 20) == [RESTARTING, RESTARTING, GONE]


def test_a_process_that_ends_soon_after_each_start_counts_as_gone(store: StateStore, watch: Watch) -> None:
    began = boot_ns()
    seen: list[Condition] = []
    for second in range(0, 20, 2):
        with RoleLock.acquire(store.folder, SIDECAR):
            seen += looks(watch, began, second)
        seen += looks(watch, began, second + 1)
    assert seen[:15] == [ALIVE, RESTARTING] * 7 + [ALIVE]
    assert seen[15:18] == [RESTARTING, ALIVE, GONE], "15 s after its first end"


def test_a_process_that_ran_as_long_as_the_heartbeat_bound_is_waited_for_again(store: StateStore, watch: Watch) -> None:
    began = boot_ns()
    with RoleLock.acquire(store.folder, SIDECAR):
        assert looks(watch, began, 0) == [ALIVE]
    assert looks(watch, began, 1) == [RESTARTING]
    with RoleLock.acquire(store.folder, SIDECAR):
        store.environment.heartbeat.beat(Slot.SIDECAR, ahead_s=30)
        assert looks(watch, began, 2, 10, 17) == [ALIVE] * 3
    assert looks(watch, began, 18, 20.9, 21) == [RESTARTING, RESTARTING, GONE]


def test_a_process_with_heartbeats_is_alive_and_one_without_is_hung(store: StateStore, watch: Watch) -> None:
    with RoleLock.acquire(store.folder, SIDECAR):
        store.environment.heartbeat.beat(Slot.SIDECAR)
        began = boot_ns()
        assert looks(watch, began, 0, 14) == [ALIVE, ALIVE]
        assert looks(watch, began, 15, 15.9, 16) == [ALIVE, ALIVE, HUNG], "an old sign has to stay the last one"
        store.environment.heartbeat.beat(Slot.SIDECAR)
        assert looks(watch, boot_ns(), 1) == [ALIVE]
        assert looks(watch, boot_ns(), 16, 17) == [ALIVE, HUNG]


def test_a_process_in_a_long_step_is_not_hung_before_the_steps_bound(store: StateStore, watch: Watch) -> None:
    with RoleLock.acquire(store.folder, SIDECAR):
        store.environment.heartbeat.beat(Slot.SIDECAR, ahead_s=600)
        began = boot_ns()
        assert looks(watch, began, 0, 300, 614) == [ALIVE, ALIVE, ALIVE]
        store.environment.heartbeat.beat(Slot.SIDECAR)  # the step was shorter: normal from now on
        assert looks(watch, boot_ns(), 15, 16) == [ALIVE, HUNG]


def test_an_unfinished_heartbeat_is_not_a_heartbeat(store: StateStore, watch: Watch) -> None:
    heartbeat = store.environment.heartbeat
    with StoppedWriter(store.folder, role=SIDECAR) as sidecar:
        assert looks(watch, boot_ns(), 0) == [ALIVE]
        at = Slot.SIDECAR * SLOT_BYTES
        with store.folder.heartbeat.open("r+b") as file:
            file.seek(at)
            count = file.read(1)[0]
            file.seek(at)
            file.write(bytes([count | 1]))  # as if it had stopped between the slot's two counts
        assert heartbeat.read(Slot.SIDECAR) is None
        assert looks(watch, boot_ns(), 14, 15, 16) == [ALIVE, ALIVE, HUNG]
        assert watch.kill_process()
        assert sidecar.end() == -signal.SIGKILL


def test_after_a_suspend_of_the_host_a_process_has_time_for_a_heartbeat(store: StateStore, watch: Watch) -> None:
    with RoleLock.acquire(store.folder, SIDECAR):
        began = boot_ns()
        assert looks(watch, began, 0, 3600, 3600.5) == [ALIVE, ALIVE, ALIVE]
        store.environment.heartbeat.beat(Slot.SIDECAR)
        assert looks(watch, boot_ns(), 0) == [ALIVE]


def test_a_process_without_any_heartbeat_is_hung_after_the_same_time_since_it_was_first_seen(
    store: StateStore, watch: Watch
) -> None:
    with RoleLock.acquire(store.folder, SIDECAR):
        assert looks(watch, boot_ns(), 0, 14.9, 15, 16) == [ALIVE, ALIVE, ALIVE, HUNG]


def test_a_watch_that_begins_later_finds_the_old_heartbeat_at_once(store: StateStore, watch: Watch) -> None:
    with RoleLock.acquire(store.folder, SIDECAR):
        store.environment.heartbeat.beat(Slot.SIDECAR)
        assert looks(watch, boot_ns(), 100, 101) == [ALIVE, HUNG]


def test_the_heartbeat_of_a_former_holder_does_not_end_a_process_that_starts(store: StateStore, watch: Watch) -> None:
    with StoppedWriter(store.folder, WritePoint.LOCKED, role=SIDECAR) as former:
        former.process.send_signal(signal.SIGKILL)
        former.end()
    assert store.environment.heartbeat.read(Slot.SIDECAR) is not None
    with RoleLock.acquire(store.folder, SIDECAR):
        assert looks(watch, boot_ns(), 3600, 3614, 3615, 3616) == [ALIVE, ALIVE, ALIVE, HUNG]


def test_a_heartbeat_of_another_boot_is_ignored(
    store: StateStore, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # a reboot, which no test can cause
        patch.setattr("tidemark.io.state.locking.heartbeat.boot_id", lambda: str(uuid.uuid4()))
        other_boot = HeartbeatFile.open(store.folder.heartbeat)
    with RoleLock.acquire(store.folder, SIDECAR):
        began = boot_ns()
        assert looks(watch, began, 0) == [ALIVE]
        other_boot.beat(Slot.SIDECAR)
        assert looks(watch, began, 15, 16) == [ALIVE, HUNG]
    other_boot.close()


def test_a_holder_that_has_not_written_its_name_yet_is_given_time(store: StateStore, watch: Watch) -> None:
    with RoleLock.acquire(store.folder, SIDECAR) as lock:
        store.folder.lock(SIDECAR).write_text("")
        assert looks(watch, boot_ns(), 3600) == [ALIVE]
        assert not watch.kill_process()
        del lock


@pytest.mark.feature("I20")
@pytest.mark.parametrize("point", WritePoint)
def test_a_sidecar_stopped_inside_a_write_transaction_is_killed_and_its_lock_and_lmdb_are_free(
    store: StateStore, watch: Watch, point: WritePoint
) -> None:
    with StoppedWriter(store.folder, point, role=SIDECAR) as sidecar:
        assert looks(watch, boot_ns(), 15) == [ALIVE]
        assert not watch.kill_process(), "as long as it is not known to hang"
        assert looks(watch, boot_ns(), 16) == [HUNG]
        assert watch.kill_process()
        assert RoleLock.holder(store.folder, SIDECAR) is None
        owner = Owner("archiver", host_name(), boot_id(), os.getpid(), own_start_ticks())
        with store.transaction(None) as transaction:
            epoch = transaction.begin_epoch(owner)
        assert epoch.number == 1
        assert sidecar.end() == -signal.SIGKILL
    assert looks(watch, boot_ns(), 17, 20) == [RESTARTING, GONE]
    assert watch.kill_process(), "nothing is left"


@pytest.mark.feature("I20")
def test_a_process_with_a_heartbeat_at_the_last_moment_is_not_killed(store: StateStore, watch: Watch) -> None:
    with StoppedWriter(store.folder, role=SIDECAR) as sidecar:
        assert looks(watch, boot_ns(), 15, 16) == [ALIVE, HUNG]
        store.environment.heartbeat.beat(Slot.SIDECAR)
        assert not watch.kill_process()
        assert sidecar.process.poll() is None


def test_an_owner_is_killed_only_if_it_is_the_same_process(store: StateStore) -> None:
    with StoppedWriter(store.folder, role=SIDECAR) as sidecar:
        owner = RoleLock.status(store.folder, SIDECAR).owner
        assert owner is not None
        assert owner.pid == sidecar.pid
        assert not kill_process(replace(owner, host="another"))
        assert kill_process(replace(owner, boot_id=str(uuid.uuid4()))), "of an earlier boot nobody lives"
        assert kill_process(replace(owner, start_ticks=owner.start_ticks + 1)), "the pid is another's by now"
        assert not kill_process(owner, is_still_due=lambda: False)
        assert sidecar.process.poll() is None
        assert kill_process(owner)
        assert sidecar.end() == -signal.SIGKILL
        assert kill_process(owner), "killing the dead is no error"


def test_no_process_kills_itself_or_an_invalid_pid() -> None:
    ourselves = Owner(SIDECAR, host_name(), boot_id(), os.getpid(), own_start_ticks())
    assert not kill_process(ourselves)
    assert not kill_process(replace(ourselves, pid=0))
    assert not kill_process(replace(ourselves, pid=-1))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_process_of_another_user_is_reported_and_not_killed() -> None:
    target = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ticks = process_start_ticks(target.pid)
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tidemark.io.host.clock import boot_id, host_name
from tidemark.io.host.process_kill import kill_process
from tidemark.wire.state.process_log import Owner
owner = Owner("sidecar", host_name(), boot_id(), {target.pid}, {ticks})
os.setuid(65534)
print(kill_process(owner))
"""
    try:
        reported = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=120
        )
        assert reported.stdout == "False\n"
        assert target.poll() is None
    finally:
        target.communicate(b"\n", timeout=120)


def test_the_watch_works_beside_an_environment_that_others_write(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path / "state")
    folder.make()
    environment = Environment.open(folder, map_bytes=1 << 30, create=True)
    watch = Watch(folder, environment.heartbeat, Role.ARCHIVER, stale_s=STALE_S, restart_s=RESTART_S)
    with RoleLock.acquire(folder, Role.ARCHIVER.value), environment.write():
        assert watch.condition(boot_ns()) is ALIVE
    environment.close()
