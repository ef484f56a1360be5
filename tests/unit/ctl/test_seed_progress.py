"""The output of `tail` and `init` while they read WAL since the last checkpoint."""

from io import StringIO

import pytest
from tidemark_ctl.output import seed_progress
from tidemark_ctl.output.seed_progress import ADVICE, LOG_S, QUIET_S, SeedProgress

from tidemark.io.node.node_errors import WalRemoved
from tidemark.model.lsn import Lsn

MB = 1 << 20
START = Lsn(0x3000028)
TOTAL_MB = 1600


class Screen(StringIO):
    """A stream that is a terminal, or not."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class ShownReading:
    """A progress reporter that observes a replay, a second at a time by the test's clock."""

    def __init__(
        self, *, is_terminal: bool, reading: seed_progress.ReadingProgress = seed_progress.SINCE_CHECKPOINT
    ) -> None:
        self.screen = Screen(is_terminal=is_terminal)
        self.now_s = 100.0
        self.progress = SeedProgress(self.screen, lambda: self.now_s, reading)

    def second(self, read_mb: int) -> None:
        self.progress.replaying(START, Lsn(START + read_mb * MB), Lsn(START + TOTAL_MB * MB))
        self.now_s += 1.0

    @property
    def lines(self) -> list[str]:
        return self.screen.getvalue().splitlines()


def test_a_long_replay_is_reported_in_bytes_with_a_hint_for_the_operator() -> None:
    reading = ShownReading(is_terminal=False)
    for second in range(16):
        reading.second(second * 100)
    assert reading.lines == [
        ADVICE,
        "reading WAL since the last checkpoint: 200 of 1600 MB, 100 MB/s, 14 s left",
        "reading WAL since the last checkpoint: 700 of 1600 MB, 100 MB/s, 9 s left",
        "reading WAL since the last checkpoint: 1200 of 1600 MB, 100 MB/s, 4 s left",
    ]
    assert "CHECKPOINT" in ADVICE
    assert (QUIET_S, LOG_S) == (2.0, 5.0)


@pytest.mark.parametrize("what", [seed_progress.OF_BACKUP, seed_progress.BEFORE_FROM])
def test_a_long_replay_of_other_wal_is_reported_as_such(what: seed_progress.ReadingProgress) -> None:
    reading = ShownReading(is_terminal=False, reading=what)
    for second in range(4):
        reading.second(second * 100)
    assert reading.lines == [what.advice, f"reading {what.what}: 200 of 1600 MB, 100 MB/s, 14 s left"]
    assert "interrupt the command" in what.advice


def test_a_replay_that_is_quick_is_not_reported() -> None:
    reading = ShownReading(is_terminal=False)
    for read_mb in (0, 800, TOTAL_MB):
        reading.second(read_mb)
    assert reading.lines == []


def test_a_terminal_shows_one_updated_line_and_none_at_the_end() -> None:
    reading = ShownReading(is_terminal=True)
    for second in range(17):
        reading.second(second * 100)
    shown = reading.screen.getvalue()
    assert shown.count("\n") == 1  # after the advice
    assert shown.count("\rreading") == 14
    assert shown.endswith("\r\033[K")


def test_other_lines_do_not_follow_the_line_that_is_updated_in_place(capsys: pytest.CaptureFixture[str]) -> None:
    reading = ShownReading(is_terminal=True)
    for second in range(4):
        reading.second(second * 100)
    reading.progress.repeating(WalRemoved("node: requested WAL segment X has already been removed"), 2, 20)
    assert reading.screen.getvalue().endswith("\r\033[K")
    reported = "attempt 2 of 20 to read the catalogs failed, retrying: node: requested WAL segment X has"
    assert capsys.readouterr().err.startswith(reported)
