"""The JSON of values compared with their fields in Python; invalid JSON is a `JsonMismatch`."""

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.forged import groups
from tidemark.model import change, position, relation
from tidemark.model.lsn import Oid
from tidemark.model.mode import Stage
from tidemark.wire.json_form import JsonForm, JsonMismatch
from tidemark.wire.state import (
    copy_progress,
    event_logs,
    history_index,
    outbox_ledger,
    plugin_log,
    process_log,
    readers,
    values,
)

STATE_VALUES = (copy_progress, event_logs, history_index, outbox_ledger, plugin_log, process_log, readers, values)
SHAPES: list[type] = [
    *(
        shape
        for module in STATE_VALUES
        for shape in vars(module).values()
        if isinstance(shape, type) and shape.__module__ == module.__name__ and is_dataclass(shape)
    ),
    Stage,
    position.Pointer,
    relation.EnumLabel,
    change.TransactionEnd,
]
EXAMPLES = 25  # a type, of which there are two dozen
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(int, st.integers(0, (1 << 64) - 1))
st.register_type_strategy(Mapping, lambda of: st.dictionaries(*map(st.from_type, get_args(of)), max_size=3))
st.register_type_strategy(float, st.integers(1, 1 << 20).map(lambda number: number / 4))


def tree_of(value: object) -> object:
    """Return the standard library's JSON of a value."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, tuple):
        return [tree_of(item) for item in value]
    if isinstance(value, Mapping):
        return {str(tree_of(key)): tree_of(item) for key, item in value.items()}
    if is_dataclass(value):
        return {field.name: tree_of(getattr(value, field.name)) for field in fields(value) if field.init}
    return value


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_values_are_json_of_their_fields_and_are_read_back(shape: type) -> None:
    form: JsonForm[object] = JsonForm(shape)

    @settings(max_examples=EXAMPLES)
    @given(st.from_type(shape))
    def both_ways(value: object) -> None:
        written = form.write(value)
        assert json.loads(written) == tree_of(value)
        assert form.read(written) == value

    both_ways()


def test_a_relation_is_read_back_without_the_fields_of_one_process() -> None:
    version = groups.relation(missing=b"\xff\x00\x80>?")
    form: JsonForm[tuple[relation.Relation]] = JsonForm(tuple[relation.Relation])
    written = form.write((version,))
    assert json.loads(written) == tree_of((version,))
    assert form.read(written) == (version,)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if is_dataclass(shape)], ids=lambda shape: shape.__name__)
def test_a_field_of_another_kind_is_a_misfit_that_names_it(shape: type) -> None:
    form: JsonForm[object] = JsonForm(shape)

    @settings(max_examples=EXAMPLES)
    @given(st.from_type(shape), st.data())
    def spoilt(value: object, data: st.DataObject) -> None:
        tree = json.loads(form.write(value))
        name = data.draw(st.sampled_from(sorted(tree)))
        with pytest.raises(JsonMismatch, match=rf"at `\$\.{name}\b"):
            form.read(json.dumps({**tree, name: [[]]}).encode())

    spoilt()


@dataclass(frozen=True, slots=True)
class Later:
    """A value as another version may define it."""

    number: int
    names: Mapping[Oid, str]
    text: str = ""


def test_fields_of_a_later_version_are_ignored_and_fields_that_an_earlier_one_lacks_have_defaults() -> None:
    form: JsonForm[Later] = JsonForm(Later)
    assert form.read(b'{"number":1,"names":{"5":"a"},"more":[1]}') == Later(1, {Oid(5): "a"})
    with pytest.raises(JsonMismatch, match="missing required field `number`"):
        form.read(b'{"text":"a"}')


@pytest.mark.parametrize("number", [b"true", b"1.5", b'"1"', b"null", b"[1]"])
def test_a_number_is_one(number: bytes) -> None:
    form: JsonForm[Later] = JsonForm(Later)
    with pytest.raises(JsonMismatch, match=r"Expected `int`, got `\w+` - at `\$\.number`"):
        form.read(b'{"names":{},"number":' + number + b"}")


def test_a_name_that_is_no_utf8_is_shown_with_a_mark() -> None:
    form: JsonForm[Later] = JsonForm(Later)
    assert form.read(form.write(Later(1, {Oid(5): "a\udcff"}))) == Later(1, {Oid(5): "a\ufffd"})


def test_a_pointer_that_cannot_be_is_a_misfit() -> None:
    form: JsonForm[position.Pointer] = JsonForm(position.Pointer)
    reported = form.write(groups.group(100, []).last)
    with pytest.raises(JsonMismatch, match="an invalid value"):
        form.read(reported.replace(b'"restart_lsn":', b'"restart_lsn":-'))


@given(st.binary(max_size=30))
def test_garbage_is_a_misfit(payload: bytes) -> None:
    with pytest.raises(JsonMismatch):
        JsonForm[position.Pointer](position.Pointer).read(payload)


def test_a_value_that_nests_too_deep_is_a_misfit() -> None:
    with pytest.raises(JsonMismatch):
        JsonForm[Later](Later).read(b"[" * 100_000)
    with pytest.raises(JsonMismatch):
        JsonForm[Later](Later).read(b'{"more":' + b"[" * 100_000)
