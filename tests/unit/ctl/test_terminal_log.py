"""The log of a command: on standard error, in the form of its other messages."""

import pytest
from tidemark_ctl.terminal_log import TerminalLog

from tidemark.io.host.logs import describe_error
from tidemark.model.errors import ExitCode, StateError
from tidemark.model.lsn import Lsn


def test_warnings_and_errors_are_printed_with_their_fields_and_hint(capsys: pytest.CaptureFixture[str]) -> None:
    log = TerminalLog()
    log.warning("the ring is full", read_lsn=Lsn(0x16B3748), exit_code=int(ExitCode.GAP))
    log.error("the guard on writers ended", role="guard", **describe_error(StateError("no space", hint="free some")))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "cdcctl: the ring is full: read_lsn=0/16B3748 exit_code=4",
        "cdcctl: the guard on writers ended: no space: role=guard",
        "  hint: free some",
    ]


def test_normal_operation_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    TerminalLog().info("mode switched", before="realtime", after="held")
    assert capsys.readouterr().err == ""
