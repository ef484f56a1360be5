"""Values, headers, chunks and keys of the outbox."""

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forged import groups
from tidemark.model.errors import ConfigError
from tidemark.model.lsn import Oid, SystemIdentifier
from tidemark.model.position import Partition, Sequence
from tidemark.model.relation import Relation
from tidemark.wire.envelope import DamagedValue, NewerValue, seal, unseal
from tidemark.wire.keys import Scope, parse_slot, slot
from tidemark.wire.outbox import OutboxValue, encode_group, join
from tidemark.wire.relations import SchemaVersion
from tidemark.wire.values import CHUNK_BYTES, HEADER_BYTES, chunks, decode_header

SCOPE = Scope("main", Partition(SystemIdentifier(7_000_000_000_000_000_001)))


def one_version(_database: Oid, _relation: Relation) -> SchemaVersion:
    return SchemaVersion(3)


def stored_group(after: int = 10) -> list[tuple[Sequence, list[bytes]]]:
    group = groups.group(100, [groups.schema_event(100, groups.relation()), groups.batch(100, [1, 2])])
    numbered = encode_group(group).numbered(Sequence(after), one_version)
    return [(header.sequence, [bytes(chunk) for chunk in chunks(header, payload)]) for header, payload in numbered]


def test_a_group_is_numbered_after_the_head_and_every_value_has_its_ends() -> None:
    headers = [join(sequence, stored).header for sequence, stored in stored_group(after=10)]
    assert [header.sequence for header in headers] == [11, 12, 13]
    assert {(header.group_first, header.group_last) for header in headers} == {(11, 13)}
    assert [header.ends_group for header in headers] == [False, False, True]
    assert {header.pointer for header in headers} == {groups.group(100, []).last}
    assert headers[1].first == groups.position(100, 1)
    assert headers[1].last == groups.position(100, 2)
    assert headers[1].schema_version == 3


@pytest.mark.parametrize("length", [0, 1, CHUNK_BYTES - HEADER_BYTES, CHUNK_BYTES - HEADER_BYTES + 1, 3 * CHUNK_BYTES])
def test_a_payload_of_any_length_is_cut_at_one_megabyte_and_joined(length: int) -> None:
    group = groups.group(100, [groups.message(100, b"m" * length)])
    header, payload = next(iter(encode_group(group).numbered(Sequence(0), one_version)))
    stored = [bytes(chunk) for chunk in chunks(header, payload)]
    assert all(len(chunk) <= CHUNK_BYTES for chunk in stored)
    assert len(stored) == header.chunk_count
    value = join(Sequence(1), stored)
    assert isinstance(value, OutboxValue)
    assert value.item() == groups.message(100, b"m" * length)


@given(st.data())
def test_one_changed_bit_anywhere_is_detected(data: st.DataObject) -> None:
    sequence, stored = stored_group()[1]
    whole = bytearray(stored[0])
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((DamagedValue, NewerValue)):
        join(sequence, [bytes(whole)])


def test_every_truncation_of_a_value_is_detected() -> None:
    sequence, stored = stored_group()[0]
    for length in range(len(stored[0])):
        with pytest.raises(DamagedValue):
            join(sequence, [stored[0][:length]])


def test_a_value_under_a_wrong_sequence_is_detected() -> None:
    _, stored = stored_group()[0]
    with pytest.raises(DamagedValue, match="its header has the sequence 11"):
        decode_header(stored[0], Sequence(99))


def test_an_unknown_kind_is_named_even_if_the_checksum_is_right() -> None:
    sequence, stored = stored_group()[0]
    packed = bytearray(stored[0][: HEADER_BYTES - 4])
    packed[1] = 99
    with pytest.raises(DamagedValue, match="kind 99 is unknown"):
        decode_header(bytes(packed) + google_crc32c.value(bytes(packed)).to_bytes(4, "big"), sequence)


sequences = st.tuples(st.integers(0, 2**64 - 1).map(Sequence), st.integers(0, 2**16 - 1))


@given(sequences, sequences)
def test_keys_sort_as_their_numbers(left: tuple[Sequence, int], right: tuple[Sequence, int]) -> None:
    assert (slot(SCOPE, *left) < slot(SCOPE, *right)) == (left < right)
    assert parse_slot(SCOPE, slot(SCOPE, *left)) == left


@given(st.text(min_size=1, max_size=15), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=9))
def test_a_scope_is_read_from_any_key(name: str, system: int, database: int, rest: bytes) -> None:
    scope = Scope(name, Partition(SystemIdentifier(system), Oid(database)))
    assert Scope.parse(scope.prefix + rest) == (scope, rest)


def test_a_key_of_another_scope_is_no_slot() -> None:
    other = Scope("mainz", SCOPE.partition)
    assert parse_slot(SCOPE, slot(other, Sequence(1), 0)) is None


@pytest.mark.parametrize("name", ["", "x" * 64])
def test_a_capture_name_is_bounded(name: str) -> None:
    with pytest.raises(ConfigError):
        Scope(name, SCOPE.partition)


@given(st.binary(max_size=40), st.data())
def test_a_value_with_a_checksum_is_read_only_unchanged(payload: bytes, data: st.DataObject) -> None:
    sealed = bytearray(seal(payload, 1))
    assert unseal("key", bytes(sealed), 1) == payload
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedValue, match="key"):
        unseal("key", bytes(sealed), 1)


def test_a_value_of_a_newer_program_is_refused_by_name() -> None:
    with pytest.raises(NewerValue, match="mode has format 2"):
        unseal("mode", seal(b"{}", 2), 1)
