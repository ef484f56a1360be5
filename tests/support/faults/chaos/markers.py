"""The order of writes: first LMDB, then the marker. The content of every marker in WAL must be durable in the state."""

import json
import re
from collections.abc import Callable

from tests.support.oracles.log_oracle import ServerLog
from tidemark.io.state.state_views import StateView
from tidemark.model.message_prefix import MARKER_PREFIX
from tidemark.model.mode import Stage
from tidemark.wire.marker import MarkerKind

_CONTENT = re.compile(rf"message: transactional: 1 prefix: {MARKER_PREFIX}, sz: \d+ content:(\{{.*\}}) [0-9a-f]{{64}}")


class Markers:
    """The markers in WAL, compared with the state."""

    def __init__(self, server: ServerLog, look: Callable[[], StateView]) -> None:
        """`look` reads the state, which may be replaced later."""
        self._server = server
        self._look = look
        self._seen = 0
        self.count = 0

    def forget(self) -> None:
        """Ignore all markers so far: the state that they follow is lost."""
        self._server.advance()
        self._seen = len(self._server.messages)

    def check(self) -> None:
        """Check that the state contains the content of every marker (I12)."""
        self._server.advance()
        view = self._look()
        new, self._seen = self._server.messages[self._seen :], len(self._server.messages)
        for line in new:
            found = _CONTENT.fullmatch(line)
            if found is None:
                continue
            self.count += 1
            reported: dict[str, str] = json.loads(found.group(1))
            kind, number = MarkerKind(reported["kind"]), int(reported["epoch"].partition(".")[2])
            assert view.term is not None, reported
            assert number <= view.term.epoch.number, f"a marker of a later epoch than {view.term}: {reported}"
            if kind is MarkerKind.TRY_START:
                attempt = view.hand_over.attempt
                assert int(reported["sequence"]) <= attempt, f"the state knows of attempt {attempt}, WAL of {reported}"
            if kind is MarkerKind.STOP:
                is_stopped = view.stage is not Stage.REALTIME or number < view.term.epoch.number
                assert is_stopped, f"the state knows of no stop in {view.term}, WAL does: {reported}"
