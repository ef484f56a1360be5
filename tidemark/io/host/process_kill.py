"""Kills a hanging process, and never another one.

A pid may be reused, so a pidfd is opened first (pidfd_open(2)) and the start time is compared afterwards: from then
on the pidfd refers to that process or to none.
"""

import os
import select
import signal
from collections.abc import Callable

from tidemark.io.host.clock import boot_id, host_name, own_start_ticks, process_start_ticks
from tidemark.model.commit_time import MSECS_PER_SECOND
from tidemark.wire.state.process_log import Owner

DEATH_S = 5.0  # a killed process ends within milliseconds unless it waits for a disk; the caller then tries again


def _always() -> bool:
    return True


def kill_process(process: Owner, *, is_still_due: Callable[[], bool] = _always) -> bool:
    """Kill a process; return whether it is dead. `is_still_due` is called just before the kill.

    Only a process of this host can be killed, and never the calling one.
    """
    if process.host != host_name() or (process.pid, process.start_ticks) == (os.getpid(), own_start_ticks()):
        return False
    if process.boot_id != boot_id():
        return True  # no process survives a boot
    try:
        pinned = os.pidfd_open(process.pid)
    except OSError as error:  # or the pid is invalid, or the kernel is older than 5.3
        return isinstance(error, ProcessLookupError)
    try:
        is_dead = process_start_ticks(process.pid) != process.start_ticks
        return is_dead or (is_still_due() and _killed(pinned))
    except PermissionError:  # another user's process
        return False
    finally:
        os.close(pinned)


def _killed(pinned: int) -> bool:
    try:
        signal.pidfd_send_signal(pinned, signal.SIGKILL)
    except ProcessLookupError:
        return True
    # NB: the kernel releases a dead process's locks, LMDB's too, before the pidfd reports its death.
    dying = select.poll()
    dying.register(pinned, select.POLLIN)
    return bool(dying.poll(DEATH_S * MSECS_PER_SECOND))
