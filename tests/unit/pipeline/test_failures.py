"""Tidemark's errors are restored from Spark's error texts."""

from tidemark.io.readers.outbox import OutboxTrimmed
from tidemark.model.errors import ExitCode, InvalidLsn
from tidemark.pipeline.failures import first_reason, named_failure

FAILURE = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR]
Traceback (most recent call last):
  File "/x/runner.py", line 1, in main
    offsets = reader.latestOffset(start, limit)
tidemark.io.readers.outbox.OutboxTrimmed: outbox 0a0b contains 5 to 9; values after 2 were requested
SQLSTATE: 38000
"""


def test_an_error_of_tidemark_is_found_with_its_exit_code_and_hint() -> None:
    found = named_failure(FAILURE)
    assert isinstance(found, OutboxTrimmed)
    assert str(found) == "outbox 0a0b contains 5 to 9; values after 2 were requested"
    assert found.exit_code is ExitCode.STATE
    assert found.hint == OutboxTrimmed.hint


def test_an_error_whose_class_has_another_constructor_is_created_from_its_text() -> None:
    found = named_failure("tidemark.model.errors.InvalidLsn: not an LSN: 'x'")
    assert isinstance(found, InvalidLsn)
    assert str(found) == "not an LSN: 'x'"


def test_a_foreign_error_has_no_name() -> None:
    assert named_failure("java.lang.OutOfMemoryError: heap\ntidemark.no.Such: thing") is None


def test_one_line_of_a_foreign_error_is_reported() -> None:
    java = (
        "An error occurred while calling o58.start.\n: java.io.IOException: no space\n\tat org.apache.Thing(Thing.java)"
    )
    assert first_reason(java) == "java.io.IOException: no space"
    assert first_reason("\nno table version\nfound") == "no table version"
    assert first_reason("") == "no reason given"
