"""How a daemon's log reports its end."""

import errno
import io
import json

import pytest

from tidemark.io.host.logs import configure_logs, get_log
from tidemark.io.process.ending import report_ending
from tidemark.model.errors import ExitCode, InternalError, WalGap
from tidemark.wire.envelope import DamagedValue, unseal

VALUE = "a row's value"


def fail(error: Exception) -> None:
    raise error


def fail_by_a_cause() -> None:
    try:
        unseal("mode", b"", 1)
    except DamagedValue as damaged:
        raise ValueError(VALUE) from damaged


@pytest.mark.feature("I40")
@pytest.mark.parametrize(
    ("error", "code", "reported"),
    [
        (WalGap("gone", hint="restore it"), ExitCode.GAP, "gone"),
        (PermissionError(errno.EACCES, "Permission denied", "/some/file"), ExitCode.UNEXPECTED, "/some/file"),
        (InternalError("would move back"), ExitCode.INTERNAL, "would move back"),
        (ValueError(VALUE), ExitCode.INTERNAL, "internal error"),
    ],
)
def test_each_kind_of_error_ends_a_daemon_with_a_separate_code(error: Exception, code: ExitCode, reported: str) -> None:
    assert code in (ExitCode.GAP, ExitCode.UNEXPECTED, ExitCode.INTERNAL)
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    try:
        with pytest.raises(type(error)) as caught:
            fail(error)
        assert report_ending(get_log("sidecar"), "sidecar ends", caught.value) == code
    finally:
        configure_logs("json", "info")
    event = json.loads(stream.getvalue())
    assert (event["event"], event["exit_code"]) == ("sidecar ends", code)
    assert reported in event["error"]
    assert event["hint"]
    assert ("test_ending.py" in str(event.get("passed"))) == (code is not ExitCode.GAP)
    assert VALUE not in stream.getvalue()


def test_a_report_contains_the_paths_of_modules_and_the_cause() -> None:
    stream = io.StringIO()
    configure_logs("json", "info", stream)
    try:
        with pytest.raises(ValueError, match=VALUE) as caught:
            fail_by_a_cause()
        report_ending(get_log("sidecar"), "sidecar ends", caught.value)
    finally:
        configure_logs("json", "info")
    passed = json.loads(stream.getvalue())["passed"]
    behind = passed.index("caused by DamagedValue")
    assert passed[behind - 1].startswith("tests/unit/config/test_ending.py:")
    assert passed[-1].startswith("tidemark/wire/envelope.py:")
    assert VALUE not in stream.getvalue()
