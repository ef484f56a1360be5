"""The JSON of values against that of pydantic, which knows the types by itself; and what is none against `Misfit`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from types import GenericAlias
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ConfigDict, TypeAdapter

from tests.support import groups
from tidemark.model import change, position, relation
from tidemark.model.lsn import Oid
from tidemark.model.mode import Stage
from tidemark.wire import state
from tidemark.wire.json_form import JsonForm, Misfit

SHAPES: list[type] = [
    *(
        shape
        for shape in vars(state).values()
        if isinstance(shape, type) and shape.__module__ == state.__name__ and is_dataclass(shape)
    ),
    Stage,
    position.Pointer,
    relation.EnumLabel,
    change.TransactionEnd,
]
CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
EXAMPLES = 25  # a type, of which there are two dozen
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(int, st.integers(0, 1 << 64))
st.register_type_strategy(Mapping, lambda of: st.dictionaries(*map(st.from_type, get_args(of)), max_size=3))
st.register_type_strategy(float, st.integers(1, 1 << 20).map(lambda number: number / 4))


def one(shape: type) -> object:
    """NB: pydantic takes a root's configuration only from a type that is no dataclass itself."""
    return GenericAlias(tuple, (shape,))


def oracle(shape: type) -> "TypeAdapter[tuple[object]]":
    return TypeAdapter(one(shape), config=CONFIG)  # type: ignore[arg-type]  # a type that is made here


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_values_have_the_json_that_pydantic_gives_them_and_come_back(shape: type) -> None:
    adapter = oracle(shape)
    form: JsonForm[tuple[object]] = JsonForm(one(shape))

    @settings(max_examples=EXAMPLES)
    @given(st.from_type(shape))
    def both_ways(value: object) -> None:
        written = form.write((value,))
        assert written == adapter.dump_json((value,))
        assert form.read(written) == adapter.validate_json(written) == (value,)

    both_ways()


def test_a_relation_is_read_from_what_pydantic_wrote() -> None:
    """So did states begin that are there: but for the hash, which is of one process."""
    version = groups.relation(missing=b"\xff\x00\x80>?")
    form: JsonForm[tuple[relation.Relation]] = JsonForm(tuple[relation.Relation])
    stored = oracle(relation.Relation).dump_json((version,), exclude={0: {"_hash"}})
    assert form.write((version,)) == stored
    assert form.read(stored) == (version,)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if is_dataclass(shape)], ids=lambda shape: shape.__name__)
def test_a_field_of_another_kind_is_a_misfit_that_names_it(shape: type) -> None:
    form: JsonForm[object] = JsonForm(shape)

    @settings(max_examples=EXAMPLES)
    @given(st.from_type(shape), st.data())
    def spoilt(value: object, data: st.DataObject) -> None:
        tree = json.loads(form.write(value))
        name = data.draw(st.sampled_from(sorted(tree)))
        with pytest.raises(Misfit, match=rf"^{shape.__name__}\.{name}"):
            form.read(json.dumps({**tree, name: [[]]}).encode())

    spoilt()


@dataclass(frozen=True, slots=True)
class Later:
    """What another version may have made of a value."""

    number: int
    names: Mapping[Oid, str]
    text: str = ""


def test_what_a_later_version_has_more_is_passed_over_and_what_an_earlier_one_lacks_has_its_default() -> None:
    form: JsonForm[Later] = JsonForm(Later)
    assert form.read(b'{"number":1,"names":{"5":"a"},"more":[1]}') == Later(1, {Oid(5): "a"})
    with pytest.raises(Misfit, match="Later without names, number"):
        form.read(b'{"text":"a"}')


@pytest.mark.parametrize("number", [b"true", b"1.0", b'"1"', b"null", b"NaN", b"[1]"])
def test_a_number_is_one(number: bytes) -> None:
    form: JsonForm[Later] = JsonForm(Later)
    with pytest.raises(Misfit, match=r"Later\.number: no int"):
        form.read(b'{"names":{},"number":' + number + b"}")


def test_a_pointer_that_cannot_be_is_a_misfit() -> None:
    form: JsonForm[position.Pointer] = JsonForm(position.Pointer)
    told = form.write(groups.group(100, []).last)
    with pytest.raises(Misfit, match="cannot be"):
        form.read(told.replace(b'"restart_lsn":', b'"restart_lsn":-'))


@given(st.binary(max_size=30))
def test_garbage_is_a_misfit(payload: bytes) -> None:
    with pytest.raises(Misfit):
        JsonForm[position.Pointer](position.Pointer).read(payload)


def test_what_nests_too_deep_is_a_misfit() -> None:
    with pytest.raises(Misfit, match="no JSON"):
        JsonForm[Later](Later).read(b"[" * 100_000)
