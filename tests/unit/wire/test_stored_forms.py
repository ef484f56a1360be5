"""Values of the state in a form that this version does not read."""

from dataclasses import replace

import pytest

from tidemark.model.errors import InternalError
from tidemark.model.position import Sequence
from tidemark.wire.envelope import DamagedValue, seal
from tidemark.wire.outbox_requests import REQUEST, OutboxRequest
from tidemark.wire.state.key import FORMAT_VERSION
from tidemark.wire.state.readers import Reader, ReaderKind
from tidemark.wire.state.state_keys import READER


def test_a_value_of_another_version_is_not_reported_as_damage_by_a_disk() -> None:
    stored = seal(b'{"place": 1, "replayable": 1, "confirmed_at_us": 0}', FORMAT_VERSION)
    with pytest.raises(DamagedValue, match=r"reader: not of the form .*`applied`") as other_version:
        READER.decode(stored)
    assert "another version" in other_version.value.hint
    with pytest.raises(DamagedValue, match="checksum mismatch") as damaged:
        READER.decode(stored[:-1] + b" ")
    assert "a disk" in damaged.value.hint


def test_a_reader_that_an_earlier_version_stored_is_read() -> None:
    stored = seal(b'{"held":7,"replayable":3,"confirmed_at_us":5}', FORMAT_VERSION)
    read = READER.decode(stored)
    assert read == Reader(Sequence(7), Sequence(3), 5)
    assert (read.kind, read.run) == (ReaderKind.UNSTATED, 0)
    assert b'"applied":8' in READER.encode_over(stored, replace(read, applied=Sequence(8)))
    with pytest.raises(InternalError, match="reader would move back"):
        READER.encode_over(stored, replace(read, applied=Sequence(6)))


def test_a_reader_or_request_with_fields_of_a_later_version_is_read() -> None:
    reader = Reader(Sequence(7), Sequence(3), 5, kind=ReaderKind.QUERY, run=9)
    assert READER.decode(READER.encode(reader)) == reader
    later = b'{"applied":7,"replayable":3,"confirmed_at_us":5,"kind":"query","run":9,"of_later":1}'
    assert READER.decode(seal(later, FORMAT_VERSION)) == reader
    assert REQUEST.read(b'{"reader":"r","of_later":1}') == OutboxRequest(reader="r")


@pytest.mark.parametrize("payload", [b"[]", b"{", b'{"held":"7","replayable":3,"confirmed_at_us":5}'])
def test_a_value_that_no_version_stored_is_refused(payload: bytes) -> None:
    with pytest.raises(DamagedValue, match="reader: not of the form"):
        READER.decode(seal(payload, FORMAT_VERSION))
