"""Markers: written markers are read; other messages are ignored with a reason, whatever their bytes are."""

import hmac
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.model.incarnation import Incarnation
from tidemark.model.lsn import Lsn, SystemIdentifier, TimelineId
from tidemark.model.position import Epoch, Pointer, Position, Sequence
from tidemark.wire.marker import (
    CONTENT_BYTES_MAX,
    KEY_BYTES_MIN,
    REASON_CHARACTERS_MAX,
    Ignored,
    Instance,
    Marker,
    MarkerKind,
    read_marker,
    write_marker,
)

KEY = b"k" * 16
INSTANCE = Instance(SystemIdentifier(7_123_456_789_012_345_678), "main")
NUMBERS = st.integers(0, (1 << 64) - 1)
POINTERS = st.builds(
    Pointer,
    st.builds(Position, st.integers(1, (1 << 32) - 1).map(TimelineId), NUMBERS.map(Lsn), st.integers(0, 1 << 63)),
    NUMBERS.map(Lsn),
)
MARKERS = st.builds(
    Marker,
    st.sampled_from(MarkerKind),
    st.just(INSTANCE),
    st.builds(Epoch, st.integers(1, (1 << 32) - 1).map(TimelineId), NUMBERS),
    NUMBERS.map(Sequence),
    st.none() | POINTERS,
    st.text(max_size=REASON_CHARACTERS_MAX),
    st.none() | st.binary(min_size=8, max_size=8).map(lambda drawn: Incarnation(drawn.hex())),
)


@given(marker=MARKERS)
def test_a_marker_is_read_as_it_was_written_within_its_bound(marker: Marker) -> None:
    content = write_marker(marker, KEY)
    assert len(content) <= CONTENT_BYTES_MAX
    assert read_marker(content, INSTANCE, KEY) == marker


@pytest.mark.feature("I10")
@given(marker=MARKERS, key=st.binary(min_size=16, max_size=40).filter(lambda key: key != KEY))
def test_a_marker_with_another_key_is_refused(marker: Marker, key: bytes) -> None:
    assert read_marker(write_marker(marker, key), INSTANCE, KEY) is Ignored.FORGED


@pytest.mark.feature("I10")
@given(marker=MARKERS, where=st.integers(0, 10_000), byte=st.integers(1, 255))
def test_a_marker_with_a_changed_byte_is_refused(marker: Marker, where: int, byte: int) -> None:
    content = bytearray(write_marker(marker, KEY))
    content[where % len(content)] ^= byte
    assert isinstance(read_marker(bytes(content), INSTANCE, KEY), Ignored)


@given(marker=MARKERS)
def test_markers_of_another_capture_or_cluster_are_foreign(marker: Marker) -> None:
    content = write_marker(marker, KEY)
    for other in (Instance(INSTANCE.system_identifier, "other"), Instance(SystemIdentifier(1), "main")):
        assert read_marker(content, other, KEY) is Ignored.FOREIGN


@given(content=st.binary(max_size=200) | st.text().map(str.encode))
def test_arbitrary_bytes_are_no_marker(content: bytes) -> None:
    assert read_marker(content, INSTANCE, KEY) is Ignored.MALFORMED


def test_no_marker_is_written_with_a_key_that_could_be_guessed() -> None:
    marker = Marker(MarkerKind.STOP, INSTANCE, Epoch(TimelineId(1), 1), Sequence(1), None)
    assert write_marker(marker, KEY[:KEY_BYTES_MIN])
    with pytest.raises(AssertionError):
        write_marker(marker, KEY[: KEY_BYTES_MIN - 1])


def test_a_signed_marker_with_two_separators_or_too_many_bytes_is_refused() -> None:
    marker = Marker(MarkerKind.STOP, INSTANCE, Epoch(TimelineId(1), 1), Sequence(1), None)
    content = write_marker(marker, KEY)
    assert read_marker(content[:-65] + b"\n" + content[-64:], INSTANCE, KEY) is Ignored.MALFORMED
    for more, expected in ((0, marker), (1, Ignored.MALFORMED)):
        line = content[:-65].ljust(CONTENT_BYTES_MAX - 65 + more)  # JSON may be followed by blanks
        padded = line + b" " + hmac.new(KEY, line, "sha256").hexdigest().encode()
        assert len(padded) == CONTENT_BYTES_MAX + more
        assert read_marker(padded, INSTANCE, KEY) == expected


@given(marker=MARKERS)
def test_a_marker_of_version_1_is_read_and_has_no_incarnation(marker: Marker) -> None:
    fields = json.loads(write_marker(marker, KEY)[:-65])
    del fields["incarnation"]
    line = json.dumps({**fields, "tidemark": 1}).encode()
    content = line + b" " + hmac.new(KEY, line, "sha256").hexdigest().encode()
    assert read_marker(content, INSTANCE, KEY) == replace(marker, incarnation=None)


def test_an_incarnation_is_text_and_may_be_absent() -> None:
    marker = Marker(MarkerKind.STOP, INSTANCE, Epoch(TimelineId(1), 1), Sequence(1), None)
    content = write_marker(marker, KEY)
    assert json.loads(content[:-65])["incarnation"] == ""
    assert read_marker(content, INSTANCE, KEY) == marker
    for wrong in (5, True, ["a"], False):
        line = json.dumps({**json.loads(content[:-65]), "incarnation": wrong}).encode()
        signed = line + b" " + hmac.new(KEY, line, "sha256").hexdigest().encode()
        assert read_marker(signed, INSTANCE, KEY) is Ignored.MALFORMED


def test_a_newer_version_and_wrong_shapes_are_distinguished() -> None:
    good = write_marker(Marker(MarkerKind.STOP, INSTANCE, Epoch(TimelineId(1), 1), Sequence(1), None), KEY)
    fields = json.loads(good[:-65])
    assert read_marker(json.dumps({**fields, "tidemark": 3}).encode() + good[-65:], INSTANCE, KEY) is Ignored.NEWER
    for line in (b"[]", b"3", b"{}", b'{"tidemark":1}', b'{"tidemark":1,"cluster":"x"}', b"[" * 1900):
        assert read_marker(line + good[-65:], INSTANCE, KEY) is Ignored.MALFORMED
    assert read_marker(good + b"x" * CONTENT_BYTES_MAX, INSTANCE, KEY) is Ignored.MALFORMED
