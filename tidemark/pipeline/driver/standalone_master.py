"""Reports a standalone master that does not answer: Spark itself waits without a message.

The pipeline waits for it: a cluster may be started after the pipeline. It needs no executors: without
them the driver writes all files (`executor_writers`).
"""

import re
import socket
import threading
import time
from collections.abc import Sequence

from tidemark.io.host.logs import Log
from tidemark.io.host.systemd import ALIVE, READY, notify
from tidemark.model.errors import ConsumerFailed

CONNECT_S = 2.0  # of one address of the master
MASTER_EVERY_S = 2.0
AGAIN_S = 60.0  # between two reports
_STANDALONE = re.compile(r"spark://(.+)")
_ADDRESS = re.compile(r"([^:\[\]]+|\[[^\]]+\]):(\d+)")


class MasterUnreachable(ConsumerFailed):
    """No connection to a standalone master."""

    hint = "check --master, and that the master runs and listens there"


def wait_for_master(master: str, stop: threading.Event, log: Log, *, once: bool) -> bool:
    """Wait until a standalone master answers; return False if `stop` is set first. With `once` raise immediately."""
    addresses = _addresses(master)
    reported_s = float("-inf")
    while addresses and not stop.is_set():
        if any(map(_answers, addresses)):
            return True
        failure = MasterUnreachable(f"Spark's master does not answer at {master}")
        if once:
            raise failure
        if time.monotonic() - reported_s >= AGAIN_S:
            reported_s = time.monotonic()
            log.warning("spark master does not answer", master=master, hint=failure.hint)
        notify(READY)
        notify(ALIVE)
        stop.wait(MASTER_EVERY_S)
    return not stop.is_set()


def _addresses(master: str) -> Sequence[tuple[str, int]]:
    """Return the hosts and ports of a standalone master; empty for other masters and for URLs that Spark rejects."""
    standalone = _STANDALONE.fullmatch(master)
    parts = standalone[1].split(",") if standalone is not None else []
    found = [address for part in parts if (address := _ADDRESS.fullmatch(part)) is not None]
    return [(address[1].strip("[]"), int(address[2])) for address in found]


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, CONNECT_S).close()
    except OSError:
        return False
    return True
