"""Segment switches while the archiver delivers: at most one every `archive.switch_s`, while WAL has moved (I31)."""

from concurrent.futures import Future
from dataclasses import dataclass

from tidemark.engine.marking import WalMark
from tidemark.runtime.daemon.node_requests import NodeRequests


@dataclass(slots=True)
class ForcedSwitches:
    """Sends a request to the node when it is time, and reads the answer later."""

    node_requests: NodeRequests
    every_s: float
    _wal: WalMark | None = None
    _request: Future[WalMark] | None = None
    _not_before_s: float = 0.0

    def step(self, now_s: float) -> None:
        """Read the answer; send another request if it is time."""
        if self._request is not None and self._request.done():
            if self._request.exception() is None:
                self._wal = self._request.result()
            self._request = None
        if self._request is None and now_s >= self._not_before_s:
            self._not_before_s = now_s + self.every_s
            self._request = self.node_requests.switch_if_moved(self._wal)
