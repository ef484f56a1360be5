"""What systemd is told, and what it asks for: sd_notify(3) and sd_watchdog_enabled(3), without its library.

A process that nobody listens to says nothing. Telling never waits and never fails: whoever tells is alive, and systemd
sees to those that do not.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"
_US_PER_S = 1_000_000
_SHARE_OF_WATCHDOG = 0.5  # as sd_watchdog_enabled(3) has it: one word may be late


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Tell the service manager, if it listens."""
    path = environment.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    # A socket that is full or gone is systemd's trouble: a capture goes on without it.
    with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as channel:
        channel.sendto(state.encode(), address)


def watchdog_interval_s(environment: Mapping[str, str] = os.environ) -> float | None:
    """Return how often ALIVE has to be said by this process; None where nobody waits for it."""
    timeout_us = environment.get("WATCHDOG_USEC", "")
    asked_pid = environment.get("WATCHDOG_PID", str(os.getpid()))
    if not timeout_us.isdecimal() or int(timeout_us) == 0 or asked_pid != str(os.getpid()):
        return None
    return int(timeout_us) / _US_PER_S * _SHARE_OF_WATCHDOG
