"""Notifications to systemd: sd_notify(3), without its library.

Without a listener nothing is sent. Sending never waits and never fails: a process that sends is alive, and systemd acts
on those that do not send.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"
MORE_TIME = "EXTEND_TIMEOUT_USEC="  # followed by the duration, for a slow start


def notify(state: str, environment: Mapping[str, str] = os.environ) -> None:
    """Send `state` to the service manager, if it listens."""
    path = environment.get("NOTIFY_SOCKET", "")
    if path[:1] not in ("/", "@"):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    # If the socket is full or gone, the capture continues without it.
    with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as channel:
        channel.sendto(state.encode(), address)
